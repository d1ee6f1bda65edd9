"""Verdicts by intervals, worked by hand; and against SciPy's tests."""

import math
import statistics
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import false_discovery_control, ttest_1samp, ttest_ind

from experiments.page import words
from experiments.page.intervals import (
    Estimate,
    Sample,
    false_discovery_cut,
    paired_estimate,
    welch_estimate,
)
from experiments.page.summary import Summary
from experiments.page.verdicts import (
    Cell,
    Part,
    Verdict,
    controlled,
    distinct,
    judge,
    seeds_needed,
    starred,
    welch,
)
from experiments.plan.claims import ClaimError, Difference, Parts, differences, read_claim
from experiments.plan.spec import read_table
from experiments.plan.table import Metric

POINTS = Metric("test/f1", scale=100)
TABLE = read_table("seal_mlc")  # its metric is of points
Values = st.lists(st.floats(0, 100, allow_nan=False).map(lambda v: round(v, 2)), min_size=3, max_size=10)


def cell(row: str, values: dict[int, float], paper: Sample | None = None) -> Cell:
    ours = Sample.of([*values.values()]) if values else None
    return Cell(row, "c", ours, paper, max(3, len(values)), values=values)


def verdict(holds: str, metric: Metric = POINTS, **rows: list[float] | dict[int, float]) -> Verdict:
    cells = {
        (row, "c"): cell(row, values if isinstance(values, dict) else dict(enumerate(values)))
        for row, values in rows.items()
    }
    (found,) = controlled(judge(read_claim({"holds": holds}, rows, ["c"]), cells, metric))
    return found


@pytest.mark.parametrize(
    ("a", "b", "state"),
    [
        ([11.0, 12.0, 13.0], [10.0, 10.0, 10.0], "undecided"),  # 2 ± 4.303 x 1 / sqrt(3) = 2 ± 2.48
        ([12.0, 13.0, 14.0], [10.0, 10.0, 10.0], "holds"),  # 3 ± 2.48
        ([13.0, 14.0, 15.0], [10.0, 11.0, 12.0], "holds"),  # always 3: seeds pair
        ([10.0, 10.0, 10.0], [12.0, 13.0, 14.0], "fails"),
        ([10.1, 10.0, 10.05], [10.0, 10.0, 10.0], "level"),  # 0.05 ± 0.12, within 0.2
        ([10.0, 12.0, 14.0], [10.1, 12.0, 13.9], "undecided"),  # 0 ± 0.25, however far runs are apart
        ([10.0, 11.0] * 10, [10.0, 10.0, 11.0, 11.0] * 5, "undecided"),  # 0 ± 0.34, however many they are
        ([10.5, 10.0, 10.5], [10.0, 10.0, 10.5], "undecided"),  # 0.17 ± 0.72
        ([99.0], [1.0], "undecided"),
    ],
)
def test_a_verdict_is_where_the_interval_lies(a: list[float], b: list[float], state: str) -> None:
    assert verdict("a > b", a=a, b=b).state == state


def test_the_interval_is_shown_without_the_claims_constant() -> None:
    found = verdict("a >= b + 1", a=[12.0, 13.0, 14.0], b=[10.0, 10.0, 10.0])
    assert found.part is not None and found.part.interval == pytest.approx((0.5159, 5.4841), abs=1e-4)
    assert found.state == "undecided" and found.part.estimate.mean == pytest.approx(2.0)


def test_seeds_that_would_decide_are_the_fewest_whose_interval_would() -> None:
    found = verdict("a > b", a=[11.0, 12.0, 13.0], b=[10.0, 10.0, 10.0])  # 2, deviation 1
    assert found.needed == 4  # t(3) = 3.182: 3.182 x 1 / sqrt(4) = 1.59 < 2
    assert (
        verdict("a > b", a=[10.5, 10.0, 10.5], b=[10.0, 10.0, 10.5]).needed == 15
    )  # t(14) x 0.289 / sqrt(15) = 0.160 < 0.167
    assert (
        seeds(Part(DIFFERENCE, estimate(-1.0, 1.0, 0.001), "", 0.0), 0.05) == 101
    )  # more than anybody would run


