"""Options of a command whose mistakes are one sentence, as all others are, and not argparse's usage."""

import argparse
import re
import sys
from collections.abc import Callable
from typing import NoReturn

from rich.console import Console
from rich.text import Text

from experiments.errors import UserError

CHOICE = re.compile(r"argument (\S+): invalid choice: '?(.*?)'? \(choose from (.*)\)", re.DOTALL)
NUMBER = re.compile(r"argument (\S+): invalid int value: '(.*)'", re.DOTALL)


def alone(main: Callable[[], int | None], says: str | None) -> int:
    """Run a command without options: --help says what it does, all else is refused; the exit code."""
    form = argparse.RawDescriptionHelpFormatter
    spec = sys.modules["__main__"].__spec__
    prog = f"python -m {spec.name}" if spec else None
    argparse.ArgumentParser(prog=prog, description=says, formatter_class=form).parse_args()
    return main() or 0


def count(text: str) -> int:
    """A whole number of 1 or more, as the type of an option."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: take 1 or more")
    return int(text)


def refused(error: Exception) -> int:
    """Print a mistake of the user; the exit code."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(Text(str(error), style="red"))
    return 2


class Options(argparse.ArgumentParser):
    """A parser that raises UserError; options are written out, and the description is printed as it is."""

    def __init__(self, prog: str, description: str | None) -> None:
        form = argparse.RawDescriptionHelpFormatter
        super().__init__(prog=prog, description=description, allow_abbrev=False, formatter_class=form)

    def error(self, message: str) -> NoReturn:
        """Raise the error."""
        if found := CHOICE.fullmatch(message):
            option, given, choices = found.groups()
            raise UserError(f"{option} {given}: take {choices.replace(chr(39), '').replace(', ', ' or ')}.")
        if found := NUMBER.fullmatch(message):
            raise UserError(f"{found[1]} {found[2]}: take a whole number.")
        raise UserError(f"{message.removeprefix('argument ')}. All options:  {self.prog} --help")
