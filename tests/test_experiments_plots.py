"""Figures are drawn from records, of what is there, and always the same."""

import math
from base64 import b64encode
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import image

import toy_world
from experiments import store
from experiments.errors import TableError
from experiments.page import masks, page, plots
from experiments.page.summary import summarise
from experiments.plan.spec import read_table
from toy_world import World

world = toy_world.world  # the fixture

SWEEP = {"name": "a", "title": "T", "kind": "sweep", "column": "easy", "values": {"plain": 0.5, "taught": 2}}
CURVES = {"name": "b", "title": "R", "kind": "curves", "column": "easy", "rows": ["plain"], "curve": "ratio"}


def record(row: str, seed: int, value: float, **more: Any) -> None:
    known = {"id": f"{row}{seed}", "row": row, "column": "easy", "seed": seed, "epochs": 2}
    store.keep("toy", [known | {"metrics": {"test/example_f1": value}} | more])


def draw(**ids: str) -> list[str]:
    known = {"ids": {place.replace("_", "/"): run for place, run in ids.items()}}
    return [path.name for path in plots.draw(summarise(read_table("toy"), known))]


def test_a_figure_is_drawn_where_there_are_records_and_stands_in_the_page(world: World) -> None:
    world.change("tables/toy.yaml", lambda t: t.update(figures=[SWEEP, CURVES]))
    assert draw() == []
    record("plain", 0, 0.5)
    record("plain", 1, 0.6)
    record("taught", 0, 0.7)
    assert draw() == ["toy_a.png", "toy_a.svg"]
    record("plain", 0, 0.5, curves={"ratio": [1.0, 2.0, 4.0, 8.0], "phase": [0, 1]})
    assert draw() == ["toy_a.png", "toy_a.svg", "toy_b.png", "toy_b.svg"]
    text = page.markdown(summarise(read_table("toy")))
    assert "![T](toy_a.png)" in text and "![R](toy_b.png)" in text


def test_the_same_records_give_the_same_files(world: World) -> None:
    world.change("tables/toy.yaml", lambda t: t.update(figures=[SWEEP]))
    record("plain", 0, 0.5)
    files = [store.RESULTS / name for name in draw()]
    first = [path.read_bytes() for path in files]
    draw()
    assert [path.read_bytes() for path in files] == first