DIFFERENCE = Difference((("a", 1.0),))


def estimate(*gaps: float) -> Estimate:
    return paired_estimate([(1.0, dict(enumerate(gaps)))], range(len(gaps)), 0.0)


def seeds(part: Part, alpha: float) -> int | None:
    return seeds_needed(part.difference, {part.difference: part}, alpha)


def test_a_level_is_decided_by_its_own_interval_however_many_verdicts_there_are() -> None:
    level = Part(DIFFERENCE, estimate(0.1, 0.9, -0.7), "", 1.0)  # 0.1, deviation 0.8
    # t(5) = 2.571: 0.1 + 2.571 x 0.8 / sqrt(6) = 0.94 < 1
    assert seeds(level, 0.05) == seeds(level, 0.001) == 6
    ahead = Part(DIFFERENCE, estimate(1.1, 1.9, 0.3), "", 1.2)  # soon above 0, among many later
    assert seeds(ahead, 0.05) == 5  # t(4) = 2.776: 2.776 x 0.8 / sqrt(5) = 0.99 < 1.1
    assert seeds(ahead, 0.001) == 12  # t(11) = 4.437: 4.437 x 0.8 / sqrt(12) = 1.02 < 1.1


def test_seeds_of_several_differences_are_those_that_decide_them_together() -> None:
    a, b, c = [11.0, 12.0, 13.0], [10.0, 10.0, 10.0], [5.0, 5.1, 5.2]
    assert verdict("a > b", a=a, b=b).needed == 4
    # of two chances the p counts twice: t(3) = 2 / (1 / 2) = 4, p = 0.028; t(4) = 4.47, p = 0.011
    assert verdict("max(a, c) > b", a=a, b=b, c=c).needed == 5
    # the slower of two that both have to hold: 1 with deviation 1; t(6) = 2.447 < sqrt(7) = 2.646
    assert verdict("min(a, c) > b", a=a, b=b, c=[10.0, 11.0, 12.0]).needed == 7


def test_another_p_value_counts_up_to_the_next_share_of_the_rate() -> None:
    """One of two counts, so the other does up to 0.05 x 2 / 2."""
    rows = {"a": [11.0, 12.0, 13.0], "b": [10.0, 10.0, 10.0], "c": [1.0, 1.1, 1.2]}
    cells = {(row, "c"): cell(row, dict(enumerate(values))) for row, values in rows.items()}
    claims = [read_claim({"holds": holds}, rows, ["c"]) for holds in ("a > b", "a > c")]
    open_, decided = controlled([v for claim in claims for v in judge(claim, cells, POINTS)])
    assert (decided.state, open_.state, open_.needed) == ("holds", "undecided", 4)


def test_a_printed_spread_of_an_unknown_number_of_runs_decides_nothing() -> None:
    for count, state in ((1, "undecided"), (8, "holds")):
        cells = {
            ("a", "c"): cell("a", {0: 20.0, 1: 20.1, 2: 19.9}),
            ("b", "c"): Cell("b", "c", None, Sample(10.0, 0.5, count), 0),
        }
        (found,) = controlled(judge(read_claim({"holds": "a > b"}, {"a", "b"}, ["c"]), cells, POINTS))
        assert found.state == state


def test_rows_that_share_no_seeds_are_compared_by_welch() -> None:
    found = verdict("a > b", a={0: 12.0, 1: 13.0, 2: 14.0}, b={3: 10.0, 4: 10.5, 5: 9.5})
    assert found.part is not None and not found.part.estimate.paired
    assert found.p == pytest.approx(ttest_ind([12, 13, 14], [10, 10.5, 9.5], equal_var=False).pvalue)
    assert found.state == "holds"
    assert verdict("a > b", a={0: 12.0}, b={3: 10.0, 4: 10.5}).state == "undecided"


