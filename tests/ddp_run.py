"""Trains some schemes on two processes and writes what each process ended with; run by test_ddp.py."""

import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
warnings.filterwarnings("ignore")

import pytorch_lightning as pl  # noqa: E402
import torch  # noqa: E402
import yaml  # noqa: E402

from lightning_modules.base import Scheme  # noqa: E402
from lightning_modules.implicit import Implicit  # noqa: E402
from lightning_modules.metrics.multilabel import MultiLabelScores  # noqa: E402
from test_implicit import implicit  # noqa: E402
from test_infnet import infnet  # noqa: E402
from test_schemes import Data, scheme  # noqa: E402

torch.set_num_threads(1)


def build(name: str) -> Scheme:
    """A small scheme on label sets by its name."""
    others = {"implicit": implicit, "infnet": infnet}
    return others[name]("sets", dropout=0.3) if name in others else scheme(name, "sets", dropout=0.3)


def chosen(rank: int) -> dict[str, torch.Tensor]:
    """What a metric says after each process has seen examples that want another threshold."""
    metric = MultiLabelScores(2, thresholds=(0.5, 0.2))
    probability = [[[0.9, 0.3]], [[0.3, 0.1], [0.4, 0.1]]][rank]
    metric.update(torch.tensor(probability), torch.tensor([[1.0, 0.0]]).repeat(len(probability), 1))
    metric.choose_threshold()
    return {"threshold": metric.threshold, **metric.compute()}


def main(folder: Path, names: list[str]) -> None:
    """Three epochs of each scheme; then its weights, by rank."""
    layer = yaml.safe_load((Path(__file__).parents[1] / "conf/trainer/ddp.yaml").read_text())
    for name in names:
        module = build(name)
        trainer = pl.Trainer(
            max_epochs=3,
            accelerator="cpu",
            devices=2,
            **layer["trainer"],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
            inference_mode=False,
            num_sanity_val_steps=0,
            default_root_dir=folder,
        )
        trainer.fit(module, RankData(trainer))
        kept = {k: v.clone() for k, v in module.state_dict().items()}
        if isinstance(module, Implicit):
            (kept["mean"],) = module._mean_over_processes([torch.tensor(1.0 + trainer.global_rank)])
        kept |= chosen(trainer.global_rank)
        torch.save(kept, folder / f"{name}-{trainer.global_rank}.pt")
    torch.distributed.destroy_process_group()  # its threads may not outlive the interpreter


class RankData(Data):
    """Every second example for each process."""

    def __init__(self, trainer: pl.Trainer) -> None:
        super().__init__("sets")
        self.of = trainer

    def train_dataloader(self) -> object:
        loader = super().train_dataloader()
        loader.rank, loader.world_size = self.of.global_rank, self.of.world_size
        return loader


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
