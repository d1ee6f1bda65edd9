"""Draw docs/findings.md: what the records say about the papers' claims.

    python -m scripts.figures.findings

The prose is docs/findings.yaml; its numbers and verdicts are those of results/.
"""

import argparse
import sys

from rich.console import Console

from experiments import store
from experiments.errors import UserError
from experiments.page.findings import PAGE, drawn
from scripts.options import refused


def main(arguments: list[str] | None = None) -> int:
    """Draw, write, exit code."""
    parser = argparse.ArgumentParser(prog="python -m scripts.figures.findings", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.parse_args(arguments)
    try:
        store.write(PAGE, drawn())
    except UserError as error:
        return refused(error)
    Console(highlight=False).print(f"page: {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
