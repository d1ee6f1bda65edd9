"""The type checker that jaxtyping's import hook puts on every function of the science; see conftest."""

from collections.abc import Callable
from typing import TypeVar

from beartype import beartype
from beartype.roar import BeartypeDecorHintException

Function = TypeVar("Function", bound=Callable)


def checked(function: Function) -> Function:
    """The function with its annotations checked at each call; as it is where they cannot be.

    Those are a method that returns Self (the hook decorates methods one by one, and only a decorated class
    could tell what Self is) and an argument that is a Protocol without a check at run time.
    """
    try:
        return beartype(function)
    except BeartypeDecorHintException:
        return function
