"""A paper's conclusions from its table, as inequalities between rows: "static > ce", "nce >= ce + 3"."""

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from experiments.errors import suggest
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

    @property
    def ours(self) -> bool:
        """Whether the sentence begins with "not in the paper"."""
        return self.says.startswith("not in the paper")


def read_claim(tree: dict[str, Any], rows: Iterable[str], columns: Iterable[str]) -> Claim:
    """Check that this is an inequality between rows that exist."""
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
    parts_of(body)
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


@dataclass(frozen=True)
class Difference:
    """A sum of rows and a constant that a claim says is above 0."""

    rows: tuple[tuple[str, float], ...] = ()
    constant: float = 0.0

    def plus(self, other: "Difference") -> "Difference":
        """The sum of two."""
        total = dict(self.rows)
        for row, factor in other.rows:
            total[row] = total.get(row, 0.0) + factor
        return Difference(tuple((r, f) for r, f in total.items() if f), self.constant + other.constant)

    def times(self, factor: float) -> "Difference":
        """A multiple."""
        return Difference(tuple((row, factor * f) for row, f in self.rows), factor * self.constant)

    @property
    def unsigned(self) -> tuple[object, ...]:
        """What it shares with its negative, in whatever order its rows are."""
        rows = sorted(self.rows)
        sign = -1.0 if rows and rows[0][1] < 0 else 1.0
        return sign * self.constant, *((row, round(sign * factor, 12)) for row, factor in rows)

    def __str__(self) -> str:
        """Its rows, such as `dynamic_nce - 1.5 ce`."""
        terms = [
            f"{'-' if f < 0 else '+'} {'' if abs(f) == 1 else f'{abs(f):g} '}{row}"
            for row, f in sorted(self.rows, key=lambda term: term[1] < 0)
        ]
        return " ".join(terms).removeprefix("+ ")


@dataclass(frozen=True)
class Parts:
    """All of these have to be above 0, or any of them."""

    which: Literal["all", "any"]
    of: "tuple[Difference | Parts, ...]"


Tree = Difference | Parts


def leaves(tree: Tree) -> list[Difference]:
    """The differences in a tree."""
    return [tree] if isinstance(tree, Difference) else [leaf for part in tree.of for leaf in leaves(part)]


def differences(claim: Claim) -> Tree:
    """A claim as differences that it says are above 0: `a > max(b, c)` is a - b and a - c."""
    return parts_of(ast.parse(claim.holds, mode="eval").body)


def parts_of(node: ast.expr) -> Tree:
    """The differences of a comparison; the sum of an expression, or the least or largest of several."""
    match node:
        case ast.Compare(left=left, ops=ops, comparators=rest):
            sides = [left, *rest]
            above = [
                (a, b) if isinstance(op, ast.Gt | ast.GtE) else (b, a)
                for op, a, b in zip(ops, sides, sides[1:], strict=False)
            ]
            every = tuple(_sum(parts_of(a), _times(parts_of(b), -1.0)) for a, b in above)
            return every[0] if len(every) == 1 else Parts("all", every)
        case ast.Name(id=name):
            return Difference(((name, 1.0),))
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            one, other = parts_of(left), parts_of(right)
            if isinstance(one, Difference) and not one.rows:
                return _times(other, one.constant)
            if isinstance(other, Difference) and not other.rows:
                return _times(one, other.constant)
            raise ClaimError(f"`{ast.unparse(node)}` multiplies rows; a factor has to be a number.")
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _times(parts_of(operand), -1.0)
        case ast.BinOp(left=left, op=op, right=right):
            return _sum(parts_of(left), _times(parts_of(right), -1.0 if isinstance(op, ast.Sub) else 1.0))
        case ast.Call(func=ast.Name(id=name), args=args):
            return Parts("all" if name == "min" else "any", tuple(map(parts_of, args)))
    return Difference(constant=value(node, {}))


def _sum(a: Tree, b: Tree) -> Tree:
    if isinstance(a, Parts):
        return Parts(a.which, tuple(_sum(part, b) for part in a.of))
    if isinstance(b, Parts):
        return Parts(b.which, tuple(_sum(a, part) for part in b.of))
    return a.plus(b)


def _times(tree: Tree, factor: float) -> Tree:
    if isinstance(tree, Difference):
        return tree.times(factor)
    which = tree.which if factor > 0 else "any" if tree.which == "all" else "all"
    return Parts(which, tuple(_times(part, factor) for part in tree.of))


_ARITHMETIC = {ast.Add: float.__add__, ast.Sub: float.__sub__, ast.Mult: float.__mul__}
_COMPARE = {ast.Gt: float.__gt__, ast.GtE: float.__ge__, ast.Lt: float.__lt__, ast.LtE: float.__le__}
