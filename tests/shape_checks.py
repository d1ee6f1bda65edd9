"""What jaxtyping's import hook puts on every function of the science; see conftest.

Each test checks the first calls of a function, up to `FIRST`: a test that trains makes the same calls over
and over, and to check them all takes a quarter of its time.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial, wraps
from inspect import isfunction
from types import CodeType
from typing import Any, TypeVar

import jaxtyping
from beartype import beartype
from beartype.roar import BeartypeDecorHintException

FIRST = 8
CHECKED = ("energies", "inference", "losses")
Function = TypeVar("Function", bound=Callable)
calls: Counter[CodeType] = Counter()


def install() -> None:
    """Decorate the functions of what is imported from now on."""
    decorate = jaxtyping.jaxtyped

    def sparing(*, typechecker: Any) -> Callable:  # noqa: ANN401
        return lambda function: _at_first(function, partial(decorate, typechecker=typechecker))

    jaxtyping.jaxtyped = sparing
    jaxtyping.install_import_hook(CHECKED, "shape_checks.checked")


def begin() -> None:
    """Check the calls of a new test, whatever the one before it has disabled."""
    calls.clear()
    jaxtyping.config.update("jaxtyping_disable", False)


def _at_first(function: Any, decorate: Callable) -> Any:  # noqa: ANN401
    if not isfunction(function):
        return decorate(function)
    code = function.__code__  # of all functions that one `def` within another function makes
    if calls[code] >= FIRST:
        return function
    checks = decorate(function)

    @wraps(function)
    def either(*arguments: object, **named: object) -> object:
        calls[code] += 1
        return (checks if calls[code] <= FIRST else function)(*arguments, **named)

    return either


def checked(function: Function) -> Function:
    """The function with its annotations checked; as it is where they cannot be.

    Those are a method that returns Self (the hook decorates methods one by one, and only a decorated class
    could tell what Self is) and an argument that is a Protocol without a check at run time.
    """
    try:
        return beartype(function)
    except BeartypeDecorHintException:
        return function
