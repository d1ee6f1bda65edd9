"""Errors for users: one message that says what, where, and what to do next."""

import difflib
from collections.abc import Iterable
from pathlib import Path

MOST = 16  # names in a message
LONGEST = 200  # characters of one


class UserError(ValueError):
    """Something the user can put right; scripts print it without a traceback."""


class TableError(UserError):
    """An invalid table file, or an invalid selection from it."""


class ConfigError(UserError):
    """An invalid config file or option."""


class ClusterError(UserError):
    """An invalid cluster file, or a SLURM that is not there or refuses."""
