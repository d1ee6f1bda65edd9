"""Options of a command whose mistakes are one sentence, as all others are, and not argparse's usage."""

import argparse
import re
from typing import NoReturn

from experiments.errors import UserError

CHOICE = re.compile(r"argument (\S+): invalid choice: '?(.*?)'? \(choose from (.*)\)", re.DOTALL)
NUMBER = re.compile(r"argument (\S+): invalid int value: '(.*)'", re.DOTALL)


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
