"""GRPO's alarms by hand: the CUSUM of null answers, the collapse that measures it, reward against accuracy."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from lib.data import FIELDS
from lib.report import alarms, phrases, variants
from lib.report.compare import Curve


def test_cusum_by_hand():
    baseline = [0.1, 0.3] * 5  # mean 0.2; standard deviation below half a group of 4, so that one, 0.125, is taken
    sums = alarms.cusum(np.array([[*baseline, 0.45, 0.575, 0.2, 0.0]]), groups=4)[0]
    assert sums[:10].tolist() == [0] * 10
    # z is 2, 3, 0, -1.6; each less the slack of 1
    assert sums[10:] == pytest.approx([1, 3, 2, 0])


def test_the_baseline_is_a_tenth_of_the_run_but_no_less_than_ten_steps():
    assert [alarms.baseline_steps(n) for n in (20, 100, 600)] == [10, 10, 60]


def test_an_alarm_needs_more_than_the_threshold_and_names_its_first_step():
    steady = [0.2] * 10
    at_threshold, above = [0.2 + 0.125 * 6], [0.2 + 0.125 * 6.1]  # z - slack = 5 and 5.1
    runs = np.array([[*steady, *at_threshold, 0.2], [*steady, *above, 0.2]])
    assert alarms.first_alarms(runs, groups=4).tolist() == [12, 10]  # 12 steps long: none; the eleventh step


def steps(n_steps=40, groups=8, size=8, **changes):
    """Every second group has a value in gold; nothing is ever null where it should not be, but for `changes`."""
    table = pd.DataFrame({"step": range(1, n_steps + 1), "rollouts": groups * size, "groups": groups})
    for field in FIELDS:
        table[f"null_{field}"] = table[f"null_expected_{field}"] = groups * size // 2
        table[f"missing_{field}"] = 0
    return table.assign(**changes)


def test_null_alarms_name_the_optimizer_step_of_the_field():
    nulls = [32] * 20 + [64] * 20  # from step 21 on, every rollout: z = 0.5 / 0.0625 = 8 in one step
    found = alarms.null_alarms(steps(null_death_date=nulls))
    assert found == dict.fromkeys(FIELDS) | {"death_date": 21}
    fewer = alarms.null_alarms(steps(null_death_date=[32] * 20 + [0] * 20))
    assert fewer == dict.fromkeys(FIELDS)  # one-sided: fewer nulls are no alarm


def test_the_collapse_has_the_published_rates():
    chance = alarms.collapse(606, onset=150)
    assert chance[150] == 0 and chance[:150].max() == 0
    rate = 11 / 258 + (1 - 11 / 258) * chance
    assert rate[240] == pytest.approx(181 / 258)
    assert rate.argmax() == 240 and rate[605] < 0.05


def test_measuring_counts_delays_from_the_onset_and_false_alarms_without_one():
    table = alarms.measure(steps(), repeats=50)
    rows = table.set_index("field")
    assert (rows["false_alarms"] == 0).all()  # nothing ever changes
    assert rows.loc[list(FIELDS), "found"].tolist() == [1.0] * 5
    # the rate passes 0.25 of the rollouts with a value within two steps of a 40-step run
    assert rows.loc[list(FIELDS), "delay"].between(1, 6).all()
    pd.testing.assert_frame_equal(table, alarms.measure(steps(), repeats=50))
    noisy = steps(null_name=np.tile([32, 32, 32, 64], 10))
    loud = alarms.measure(noisy, repeats=50).set_index("field")["false_alarms"]
    assert loud["any"] == loud["name"] and loud["birth_date"] == 0


def test_what_cannot_be_measured_has_no_rows():
    short, uncounted = steps(n_steps=10), steps().drop(columns="null_name")
    assert alarms.null_alarm_table({0: short, 1: uncounted}).empty
    assert alarms.null_alarm_table({0: short, 1: steps()})["seed"].unique().tolist() == [1]


def curve(*right):
    """A curve whose checkpoint k, after 4 k steps, has the first right[k] of 100 documents exact; 0 is the start."""
    points = pd.DataFrame({"step": [4 * k for k in range(len(right))], "accuracy": [r / 100 for r in right]})
    points["hours"], points["n"], points["exact"] = points["step"] / 10, 100, list(right)
    exact = pd.DataFrame({k: [document < r for document in range(100)] for k, r in enumerate(right)})
    return Curve("grpo-s0", "grpo", 0, points, exact, 1.0)


REWARDS = pd.DataFrame({"step": range(1, 13), "reward": [0.5, 0.6] * 2 + [0.7, 0.8] * 2 + [0.7, 0.8] * 2})


def test_divergence_needs_fewer_exact_records_than_the_best_before_and_a_reward_that_did_not_fall():
    found = alarms.divergence(curve(50, 60, 40, 59), REWARDS, alpha=0.05)
    assert found["step"].tolist() == [4, 8, 12]
    assert found["reward"].tolist() == pytest.approx([0.55, 0.75, 0.75])
    assert found["best_step"].tolist() == [0, 4, 4]
    assert found["p"].tolist() == pytest.approx([3 * 2 / 2**10, 3 * 2 / 2**20, 1.0])
    assert found["alarm"].tolist() == [False, True, False]  # better than before; 20 fewer; one fewer
    fell = REWARDS.assign(reward=[0.5, 0.6] * 2 + [0.1, 0.2] * 2 + [0.7, 0.8] * 2)
    assert alarms.divergence(curve(50, 60, 40, 59), fell, alpha=0.05)["alarm"].sum() == 0
    assert alarms.divergence(curve(50, 60), REWARDS.drop(columns="reward"), alpha=0.05) is None


def test_variants_of_grpo_that_diverge_are_named_with_both_ends():
    ends = {("unlabelled", 0): curve(50, 60, 40, 59), ("lean", 0): curve(50, 60, 60, 60)}
    beside = dict.fromkeys(ends, SimpleNamespace(steps=REWARDS))
    found = variants.divergence(ends, beside, alpha=0.05)
    row = found.set_index("name").loc["unlabelled"]
    assert row[["start", "last", "alarms", "checkpoints", "first_alarm"]].tolist() == [0.5, 0.59, 1, 3, 8]
    assert row[["reward_first", "reward_last"]].tolist() == pytest.approx([0.55, 0.75])
    assert phrases.diverged(found) == "in 1 of 2 runs, C without labels (seed 0)"
    assert phrases.diverged(variants.divergence({}, {}, alpha=0.05)) == "not measured"
