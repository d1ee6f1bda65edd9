"""Every scheme and objective of a table as runs of a second: small sizes, no randomness."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
import yaml
from jsonargparse import Namespace
from pytorch_lightning import LightningModule
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.cli import LightningArgumentParser
from torch import Tensor, nn

import role_parts
import text_parts
from committed import committed
from energies.answers import sets
from experiments.plan.layers import file_and_row, layered, rows_of
from experiments.plan.parser import Args
from experiments.plan.spec import read_table
from experiments.run.cli import TrainCLI
from experiments.run.epochs import InPlace

DDP = Path("conf/trainer/ddp.yaml")
QUICK = ["--trainer.max_epochs=1", "--trainer.limit_train_batches=3", "--trainer.limit_val_batches=1"]
QUICK += ["--data.batch_size=4", "--data.eval_batch_size=4"]
DATA = {  # by kind; else the row's own
    "label_sets": "generated",
    "chains": "ocr",
    "sentences": "twitter_pos",
    "texts": "own_text",
}
PARTS: dict[str, Any] = {"texts": text_parts, "roles": role_parts}  # modules: small parts of the data
DVN = ["scheme/energy_net", "objective/dvn"]
MET = ("energies.", "inference.", "lightning_modules.", "networks.", "torch.optim.")  # parts of a scheme
STILL = "finished"  # the scheme in which nothing moves
SETTINGS = {
    "EarlyStopping": {"patience": 0, "min_delta": 1.0},
    "ReduceLROnPlateau": {"patience": 0},
    "Adam": {"eps": 1.0},
    "AdamW": {"eps": 1.0},
    "UNet": {"widths": [4, 4, 8, 8]},
}
SIZES = {
    "dropout": 0.3,
    "batch_size": 4,
    "eval_batch_size": 8,
    "num_rows": 300,
    "num_patterns": 4,
    "width": 6,
    "steps": 4,
    "outer_steps": 2,
    "subset": 20,
    "refresh": 2,
    "warm_up": 1,
}
MOST = {"num_samples": 4, "inner_steps": 2}  # sizes that are cut, never raised


def configs(*files: str | Path) -> list[str]:
    """The options that layer these files."""
    return [part for file in files for part in ("--config", str(file))]


def train_checkpoints(folder: Path) -> dict[str, str]:
    """Real checkpoints of a cross-entropy run and an energy run on generated data, by what they are for.

    Those of energies of masks, of tags and of roles are saved before training: their data may not be here.
    """
    found = {}

    def save(arguments: list[str], name: str, *parts: str) -> None:
        cli, path = TrainCLI(arguments), str(folder / f"{name}.ckpt")
        cli.trainer.strategy.connect(cli.model)
        cli.trainer.save_checkpoint(path, weights_only=True)
        found.update({f"{part}, {name}": path for part in parts})

    own = {"masks": "weizmann_horses_32"} | {kind: DATA[kind] for kind in ("sentences", "chains")}
    for kind, data in own.items():
        save(configs(*(f"conf/{file}.yaml" for file in (f"data/{data}", *DVN))), kind, "energy")
    if not role_parts.missing():
        dials = ("data/srl", "scheme/seal_dynamic", "objective/nce")
        of_roles = [*configs(*(f"conf/{file}.yaml" for file in dials)), *role_parts.options()]
        save(of_roles, "roles", "guesser", "task_net", "energy")
    runs = {"guesser": ["scheme/cross_entropy"], "energy": DVN}
    for part, dials in runs.items():
        over = configs("conf/data/generated.yaml", *(f"conf/{dial}.yaml" for dial in dials))
        cli = TrainCLI([*over, *QUICK], run_dir=str(folder / part))
        cli.trainer.fit(cli.model, cli.datamodule)
        found[part] = str(folder / part / "checkpoints" / "best.ckpt")
    return found | {"task_net": found["guesser"]}


def needs(arguments: list[str], checkpoints: dict[str, str]) -> list[str]:
    """The option of a run that starts from a finished one."""
    given = layered(arguments)
    parts, kind = given.tree["model"]["init_args"], kind_in(given.files)
    return [
        f"--model.{part}.init_args.checkpoint={checkpoints.get(f'{part}, {kind}', path)}"
        for part, path in checkpoints.items()
        if (parts.get(part) or {}).get("init_args", {}).get("checkpoint") == ""
    ]


@cache
def runs() -> dict[str, list[str]]:
    """The options of a run for each scheme, objective and kind of answer of a table, by its name.

    And one for each setting of a row that names another energy or scaling. Texts and roles, small parts of
    their data, are left out where these or the encoder are not here: test_text.py and test_roles.py are
    skipped then and say why.
    """
    found: dict[str, list[str]] = {}
    for path in committed("conf/tables/*.yaml"):
        table = read_table(str(path))
        for (name, row), column in product(table.rows.items(), table.columns):
            if not table.has(name, column):
                continue
            kind = kind_of(*table.columns[column].config)
            if kind in PARTS and PARTS[kind].missing():
                continue
            dials = " ".join(Path(file).stem for file in row.config)
            stand_in = (f"conf/data/{DATA[kind]}.yaml", *row.config) if kind in DATA else None
            own = PARTS[kind].options() if kind in PARTS else []
            given = [*configs(*(stand_in or table.layers(name, column))), *own]
            found.setdefault(f"{dials}, {kind}", given)
            settings = [f"--{key}={value}" for key, value in row.set.items() if "energies." in str(value)]
            tuned = [layer for layer in table.layers(name, column) if layer.endswith(f":{row.tuned}")]
            if settings or any("class_path: energies." in text_of(layer) for layer in tuned):
                called = f"{Path(row.config[0]).stem} {row.tuned or 'set'}, {kind}"
                found.setdefault(called, [*given, *configs(*tuned), *settings])
    return found


def covering(runs: dict[str, list[str]]) -> list[str]:
    """Runs that have each scheme with each objective, kind of answer and part that a run gives it."""
    left = {name: met(given) for name, given in runs.items()}
    chosen, needed = [], set[tuple[str, str]]().union(*left.values())
    while needed:
        best = max(left, key=lambda name: len(left[name] & needed))
        chosen.append(best)
        needed -= left[best]
    return [name for name in left if name in chosen]


def met(given: list[str]) -> set[tuple[str, str]]:
    """What the scheme of a run meets: an objective, a kind of answer, energies, networks and inference."""
    layers = layered(given)
    dials = {Path(file).parent.name: file for file in layers.files}
    with_it = {dials.get("objective", ""), kind_in(layers.files), *parts_of(layers.tree["model"])}
    return {(dials["scheme"], other) for other in with_it}


def parts_of(tree: Any) -> Iterator[str]:  # noqa: ANN401
    """The classes in a config that a scheme meets: its parts and their optimizers."""
    under = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    for one in under:
        yield from parts_of(one)
    if isinstance(tree, dict) and str(tree.get("class_path")).startswith(MET):
        yield tree["class_path"]


@cache
def kind_of(*data: str) -> str:
    """The kind of answer of a data file: a file of conf/data/kinds."""
    return kind_in(layered(configs(*data)).files)


def kind_in(files: Sequence[str]) -> str:
    """The kind of answer of a run's files."""
    return next(Path(file).stem for file in files if "/kinds/" in file)