def test_a_sweep_draws_means_over_the_seeds_that_all_its_rows_have(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.change("tables/toy.yaml", lambda t: t.update(figures=[SWEEP]))
    for seed, plain in enumerate((0.5, 0.6, 0.1)):
        record("plain", seed, plain)
    record("taught", 0, 0.7)
    record("taught", 1, 0.7)
    from matplotlib.axes import Axes

    drawn: dict[str, Any] = {}
    monkeypatch.setattr(Axes, "errorbar", lambda self, x, y, **kw: drawn.update(x=x, y=y))
    draw()
    assert drawn["x"] == (0.5, 2) and drawn["y"] == pytest.approx((55.0, 70.0))


@pytest.mark.parametrize(("better", "best"), [("higher", 2.0), ("lower", 0.5)])
def test_a_sweep_marks_the_best_value_as_its_metric_has_it(
    world: World, monkeypatch: pytest.MonkeyPatch, better: str, best: float
) -> None:
    world.change("tables/toy.yaml", lambda t: t.update(figures=[SWEEP]) or t["metric"].update(better=better))
    record("plain", 0, 0.5)
    record("taught", 0, 0.7)
    from matplotlib.axes import Axes

    marked: list[float] = []
    monkeypatch.setattr(Axes, "axvline", lambda self, x, **kw: marked.append(x))
    draw()
    assert marked == [1, best]


def test_rows_are_drawn_over_columns_at_their_numbers(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = [*read_table("toy").columns]
    figure = {"name": "c", "title": "N", "kind": "columns", "rows": ["plain", "taught"]}
    figure["columns"] = {name: 10.0 / place for place, name in enumerate(columns, 1)}
    world.change("tables/toy.yaml", lambda t: t.update(figures=[figure]))
    assert draw() == []
    record("plain", 0, 0.5)
    record("plain", 1, 0.6)
    from matplotlib.axes import Axes

    drawn: list[Any] = []
    monkeypatch.setattr(Axes, "errorbar", lambda self, x, y, **kw: drawn.append((x, y, kw["label"])))
    monkeypatch.setattr(Axes, "legend", lambda self, **kw: None)
    draw()
    (points,) = drawn
    assert points == ([5.0, 10.0], pytest.approx([math.nan, 55.0], nan_ok=True), "plain")  # no run at 5
    drawn.clear()
    measure = {"metric": {"name": "seconds", "scale": 1, "digits": 1, "better": "lower"}, "rows": ["plain"]}
    of_time = figure | {"metric": "seconds", "rows": ["plain"]}
    world.change("tables/toy.yaml", lambda t: t.update(figures=[of_time], measures=[measure]))
    record("plain", 0, 0.5, seconds=3.0)
    record("plain", 1, 0.6, seconds=5.0)
    draw()
    assert [p[1] for p in drawn] == [pytest.approx([math.nan, 4.0], nan_ok=True)]


def test_mistakes_in_a_figure_name_their_place(world: World, tmp_path: Path) -> None:
    for change, words in (
        ({"kind": "pie"}, "figures[0].kind is 'pie'; it has to be sweep or columns"),
        ({"x": "hours"}, "figures[0].x is 'hours'; it has to be epoch or minutes"),
        ({"rows": ["plane"]}, "no row 'plane'"),
        ({"column": "eesy"}, "no column 'eesy'"),
        ({"colour": 1}, "figures[0].colour is not a key"),
        ({"kind": "columns", "rows": ["plain"]}, "columns"),
        ({"kind": "columns", "rows": ["plain"], "columns": {"eesy": 1}}, "no column 'eesy'"),
        ({"metric": "seconds"}, "figures[0].metric is for figures of kind columns"),
        (
            {"kind": "columns", "rows": ["plain"], "columns": {"easy": 1}, "metric": "seconds"},
            "no measure of the metric 'seconds'",
        ),
    ):
        world.change("tables/toy.yaml", lambda t, change=change: t.update(figures=[SWEEP | change]))
        with pytest.raises(TableError) as error:
            read_table("toy")
        assert words in str(error.value)


def test_curves_of_all_seeds_share_a_colour_and_one_label_and_are_over_the_rows_value(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    figure = CURVES | {"seeds": "all", "smooth": 3, "scale": "linear", "values": {"plain": 2.0}}
    world.change("tables/toy.yaml", lambda t: t.update(figures=[figure]))
    record("plain", 0, 0.5, curves={"ratio": [1.0, 4.0, 1.0]})
    record("plain", 1, 0.5, curves={"ratio": [2.0, 2.0, 2.0]})
    from matplotlib.axes import Axes

    drawn: list[Any] = []
    plain = Axes.plot

    def plot(axes: Axes, *points: list[float], **how: Any) -> list[Any]:
        drawn.append((points[1], how))
        return plain(axes, *points, **how)

    monkeypatch.setattr(Axes, "plot", plot)
    draw()
    assert [values for values, _ in drawn] == [[1.25, 1.0, 1.25], [1.0, 1.0, 1.0]]
    assert len({how["color"] for _, how in drawn}) == 1
    assert [how["label"] for _, how in drawn] == ["plain", None]
    drawn.clear()
    draw(plain_easy_1="another")
    assert drawn[0][1]["label"] == "plain†"


@pytest.mark.parametrize(
    ("options", "places", "change"),
    [
        ({"x": "epoch"}, [0.5, 1.5, 2.5, 3.5], 2),
        ({"x": "minutes"}, [0.75, 2.25, 3.75, 5.25], 3),
        ({"begins": 2}, [2.25, 2.75, 3.25, 3.75], 2),
        ({"x": "minutes", "begins": 2}, [3.375, 4.125, 4.875, 5.625], 3),
    ],
)
def test_curves_go_by_epochs_or_by_minutes(
    options: dict[str, Any], places: list[float], change: float, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.change("tables/toy.yaml", lambda t: t.update(figures=[CURVES | options]))
    curves = {"ratio": [1.0, 2.0, 3.0, 4.0], "phase": [0, 0, 1, 1]}
    record("plain", 0, 0.5, curves=curves, epochs=4, seconds=360.0)
    from matplotlib.axes import Axes

    drawn: list[Any] = []
    monkeypatch.setattr(Axes, "plot", lambda axes, *points, **how: drawn.append(points[0]))
    monkeypatch.setattr(Axes, "axvline", lambda axes, place, **how: drawn.append(place))
    draw()
    assert drawn == [places, change]


def test_changes_stand_in_the_page_as_a_mean_over_seeds(world: World) -> None:
    found = {"title": "What changes", "row": "plain", "column": "easy"}
    world.change("tables/toy.yaml", lambda t: t.update(changes=[found]))
    assert "What changes" not in page.markdown(summarise(read_table("toy")))
    record("plain", 0, 0.5, findings={"changes": [["N", "^", 4], ["A", "<b>", 1]]})
    record("plain", 1, 0.5, findings={"changes": [["N", "^", 3], ["N", "A", 1]]})
    text = page.markdown(summarise(read_table("toy")))
    rows = ["| right, changed to | ^ | &lt;b&gt; | A |", "| N | 3.5 |  | 0.5 |", "| A |  | 0.5 |  |"]
    assert [line for line in text.splitlines() if line in rows] == rows


MASKS = {"name": "m", "title": "M", "kind": "masks", "column": "easy", "rows": ["plain", "taught"]}


def kept(answers: np.ndarray, *iou: float) -> dict[str, Any]:
    bits = b64encode(np.packbits(answers).tobytes()).decode()
    return {"height": answers.shape[1], "width": answers.shape[2], "iou": [*iou], "bits": bits}


def test_a_figure_of_masks_shows_the_answers_of_one_seed_that_rows_share(world: World) -> None:
    world.change("tables/toy.yaml", lambda t: t.update(figures=[MASKS]))
    found = np.random.default_rng(0).random((3, 5, 7)) < 0.5
    record("plain", 0, 0.5)
    assert draw() == []
    for row, seed in (("plain", 1), ("plain", 2), ("taught", 2)):
        record(row, seed, 0.5, findings={"test/answers": kept(found, 0.25, 1, seed / 4)})
    assert draw() == ["toy_m.png", "toy_m.svg"]
    summary = summarise(read_table("toy"))
    (figure,) = summary.table.figures
    assert {row: r["seed"] for row, r in masks.of_one_seed(figure, summary).items()} == {
        "plain": 2,
        "taught": 2,
    }
    (name, pictures, iou), _ = masks.lines_of(figure, summary)
    assert (name, iou) == (summary.table.rows["plain"].label, [0.25, 1, 0.5])
    assert np.array_equal(pictures, found)
    first = (store.RESULTS / "toy_m.png").read_bytes()
    draw()
    assert (store.RESULTS / "toy_m.png").read_bytes() == first
    record("taught", 2, 0.5, findings={"test/answers": kept(~found, 0.25, 1, 0.5)})
    draw()
    assert (store.RESULTS / "toy_m.png").read_bytes() != first


def test_no_name_of_a_line_of_masks_is_cut(world: World) -> None:
    def declare(tree: dict[str, Any]) -> None:
        tree["figures"] = [MASKS | {"rows": ["plain", "taught", "wild"]}]
        tree["rows"]["plain"]["label"] = "FCN-CE, 10 steps a batch"
        tree["rows"]["taught"]["label"] = "floor: the most frequent tag"

    world.change("tables/toy.yaml", declare)
    answers = np.ones((8, 32, 32), bool)
    for row in ("plain", "taught"):  # a row without answers takes no room
        record(row, 0, 0.5, findings={"test/answers": kept(answers, *[0.5] * 8)})
    draw()
    drawn = image.imread(store.RESULTS / "toy_m.png")
    assert (drawn[:, :5] == 1).all() and (drawn[:, -5:] == 1).all()
    table = read_table("toy")
    names = [name for name, _, _ in masks.lines_of(table.figures[0], summarise(table))]
    assert names == ["FCN-CE, 10 steps a batch", "floor: the mean training\nmask"]


def test_a_record_of_other_bits_is_left_out_with_a_warning(world: World) -> None:
    damaged = kept(np.ones((3, 5, 7), bool), 1, 1, 1) | {"height": 50}
    record("plain", 0, 0.5, findings={"test/answers": damaged})
    found = summarise(read_table("toy"))
    assert not found.records
    assert any("test/answers.bits has to be base64 of 1,050 packed bits" in line for line in found.warnings)
