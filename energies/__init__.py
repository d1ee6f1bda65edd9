"""Energies: a number for an input and an answer, low where they fit; and the spaces of answers."""
