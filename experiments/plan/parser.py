"""Config files and options -> one resolved config.

Only this file uses LightningCLI. Layers are merged first (see `layers`), then options are applied; `${...}`
is resolved last, so a reference may point to the value of an option.
"""

import enum
import json
import sys
from argparse import ArgumentError
from pathlib import Path
from typing import Any, Union, get_args

import yaml
from jsonargparse import Namespace
from omegaconf.errors import OmegaConfBaseException
from pytorch_lightning import LightningDataModule, LightningModule
from pytorch_lightning.cli import LightningArgumentParser, LightningCLI

from experiments.errors import ConfigError
from experiments.plan.advice import advise, arguments_of, objects_in
from experiments.plan.layers import BASE, layered
from experiments.plan.sharing import SharingParser

# Defaults of Lightning's callbacks may be of an enum, which jsonargparse writes as YAML.
yaml.SafeDumper.add_multi_representer(enum.Enum, lambda dumper, member: dumper.represent_data(member.value))

Args = list[str] | dict[str, Any] | Namespace | None


class ConfigCLI(LightningCLI):
    """LightningCLI as this project uses it: files, then options, and one message for a fault."""

    def __init__(
        self,
        args: Args = None,
        *,
        run_dir: str,
        base: Path | None = BASE,
        parser_class: type[LightningArgumentParser] = SharingParser,
    ) -> None:
        self.base, self.run_dir = base, run_dir
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
        """Say what this parser is for."""
        kwargs["description"] = "Train one run by hand: layer config files left to right, then options."
        return super().init_parser(**kwargs)

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the folder of the run's files; config files refer to it as ${run_dir}."""
        parser.add_argument("--run_dir", type=str, default=self.run_dir, help="folder of this run's files")
        try_int_first(parser)

    def parse_arguments(self, parser: LightningArgumentParser, args: Args) -> None:
        """Parse; a fault becomes one message with suggestions."""
        if isinstance(args, dict | Namespace):
            self.config = parser.parse_object(args)
            return
        layers = layered(sys.argv[1:] if args is None else args, self.base)
        leave_out_gone(layers.tree)
        try:
            self.config = parser.parse_args(layers.arguments())
        except (ArgumentError, OmegaConfBaseException) as error:
            raise ConfigError(advise(parser, str(error), layers.files, layers.used)) from None

    def _dump_config(self) -> None:
        """Lightning keeps it in checkpoints, and would write it as YAML, which is slow, and read that."""
        self.config_dump = self.resolved()

    def resolved(self) -> dict[str, Any]:
        """The whole config, defaults written out, references resolved."""
        text = self.parser.dump(self.config, format="json", skip_unset=False, skip_validation=True)
        return {key: value for key, value in json.loads(text).items() if key != "config"}


def leave_out_gone(tree: dict[str, Any]) -> None:
    """Drop each argument that is None and that its class lacks: a finished run may name an option of old.

    None equals not given, as in `identity`.
    """
    for _, owner, given in objects_in(tree):
        empty = [name for name, value in given.items() if value is None]
        known = arguments_of(owner) if empty else []
        for name in set(empty).difference(known) if known else ():
            del given[name]


def try_int_first(parser: LightningArgumentParser) -> None:
    """Let a whole number stay whole where a float would do: 1 is one batch, 1.0 are all.

    Python may give an Optional type the order of an equal one that another package made before.
    """
    for action in parser._actions:
        types = get_args(getattr(action, "_typehint", None))
        if int in types and float in types:
            int_first = tuple(sorted(types, key=lambda of: of is not int))
            action._typehint = Union[int_first]  # type: ignore[attr-defined]  # noqa: UP007


class ParseOnly(ConfigCLI):
    """The parser alone: nothing is seeded, nothing is built."""

    def __init__(self, parser_class: type[LightningArgumentParser] = SharingParser) -> None:
        super().__init__([], run_dir="@run_dir", parser_class=parser_class)

    def parse_arguments(self, parser: LightningArgumentParser, args: Args) -> None:
        """Do nothing; `resolve` parses."""

    def _parse_ckpt_path(self) -> None: ...

    def _set_seed(self) -> None: ...

    def _add_instantiators(self) -> None: ...

    def instantiate_classes(self) -> None: ...

    def resolve(self, args: list[str]) -> dict[str, Any]:
        """The resolved config of these arguments."""
        super().parse_arguments(self.parser, args)
        return self.resolved()
