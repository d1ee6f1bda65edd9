"""Data drawn from known models: label sets for use without real data, and answers of a known energy."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from datamodules.base import DeviceData, Split
from datamodules.errors import DataMismatch
from datamodules.sources.files import Sources
from datamodules.sources.needed import as_config
from inference.known import KnownChain, KnownEnergy, KnownSets
from networks.sizes import at_least

SIZES = {"train": 0.5, "validation": 0.2, "test": 0.3}
SWEEPS = 30


class Drawn(DeviceData):
    """Data that need no file.

    Args:
        batch_size: examples of a training batch.
        eval_batch_size: examples of a validation or test batch.
        seed: draws the order of the training examples, with the epoch.
    """

    def missing(self) -> None:
        """Nothing is ever missing."""

    def source_files(self) -> dict[str, Any]:
        """See DeviceData.source_files."""
        return as_config([], Sources())


class GeneratedData(Drawn):
    """Normal features x (N, D) and label sets y (N, L) of a pairwise model with planted couplings.

    log p(y | x) = sum_l y_l (x . w_l + b) + sum_{k<l} y_k c_kl y_l up to a constant, sampled by Gibbs sweeps.
    Labels come in blocks: within one they attract each other, and each block repels the next. So a model of
    the dependencies between labels can beat one that predicts each label alone.

    Args:
        num_features: D.
        num_labels: L.
        name: of the data set; it contains "generated".
        num_rows: rows of all parts, before those without a label are dropped.
        block: labels of a block.
        attraction: the coupling of two labels of one block.
        repulsion: minus the coupling of two labels of neighbouring blocks.
        data_seed: draws the data. It is not the run's seed.
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
    ) -> None:
        super().__init__(batch_size=batch_size, eval_batch_size=eval_batch_size, seed=seed)
        at_least(1, num_features=num_features, num_labels=num_labels, num_rows=num_rows, block=block)
        if "generated" not in name:
            raise ValueError(f"The name {name!r} has to contain 'generated': this is not real data.")
        self.num_features, self.num_labels, self.dataset = num_features, num_labels, name
        self.num_rows, self.block, self.data_seed = num_rows, block, data_seed
        self.attraction, self.repulsion = attraction, repulsion

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


class KnownData(Drawn):
    """Examples whose answers are exact samples of a known energy, `truth`.

    Args:
        sizes: how many examples train, validation and test have.
        data_seed: draws the parameters of the truth, the features and the answers.
    """

    def __init__(
        self,
        truth: KnownEnergy,
        *,
        sizes: Mapping[str, int],
        data_seed: int,
        batch_size: int,
        eval_batch_size: int,
        seed: int,
    ) -> None:
        super().__init__(batch_size=batch_size, eval_batch_size=eval_batch_size, seed=seed)
        at_least(1, **sizes)
        self.truth, self.sizes, self.data_seed = truth, dict(sizes), data_seed

    def load(self) -> dict[str, Split]:
        """Draw the parts one after the other."""
        draw = torch.Generator().manual_seed(self.data_seed + 1)
        return {part: self._drawn(count, draw) for part, count in self.sizes.items()}

    def _drawn(self, count: int, draw: torch.Generator) -> Split:
        x = self.truth.inputs(count, draw)
        return Split(x, self.truth.sample(x, draw).to(torch.uint8))


class KnownChains(KnownData):
    """Tag sequences of `inference.known.KnownChain`: x (N, T, D'), y (N, T, S), every position real.

    Args:
        num_features: features of a position.
        num_tags: S.
        num_inputs: D', the features of a position and of its neighbours.
        length: T.
        context: neighbours on each side of a position.
        unary: the size of the scores of a position's features.
        pairwise: the size of the scores of neighbouring tags.
        num_train: sequences for training.
        num_validation: sequences for validation.
        num_test: sequences for testing.

    Raises:
        DataMismatch: `num_inputs` is not (2 context + 1) num_features.
    """

    def __init__(
        self,
        num_features: int = 5,
        num_tags: int = 5,
        num_inputs: int = 15,
        *,
        length: int = 8,
        context: int = 1,
        unary: float = 1.0,
        pairwise: float = 1.0,
        num_train: int = 100,
        num_validation: int = 400,
        num_test: int = 1000,
        data_seed: int = 0,
        batch_size: int = 100,
        eval_batch_size: int = 4096,
        seed: int = 0,
    ) -> None:
        if num_inputs != (2 * context + 1) * num_features:
            raise DataMismatch(
                f"num_inputs is {num_inputs}; {num_features} features of {2 * context + 1} positions are "
                f"{(2 * context + 1) * num_features}. Set --data.num_inputs to that."
            )
        super().__init__(
            KnownChain(
                num_features,
                num_tags,
                length,
                context=context,
                unary=unary,
                pairwise=pairwise,
                seed=data_seed,
            ),
            sizes={"train": num_train, "validation": num_validation, "test": num_test},
            data_seed=data_seed,
            batch_size=batch_size,
            eval_batch_size=eval_batch_size,
            seed=seed,
        )
        self.num_features, self.num_tags, self.num_inputs = num_features, num_tags, num_inputs

    def _drawn(self, count: int, draw: torch.Generator) -> Split:
        split = super()._drawn(count, draw)
        return Split(split.inputs, split.y, torch.ones(split.y.shape[:2], dtype=torch.bool))


class KnownLabelSets(KnownData):
    """Label sets of `inference.known.KnownSets`: x (N, D), y (N, L).

    Args:
        num_features: D.
        num_labels: L.
        num_patterns: patterns of labels in the energy.
        local: the size of the local scores.
        joint: the size of the scores of patterns.
        num_train: label sets for training.
        num_validation: label sets for validation.
        num_test: label sets for testing.
    """

    def __init__(
        self,
        num_features: int = 8,
        num_labels: int = 8,
        *,
        num_patterns: int = 8,
        local: float = 1.0,
        joint: float = 1.0,
        num_train: int = 200,
        num_validation: int = 400,
        num_test: int = 1000,
        data_seed: int = 0,
        batch_size: int = 200,
        eval_batch_size: int = 4096,
        seed: int = 0,
    ) -> None:
        super().__init__(
            KnownSets(
                num_features, num_labels, num_patterns=num_patterns, local=local, joint=joint, seed=data_seed
            ),
            sizes={"train": num_train, "validation": num_validation, "test": num_test},
            data_seed=data_seed,
            batch_size=batch_size,
            eval_batch_size=eval_batch_size,
            seed=seed,
        )
        self.num_features, self.num_labels, self.num_patterns = num_features, num_labels, num_patterns
