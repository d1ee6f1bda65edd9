"""Pure functions of tensors, and the objectives that say what to feed them; nothing here imports a room of ours."""
