"""Settings of the trainer with which no run can end well, refused before anything is built."""

import inspect
from pydoc import locate

from jsonargparse import Namespace
from pytorch_lightning import callbacks

from experiments.errors import ConfigError
from experiments.fields import LARGEST_SEED
from experiments.plan.advice import objects_in

UNWRITTEN = "Unable to serialize instance"  # jsonargparse's words for a default that it cannot write
NEEDED = ("max_epochs", "limit_train_batches", "limit_val_batches", "limit_test_batches")

AVERAGING = (callbacks.WeightAveraging, callbacks.StochasticWeightAveraging)

INSTEAD = {  # of settings that do not go with manual optimization: values without effect, what to take
    "gradient_clip_val": ((None, 0), "take --clip_norm, the largest norm of a gradient"),
    "accumulate_grad_batches": ((None, 1), "take a larger --data.batch_size"),
    "max_steps": ((None, -1), "take --trainer.max_epochs, or --trainer.limit_train_batches for short epochs"),
}


def check(config: Namespace) -> None:
    """Check the trainer's settings and the seed of a parsed config.

    Raises:
        ConfigError: one of them leaves nothing to train, to choose the best epoch by or to test.
    """
    trainer = config.trainer
    if not 0 <= int(config.seed_everything) <= LARGEST_SEED:
        raise ConfigError(f"--seed_everything is {config.seed_everything}: take 0 to {LARGEST_SEED}.")
    if trainer.fast_dev_run:
        raise ConfigError(
            "--trainer.fast_dev_run keeps no checkpoint, and a run tests its best one. For a quick look take "
            "--trainer.max_epochs 1 --trainer.limit_train_batches 2."
        )
    for name, (idle, instead) in INSTEAD.items():
        if trainer.get(name) not in idle:
            raise ConfigError(
                f"--trainer.{name} cannot be set, since schemes make their own steps: {instead}."
            )
    if trainer.enable_checkpointing is False:
        raise ConfigError(
            "--trainer.enable_checkpointing is false, and a run tests its best checkpoint. Leave it out."
        )
    given = trainer.callbacks or []
    given = given if isinstance(given, list) else [given]
    added = [callback["class_path"] for callback in given]
    if not any(_is_a(name, callbacks.ModelCheckpoint) for name in added):
        raise ConfigError(
            "--trainer.callbacks has no ModelCheckpoint, and a run tests its best checkpoint. To add to the "
            "callbacks that a run has, write --trainer.callbacks+=CLASS, or `callbacks+:` in a file."
        )
    if averaging := next((name for name in added if _is_a(name, *AVERAGING)), None):
        raise ConfigError(
            f"--trainer.callbacks has {averaging.rpartition('.')[2]}: averaged weights would choose the "
            "epoch, and a run keeps and tests the weights of its networks. Leave it out."
        )
    if isinstance(trainer.profiler, str):
        raise ConfigError(
            f"--trainer.profiler {trainer.profiler} has no file to write to. Name its class and a file: "
            "--trainer.profiler pytorch_lightning.profilers.SimpleProfiler --trainer.profiler.dirpath . "
            "--trainer.profiler.filename profile"
        )
    for name in NEEDED:
        if trainer.get(name) == 0:
            raise ConfigError(f"--trainer.{name} is 0: take more. A run trains, validates and tests.")
    if (trainer.max_epochs or 0) < -1:
        raise ConfigError(f"--trainer.max_epochs is {trainer.max_epochs}: take 1 or more, or -1 for ever.")
    every, most = trainer.check_val_every_n_epoch, trainer.max_epochs
    if every and most is not None and 0 < most < every:
        raise ConfigError(
            f"--trainer.check_val_every_n_epoch is {every}, above --trainer.max_epochs {most}: no epoch is "
            "validated, and validation chooses the checkpoint. Take a smaller number."
        )
    _check_objects(config)
    for callback in given:
        patience = (callback.get("init_args") or {}).get("patience")
        if patience is not None and patience < 0:
            raise ConfigError(f"--stop.patience is {patience}: take 0 or more.")


def _check_objects(config: Namespace) -> None:
    tree = {"model": config.model.as_dict(), "trainer": config.trainer.as_dict()}
    for place, name, arguments in objects_in(tree):
        place = place.replace(".init_args", "")
        if isinstance(rate := arguments.get("lr"), float) and rate < 0:
            raise ConfigError(f"--{place}.lr is {rate}: take 0 or more.")
        if name == "torch.optim.LBFGS":
            raise ConfigError(f"--{place} is LBFGS, which makes steps of its own. Take Adam, AdamW or SGD.")
        for argument, value in arguments.items():
            if isinstance(value, str) and value.startswith(UNWRITTEN):
                raise ConfigError(f"{name} (at {place}) has a default that no file can hold: set {argument}.")
            if value is None and _is_needed_without_type(name, argument):
                raise ConfigError(f"No {argument} is given (at {place}). Add --{place}.{argument} VALUE.")


def _is_needed_without_type(name: str, argument: str) -> bool:
    """Whether an argument has neither default nor type: the parser takes None for one that is not given."""
    for owner in getattr(locate(name), "__mro__", ()):
        found = inspect.signature(owner.__init__).parameters if "__init__" in vars(owner) else {}
        if argument in found:
            return found[argument].default is found[argument].annotation is inspect.Parameter.empty
    return False


def _is_a(callback: str, *kinds: type) -> bool:
    found = locate(callback) or getattr(callbacks, callback, None)  # Lightning's may have no module
    return inspect.isclass(found) and issubclass(found, kinds)
