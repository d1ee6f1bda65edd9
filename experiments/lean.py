"""torchmetrics without the packages of metrics that no run takes."""

from contextlib import suppress
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

HIDDEN = ("matplotlib", "scipy", "transformers")


def import_torchmetrics() -> None:
    """Import torchmetrics, which Lightning imports, before Lightning: a start takes 40 % less time.

    By itself it imports matplotlib, scipy and transformers, for plots and for metrics of sound, generated
    text and captions. While it is imported here, these look as if they were not installed. So in this process
    torchmetrics lacks `Metric.plot` and what needs transformers, as BERTScore and CLIPScore do; everything
    else, and these packages, are there.
    """
    from lightning_utilities.core import imports

    with (
        suppress(AttributeError),  # of a version without these names; torchmetrics is imported as it is then
        patch.object(imports, "find_spec", _find),
        patch.object(imports, "_version", _version),
    ):
        import torchmetrics  # noqa: F401
    imports.package_available.cache_clear()


def _find(name: str, *within: str) -> Any:  # noqa: ANN401
    return None if name in HIDDEN else find_spec(name, *within)


def _version(name: str) -> str:
    if name in HIDDEN:
        raise PackageNotFoundError(name)
    return version_of(name)
