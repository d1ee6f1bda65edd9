"""Every file of conf/scheme as runs of a second: what lies around it, small sizes, no randomness."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import yaml
from jsonargparse import Namespace
from pytorch_lightning import LightningModule
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.cli import LightningArgumentParser
from torch import Tensor, nn

from committed import ROOT, committed
from energies import sets
from experiments.plan.cli import Args, TrainCLI

SCHEMES = Path("conf/scheme")
DDP = Path("conf/trainer/ddp.yaml")
QUICK = ["--trainer.max_epochs=1", "--trainer.limit_train_batches=3", "--trainer.limit_val_batches=1"]
WANTS = {"seal_static": "energy", "spen_mlc": "guesser", "nce_mlc": "guesser"}
OWN = "class_path: lightning_modules."  # in a file that names its scheme, and so lies under all others
UNDER = {  # what a layer is laid over, the first pattern that fits; each is a run
    "implicit/cross_entropy": ["cross_entropy_mlc"],
    "implicit/*": ["implicit/label_sets", "implicit/tags"],
    "infnet/label_sets/*": ["infnet_mlc"],
    "released/dynamic_margin": ["seal_dynamic_margin_mlc"],
    "released/partly_pretrained": ["seal_static_nce_mlc"],
    "released/spen": ["spen_mlc"],
    "scaling/sgd": ["crf_joint"],
    "scaling/sgd_stage": ["crf_stage"],
    "scaling/*": ["crf_scaled"],
}
UNFINISHED = ["implicit/label_sets", "implicit/tags"]  # no scheme without a layer over it
SETTINGS = {
    "EarlyStopping": {"patience": 0, "min_delta": 1.0},
    "ReduceLROnPlateau": {"patience": 0},
    "Adam": {"eps": 1.0},
    "AdamW": {"eps": 1.0},
}
SIZES = {
    "dropout": 0.3,
    "batch_size": 4,
    "eval_batch_size": 32,
    "num_rows": 300,
    "num_patterns": 4,
    "width": 6,
    "steps": 4,
    "outer_steps": 2,
    "subset": 20,
    "refresh": 2,
    "warm_up": 1,
}


def configs(*files: str | Path) -> list[str]:
    """The options that layer these files."""
    return [part for file in files for part in ("--config", str(file))]


def train_checkpoints(folder: Path) -> dict[str, str]:
    """Real checkpoints of a cross-entropy run and an energy run on generated data, by what they are for."""
    found = {}
    for part, scheme in {"guesser": "cross_entropy_mlc", "energy": "dvn_mlc"}.items():
        over = configs("conf/data/generated.yaml", SCHEMES / f"{scheme}.yaml")
        cli = TrainCLI([*over, *QUICK], run_dir=str(folder / part))
        cli.trainer.fit(cli.model, cli.datamodule)
        found[part] = str(folder / part / "checkpoints" / "best.ckpt")
    return found


def needs(scheme: Path, checkpoints: dict[str, str]) -> list[str]:
    """The option of a scheme that starts from a finished run."""
    part = next((part for name, part in WANTS.items() if scheme.stem.startswith(name)), None)
    return [f"--model.{part}.init_args.checkpoint={checkpoints[part]}"] if part else []


def runs() -> dict[str, list[str]]:
    """The config files of each run, by its name; each file of conf/scheme is in at least one."""
    found = {}
    for file in committed(f"{SCHEMES}/**/*.yaml"):
        name = str(file.relative_to(SCHEMES).with_suffix(""))
        if OWN not in (ROOT / file).read_text():
            under = next((below for pattern, below in UNDER.items() if fnmatch(name, pattern)), None)
            assert under, f"{file} names no scheme: say in UNDER what it is laid over"
            found |= {f"{name} over {below}": around([below, name]) for below in under}
        elif name not in UNFINISHED:
            found[name] = around([name])
    return found


def around(schemes: list[str]) -> list[str]:
    """Schemes between the data that suit them and the task's file."""
    files = [f"{SCHEMES}/{name}.yaml" for name in schemes]
    text = (ROOT / files[0]).read_text()
    if "energies.spaces.LabelSets" in text:
        return ["conf/data/generated.yaml", *files]
    data, task = ("twitter_pos", "pos") if "${net}" in text else ("ocr", "ocr")
    return [f"conf/data/{data}.yaml", *files, f"conf/task/{task}.yaml"]


