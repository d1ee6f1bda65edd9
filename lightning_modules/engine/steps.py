"""Backward passes and optimizer steps that go straight to torch where nothing of Lightning stands between.

Around each of them Lightning calls hooks of the module and of every callback. For a small network that is a
tenth of a step.
"""

from collections.abc import Callable

from pytorch_lightning import Trainer
from pytorch_lightning.plugins import Precision
from pytorch_lightning.profilers import PassThroughProfiler
from pytorch_lightning.strategies import SingleDeviceStrategy
from pytorch_lightning.utilities.model_helpers import is_overridden
from torch.optim import Optimizer

HOOKS = ("on_before_backward", "on_after_backward", "on_before_optimizer_step")


def are_plain(trainer: Trainer) -> bool:
    """Whether one device trains in full precision, and no callback, module or profiler has a hook there."""
    module = trainer.lightning_module
    return (
        type(trainer.strategy) is SingleDeviceStrategy
        and type(trainer.precision_plugin) is Precision
        and type(getattr(trainer, "profiler", None)) is PassThroughProfiler
        and not is_overridden("backward", module)
        and not any(is_overridden(hook, one) for hook in HOOKS for one in (module, *trainer.callbacks))  # type: ignore[attr-defined]
    )


def plain_step(optimizer: Optimizer, trainer: Trainer) -> Callable[[], None]:
    """A step of the optimizer that counts in the trainer's `global_step`."""
    progress = trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress

    def step() -> None:
        progress.increment_ready()
        optimizer.step()
        progress.increment_completed()

    return step
