"""Config files and options -> scheme, data, trainer.

The one place that knows LightningCLI. Files are layered left to right, conf/trainer/default.yaml below them
all; `${...}` is resolved after merging, so a reference may point into another file.
"""

import hashlib
import json
import logging
import re
import sys
import time
import warnings
from argparse import ArgumentError
from itertools import pairwise
from pathlib import Path
from typing import Any

from jsonargparse import Namespace
from omegaconf.errors import OmegaConfBaseException
from pytorch_lightning import LightningDataModule, LightningModule, Trainer
from pytorch_lightning.cli import LightningArgumentParser, LightningCLI
from torch import nn

from experiments.errors import ConfigError
from experiments.plan.sharing import SharingParser
from experiments.run import slurm
from experiments.run.advice import NET, advise, mentions, not_installed, refused
from experiments.run.epochs import EpochLog, InPlace

BASE = Path("conf/trainer/default.yaml")
BY_HAND = Path("runs/by_hand")

Args = list[str] | dict[str, Any] | Namespace | None


class TrainCLI(LightningCLI):
    """LightningCLI as this project uses it: `model`, `data` and `trainer` are built, nothing runs yet."""

    def __init__(
        self,
        args: Args = None,
        *,
        run_dir: str | None = None,
        base: Path | None = BASE,
        parser_class: type[LightningArgumentParser] = LightningArgumentParser,
    ) -> None:
        self.base, self.run_dir = base, run_dir
        self.given = args if isinstance(args, list) else sys.argv[1:]
        super().__init__(
            LightningModule,
            LightningDataModule,
            subclass_mode_model=True,
            subclass_mode_data=True,
            seed_everything_default=0,
            save_config_callback=None,
            parser_class=parser_class,
            parser_kwargs={"parser_mode": "omegaconf+", "exit_on_error": False, "allow_abbrev": False},
            auto_configure_optimizers=False,
            run=False,
            args=args,
        )

    def init_parser(self, **kwargs: Any) -> LightningArgumentParser:
        """Put the base layer below every other file."""
        if self.base is not None and self.base.exists():
            kwargs["default_config_files"] = [str(self.base)]
        kwargs["description"] = "Train one run by hand: layer config files left to right, then options."
        return super().init_parser(**kwargs)

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Where the run's files go, and what files refer to as ${run_dir} and ${net}."""
        default = self.run_dir or by_hand_folder(self.given)
        parser.add_argument("--run_dir", type=str, default=default, help="folder of this run's files")
        told = "a network that the scheme's file puts in one or more places, as ${net}"
        parser.add_subclass_arguments(nn.Module, "net", help=told, required=False, instantiate=False)
        (net,) = (action for action in parser._actions if action.dest == "net")
        vars(net)["extra_help"] = str  # no text, where all modules of torch would be listed

    def parse_arguments(self, parser: LightningArgumentParser, args: Args) -> None:
        """Parse; a fault becomes one message with near matches."""
        _refuse_unused_net(self.given)
        try:
            self.config = _parse(parser, args)
        except (ArgumentError, OmegaConfBaseException) as error:
            raise ConfigError(advise(parser, str(error), config_files(self.given))) from None

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Add what keeps the run's files, and keeps them in its folder."""
        folder = self.config["run_dir"]
        if self.config["trainer"]["default_root_dir"] not in (None, folder):
            raise ConfigError("Leave --trainer.default_root_dir out: all files of a run go to its --run_dir.")
        trainer = super().instantiate_trainer(**kwargs | {"default_root_dir": folder})
        trainer.strategy.checkpoint_io = InPlace()
        self.log = EpochLog(Path(folder))
        trainer.callbacks.append(self.log)  # type: ignore[attr-defined]  # Lightning sets it elsewhere
        return trainer

    def instantiate_classes(self) -> None:
        """Build the objects; where one refuses its arguments, say what it said and not who passed it on.

        The data comes first, for models take their sizes from it.
        """
        try:
            self.parser.instantiate_classes(Namespace(data=self.config.data))
            super().instantiate_classes()
        except (ValueError, ModuleNotFoundError) as error:
            first: BaseException = error
            while first.__cause__ or first.__context__:
                first = first.__cause__ or first.__context__  # type: ignore[assignment]
            absent = isinstance(first, ModuleNotFoundError)
            raise ConfigError(not_installed(str(first)) if absent else self.explain(first)) from error

    def resolved(self) -> dict[str, Any]:
        """The whole config, defaults written out, references resolved."""
        return {key: value for key, value in self._whole().items() if key not in ("config", "net")}

    def explain(self, error: BaseException) -> str:
        """What one of the objects refused, and the option that says it."""
        config = self._whole()
        return refused(error, {"net": config.pop("net", None)} | config)

    def _whole(self) -> dict[str, Any]:
        text = self.parser.dump(self.config, format="json", skip_unset=False, skip_validation=True)
        return json.loads(text)


