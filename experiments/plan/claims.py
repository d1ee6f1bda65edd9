"""A paper's conclusions from its table, as inequalities between rows: "static > ce", "nce >= ce + 3"."""

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from experiments.fields import is_number


class ClaimError(ValueError):
    """A claim that cannot be read."""


@dataclass(frozen=True)
class Claim:
    """A sentence, its inequality in printed units, and the columns it is about.

    `across: mean` compares the means over those columns; otherwise each column is judged alone.
    """

    says: str
    holds: str
    on: tuple[str, ...]
    across: str = ""
    rows: tuple[str, ...] = ()


def read_claim(tree: dict[str, Any], rows: Iterable[str], columns: Iterable[str]) -> Claim:
    """Check that this is an inequality between rows that exist."""
    from experiments.errors import suggest

    text = tree["holds"]
    try:
        body = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise ClaimError(
            f"`{text}` cannot be read. Write it like `static > ce` or `nce >= ce + 3`."
        ) from None
    if not isinstance(body, ast.Compare):
        raise ClaimError(f"`{text}` compares nothing. Write it like `static > ce`.")
    calls = {n.func for n in ast.walk(body) if isinstance(n, ast.Call)}
    names = list(dict.fromkeys(n.id for n in ast.walk(body) if isinstance(n, ast.Name) and n not in calls))
    for name in names:
        if name not in rows:
            raise ClaimError(f"`{text}` speaks of a row {name!r}. {suggest(name, rows)}")
    value(body, dict.fromkeys(names, 0.0))
    on = tuple(tree.get("on") or columns)
    return Claim(str(tree.get("says", text)), text, on, tree.get("across", ""), tuple(names))


def holds(claim: Claim, numbers: Mapping[str, float]) -> bool:
    """Whether the inequality is true of these numbers."""
    return bool(value(ast.parse(claim.holds, mode="eval").body, numbers))


def value(node: ast.expr, numbers: Mapping[str, float]) -> float:
    """Evaluate the few allowed forms; anything else raises an error."""
    match node:
        case ast.Constant(value=int() | float() as number) if is_number(number):
            return float(number)
        case ast.Name(id=name):
            return float(numbers[name])
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -value(operand, numbers)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            return _ARITHMETIC[type(op)](value(left, numbers), value(right, numbers))
        case ast.Call(func=ast.Name(id="min" | "max" as name), args=args, keywords=[]) if args:
            return (min if name == "min" else max)(value(a, numbers) for a in args)
        case ast.Compare(left=left, ops=ops, comparators=rest) if all(type(o) in _COMPARE for o in ops):
            sides = [value(n, numbers) for n in (left, *rest)]
            return float(all(_COMPARE[type(o)](a, b) for o, a, b in zip(ops, sides, sides[1:], strict=False)))
    raise ClaimError(
        f"`{ast.unparse(node)}` is not allowed: only rows, numbers, + - *, min, max and comparisons."
    )


_ARITHMETIC = {ast.Add: float.__add__, ast.Sub: float.__sub__, ast.Mult: float.__mul__}
_COMPARE = {ast.Gt: float.__gt__, ast.GtE: float.__ge__, ast.Lt: float.__lt__, ast.LtE: float.__le__}
