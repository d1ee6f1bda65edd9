"""The Hugging Face hub, asked once and briefly, so that a name that is not reached costs seconds."""

import warnings
from functools import lru_cache
from typing import Literal

SECONDS = 10  # to wait for the hub's first answer
BUSY = (429, *range(500, 600))  # answers of a hub or proxy that cannot answer now


@lru_cache(maxsize=8)
def work_offline_unless_reached(name: str, kind: Literal["model", "dataset"]) -> None:
    """Ask the hub for a name; if it does not answer, this process reads from the libraries' caches alone.

    Left to themselves they ask for each file six times, with growing pauses and a line for each.
    """
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    if constants.HF_HUB_OFFLINE:
        return
    try:
        HfApi().repo_info(name, repo_type=kind, timeout=SECONDS)
    except HFValidationError:
        return  # not a name of the hub: its reader says so
    except Exception as error:  # no network, no such host, no answer: of several libraries
        if isinstance(error, HfHubHTTPError) and error.response.status_code not in BUSY:
            return  # it answered: the reader of the name says what is wrong with it
        why = type(error).__name__
        warnings.warn(f"The Hugging Face hub does not answer ({why}): caches alone are read.", stacklevel=2)
        constants.HF_HUB_OFFLINE = True
        if kind == "dataset":
            import datasets

            datasets.config.HF_HUB_OFFLINE = True
