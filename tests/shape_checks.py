"""The type checker that jaxtyping's import hook puts on every function of the science; see conftest.

Each test checks its first calls, up to `MOST`: a test that trains makes the same calls over and over.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from beartype import beartype
from beartype.roar import BeartypeDecorHintException
from jaxtyping import config

MOST = 2000
Function = TypeVar("Function", bound=Callable)
calls = 0


def begin() -> None:
    """Check the calls of a new test."""
    global calls
    calls = 0
    config.update("jaxtyping_disable", False)


def checked(function: Function) -> Function:
    """The function with its annotations checked at each call; as it is where they cannot be.

    Those are a method that returns Self (the hook decorates methods one by one, and only a decorated class
    could tell what Self is) and an argument that is a Protocol without a check at run time.
    """
    try:
        checks: Any = beartype(function)
    except BeartypeDecorHintException:
        return function

    @wraps(checks)
    def counted(*arguments: object, **named: object) -> object:
        global calls
        calls += 1
        if calls == MOST:
            config.update("jaxtyping_disable", True)
        return checks(*arguments, **named)

    return counted  # type: ignore[return-value]
