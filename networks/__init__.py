"""Feature networks: tensors in, tensors out; they know nothing of energies, data or schemes."""
