"""Finished runs: loaded, and asked for answers."""
