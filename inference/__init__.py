"""Inference: where answers come from. The second of the three dials."""
