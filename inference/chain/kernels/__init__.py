"""Fast recursions over chains, one file a technique, and what keeps them safe.

`problem` has their interface; `fallback.solve` runs one, and again in a wider float type or in log space for
the sequences that it could not do safely.
"""
