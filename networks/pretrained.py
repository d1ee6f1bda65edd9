"""Networks taken over from a finished run."""

import importlib
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

OURS = ("networks.", "energies.")
FOLDER = 0x10  # of a zip's entry
ADVICE = (
    "train the run it comes from first, as `make reproduce` does by itself, and give the path of its "
    "checkpoints/best.ckpt."
)


class CheckpointUnusable(ValueError):
    """A checkpoint is not there, or does not hold the part that was asked for."""


def load_part(checkpoint: str, part: str) -> nn.Module:
    """Rebuild one part (say `task_net` or `energy`) of the scheme that wrote `checkpoint`, with its weights.

    The layout comes from the hyperparameters in the checkpoint, so nobody has to repeat it. Only classes of
    this project are built, and the file is read with `weights_only=True`.

    Raises:
        CheckpointUnusable: the file is missing or damaged, or holds no such part.
    """
    if not checkpoint:
        raise CheckpointUnusable(f"checkpoint is left out, wanted for its {part}: {ADVICE}")
    path = Path(checkpoint)
    if not path.is_file():
        raise CheckpointUnusable(f"checkpoint is {checkpoint}, where no file is: {ADVICE}")
    content = read_checkpoint(path)
    try:
        spec = content.get("hyper_parameters", {}).get(part)
        if not isinstance(spec, dict) or "class_path" not in spec:
            raise CheckpointUnusable(f"{path} holds no part '{part}': it was written by another scheme.")
        module = build(spec)
        prefix = part + "."
        state = content["state_dict"].items()
        module.load_state_dict({k.removeprefix(prefix): v for k, v in state if k.startswith(prefix)})
    except CheckpointUnusable:
        raise
    except Exception as error:  # foreign content leads anywhere
        raise CheckpointUnusable(
            f"checkpoint is {path}, whose {part} cannot be built ({_said(error)}): {ADVICE}"
        ) from error
    return module


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The content of a checkpoint whose bytes are those that were written, which torch does not check.

    An entry that is marked as a folder has its checksum and is another number to torch.

    Raises:
        CheckpointUnusable: it is damaged, or no checkpoint.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            if archive.testzip() or any(entry.external_attr & FOLDER for entry in archive.infolist()):
                raise zipfile.BadZipFile("its bytes are not those that were written")
        content = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(content, dict):
            raise TypeError(f"it holds a {type(content).__name__}")
        return content
    except Exception as error:  # damaged bytes lead anywhere
        raise CheckpointUnusable(
            f"checkpoint is {path}, which is damaged or none ({_said(error)}): {ADVICE}"
        ) from error


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]


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
