"""What a target costs, by hand: reach and hold, first touch, and both on documents drawn again."""

import numpy as np
import pytest
from test_compare import arms_of_a_seed, make_curve

from lib.report import reach

INF, NAN = float("inf"), float("nan")


def test_reach_and_hold_against_first_touch():
    arm = make_curve("sft", [0, 1, 2, 3, 4], ["0000", "1110", "1000", "1110", "1111"])
    assert reach.reached(arm, 0.75) == 3  # it fell below after 1
    assert reach.reached(arm, 0.75, hold=False) == 1
    assert reach.reached(arm, 0.0) == 0
    fallen = make_curve("grpo", [0, 1, 2], ["0000", "1111", "1110"])
    assert reach.reached(fallen, 1.0) is None
    assert reach.reached(fallen, 1.0, hold=False) == 1
    assert reach.reached(make_curve("dpo", [0, 1], ["00", "00"]), 0.5, hold=False) is None


def test_multiple_is_missing_where_it_means_nothing():
    assert reach.multiple(3.0, 0.5) == 6
    assert reach.multiple(None, 0.5) is None
    assert reach.multiple(3.0, None) is None
    assert reach.multiple(3.0, 0.0) is None  # held from the start: no spend to divide by


def test_reach_table_by_hand():
    table = reach.table(arms_of_a_seed(), [0], [0.9])
    assert table["of"].tolist() == ["C's last", "A's last", "asked for"]
    assert table.loc[0, ["sft_hours", "grpo_hours", "multiple"]].tolist() == [1, 4, 4]
    assert table["dpo_hours"].isna().all()


def test_arrival_of_every_draw():
    exact_R_C = np.array([[1, 3, 2, 3], [3, 3, 3, 3], [3, 0, 0, 0], [0, 0, 0, 0]])
    hours_C, target_R = np.array([0.0, 1.0, 2.0, 3.0]), np.array([3, 3, 3, 3])
    np.testing.assert_equal(reach.arrival(exact_R_C, target_R, hours_C, hold=True), [3, 0, NAN, NAN])
    np.testing.assert_equal(reach.arrival(exact_R_C, target_R, hours_C, hold=False), [1, 0, 0, NAN])


def test_never_keeps_its_place_in_the_order_of_multiples():
    base, other = np.array([2, NAN, NAN, 2, 0, 0, 2]), np.array([6, 6, NAN, NAN, 6, 0, 0])
    assert reach.multiples(base, other).tolist() == [3, -INF, -INF, INF, INF, INF, 0]


def test_resampled_multiple_takes_the_target_anew_and_keeps_never():
    # Draws: as observed; C's last is above all that A has; C's last is what both had at the start.
    exact = {
        ("sft", 0): np.array([[6, 12, 12], [6, 8, 8], [6, 12, 12]]),
        ("grpo", 0): np.array([[6, 6, 9], [6, 6, 9], [6, 6, 6]]),
    }
    table = reach.resampled(arms_of_a_seed(), exact, [0], [], 0.95)
    row = table[(table["of"] == "C's last") & (table["rule"] == "hold")].iloc[0]
    assert row[["low", "median", "high"]].tolist() == [-INF, 4, INF]  # A at 1 h, C at 4 h in the first draw
    assert row[["sft_never", "grpo_never", "sft_at_start", "sft_sooner"]].tolist() == pytest.approx(
        [1 / 3, 0, 1 / 3, 1 / 3]
    )
    row = table[(table["of"] == "A's last") & (table["rule"] == "hold")].iloc[0]
    assert row["grpo_never"] == pytest.approx(2 / 3)  # 12 is beyond it; 8 it holds


def test_a_target_that_was_asked_for_stays_where_it_is():
    exact = {("sft", 0): np.array([[6, 12, 12]]), ("grpo", 0): np.array([[6, 6, 9]])}
    row = reach.resampled(arms_of_a_seed(), exact, [0], [9 / 12], 0.95).iloc[-1]
    assert row["of"] == "asked for: 0.75" and row["median"] == 4