class SmallCLI(TrainCLI):
    """Builds a run as scripts.train does, from a config with other sizes, wherever they stand.

    Two epochs of two steps for each phase, which validation ends: nothing rises by 1. Adam divides by 1 and
    more, for as it is it forgets the scale of gradients.
    """

    def parse_arguments(self, parser: LightningArgumentParser, args: Args) -> None:
        """Change what was parsed."""
        super().parse_arguments(parser, args)
        shrink(self.config)
        model, trainer = self.config.model.init_args, self.config.trainer
        trainer.max_epochs = 2 * len(model.get("phases", ["one"]))
        trainer.limit_train_batches, trainer.limit_val_batches, trainer.accelerator = 2, 1, "cpu"

    def _add_instantiators(self) -> None:
        """Leave the config's text out of checkpoints: to write it takes longer than to train."""

    def fit(
        self, model: LightningModule, folder: Path, *, two: bool = False, draws: bool = False
    ) -> dict[str, Any]:
        """Train in one process, or in one of two with half the batch each; what training ends with.

        Without draws this is done in float64, so that nothing but rounding tells two ways from one another.
        """
        layer = yaml.safe_load(DDP.read_text())["trainer"] | {"devices": 2} if two else {}
        callbacks = deepcopy(self.config_init.trainer.callbacks)
        for callback in callbacks:
            if isinstance(callback, ModelCheckpoint):
                callback.dirpath = str(folder)
        self.config["run_dir"] = str(folder)
        self.trainer = self.instantiate_trainer(
            callbacks=callbacks, precision="32-true" if draws else "64-true", **layer
        )
        self.datamodule.batch_size = SIZES["batch_size"] * (1 if two else 2)
        before = [p.detach().clone() for p in model.parameters()]
        with nullcontext() if draws else no_draws(model):
            self.trainer.fit(model, self.datamodule)
        logged = {k: float(v) for k, v in self.trainer.callback_metrics.items() if "second" not in k}
        return {
            "weights": model.state_dict(),
            "logged": logged,
            "curves": model.curves,
            "steps": model.steps,
            "moved": any(not torch.equal(old, p) for old, p in zip(before, model.parameters(), strict=True)),
        }


def shrink(tree: object) -> None:
    """Change each size in a config."""
    if isinstance(tree, list):
        for item in tree:
            shrink(item)
    branch = vars(tree) if isinstance(tree, Namespace) else tree if isinstance(tree, dict) else {}
    for key, value in branch.items():
        if key in SIZES and value is not None:
            branch[key] = SIZES[key]
        else:
            shrink(value)
    name = str(branch.get("class_path")).rpartition(".")[2]
    for key, value in SETTINGS.get(name, {}).items():
        branch["init_args"][key] = value


@contextmanager
def no_draws(model: LightningModule) -> Iterator[None]:
    """No dropout, and the k-th of K draws is the same for every example, in any batch."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0

    def quantile(shape: Sequence[int]) -> Tensor:
        k = (torch.arange(shape[0], dtype=torch.get_default_dtype()) + 0.5) / shape[0]
        return k.view(-1, *[1] * (len(shape) - 1)).expand(tuple(shape))

    def rand(*shape: int, **kind: Any) -> Tensor:
        return quantile(shape).to(**kind)

    drawn = torch.randn

    def randn(*shape: Any, **kind: Any) -> Tensor:
        one_for_all = "generator" in kind
        return drawn(*shape, **kind) if one_for_all else torch.special.ndtri(rand(*shape, **kind))

    def multinomial(p: Tensor, num_samples: int, replacement: bool = False) -> Tensor:
        at = quantile((num_samples,)).to(p.dtype) * p.sum(-1, keepdim=True)
        return torch.searchsorted(p.cumsum(-1), at.contiguous()).clamp_max(p.shape[-1] - 1)

    def draw(logits: Tensor, num_samples: int) -> Tensor:
        return rand(num_samples, *logits.shape) < logits.detach().sigmoid()

    with (
        patch.object(torch, "rand", rand),
        patch.object(torch, "randn", randn),
        patch.object(torch.Tensor, "multinomial", multinomial),
        patch.object(torch.Tensor, "exponential_", lambda t: t.copy_(-quantile(t.shape).log())),
        patch.object(torch.Tensor, "uniform_", lambda t, a=0, b=1: t.copy_(a + (b - a) * quantile(t.shape))),
        patch.object(sets, "draw", draw),
    ):
        yield
