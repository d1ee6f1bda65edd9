"""A run that an agent of W&B starts: its options in the agent's form, and its logger.

`wandb agent` sets the ids of the sweep and of the run in the environment, and writes the values of a trial as
Python does: `--flag=True`, `--sizes=[1, 2]`, `--limit=None`, `--model={'init_args': {'dim': 8}}`.
"""

import ast
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LOGGER = Path("conf/logger/wandb.yaml")


def trial() -> str:
    """The id of the W&B run that an agent started this process for; empty elsewhere."""
    return os.environ.get("WANDB_RUN_ID", "") if os.environ.get("WANDB_SWEEP_ID") else ""


def own_form(arguments: list[str]) -> list[str]:
    """An agent's arguments as this project writes them, above the layer of the W&B logger."""
    if not trial():
        return arguments
    return ["--config", str(LOGGER), *(option for word in arguments for option in _options(word))]


def _options(word: str) -> Iterator[str]:
    key, equals, text = word.partition("=")
    try:
        value = ast.literal_eval(text) if word.startswith("--") and equals else text
    except (ValueError, SyntaxError):
        value = text
    if isinstance(value, dict) and value:
        for name, below in _leaves(value):
            yield f"{key}.{name}={below if isinstance(below, str) else json.dumps(below)}"
    elif value is None or isinstance(value, bool | list):
        yield f"{key}={json.dumps(value)}"
    else:
        yield word


def _leaves(tree: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """The values below nested parameters, by dotted name."""
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value
