"""Label sets drawn from a known model, for use without real data; the name always contains `generated`."""

from typing import Any

import numpy as np
import torch

from datamodules.base import DeviceData, Split
from datamodules.sources.files import Sources
from datamodules.sources.needed import as_config
from networks.sizes import at_least

SIZES = {"train": 0.5, "validation": 0.2, "test": 0.3}
SWEEPS = 30


class GeneratedData(DeviceData):
    """Normal features x (N, D) and label sets y (N, L) of a pairwise model with planted couplings.

    log p(y | x) = sum_l y_l (x . w_l + b) + sum_{k<l} y_k c_kl y_l up to a constant, sampled by Gibbs sweeps.
    Labels come in blocks: within one they attract each other, and each block repels the next. So a model of
    the dependencies between labels can beat one that predicts each label alone.
    """

    def __init__(
        self,
        num_features: int = 103,
        num_labels: int = 14,
        *,
        name: str = "generated",
        num_rows: int = 2417,
        block: int = 4,
        attraction: float = 1.5,
        repulsion: float = 1.0,
        data_seed: int = 0,
        batch_size: int = 32,
        eval_batch_size: int = 4096,
        seed: int = 0,
        observed_share: float | None = None,
    ) -> None:
        super().__init__(
            batch_size=batch_size, eval_batch_size=eval_batch_size, seed=seed, observed_share=observed_share
        )
        at_least(1, num_features=num_features, num_labels=num_labels, num_rows=num_rows, block=block)
        if "generated" not in name:
            raise ValueError(f"The name {name!r} has to contain 'generated': this is not real data.")
        self.num_features, self.num_labels, self.dataset = num_features, num_labels, name
        self.num_rows, self.block, self.data_seed = num_rows, block, data_seed
        self.attraction, self.repulsion = attraction, repulsion

    def missing(self) -> None:
        """Nothing is ever missing."""

    def source_files(self) -> dict[str, Any]:
        """See DeviceData.source_files."""
        return as_config([], Sources())

    def load(self) -> dict[str, Split]:
        """Draw the data with a fixed seed; rows without a label are dropped."""
        draw = np.random.default_rng(self.data_seed)
        x = draw.normal(size=(self.num_rows, self.num_features))
        weights = draw.normal(size=(self.num_features, self.num_labels)) * (1.5 / np.sqrt(self.num_features))
        y = self._sample(x @ weights - 1.0, draw)
        ends = np.cumsum([round(share * self.num_rows) for share in SIZES.values()])[:-1]
        parts = np.split(np.arange(self.num_rows), ends)
        rows = {part: index[y[index].any(1)] for part, index in zip(SIZES, parts, strict=True)}
        return {
            part: Split(torch.from_numpy(x[index].astype(np.float32)), torch.from_numpy(y[index]))
            for part, index in rows.items()
        }

    def _sample(self, scores: np.ndarray, draw: np.random.Generator) -> np.ndarray:
        couplings = self.couplings()
        y = draw.random(scores.shape) < 0.3
        for _ in range(SWEEPS):
            for label in range(self.num_labels):
                logit = scores[:, label] + y @ couplings[:, label]
                y[:, label] = draw.random(len(y)) < 1 / (1 + np.exp(-logit))
        return y.astype(np.uint8)

    def couplings(self) -> np.ndarray:
        """Couplings between labels: c (L, L), symmetric, with a zero diagonal."""
        blocks = np.arange(self.num_labels) // self.block
        gap = np.abs(blocks[:, None] - blocks[None, :])
        couplings = np.select([gap == 0, gap == 1], [self.attraction, -self.repulsion], 0.0)
        np.fill_diagonal(couplings, 0)
        return couplings
