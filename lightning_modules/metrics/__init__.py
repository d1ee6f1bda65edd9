"""Torchmetrics classes: how answers are scored."""
