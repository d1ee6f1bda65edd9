"""Which run goes first: what others need, then whole seeds of the table, then what is quick."""

from collections.abc import Iterable, Mapping
from typing import Protocol, TypeVar


class Ordered(Protocol):
    """The attributes that ordering uses."""

    @property
    def id(self) -> str: ...

    @property
    def needs(self) -> Mapping[str, str]: ...

    @property
    def rank(self) -> tuple[int, ...]: ...


R = TypeVar("R", bound=Ordered)


def in_order(runs: Iterable[R], seconds: Mapping[str, float]) -> list[R]:
    """Runs so that each comes after those it needs.

    `rank` begins with the position of the seed, so that one seed of the whole table finishes early. `seconds`
    are estimates from earlier runs; runs without one keep the order of the table.
    """
    known = {run.id: run for run in runs}
    depth: dict[str, int] = {}

    def depth_of(run: R) -> int:
        if run.id not in depth:
            depth[run.id] = 1 + max((depth_of(known[n]) for n in run.needs.values() if n in known), default=0)
        return depth[run.id]

    def key(run: R) -> tuple[int, int, float, tuple[int, ...]]:
        return run.rank[0], depth_of(run), seconds.get(run.id, 0.0), run.rank

    placed: dict[str, R] = {}

    def place(run: R) -> None:
        for needed in run.needs.values():
            if needed in known:
                place(known[needed])
        placed.setdefault(run.id, run)

    for run in sorted(known.values(), key=key):
        place(run)
    return list(placed.values())