def test_all_of_several_have_to_hold_and_the_weakest_is_shown() -> None:
    a, b, c = [15.0, 16.0, 17.0], [10.0, 11.0, 12.5], [14.0, 16.0, 16.0]
    found = verdict("a > max(b, c)", a=a, b=b, c=c)
    assert found.state == "undecided" and found.part is not None and str(found.part.difference) == "a - c"
    assert verdict("a > max(b, c)", a=a, b=b, c=[1.0, 2.0, 2.5]).state == "holds"
    assert verdict("min(b, c) > a", a=a, b=b, c=c).state == "fails"
    assert verdict("max(a, c) > b", a=a, b=b, c=c).state == "holds"


def test_the_best_of_several_counts_as_often_as_there_were_chances() -> None:
    a, b, c = [15.0, 16.0, 17.0], [13.0, 14.5, 15.5], [17.0, 14.0, 16.5]
    one, any_ = verdict("a > b", a=a, b=b), verdict("max(a, c) > b", a=a, b=b, c=c)
    assert one.p is not None and any_.p == pytest.approx(2 * one.p)


def test_within_bounds_is_two_differences() -> None:
    found = differences(read_claim({"holds": "b - 0.3 <= a <= b + 0.3"}, "ab", ["c"]))
    assert found == Parts(
        "all",
        (Difference((("a", 1.0), ("b", -1.0)), 0.3), Difference((("b", 1.0), ("a", -1.0)), 0.3)),
    )
    assert verdict("b - 0.3 <= a <= b + 0.3", a=[1.0, 1.1, 1.05], b=[1.0, 1.0, 1.0]).state == "holds"


@pytest.mark.parametrize("holds", ["-a < -b", "-(b - a) > 0", "-max(b, 1) > -a"])
def test_a_negated_row_is_a_multiple_of_it(holds: str) -> None:
    found = differences(read_claim({"holds": holds}, "ab", ["c"]))
    first = found.of[0] if isinstance(found, Parts) else found
    assert isinstance(first, Difference) and dict(first.rows) == {"a": 1.0, "b": -1.0}


def test_a_claim_multiplies_by_numbers_alone() -> None:
    (above,) = differences(read_claim({"holds": "min(a, 2) * -2 < 3"}, "a", ["c"])).of[:1]  # type: ignore[union-attr]
    assert above == Difference((("a", 2.0),), 3.0)
    with pytest.raises(ClaimError, match="multiplies rows"):
        read_claim({"holds": "a * b > 1"}, "ab", ["c"])


def test_of_many_verdicts_some_no_longer_count() -> None:
    claim = read_claim({"holds": "a > b"}, "ab", ["c"])
    cells = {
        ("a", "c"): cell("a", {0: 12.0, 1: 13.0, 2: 14.0}),
        ("b", "c"): cell("b", {0: 10.0, 1: 10.0, 2: 10.0}),
    }
    (sure,) = judge(claim, cells, POINTS)  # p = 0.035
    cells["a", "c"] = cell("a", {0: 9.0, 1: 10.0, 2: 11.0})
    (vain,) = judge(claim, cells, POINTS)  # p = 1
    assert [v.state for v in controlled([sure])] == ["holds"]
    assert [v.state for v in controlled([sure, vain])] == ["undecided", "undecided"]
    assert controlled([sure, vain])[0].many and not controlled([sure, vain])[1].many


def test_a_star_for_each_reading_of_the_papers_spread() -> None:
    ours = {0: 10.0, 1: 10.1, 2: 9.9, 3: 10.0, 4: 10.0}
    for paper, stars in (
        (Sample(11.0, 0.5, 25), "*"),  # the error of its mean is 0.1, or 0.5
        (Sample(12.0, 0.5, 25), "**"),
        (Sample(10.0, 0.5, 25), ""),
        (Sample(12.0, None, 1), ""),
    ):
        found = starred({("a", "c"): cell("a", ours, paper)})
        assert found["a", "c"].stars == stars, paper


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_the_cut_is_that_of_benjamini_and_hochberg(chances: list[float]) -> None:
    cut = false_discovery_cut(chances)
    adjusted = false_discovery_control(chances)
    assert [p <= cut for p in chances] == [bool(q <= 0.05 + 1e-12) for q in adjusted]


