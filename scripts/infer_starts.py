"""Add the list of starts to older records whose times prove that the run resumed with other code.

python -m scripts.infer_starts

A record without a list of starts names the commit of its last start. If that commit is later than the start
of training, there was an earlier start: the record gets both, the first one unknown. Existing lists do not
change, so the script may run again after older records have been added.
"""

import subprocess
import sys
from datetime import datetime

from rich.console import Console

from experiments import starts, store
from scripts.options import alone


def commit_times() -> dict[str, datetime]:
    """The time of each commit."""
    log = subprocess.run(
        ["git", "log", "--all", "--format=%H %cI"], capture_output=True, text=True, check=True
    )
    return {name: datetime.fromisoformat(time) for name, time in map(str.split, log.stdout.splitlines())}


def resumed(record: store.Record, made: dict[str, datetime]) -> bool:
    """Whether a record without a list of starts names a commit later than the start of its training."""
    if "starts" in record or record.get("commit") not in made or not record.get("finished"):
        return False
    trained = datetime.fromisoformat(record["finished"]) - made[record["commit"]]
    return trained.total_seconds() < float(record.get("seconds") or 0)


def main() -> int:
    """Add the starts to the records, and print which."""
    made = commit_times()
    for table in store.tables():
        found = [record for record in store.read_results(table).records if resumed(record, made)]
        found_starts = [r | {"starts": [starts.UNKNOWN, {"epoch": None} | starts.last(r)]} for r in found]
        store.keep(table, found_starts)
        for r in found_starts:
            place = f"{table}: {r['row']} / {r['column']} / seed {r['seed']}"
            Console().print(f"{place}: its commit is later than the start of its training", highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(alone(main, __doc__))
