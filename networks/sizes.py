"""Checks of sizes: against a lower bound, and against the data. Each message begins with the argument's name.

The command line replaces the name by its option.
"""

from collections.abc import Sequence

from torch import Tensor


def at_least(least: int, **values: int) -> None:
    """Check that arguments reach a bound: `at_least(1, width=width)`.

    Raises:
        ValueError: one is smaller; the message names the first.
    """
    for name, value in values.items():
        if value < least:
            raise ValueError(f"{name} is {value}: take {least} or more.")


def match_answers(y: Tensor, **sizes: int) -> None:
    """Check sizes against the last dimensions of the answers y in the data.

    Raises:
        ValueError: one differs; the message names the first.
    """
    for (name, size), found in zip(sizes.items(), y.shape[-len(sizes) :], strict=True):
        if size != found:
            raise ValueError(f"{name} is {size}, and answers in the data have {found}: set it to {found}.")


def match_names(y: Tensor, tags: Sequence[str]) -> None:
    """Check that there are as many names as the answers y (..., S) in the data have tags.

    Raises:
        ValueError: the numbers differ.
    """
    if len(tags) != y.shape[-1]:
        raise ValueError(
            f"tags has {len(tags)} names, and answers in the data have {y.shape[-1]} tags: name each."
        )
