"""Fast recursions over chains, one file a technique, and the ladder that keeps them safe.

`problem` says what they are asked and what they answer; `ladder.solve` asks, and asks again in a wider float
type or in log space for the sequences that a recursion could not do safely.
"""