def text_of(layer: str) -> str:
    """What a row of settings says."""
    file, row = file_and_row(layer)
    return yaml.safe_dump(rows_of(Path(file))[row])


class WithoutOptimizers(InPlace):
    """Writes checkpoints without the state of optimizers: none of so many runs is resumed."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: object = None
    ) -> None:
        """See InPlace."""
        super().save_checkpoint(checkpoint | {"optimizer_states": []}, path)


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
        self.trainer.strategy.checkpoint_io = WithoutOptimizers()
        self.datamodule.batch_size = SIZES["batch_size"] * (1 if two else 2)
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        with nullcontext() if draws else no_draws(model):
            self.trainer.fit(model, self.datamodule)
        logged = {k: float(v) for k, v in self.trainer.callback_metrics.items() if "second" not in k}
        return {
            "weights": model.state_dict(),
            "logged": logged,
            "curves": model.curves,
            "steps": model.steps,
            "moved": any(
                not torch.equal(before.get(n, p.new_empty(0)), p) for n, p in model.named_parameters()
            ),
        }


def shrink(tree: object) -> None:
    """Change each size in a config."""
    if isinstance(tree, list):
        for item in tree:
            shrink(item)
    branch = vars(tree) if isinstance(tree, Namespace) else tree if isinstance(tree, dict) else {}
    for key, value in branch.items():
        if key in SIZES and value is not None and "height" not in branch:  # the width of a crop stays
            branch[key] = SIZES[key]
        elif key in MOST and value is not None:
            branch[key] = min(value, MOST[key])
        else:
            shrink(value)
    name = str(branch.get("class_path")).rpartition(".")[2]
    for key, value in SETTINGS.get(name, {}).items():
        branch["init_args"][key] = value


@contextmanager
def no_draws(model: LightningModule) -> Iterator[None]:
    """No dropout, batch norm at rest, and the k-th of K draws is the same for every example, in any batch."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0

    def quantile(shape: Sequence[int]) -> Tensor:
        k = (torch.arange(shape[0], dtype=torch.get_default_dtype()) + 0.5) / shape[0]
        return k.view(-1, *[1] * (len(shape) - 1)).expand(tuple(shape))

    uniform, normal = torch.rand, torch.randn

    def rand(*shape: int, **kind: Any) -> Tensor:
        one_for_all = "generator" in kind
        return uniform(*shape, **kind) if one_for_all else quantile(shape).to(**kind)

    def randn(*shape: Any, **kind: Any) -> Tensor:
        one_for_all = "generator" in kind
        return normal(*shape, **kind) if one_for_all else torch.special.ndtri(rand(*shape, **kind))

    def at_rest(norm: nn.BatchNorm2d, x: Tensor) -> Tensor:
        return F.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps)

    def multinomial(p: Tensor, num_samples: int, replacement: bool = False) -> Tensor:
        at = quantile((num_samples,)).to(p.dtype) * p.sum(-1, keepdim=True)
        return torch.searchsorted(p.cumsum(-1), at.contiguous()).clamp_max(p.shape[-1] - 1)

    def uniform_(t: Tensor, low: float = 0, high: float = 1, **kind: Any) -> Tensor:
        return t.copy_(low + (high - low) * quantile(t.shape))

    def draw(logits: Tensor, num_samples: int) -> Tensor:
        return rand(num_samples, *logits.shape) < logits.detach().sigmoid()

    with (
        patch.object(torch, "rand", rand),
        patch.object(torch, "randn", randn),
        patch.object(torch.Tensor, "multinomial", multinomial),
        patch.object(torch.Tensor, "exponential_", lambda t: t.copy_(-quantile(t.shape).log())),
        patch.object(torch.Tensor, "uniform_", uniform_),
        patch.object(sets, "draw", draw),
        patch.object(nn.BatchNorm2d, "forward", at_rest),
    ):
        yield
