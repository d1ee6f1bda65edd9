"""Every scheme on real pictures: eight horses at 32 x 32, networks of width 4, a second or two a run."""

from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
import torch.nn.functional as F
import yaml

from datamodules.base import Split
from datamodules.batches import Batch
from datamodules.horses import Horses32
from experiments.run.cli import TrainCLI, quiet_lightning
from scheme_runs import configs
from test_schemes import Watch

HORSES = Horses32()
pytestmark = pytest.mark.skipif(HORSES.missing() is not None, reason=str(HORSES.missing()))

SMALL_NET = {
    "net": {"init_args": {"net": {"init_args": {"width": 4}}}},
    "energy": {"init_args": {"width": 4}},
}
SMALL_WHOLE = {
    "net": {"init_args": {"width": 4}},
    "energy": {"init_args": {"joint": {"init_args": {"width": 4}}}},
}
UNET = {"class_path": "networks.unet.UNet", "init_args": {"widths": [4, 8]}}
FIELD = {
    "energy": {
        "class_path": "energies.gaussian.GaussianEnergy",
        "init_args": {
            "unary_net": UNET,
            "embedding_net": {**UNET, "init_args": {"num_outputs": 4, "widths": [4, 8]}},
        },
    },
}
CROPS, WHOLE = "weizmann_horses_32", "weizmann_horses_32_whole"
NETS = {  # data, scheme and objective of the runs in which a network predicts
    "cross_entropy": (CROPS, "cross_entropy"),
    "static": (WHOLE, "seal_static", "regression"),
    "dynamic_margin": (CROPS, "seal_dynamic", "margin"),
    "dynamic_regression": (CROPS, "seal_dynamic", "regression"),
    "dynamic_regression_s": (CROPS, "seal_dynamic", "regression_s"),
    "dynamic_nce": (CROPS, "seal_dynamic", "nce"),
    "dynamic_ranking": (CROPS, "seal_dynamic", "ranking"),
    "infnet_margin": (CROPS, "infnet", "joint_margin"),
    "infnet_separated": (CROPS, "infnet", "joint_separated"),
    "infnet_sampled": (WHOLE, "infnet", "joint_sampled"),
    "infnet_truncated": (CROPS, "infnet", "joint_truncated"),
    "infnet_perceptron": (WHOLE, "infnet", "joint_perceptron"),
    "implicit_ssvm": (WHOLE, "implicit", "margin"),
    "implicit_dvn": (WHOLE, "implicit", "implicit_dvn"),
    "implicit_cd": (WHOLE, "implicit", "cd"),
    "implicit_cd_straight": (WHOLE, "implicit", "cd_straight"),
    "crf_joint": (WHOLE, "crf_joint", "gaussian_ce"),
    "crf_scaled": (WHOLE, "crf_scaled", "gaussian_ce"),
    "crf_stage": (WHOLE, "crf_stage", "gaussian_ce"),
}
SEARCHED = {  # and of those in which a search predicts
    "dvn": (WHOLE, "energy_net", "dvn"),
    "spen": (WHOLE, "energy_net", "spen"),
    "nce": (WHOLE, "energy_net", "nce"),
}
NEEDS = {"static": ("energy", "dvn"), "spen": ("guesser", "guide"), "nce": ("guesser", "guide")}


class Run:
    """A run of eight pictures, all of them in each part of the data."""

    def __init__(self, folder: Path, dials: tuple[str, ...], epochs: int, *options: str) -> None:
        data, scheme, *objective = dials
        crf = scheme.startswith("crf")
        layer: dict[str, Any] = {
            "data": {"init_args": {"batch_size": 4, "eval_batch_size": 8}},
            "optimizer": {"init_args": {"lr": 0.01}},
            "lr_schedule": None,
            "stop": {"patience": 3, "min_delta": 2.0} if scheme == "crf_stage" else {"patience": 99},
            "trainer": {"max_epochs": epochs, "accelerator": "cpu"},
        }
        if scheme == "seal_dynamic":
            task_loss = {"init_args": {"energy_weight": 0.01}}
            layer["model"] = {"init_args": {"inner_steps": 1, "outer_steps": 2, "task_loss": task_loss}}
        folder.mkdir(parents=True, exist_ok=True)
        written = folder / "small.yaml"
        written.write_text(
            yaml.safe_dump(layer | (FIELD if crf else SMALL_NET if data == CROPS else SMALL_WHOLE))
        )
        files = [f"conf/data/{data}.yaml", f"conf/scheme/{scheme}.yaml"]
        files += [f"conf/objective/{name}.yaml" for name in objective]
        cli = TrainCLI([*configs(*files, written), *options], run_dir=str(folder))
        self.model, self.data, self.trainer = cli.model, cli.datamodule, cli.trainer
        self.data.setup()
        eight = self.data.splits["train"]
        eight = Split(eight.inputs[:8], eight.y[:8])
        self.data.splits = dict.fromkeys(self.data.splits, eight)
        self.batch = Batch(eight.inputs, eight.y.float())

    def fit(self) -> list[dict[str, float]]:
        """Train; the losses of each epoch."""
        watch = Watch()
        self.trainer.callbacks.append(watch)
        self.trainer.fit(self.model, self.data)
        return watch.epochs

    @torch.no_grad()
    def apart(self) -> float:
        """The mean cross-entropy of the pixels of the eight pictures, whole."""
        self.model.eval()
        found = float(F.binary_cross_entropy(self.model.predict(self.batch).clamp(0, 1), self.batch.y))
        self.model.train()
        return found


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Checkpoints of an energy and of a network, by the name of their run."""
    quiet_lightning()
    found = {}
    for name, dials in {"dvn": SEARCHED["dvn"], "guide": (WHOLE, "cross_entropy")}.items():
        folder = tmp_path_factory.mktemp(name)
        Run(folder, dials, 2).fit()
        found[name] = str(folder / "checkpoints" / "best.ckpt")
    return found


def given(name: str, finished: dict[str, str]) -> list[str]:
    """The option of a run that starts from a finished one."""
    if name not in NEEDS:
        return []
    part, run = NEEDS[name]
    return [f"--model.{part}.init_args.checkpoint={finished[run]}"]


@pytest.mark.parametrize("name", NETS)
def test_a_network_learns_eight_horses_by_every_scheme(
    name: str, finished: dict[str, str], tmp_path: Path
) -> None:
    pl.seed_everything(0)
    epochs = 16 if name == "crf_stage" else 8  # which has three phases
    run = Run(tmp_path, NETS[name], epochs, *given(name, finished))
    before = run.apart()
    losses = run.fit()
    if name.startswith("crf"):  # so early, the statistics of batch norm are not those of training
        for part in run.model.steps:
            curve = [epoch[f"train/{part}_loss"] for epoch in losses if f"train/{part}_loss" in epoch]
            assert curve[-1] < curve[0]
    else:
        assert run.apart() < before
    assert all(steps > 0 for steps in run.model.steps.values())
    assert all(torch.isfinite(torch.tensor([*epoch.values()])).all() for epoch in losses)


@pytest.mark.parametrize("name", SEARCHED)
def test_an_energy_learns_eight_horses(name: str, finished: dict[str, str], tmp_path: Path) -> None:
    pl.seed_everything(0)
    fast = "--model.init_args.energy_optimizer.init_args.lr=0.003"
    losses = [
        epoch["train/energy_loss"]
        for epoch in Run(tmp_path, SEARCHED[name], 6, fast, *given(name, finished)).fit()
    ]
    assert sum(losses[-2:]) / 2 < losses[0]
