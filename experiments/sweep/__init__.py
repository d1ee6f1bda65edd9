"""Sweeps: one W&B sweep file, run here or by a W&B server."""
