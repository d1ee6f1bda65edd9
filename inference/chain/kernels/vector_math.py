"""Small functions of the compiled chain, written so that LLVM turns their loops into vector instructions."""

import math
from typing import Any, no_type_check

import numpy as np
from numba import njit, types
from numba.extending import overload


@no_type_check
def exponential(x: float) -> float:
    """exp(x) for x <= 0, in the type of x."""
    return math.exp(x)


@overload(exponential, inline="always")
@no_type_check
def _exponential(x):  # noqa: ANN001, ANN202
    """In float32 a polynomial that vectorises, within 1.2e-7 of exp; x below -87 counts as -87, NaN stays."""
    if x != types.float32:
        return lambda x: math.exp(x)

    @no_type_check
    def polynomial(x):  # noqa: ANN001, ANN202
        y = np.float32(-87) if x < np.float32(-87) else x
        power = np.int32(y * np.float32(1.44269504) - np.float32(0.5))
        f = y - np.float32(power) * np.float32(0.693359375)
        f = f + np.float32(power) * np.float32(2.12194440e-4)
        p = np.float32(1.9875691500e-4) * f + np.float32(1.3981999507e-3)
        p = p * f + np.float32(8.3334519073e-3)
        p = p * f + np.float32(4.1665795894e-2)
        p = p * f + np.float32(1.6666665459e-1)
        p = p * f + np.float32(5.0000001201e-1)
        p = p * f * f + f + np.float32(1)
        return p * np.int32((power + np.int32(127)) << np.int32(23)).view(np.float32)

    return polynomial


@njit(cache=True, fastmath={"nnan", "nsz", "reassoc"})
@no_type_check
def largest(x: np.ndarray[Any, Any]) -> float:
    """The maximum; any number where there is NaN, which shows in what is computed next."""
    best = x[0]
    for j in range(len(x)):
        best = max(best, x[j])
    return best
