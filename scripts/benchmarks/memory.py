"""Peak memory of a run on random data of the size of Eurlex-EV.

    python -m scripts.benchmarks.memory

SEAL-dynamic NCE with the released settings: reading, ten batches, a whole validation and test. The limit is
3 GiB.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from scripts.options import alone

ROWS, FEATURES, LABELS = 19_348, 5_000, 3_993
LIMIT = 3 * 1024  # MiB


def main() -> int:
    """Make the file, run, print; the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        file, run = Path(folder) / "made-up.arff", Path(folder) / "run"
        shape = [f"--rows={ROWS}", f"--features={FEATURES}", f"--labels={LABELS}"]
        _python("tests/make_mlc.py", str(file), *shape)
        layers = ["data/arff.yaml", "scheme/seal_dynamic.yaml", "objective/nce.yaml"]
        layers.append("tuned/seal_mlc/eurlexev.yaml:dynamic_nce")
        _python(
            "-m",
            "scripts.train",
            *(f"--config=conf/{layer}" for layer in layers),
            f"--data.train={file}",
            f"--data.num_features={FEATURES}",
            f"--data.num_labels={LABELS}",
            "--trainer.max_epochs=1",
            "--trainer.limit_train_batches=10",
            f"--run_dir={run}",
        )
        peak = json.loads((run / "record.json").read_text())["peak_memory_mib"]
    Console().print(
        f"{peak:.0f} MiB for {ROWS} rows, {FEATURES} features, {LABELS} labels; the limit is {LIMIT}"
    )
    return int(peak > LIMIT)


def _python(*command: str) -> None:
    subprocess.run([sys.executable, *command], check=True)


if __name__ == "__main__":
    sys.exit(alone(main, __doc__))
