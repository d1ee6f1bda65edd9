"""The keys of table files, and what each may hold."""

from experiments import fields as f

RUNS_OWN = ("config", "help", "print_config", "run_dir")  # options that a row or a sweep may not set


def _option(place: str, found: f.Found) -> f.Fault | None:
    """The dotted name of an option that a row may set."""
    if fault := f.word(place, found):
        return fault
    own = found.split(".")[0].removesuffix("+") in RUNS_OWN
    return f.Fault(place, "is each run's own, a row cannot set it") if own else None


NAMES = f.listed(f.name)
FILES = f.one_or_list(f.word)

# By the kind of object. Rows and columns are checked one by one: each may be the name of another table.
TABLE: dict[str, dict[str, f.Check]] = {
    "table": {
        "title": f.text,
        "source": f.pairs,
        "metric": f.pairs,
        "measures": f.listed(f.pairs),
        "scores": f.listed(f.word),
        "seeds": f.listed(f.seed, least=1),
        "columns": f.named(f.anything, least=1),
        "rows": f.named(f.anything, least=1),
        "reported": f.named(f.pairs),
        "reported_runs": f.positive,
        "claims": f.listed(f.pairs),
        "notes": f.listed(f.text),
        "figures": f.listed(f.pairs),
        "ratios": f.listed(f.pairs),
        "gains": f.listed(f.pairs),
        "tuned": f.file_name,
        "changes": f.listed(f.pairs),
        "extras": NAMES,
    },
    "metric": {
        "name": f.word,
        "scale": f.above_zero,
        "digits": f.value("a whole number from 0 to 12", lambda v: f.is_count(v) and v <= 12),
        "better": f.one_of("higher", "lower"),
    },
    "measure": {
        "title": f.text,
        "metric": f.pairs,
        "columns": f.named(f.word),
        "rows": NAMES,
        "by": f.word,
        "reported": f.named(f.pairs),
        "claims": f.listed(f.pairs),
    },
    "column": {
        "label": f.text,
        "config": FILES,
        "note": f.text,
        "unavailable": f.text,
        "tuned": f.file_name,
        "instead_of": f.name,
        "metric": f.word,
    },
    "row": {
        "label": f.text,
        "config": FILES,
        "needs": f.named(f.name),
        "tuned": f.file_name,
        "set": f.named(f.plain, _option),
        "sweep": f.word,
        "columns": NAMES,
        "cited": f.truth,
        "note": f.text,
    },
    "claim": {"says": f.text, "holds": f.inequality, "on": NAMES, "across": f.one_of("mean")},
    "source": {"paper": f.text, "table": f.text, "figure": f.text},
    "ratio": {"says": f.text, "of": f.name, "to": f.name, "reported": f.number},
    "gain": {"title": f.text, "of": f.name, "over": f.name},
    "figure": {
        "name": f.file_name,
        "title": f.text,
        "kind": f.one_of("sweep", "columns", "curves", "masks"),
        "column": f.name,
        "columns": f.named(f.above_zero),
        "rows": NAMES,
        "values": f.named(f.above_zero),
        "lines": NAMES,
        "curve": f.word,
        "metric": f.word,
        "x": f.one_of("epoch", "minutes"),
        "x_label": f.text,
        "y_label": f.text,
        "label": f.text,
        "scale": f.one_of("log", "linear"),
        "seeds": f.one_of("first", "all"),
        "smooth": f.positive,
        "begins": f.not_negative,
    },
    "changes": {"title": f.text, "row": f.name, "column": f.name},
}
REPORTED = f.value(
    "[mean, std] or one number",
    lambda v: (
        f.is_number(v)
        or (
            isinstance(v, list)
            and len(v) in (1, 2)
            and all(map(f.is_number, v))
            and all(s >= 0 for s in v[1:])
        )
    ),
)
