"""The Hugging Face hub, asked once and briefly, so that a name that is not reached costs seconds."""

from functools import lru_cache
from typing import Literal

SECONDS = 10  # to wait for the hub's first answer


@lru_cache(maxsize=8)
def work_offline_unless_reached(name: str, kind: Literal["model", "dataset"]) -> None:
    """Ask the hub for a name; if it does not answer, the libraries look into their caches alone.

    Left to themselves they ask for each file six times, with growing pauses and a line for each.
    """
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        HfApi().repo_info(name, repo_type=kind, timeout=SECONDS)
    except (HfHubHTTPError, HFValidationError):
        return  # it answered, or is not asked: the reader of the name says what is wrong with it
    except Exception:  # no network, no such host, no answer: of several libraries
        constants.HF_HUB_OFFLINE = True
        if kind == "dataset":
            import datasets

            datasets.config.HF_HUB_OFFLINE = True
