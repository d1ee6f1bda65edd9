"""Checks of weights, rates and temperatures. Each message begins with the argument's name.

The command line replaces the name by its option.
"""

import math


def not_negative(**values: int | float) -> None:
    """Check that arguments are finite and 0 or more: `not_negative(weight=weight)`.

    Raises:
        ValueError: one is not; the message names the first.
    """
    for name, value in values.items():
        if not 0 <= value < math.inf:
            raise ValueError(f"{name} is {value}: take a finite number, 0 or more.")


def above_zero(**values: int | float) -> None:
    """Check that arguments are finite and above 0.

    Raises:
        ValueError: one is not; the message names the first.
    """
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{name} is {value}: take a finite number above 0.")


def below_one(**values: int | float) -> None:
    """Check that arguments are 0 or more and below 1.

    Raises:
        ValueError: one is not; the message names the first.
    """
    for name, value in values.items():
        if not 0 <= value < 1:
            raise ValueError(f"{name} is {value}: take a number from 0 up to, not including, 1.")
