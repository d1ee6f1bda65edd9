"""Count the test examples whose inputs, or inputs and answers, a training example has too.

python -m scripts.count_repeats

Writes results/repeats.json, from which pages say it under their columns. Needs the data.
"""

import json
import sys
import tempfile

from experiments import store
from experiments.page import repeats
from scripts.options import alone

DATA = ("bibtex", "delicious", "genbase", "genbase_clean", "cal500", "expr_fun", "spo_fun")
SENTENCES = ("conll2003", "conll2003_plus", "conll2003_plus_plus", "conll2000", "twitter_pos")


def counted(name: str) -> dict[str, int] | None:
    """The counts of a file of conf/data; None if its data are not here."""
    from experiments.run.cli import TrainCLI
    from lightning_modules.engine.unseen import fingerprints

    files = (f"conf/data/{name}.yaml", "conf/scheme/floor.yaml")
    with tempfile.TemporaryDirectory() as folder:
        data = TrainCLI([part for f in files for part in ("--config", f)], run_dir=folder).datamodule
    if data.missing():
        return None
    splits = data.load()
    found = {}
    for part in ("train", "test"):
        split = splits[part]
        inputs = fingerprints(split.inputs)
        if name in SENTENCES:  # words alone: what a reader would call the same sentence
            words = zip(split.inputs.values[..., 0], split.mask, strict=True)
            inputs = [ids[real].numpy().tobytes() for ids, real in words]
        answers = fingerprints(split.y if split.mask is None else split.y.bool())
        found[part] = inputs, list(zip(inputs, answers, strict=True))
    (seen, pairs), (test, test_pairs) = found["train"], found["test"]
    known, both = {*seen}, {*pairs}
    return {
        "test": len(test),
        "inputs": sum(one in known for one in test),
        "inputs_and_answers": sum(one in both for one in test_pairs),
    }


def main() -> int:
    """Count all data sets that are here; keep what is known of the others."""
    path = repeats.path()
    old = json.loads(path.read_text()) if path.exists() else {}
    found = {name: counts for name in (*DATA, *SENTENCES) if (counts := counted(name))}
    store.write(path, json.dumps(old | found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(alone(main, __doc__))
