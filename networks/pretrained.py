"""Networks loaded from a finished run."""

import importlib
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

OUR_PACKAGES = ("networks.", "energies.")
PLAIN = ("torch.nn.Linear",)  # what configs name of torch itself
FOLDER = 0x10  # attribute of a zip entry that is a folder
ADVICE = (
    "train the run it comes from first, as `make reproduce` does automatically, and give the path of its "
    "checkpoints/best.ckpt."
)


class CheckpointUnusable(ValueError):
    """A checkpoint does not exist, is damaged, or does not hold the requested part."""


def load_part(checkpoint: str, part: str) -> nn.Module:
    """Rebuild one part (say `task_net` or `energy`) of the scheme that wrote `checkpoint`, with its weights.

    Raises:
        CheckpointUnusable: the file is missing or damaged, or holds no such part.
    """
    return load_parts(checkpoint, part)[part]


def load_parts(checkpoint: str, part: str, *, if_there: tuple[str, ...] = ()) -> dict[str, nn.Module]:
    """The same by name, with those of the parts `if_there` that the scheme has.

    The architecture comes from the hyperparameters in the checkpoint. Only classes of this project and
    torch.nn.Linear are built, and the file is read with `weights_only=True`.

    Raises:
        CheckpointUnusable: the file is missing or damaged, or lacks `part`.
    """
    if not checkpoint:
        raise CheckpointUnusable(f"checkpoint is not given, and the part '{part}' comes from it: {ADVICE}")
    path = Path(checkpoint)
    if not path.is_file():
        raise CheckpointUnusable(f"checkpoint is {checkpoint}, which does not exist: {ADVICE}")
    content = read_checkpoint(path)
    has = content.get("hyper_parameters")
    more = [name for name in if_there if isinstance(has, dict) and name in has]
    return {name: _part_of(content, name, path) for name in (part, *more)}


def _part_of(content: dict[str, Any], part: str, path: Path) -> nn.Module:
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
    except Exception as error:  # content of another origin may fail in any way
        raise CheckpointUnusable(
            f"checkpoint is {path}, whose {part} cannot be built ({_one_line(error)}): {ADVICE}"
        ) from error
    return module


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The content of a checkpoint, after a check that its bytes are those that were written.

    torch makes no such check. An entry marked as a folder passes the checksum, but torch reads it wrongly.

    Raises:
        CheckpointUnusable: the file is damaged, or is no checkpoint.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            if archive.testzip() or any(entry.external_attr & FOLDER for entry in archive.infolist()):
                raise zipfile.BadZipFile("its bytes are not those that were written")
        content = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(content, dict):
            raise TypeError(f"it holds a {type(content).__name__}")
        return content
    except Exception as error:  # damaged bytes may fail in any way
        raise CheckpointUnusable(
            f"checkpoint is {path}, which is damaged or is no checkpoint ({_one_line(error)}): {ADVICE}"
        ) from error


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]


def build(spec: dict[str, Any]) -> nn.Module:
    """Build the object that a `{class_path, init_args}` dictionary describes, nested ones first."""
    path: str = spec["class_path"]
    if not path.startswith(OUR_PACKAGES) and path not in PLAIN:
        raise CheckpointUnusable(f"a checkpoint names the class {path}, which is not one of this project.")
    module, name = path.rsplit(".", 1)
    arguments = {
        key: build(value) if isinstance(value, dict) and "class_path" in value else value
        for key, value in spec.get("init_args", {}).items()
    }
    return getattr(importlib.import_module(module), name)(**arguments)


class PretrainedNet(nn.Module):
    """The network `part` of a finished run, frozen; dropout follows train or eval mode.

    `checkpoint` is the path of the finished run's best checkpoint.
    """

    def __init__(self, checkpoint: str, part: str = "task_net") -> None:
        super().__init__()
        self.net = load_part(checkpoint, part).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)
