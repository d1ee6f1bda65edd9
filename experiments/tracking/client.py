"""What the parts that talk to W&B share: its project, the ids of its runs, its errors."""

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from experiments import store
from experiments.errors import UserError

PROJECT = "structured-prediction"


def run_id(folder: Path) -> str:
    """The id of the W&B run of a folder, the same after a stop; W&B takes no other characters."""
    path = folder / "wandb" / "id"
    if not path.exists():
        store.write(path, f"{re.sub('[^A-Za-z0-9_.-]', '_', folder.name)[:80]}-{secrets.token_hex(4)}")
    return path.read_text()


@contextmanager
def explained() -> Iterator[None]:
    """Turn W&B's errors into one sentence.

    Raises:
        UserError: no login, no server, or the server refuses.
    """
    import wandb

    try:
        yield
    except wandb.Error as error:
        raise UserError(
            f"W&B: {said(error)}. Log in with `wandb login`, or log offline, as conf/logger/wandb.yaml does."
        ) from error


def said(error: Exception) -> str:
    """W&B's message in one line."""
    return " ".join(str(error).split()).rstrip(".")
