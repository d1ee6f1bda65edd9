"""Fast recursions over chains: plain PyTorch, numba, Triton.

`problem` has their interface. `fallback.solve` runs one of them, and repeats the sequences that it flags as
unsafe in float64 or in log space.
"""
