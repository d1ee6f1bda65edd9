"""Networks taken over from a finished run."""

import importlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

OURS = ("networks.", "energies.")


class CheckpointUnusable(ValueError):
    """A checkpoint is not there, or does not hold the part that was asked for."""


def load_part(checkpoint: str, part: str) -> nn.Module:
    """Rebuild one part (say `task_net` or `energy`) of the scheme that wrote `checkpoint`, with its weights.

    The layout comes from the hyperparameters in the checkpoint, so nobody has to repeat it. Only classes of
    this project are built, and the file is read with `weights_only=True`.

    Raises:
        CheckpointUnusable: the file is missing, or holds no such part.
    """
    path = Path(checkpoint)
    if not path.is_file():
        raise CheckpointUnusable(
            f"no checkpoint at '{checkpoint}', wanted for its {part}. Train the run it comes from first: "
            "`make reproduce` does so in order; by hand, give the path of its checkpoints/best.ckpt."
        )
    content = torch.load(path, map_location="cpu", weights_only=True)
    spec = content.get("hyper_parameters", {}).get(part)
    if not isinstance(spec, dict) or "class_path" not in spec:
        raise CheckpointUnusable(f"{path} holds no part '{part}': it was written by another scheme.")
    module = build(spec)
    prefix = part + "."
    weights = {k.removeprefix(prefix): v for k, v in content["state_dict"].items() if k.startswith(prefix)}
    module.load_state_dict(weights)
    return module


def build(spec: dict[str, Any]) -> nn.Module:
    """Build the object that a `{class_path, init_args}` dictionary describes, inner ones first."""
    path: str = spec["class_path"]
    if not path.startswith(OURS):
        raise CheckpointUnusable(f"a checkpoint asks for the class {path}, which is not one of this project.")
    module, name = path.rsplit(".", 1)
    arguments = {
        key: build(value) if isinstance(value, dict) and "class_path" in value else value
        for key, value in spec.get("init_args", {}).items()
    }
    return getattr(importlib.import_module(module), name)(**arguments)


class PretrainedNet(nn.Module):
    """The network `part` of a finished run, frozen; dropout follows the mode of the module around it.

    `checkpoint` is the path of the finished run's best checkpoint.
    """

    def __init__(self, checkpoint: str, part: str = "task_net") -> None:
        super().__init__()
        self.net = load_part(checkpoint, part).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)