def test_the_cut_by_hand() -> None:
    assert false_discovery_cut([0.01, 0.02, 0.03, 0.9]) == 0.03  # 0.0375 is the third of four
    assert false_discovery_cut([0.02, 0.9, 0.9, 0.9]) == 0.0 and false_discovery_cut([]) == 0.0


@given(Values, Values)
def test_welch_agrees_with_scipy(a: list[float], b: list[float]) -> None:
    if statistics.pstdev(a) + statistics.pstdev(b) < 1e-3:
        return
    found: Any = ttest_ind(np.array(a), np.array(b), equal_var=False)
    assert welch(Sample.of(a), Sample.of(b)) == pytest.approx(float(found.pvalue), abs=1e-9)
    estimate = welch_estimate([(1.0, Sample.of(a)), (-1.0, Sample.of(b))], 0.0)
    low, high = found.confidence_interval()
    assert (estimate.mean - estimate.half(), estimate.mean + estimate.half()) == pytest.approx((low, high))


@given(Values)
def test_the_paired_test_agrees_with_scipy(gaps: list[float]) -> None:
    if statistics.pstdev(gaps) < 1e-3:
        return
    estimate = paired_estimate([(1.0, dict(enumerate(gaps)))], range(len(gaps)), 0.0)
    found: Any = ttest_1samp(gaps, 0.0)
    assert estimate.p == pytest.approx(float(found.pvalue), abs=1e-9)
    assert estimate.mean + estimate.half() == pytest.approx(found.confidence_interval().high)


@pytest.mark.parametrize(("gap", "state"), [(0.0, "level"), (1.37, "holds")])
def test_what_is_apart_by_the_same_in_every_run_is_no_test(gap: float, state: str) -> None:
    b = [10.1, 23.45, 67.89]
    found = verdict("a > b", a=[value + gap for value in b], b=b)
    assert (found.p, found.state) == (None, state)
    # runs that repeat do not test the paper's number: nothing is said of excluding it
    assert words.of_the_paper(TABLE, replace(found, printed=1.0)) == ["in the paper +1.00"]


def test_a_sure_part_does_not_hide_the_chance_of_another() -> None:
    rows = {"a": [12.0, 13.0, 14.0], "b": [10.0, 11.0, 12.0], "c": [10.0, 10.0, 10.0]}
    assert verdict("a > max(b, c)", **rows).p == verdict("a > c", **rows).p == pytest.approx(0.035, abs=1e-3)


def test_a_mean_over_columns_and_its_negative_are_one_test() -> None:
    draw = np.random.default_rng(0)
    cells = {
        (row, column): replace(cell(row, dict(enumerate(draw.uniform(0, 99, 3)))), column=column)
        for row in "ab"
        for column in "cde"
    }
    claims = [read_claim({"holds": h, "across": "mean"}, "ab", "cde") for h in ("a > b", "b > a", "a < b")]
    assert len(distinct(v for claim in claims for v in judge(claim, cells, POINTS))) == 1
    assert math.isclose(paired_estimate([(1.0, {0: 2.0, 1: 1.0})], [0, 1], 0.0).freedom, 1)


def test_a_claim_about_the_mean_of_columns_has_the_mean_of_their_differences() -> None:
    values = {"a": [12.0, 13.0, 14.0], "b": [10.0, 10.0, 10.0]}
    cells = {
        (row, column): replace(cell(row, dict(enumerate(scores))), column=column)
        for row, scores in values.items()
        for column in "cd"
    }
    claim = read_claim({"holds": "a > b", "across": "mean"}, ["a", "b"], ["c", "d"])
    (found,) = judge(claim, cells, POINTS)
    assert found.part.estimate.mean == pytest.approx(3.0)
    (alone,) = judge(read_claim({"holds": "a > b"}, ["a", "b"], ["c"]), cells, POINTS)
    assert found.part.estimate == alone.part.estimate  # the columns have the same scores


