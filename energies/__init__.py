"""Energies: a number for an input and an answer, low when they fit; and the kinds of answer there are."""
