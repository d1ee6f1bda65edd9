"""Pure functions of tensors, and objectives that say what to feed them; nothing of ours is imported."""
