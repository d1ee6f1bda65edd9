"""Errors for users: one message that says what, where, and what to do next."""

import difflib
from collections.abc import Iterable
from pathlib import Path

STOPPED = 130  # exit code after Ctrl-C
MOST = 16  # names in a message
LONGEST = 200  # characters of one


class UserError(ValueError):
    """Something the user can put right; scripts print it without a traceback."""


class TableError(UserError):
    """An invalid table file, or an invalid selection from it."""


class ConfigError(UserError):
    """An invalid config file or option."""


class SweepError(UserError):
    """An invalid sweep file, or a study of a sweep that cannot be read or written."""


class ClusterError(UserError):
    """An invalid cluster file, or a SLURM that is not there or refuses."""


class StoreError(UserError):
    """Records or run folders that cannot be read or written."""


class CannotResume(UserError):
    """A run's own checkpoint cannot be read or restored."""

    def __init__(self, path: Path, why: object) -> None:
        said = f"{type(why).__name__}: {why}" if isinstance(why, Exception) else str(why)
        self.path = path
        super().__init__(
            f"{path} is no checkpoint that this run can resume from ({' '.join(said.split())[:LONGEST]}). "
            "Remove it, and the run resumes from what is left; or choose another --run_dir."
        )


class Pruned(Exception):
    """A run that its sweep ended early: after how many epochs, and its best score. It can resume."""

    def __init__(self, epochs: int, score: float) -> None:
        self.epochs, self.score = epochs, score
        super().__init__(f"pruned after {epochs} epochs")


class Stopped(Exception):
    """Ctrl-C; names the folder to resume in."""


def short(text: str) -> str:
    """Text from a user, cut to fit into a message."""
    return f"{text[:LONGEST]}..." if len(text) > LONGEST else text


def suggest(word: str, options: Iterable[str]) -> str:
    """The end of a message: the options that resemble `word`, or else all of them."""
    options = list(dict.fromkeys(options))
    matches = difflib.get_close_matches(word, options, n=3, cutoff=0.5)
    if matches:
        return f"Did you mean {' or '.join(map(short, matches))}?"
    if not options:
        return "There are none."
    more = f" and {len(options) - MOST} more" if len(options) > MOST else ""
    return f"There are: {', '.join(map(short, options[:MOST]))}{more}."
