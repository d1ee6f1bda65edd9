"""Schemes: which part learns when. The third of the three dials."""