class ParseOnly(TrainCLI):
    """The parser without its consequences: nothing is seeded, nothing is built."""

    def __init__(self, parser_class: type[LightningArgumentParser] = SharingParser) -> None:
        super().__init__([], run_dir="@run_dir", parser_class=parser_class)

    def parse_arguments(self, parser: LightningArgumentParser, args: Args) -> None:
        """Wait for `resolve`."""

    def _parse_ckpt_path(self) -> None: ...

    def _set_seed(self) -> None: ...

    def _add_instantiators(self) -> None: ...

    def instantiate_classes(self) -> None: ...

    def resolve(self, args: list[str]) -> dict[str, Any]:
        """The resolved config these arguments lead to."""
        self.given = args
        super().parse_arguments(self.parser, args)
        return self.resolved()


def _parse(parser: LightningArgumentParser, args: Args) -> Namespace:
    return parser.parse_object(args) if isinstance(args, dict | Namespace) else parser.parse_args(args)


def _refuse_unused_net(arguments: list[str]) -> None:
    """Refuse options of ${net} where no file refers to it: nothing would read them."""
    given = [word for word in arguments if re.match(r"--net(=|\.(?!help)|$)", word)]
    files = config_files(arguments)
    if given and not any(mentions(name, NET) for name in files):
        raise ConfigError(
            f"{given[0]} changes nothing: no file refers to ${{net}} ({', '.join(files)}). Set the net's "
            "own option, such as --model.init_args.task_net.init_args.width."
        )


def by_hand_folder(arguments: list[str]) -> str:
    """runs/by_hand/<name of the scheme's file>-<time>; conf/scheme/infnet/stacked.yaml is infnet-stacked.

    In a batch job of SLURM it ends in the job and a hash of the command instead: requeued, it finds its run.
    """
    files = [Path(name).with_suffix("") for name in config_files(arguments)]
    schemes = [f.parts[f.parts.index("scheme") + 1 :] for f in files if "scheme" in f.parts]
    name = "-".join(schemes[-1]) if schemes else files[-1].name if files else "run"
    job, command = slurm.batch_job(), hashlib.sha256(repr(arguments).encode()).hexdigest()[:8]
    return str(BY_HAND / f"{name}-{f'{job}-{command}' if job else time.strftime('%Y%m%d-%H%M%S')}")


def config_files(arguments: list[str]) -> list[str]:
    """The files a command line layers."""
    files = [b for a, b in pairwise(arguments) if a in ("--config", "-c")]
    return files + [a.partition("=")[2] for a in arguments if a.startswith("--config=")]


def hush() -> None:
    """Keep Lightning's greetings and its advice for other kinds of data and metrics out of the log."""
    for name in ("pytorch_lightning", "lightning_fabric", "lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)
    known = ("not have many workers", "srun", "sync_dist", "pytree", "LeafSpec", "exists and is not empty")
    for words in known:
        warnings.filterwarnings("ignore", f".*{words}.*")
