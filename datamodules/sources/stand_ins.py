"""Substitutes for word vectors that a paper used and that are not available.

Shapes: W words that both sets have, D numbers of a vector.
"""

import numpy as np

from datamodules.readers.vocabulary import Vectors


def gap_filled(vectors: Vectors, others: Vectors) -> Vectors:
    """The vectors; words that only `others` has get a linear map of their vector there.

    The map is the one of least squares over the W words that both have, in float64:
    M = argmin sum_w |a_w M - b_w|^2, with a the others and b the vectors.
    """
    both = sorted(vectors.keys() & others.keys())
    image, *_ = np.linalg.lstsq(_stacked(others, both), _stacked(vectors, both), rcond=None)
    gap = sorted(others.keys() - vectors.keys())
    if not gap:
        return vectors
    filled = (_stacked(others, gap) @ image).astype(np.float32)
    return vectors | dict(zip(gap, filled, strict=True))


def side_by_side(left: Vectors, right: Vectors, sizes: tuple[int, int]) -> Vectors:
    """Each word's two vectors concatenated; 0 where one set lacks the word. `sizes`: D of each set."""
    nothing = [np.zeros(size, np.float32) for size in sizes]
    return {
        word: np.concatenate([left.get(word, nothing[0]), right.get(word, nothing[1])])
        for word in left.keys() | right.keys()
    }


def _stacked(vectors: Vectors, words: list[str]) -> np.ndarray:
    return np.stack([vectors[word] for word in words]).astype(np.float64)
