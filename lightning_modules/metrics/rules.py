"""How often answers violate the rules of citations."""

from typing import Any

import torch
from pytorch_lightning import Callback, Trainer
from torch import Tensor

from datamodules.batches import Batch
from energies.citation.energy import CitationRules
from energies.citation.rules import RULES


class RuleViolations(Callback):
    """Counts violations in the decoded answers to the test: how many a citation has.

    Logged under `test/`: `violations`, those of all rules; `violations_<rule>`, those of each; `rule_energy`,
    the mean of -R(x, y). It changes none of the run.
    """

    def __init__(self, rules: CitationRules) -> None:
        self.rules = rules

    def on_test_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:  # noqa: ANN401  (a Scheme)
        """Log the means over the test."""
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        self.rules.initialise(data.tables)
        self.rules.to(pl_module.device)
        batches = data.test_dataloader()
        energy, *counts = torch.stack([self.sums(pl_module, b) for b in batches]).sum(0) / len(batches.inputs)
        scores = {"rule_energy": energy, "violations": torch.stack(counts).sum()}
        scores |= {f"violations_{name}": count for name, count in zip(RULES, counts, strict=True)}
        pl_module.log_dict({f"test/{name}": value for name, value in scores.items()})

    @torch.no_grad()
    def sums(self, scheme: Any, batch: Batch) -> Tensor:  # noqa: ANN401
        """Over a batch, -R and the violations of each rule, in one vector."""
        answers = scheme.space.over(batch.mask).decode(scheme.predict(batch))
        counts = self.rules.violations(batch.inputs, answers, batch.mask)
        return torch.stack([self.rules(batch.inputs, answers, batch.mask), *counts.values()]).sum(1)
