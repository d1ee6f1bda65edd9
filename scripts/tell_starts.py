"""Say of older records that their runs were stopped and went on with other code, where the times prove it.

python -m scripts.tell_starts

A record without a list of starts names the commit of its last start. Where that commit is younger than the
training it is said to have made, there was a start before it: the record gets both, the first one not known.
What is listed already stays as it is, so this may run again after older records have been added.
"""

import subprocess
import sys
from datetime import datetime

from rich.console import Console

from experiments import starts, store


def commit_times() -> dict[str, datetime]:
    """When each commit here was made."""
    log = subprocess.run(
        ["git", "log", "--all", "--format=%H %cI"], capture_output=True, text=True, check=True
    )
    return {name: datetime.fromisoformat(time) for name, time in map(str.split, log.stdout.splitlines())}


def went_on(record: store.Record, made: dict[str, datetime]) -> bool:
    """Whether a record without a list of starts names a commit younger than the beginning of its training."""
    if "starts" in record or record.get("commit") not in made or not record.get("finished"):
        return False
    trained = datetime.fromisoformat(record["finished"]) - made[record["commit"]]
    return trained.total_seconds() < float(record.get("seconds") or 0)


def main() -> int:
    """Add what is found to the records, and say it."""
    made = commit_times()
    for table in store.tables():
        found = [record for record in store.read_results(table).records if went_on(record, made)]
        told = [r | {"starts": [starts.NOT_TOLD, {"epoch": None} | starts.last(r)]} for r in found]
        store.keep(table, told)
        for r in told:
            place = f"{table}: {r['row']} / {r['column']} / seed {r['seed']}"
            Console().print(f"{place}: its commit is younger than its training", highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
