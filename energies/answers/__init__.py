"""How answers are held: sparse label sets, relaxed answers of a chain."""
