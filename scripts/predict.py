"""Write the answers of a finished run to a file.

    python -m scripts.predict RUN                               # to the test part, in RUN/test.jsonl
    python -m scripts.predict RUN --out answers.npz --part validation
    python -m scripts.predict RUN --new mine.arff     # a file that training never saw, in RUN/new.jsonl
    python -m scripts.predict RUN --new my-pictures   # a folder of them, their masks in RUN/new/

A .jsonl file has one example a line, in the order of the part: its `row`, from 0; `answer` and `truth`, the
names of the labels or the tag of each position. A .npz file has arrays: `relaxed`, answers before the cut;
`answer` and `truth`, of 0 and 1; and `mask`, the real positions, where answers have some. Label sets are cut
at the threshold that validation chose. A row without a label, or a sentence without tags, is predicted too;
its truth is empty.

The mask of a new picture is a PNG with its name and its size, the object white. Each pixel has the answer of
the nearest pixel that the network saw.

A file of new examples has the format of the run's own files: label sets, texts, or sentences. The run's own
data has to be there too: what training fitted to it, such as scales and numbers of words, stays. A network's
words that training did not know have the vectors of the file of vectors.
"""

import signal
import sys
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from datamodules.errors import DataError
from experiments.errors import UserError
from experiments.lean import import_torchmetrics
from scripts.options import Options, refused

PARTS = ("test", "validation")
FORMATS = (".jsonl", ".npz", "")  # the last a folder


def main(arguments: list[str] | None = None) -> int:
    """Parse, read the run, predict, write."""
    parser = Options(prog="python -m scripts.predict", description=__doc__)
    parser.add_argument("run", type=Path, help="the folder of a finished run")
    parser.add_argument("--part", choices=PARTS, help="of the data (default: test)")
    parser.add_argument(
        "--new",
        type=Path,
        help="examples that training never saw, instead: a file, or a folder of pictures",
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="the file, .jsonl or .npz, for masks .npz, of new pictures also a folder (default: in RUN)",
    )
    errors = Console(stderr=True, highlight=False, soft_wrap=True)
    try:
        given = parser.parse_args(arguments)
        if given.new and given.part:
            raise UserError("--part and --new do not go together. Leave out one of them.")
        if given.out and given.out.suffix not in FORMATS:
            raise UserError(f"{given.out} is neither .jsonl, .npz nor a folder. Correct --out.")
        part = "new" if given.new else given.part or "test"
        import_torchmetrics()
        from scripts.finished.answers import write_answers

        count, out = write_answers(given.run, part, given.new, given.out, errors)
    except (UserError, DataError) as error:
        return refused(error)
    except KeyboardInterrupt:
        errors.print("Stopped before all answers were written. Run the same command again.")
        return 130
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"{count:,} answers to the {part} part: {escape(str(out))}")
    return 0


def start() -> int:
    """The command: SIGTERM stops it as Ctrl-C does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return main()


if __name__ == "__main__":
    sys.exit(start())
