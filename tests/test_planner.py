"""What a budget buys: read at the newest checkpoint, decided only where intervals part and inputs were measured."""

import pandas as pd
import pytest

from lib.report import planner
from lib.report.compare import Curve


def curve(arm, seed, accuracies, hours, n=400):
    points = pd.DataFrame({"step": range(len(hours)), "hours": hours, "n": n, "exact": [a * n for a in accuracies]})
    return Curve(f"{arm}-s{seed}", arm, seed, points.assign(accuracy=accuracies), pd.DataFrame(), hours[-1])


CURVES = {
    ("sft", 0): curve("sft", 0, [0.5, 0.8, 0.9], [0.0, 1.0, 2.0]),
    ("grpo", 0): curve("grpo", 0, [0.5, 0.6, 0.7, 0.92], [0.0, 2.0, 3.0, 4.0]),
}


def test_an_interval_spans_documents_and_seeds():
    both = CURVES | {("sft", 1): curve("sft", 1, [0.5, 0.7, 0.8], [0.0, 1.0, 2.0])}
    found = planner.expected(both, "sft", 1.5)
    assert found["accuracy"] == pytest.approx(0.75) and found["note"] == ""
    # sqrt(0.7 x 0.3 / 400) and sqrt(0.8 x 0.2 / 400)
    assert found["low"] == pytest.approx(0.7 - 1.959964 * 0.0229129, abs=1e-5)
    assert found["high"] == pytest.approx(0.8 + 1.959964 * 0.02, abs=1e-5)


def test_verdicts_by_budget():
    verdicts = planner.plan(CURVES, [0.5, 1.0, 2.0, 4.0, 5.0])["verdict"].tolist()
    assert verdicts == [
        "not decidable: no arm had saved a checkpoint",
        "continued SFT is ahead",
        "continued SFT is ahead",
        "not decidable: intervals overlap",  # 0.9, its end, and 0.92
        "not decidable: the longest run took 4 h",
    ]


def test_inputs_outside_what_was_measured_decide_nothing():
    assert planner.inputs_outside(CURVES, 1000, 0.52, measured_labels=800) == ""
    why = planner.inputs_outside(CURVES, 100, 0.7, measured_labels=800)
    assert why == "100 labels, measured with 800; a start at 0.700, measured from 0.451 to 0.549"
    assert planner.plan(CURVES, [1.0], why)["verdict"].item() == f"not decidable: {why}"


def test_break_even_holds_as_long_as_both_ran():
    assert planner.break_even(CURVES, "grpo", "sft") == {0: None}  # 0.6 against 0.9 at the end of SFT
    late = CURVES | {("grpo", 0): curve("grpo", 0, [0.5, 0.85, 0.86, 0.95], [0.0, 1.0, 1.5, 2.0])}
    assert planner.break_even(late, "grpo", "sft") == {0: 1.0}
    dips = CURVES | {("grpo", 0): curve("grpo", 0, [0.5, 0.85, 0.75, 0.95], [0.0, 1.0, 1.5, 2.0])}
    assert planner.break_even(dips, "grpo", "sft") == {0: 2.0}


@pytest.mark.parametrize("hours", [-1.0, 0, float("nan"), "2", True])
def test_a_budget_that_is_none_is_refused(hours):
    with pytest.raises(ValueError, match=f"budgets: got {hours!r}, expected device-hours above 0"):
        planner.plan(CURVES, [1.0, hours])
