"""Several processes: every scheme and objective of a table on two, whose replicas equal one process.

Each scheme trains with each of its objectives, on each of its kinds of answer, and with each energy, network
and inference that a table gives it; not all of these together.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from datamodules.horses import Horses
from scheme_runs import DDP, QUICK, STILL, configs, covering, needs, runs, train_checkpoints

RUNS = {name: runs()[name] for name in covering(runs())}
PLACES = {name: place for place, name in enumerate(RUNS)}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of all runs, trained one after another by the same processes."""
    folder = tmp_path_factory.mktemp("ddp")
    kept = train_checkpoints(folder)
    arguments = [[*given, *needs(given, kept)] for given in RUNS.values()]
    (folder / "runs.json").write_text(json.dumps(arguments))
    script = Path(__file__).with_name("ddp_run.py")
    try:
        start(str(script), str(folder), STRUCTURED_KERNELS="off")  # numba takes a minute for float64
        yield folder
    finally:
        shutil.rmtree(folder)


def start(*command: str, **environment: str) -> None:
    """Run Python to its end; what it has started ends with it."""
    process = subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | environment,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=900)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, said[-3000:]


def ended(folder: Path, name: str, how: str) -> dict[str, Any]:
    """How a run ended; the test is skipped where its data are missing."""
    place = PLACES[name]
    if (missing := folder / f"{place}-missing.txt").exists():
        pytest.skip(missing.read_text())
    return torch.load(folder / f"{place}-{how}.pt", weights_only=True)


@pytest.mark.parametrize("name", RUNS)
def test_two_processes_equal_one_with_twice_the_batch(name: str, trained: Path) -> None:
    two, one = (ended(trained, name, how) for how in ("exact-0", "alone"))
    assert two["moved"] is not name.startswith(STILL) and two["steps"] == one["steps"]
    apart = 1e-9 if name.endswith("roles") else 1e-12  # the encoder's frozen layers are float32
    for key, value in one["weights"].items():
        torch.testing.assert_close(two["weights"][key], value, rtol=0, atol=apart, msg=f"{name}: {key}")
    assert two["logged"] == pytest.approx(one["logged"], rel=1e-6, abs=1e-9)
    assert two["curves"].keys() == one["curves"].keys()
    for curve, values in one["curves"].items():
        if curve == "ratio" and "pictures" in name:
            continue  # of two means over examples, in each process: their mean is another number
        assert two["curves"][curve] == pytest.approx(values, rel=1e-6, abs=1e-9), curve


@pytest.mark.parametrize("name", RUNS)
def test_replicas_stay_one(name: str, trained: Path) -> None:
    ways = ["exact", *(["drawn"] if (trained / f"{PLACES[name]}-drawn-0.pt").exists() else [])]
    for how in ways:
        first, second = (ended(trained, name, f"{how}-{rank}") for rank in (0, 1))
        for key, value in first["weights"].items():
            assert torch.equal(value, second["weights"][key]), (how, key)
        assert first["logged"] == second["logged"] and first["curves"] == second["curves"]


def test_a_threshold_is_chosen_over_all_processes(trained: Path) -> None:
    for rank in (0, 1):
        scores, _ = torch.load(trained / f"shared-{rank}.pt", weights_only=True)
        # 0.2 is right for two of three examples, 0.5 for one
        assert scores["threshold"] == torch.tensor(0.2)
        torch.testing.assert_close(scores["example_f1"], torch.tensor((2 / 3 + 1 + 1) / 3))
        torch.testing.assert_close(scores["example_f1_at_half"], torch.tensor(1 / 3))


def test_gradients_are_means_over_processes_and_none_where_nobody_has_one(trained: Path) -> None:
    for rank in (0, 1):
        _, (both, one, none) = torch.load(trained / f"shared-{rank}.pt", weights_only=True)
        assert torch.equal(both, torch.full((2, 3), 1.5)) and torch.equal(one, torch.full((2, 3), 1.5))
        assert none is None


def test_a_run_by_hand_on_two_processes_trains_tests_and_ends(tmp_path: Path) -> None:
    """Its energy's graph is in that of the networks' loss, which reaches no parameter of it."""
    files = ("conf/data/generated.yaml", "conf/scheme/infnet.yaml", "conf/objective/joint_stacked.yaml")
    start(
        *("-m", "scripts.train", *configs(*files, DDP), *QUICK, f"--run_dir={tmp_path}"),
        *("--data.num_rows=300", "--trainer.devices=2", "--trainer.accelerator=cpu"),
    )
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["updates"] == {"inference": 3, "energy": 3} and record["epochs"] == 1


ALPHAS = """
import sys
from pathlib import Path
from pytorch_lightning import Callback
from experiments.run.cli import TrainCLI

class Watch(Callback):
    "Batch norm sees other batches in each process; keep the alpha that each has while it validates."
    def on_train_batch_start(self, trainer, module, *rest):
        for norm in module.modules():
            if hasattr(norm, "running_mean"):
                norm.running_var.mul_(1 + 0.08 * trainer.global_rank)

    def on_validation_start(self, trainer, module):
        with Path(sys.argv[1], f"alphas-{trainer.global_rank}.txt").open("a") as file:
            print(module.scaling.alpha, file=file)

if __name__ == "__main__":
    cli = TrainCLI(sys.argv[2:], run_dir=sys.argv[1])
    cli.trainer.callbacks.append(Watch())
    cli.trainer.fit(cli.model, cli.datamodule)
"""


def test_online_scaling_takes_one_alpha_for_all_processes_though_batch_norm_sees_other_batches(
    tmp_path: Path,
) -> None:
    if missing := Horses().missing():
        pytest.skip(missing)
    files = [f"conf/{file}.yaml" for file in ("data/weizmann_horses", "scheme/crf_scaled")]
    small = [f"--energy.init_args.{net}.init_args.widths=[2,2,4,4]" for net in ("unary_net", "embedding_net")]
    options = [
        *configs(*files, "conf/objective/gaussian_ce.yaml", DDP),
        *small,
        "--trainer.devices=2",
        "--trainer.max_epochs=3",
        "--data.batch_size=2",
        "--trainer.limit_train_batches=20",
        "--trainer.limit_val_batches=1",
        "--model.init_args.scaling.init_args.subset=8",
        "--model.init_args.energy_optimizer.init_args.lr=0.01",
    ]
    (tmp_path / "alphas.py").write_text(ALPHAS)
    start(str(tmp_path / "alphas.py"), str(tmp_path), *options, PYTHONPATH=os.getcwd())
    one, other = ((tmp_path / f"alphas-{rank}.txt").read_text().split() for rank in (0, 1))
    assert one == other and len({*one}) > 1
