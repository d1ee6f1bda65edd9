"""Errors for people: one message that says what, where, and what to do next."""

import difflib
from collections.abc import Iterable
from pathlib import Path

MOST = 16  # names in a message
LONGEST = 200  # characters of one


class UserError(ValueError):
    """Something the user can put right; scripts print it without a traceback."""


class TableError(UserError):
    """A table file, or a selection from it, that makes no sense."""


class ConfigError(UserError):
    """A config file or option that builds nothing."""


class StoreError(UserError):
    """Records or run folders that cannot be read or written."""


class CannotGoOn(UserError):
    """A run's own checkpoint that it cannot read, or not restore."""

    def __init__(self, path: Path, why: object) -> None:
        said = f"{type(why).__name__}: {why}" if isinstance(why, Exception) else str(why)
        self.path = path
        super().__init__(
            f"{path} is no checkpoint that this run can go on from ({' '.join(said.split())[:LONGEST]}). "
            "Remove it, and the run goes on from what is left; or choose another --run_dir."
        )


class Stopped(Exception):
    """Ctrl-C; says which folder to go on in."""


def short(text: str) -> str:
    """What somebody wrote, cut to what fits into a message."""
    return f"{text[:LONGEST]}..." if len(text) > LONGEST else text


def suggest(word: str, options: Iterable[str]) -> str:
    """The options that look like `word`, or else all of them, as the end of a message."""
    options = list(dict.fromkeys(options))
    matches = difflib.get_close_matches(word, options, n=3, cutoff=0.5)
    if matches:
        return f"Did you mean {' or '.join(map(short, matches))}?"
    if not options:
        return "There are none."
    more = f" and {len(options) - MOST} more" if len(options) > MOST else ""
    return f"There are: {', '.join(map(short, options[:MOST]))}{more}."
