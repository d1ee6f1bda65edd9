"""Feature networks: from inputs to tensors, independent of energies, data and schemes."""
