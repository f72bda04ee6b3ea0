"""Documents drawn again: paired, reproducible, and intervals that cover what they should."""

import numpy as np
import pandas as pd
import pytest
from test_compare import make_curve

from lib.report import budgets, precision
from lib.report.compare import Curve


def two_arms(left="1110", right="1000"):
    return {
        ("sft", 0): make_curve("sft", [0, 1], ["0000", left]),
        ("grpo", 0): make_curve("grpo", [0, 1], ["0000", right]),
    }


def test_all_runs_are_judged_on_the_same_draw():
    curves = two_arms()
    shuffled = curves["grpo", 0]
    curves["grpo", 0] = shuffled._replace(exact_D_C=shuffled.exact_D_C.iloc[::-1])  # ids decide, not the order
    exact = precision.draws(curves, 500, 0)
    left, right = exact["sft", 0][:, 1], exact["grpo", 0][:, 1]
    assert (left >= right).all()  # the right documents of one are among those of the other
    assert (exact["sft", 0][:, 0] == 0).all() and set(np.unique(left)) <= set(range(5))
    assert left.mean() == pytest.approx(3, abs=0.2) and right.mean() == pytest.approx(1, abs=0.2)
    assert (precision.draws(curves, 500, 0)["sft", 0] == exact["sft", 0]).all()
    assert (precision.draws(curves, 500, 1)["sft", 0] != exact["sft", 0]).any()


def test_draws_refuse_other_documents_and_too_few():
    other = make_curve("grpo", [0, 1], ["000", "100"])
    with pytest.raises(ValueError, match="sft-s0 and grpo-s0 were not scored on the same documents"):
        precision.draws(two_arms() | {("grpo", 0): other}, 10, 0)
    with pytest.raises(ValueError, match="resamples: got 1, expected 2 or more"):
        precision.draws(two_arms(), 1, 0)


def test_interval_by_hand():
    curves = two_arms()
    exact = {("sft", 0): np.array([[0, k] for k in range(5)]), ("grpo", 0): np.zeros((5, 2))}
    table = precision.add_interval(budgets.table(curves, [0]), curves, exact, 0.5)
    assert table[["difference", "low", "high"]].iloc[0].tolist() == [50, 25, 75]  # quartiles of 0, 25, ... 100


def test_a_95_percent_interval_covers_the_true_difference_about_as_often():
    random, n, studies = np.random.default_rng(3), 200, 300
    points = pd.DataFrame({"step": [1], "hours": [1.0], "n": n})
    curves = {}
    for study in range(studies):
        # right in one only, in the other only, in both: a true difference of 10 points
        kind = random.choice(3, size=n, p=[0.15, 0.05, 0.8])
        for arm, missed in (("sft", 1), ("grpo", 0)):
            curves[arm, study] = Curve(arm, arm, study, points, pd.DataFrame({0: kind != missed}), 1.0)
    table = pd.DataFrame({"seed": range(studies), "left": "sft", "right": "grpo", "left_step": 1, "right_step": 1})
    table = precision.add_interval(table, curves, precision.draws(curves, 500, 0), 0.95)
    assert 0.92 <= ((table["low"] <= 10) & (table["high"] >= 10)).mean() <= 0.98