def page_of(cells: dict[str, int], seconds: dict[str, float]) -> Summary:
    """A page of Table 1 of SEAL: so many runs of each row, and the time of one."""
    times = [{"row": row, "column": "c", "device": "cpu", "seconds": took} for row, took in seconds.items()]
    runs = {(row, "c"): cell(row, dict.fromkeys(range(many), 1.0)) for row, many in cells.items()}
    return Summary(TABLE, runs, [], {}, {}, [], times)


def test_the_seeds_and_hours_that_would_decide_are_told_up_to_a_hundred_seeds() -> None:
    rows = {"static_nce": [11.0, 12.0, 13.0], "ce": [10.0, 10.0, 10.0]}
    undecided = verdict("static_nce > ce", **rows)  # static_nce needs a run of nce_gbi
    three = {"static_nce": 3, "ce": 3, "nce_gbi": 3}
    page = page_of(three, dict.fromkeys(three, 600))
    said = words.needed(page, replace(undecided, needed=words.MOST))
    assert said == f", some {words.MOST} seeds would decide, in 48.5 core hours more"  # 3 x 97 of ten minutes
    page = page_of(three | {"nce_gbi": 4}, dict.fromkeys(three, 600))
    assert words.needed(page, undecided) == ", some 4 seeds would decide, in 0.3 core hours more"
    assert words.needed(page_of(three, {"ce": 600}), undecided) == ", some 4 seeds would decide"
    assert words.needed(page, replace(undecided, needed=words.MOST + 1)) == f", {words.MOST} seeds would not"
    assert words.needed(page, verdict("a > b", a=[11.0, 12.0], b=[10.0, 10.0])) == ", two seeds"
    assert words.needed(page, verdict("a > b", a=[11.0], b=[10.0])) == ", one seed"


@pytest.mark.parametrize(
    ("many", "said"), [(3, ""), (4, "1 seed beyond the plan"), (5, "2 seeds beyond the plan")]
)
def test_seeds_beyond_the_plan_are_counted(many: int, said: str) -> None:
    found = verdict("static_nce > ce", static_nce=[1.0, 2, 3, 4, 5][:many], ce=[2.0, 1, 3, 5, 4][:many])
    assert words.beyond(page_of({"static_nce": many, "ce": many}, {}), found) == said  # the plan is three


def test_runs_that_differ_by_rounding_are_the_same_and_take_no_chance_from_others() -> None:
    same = verdict("a > b", a=[80.0, 81.00001, 79.99999], b=[80.0, 81.0, 80.0])
    assert (same.p, same.state) == (None, "level")
    claim = read_claim({"holds": "a > b"}, "ab", ["c"])
    cells = {
        ("a", "c"): cell("a", {0: 12.0, 1: 13.0, 2: 14.0}),
        ("b", "c"): cell("b", {0: 10.0, 1: 10.0, 2: 10.0}),
    }
    (sure,) = judge(claim, cells, POINTS)  # p = 0.035, too much among two
    (opposite,) = judge(read_claim({"holds": "a < b"}, "ab", ["c"]), cells, POINTS)
    assert distinct([sure, sure, opposite, same]) == [sure.p]
    assert [v.state for v in controlled([sure, sure, opposite, same])] == ["holds", "holds", "fails", "level"]


def test_a_verdict_says_whether_its_interval_excludes_the_papers_number() -> None:
    b = {0: 10.0, 1: 10.0, 2: 10.0}
    said = {13.0: "in the paper +2.00", 17.0: "in the paper +6.00, which the interval excludes"}
    for printed in said:
        cells = {
            ("a", "c"): cell("a", {0: 11.0, 1: 12.0, 2: 13.0}, Sample(printed, None, 1)),  # 2 ± 2.48
            ("b", "c"): cell("b", b, Sample(11.0, None, 1)),
        }
        (found,) = judge(read_claim({"holds": "a > b + 1"}, "ab", ["c"]), cells, POINTS)
        assert words.of_the_paper(TABLE, found) == [said[printed]]
