"""Sizes that nothing can be built with, or that the data contradict: one sentence, the argument's name first.

The command line puts the option in place of the name.
"""

from collections.abc import Sequence

from torch import Tensor


def at_least(least: int, **values: int) -> None:
    """Refuse arguments below a bound: `at_least(1, width=width)`.

    Raises:
        ValueError: with the first that is.
    """
    for name, value in values.items():
        if value < least:
            raise ValueError(f"{name} is {value}: take {least} or more.")


def match_answers(y: Tensor, **sizes: int) -> None:
    """Refuse sizes that are not those of the last dimensions of the data's answers y.

    Raises:
        ValueError: with the first that is not.
    """
    for (name, size), found in zip(sizes.items(), y.shape[-len(sizes) :], strict=True):
        if size != found:
            raise ValueError(f"{name} is {size}, and answers in the data have {found}: set it to {found}.")


def match_names(y: Tensor, tags: Sequence[str]) -> None:
    """Refuse names that are not as many as the data's answers y (..., S) have tags.

    Raises:
        ValueError: with both numbers.
    """
    if len(tags) != y.shape[-1]:
        raise ValueError(
            f"tags has {len(tags)} names, and answers in the data have {y.shape[-1]} tags: name each."
        )
