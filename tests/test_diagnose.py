"""Summaries of DPO's and GRPO's own measures, by hand; what was not logged is missing."""

from types import SimpleNamespace

import pandas as pd
import pytest

from lib import diagnose
from lib.data import FIELDS


def test_tenths_are_means_of_whole_steps():
    assert diagnose.tenths(pd.Series(range(20))) == (0.5, 9.5, 18.5)
    assert diagnose.tenths(pd.Series([3.0, 5.0, 7.0])) == (3, 5, 7)  # fewer than ten steps: one each
    assert diagnose.tenths(pd.Series([2.0])) == (2, 2, 2)


def dpo_steps(chosen, rejected, accuracy):
    return pd.DataFrame({"chosen_logp": chosen, "rejected_logp": rejected, "accuracy": accuracy})


def test_displacement_needs_both_log_probs_down_and_preference_up():
    assert diagnose.dpo_ends(dpo_steps([-1, -3], [-3, -9], [0.5, 0.7]))["displaced"] is True
    assert diagnose.dpo_ends(dpo_steps([-1, -1], [-3, -9], [0.5, 0.7]))["displaced"] is False
    assert diagnose.dpo_ends(dpo_steps([-1, -3], [-3, -9], [0.7, 0.5]))["displaced"] is False
    unlogged = diagnose.dpo_ends(pd.DataFrame({"accuracy": [0.5, 0.7]}))
    assert unlogged["displaced"] is None
    assert pd.isna(unlogged["chosen_logp_first"])
    assert unlogged["accuracy_last"] == 0.7


def test_group_signal_by_hand():
    steps = pd.DataFrame(
        {"groups": 4, "zero_variance_groups": [1, 2, 4], "groups_all_right": [1, 1, 4], "groups_all_wrong": 0}
        | {"entropy": [0.3, 0.2, 0.1], "grad_norm": [1.0, 0.0, 0.0]}
    )
    row = diagnose.group_signal(steps)
    assert [row[f"zero_{which}"] for which in ("first", "middle", "last")] == [0.25, 0.5, 1.0]
    assert row["gradient_zero"] == pytest.approx(2 / 3)
    assert row["all_right"] == pytest.approx(6 / 12)
    assert row["all_wrong"] == 0
    assert all(pd.isna(value) for value in diagnose.group_signal(pd.DataFrame({"step": [1]})).values())


def test_null_shares_are_none_where_not_logged():
    assert diagnose.null_shares(pd.DataFrame({"step": [1], "rollouts": [8]})) is None
    counts = {f"{prefix}_{field}": [2] for field in FIELDS for prefix in ("null", "null_expected", "missing")}
    steps = pd.DataFrame({"step": [1], "rollouts": [8]} | counts)
    assert diagnose.null_shares(steps)["null_name"].tolist() == [0.25]


def test_gold_values_are_read_off_the_verdicts():
    verdicts = ["right", "right", "missing", "wrong", "spurious", "invalid"]
    values = ["1900", None, None, "x", "y", None]
    table = pd.DataFrame({"id": list("abcdef"), "death_date": values, "death_date_verdict": verdicts})
    assert diagnose.gold_values([table], "death_date") == 3  # a, c, d
    later = table.assign(death_date_verdict="missing")[lambda rows: rows["id"] == "f"]
    assert diagnose.gold_values([table, later], "death_date") == 4


def checkpoints(*missing_places):
    rows = []
    for step, count in enumerate(missing_places, start=1):
        row = {"step": step, "n": 10, "valid": 9} | {f"{f}_{m}": 0 for f in FIELDS for m in diagnose.MISTAKES}
        rows.append(row | {"birth_place_missing": count, "name_wrong": 1})
    return pd.DataFrame(rows)


def test_null_checkpoints_find_the_worst():
    rows = diagnose.null_checkpoints(checkpoints(7, 1), checkpoints(2, 5, 3))
    assert [(row["checkpoint"], row["step"], row["all"]) for row in rows] == [
        ("start", 0, 1),
        ("first", 1, 2),
        ("most nulls", 2, 5),
        ("last", 3, 3),
    ]


def test_mistakes_and_the_share_of_places():
    row = diagnose.mistakes(checkpoints(3).iloc[0])
    assert row["birth_place_missing"] == 3
    assert row["invalid"] == 1
    assert row["places_share"] == 0.75
    assert diagnose.mistakes(checkpoints(0).assign(name_wrong=0).iloc[0])["places_share"] is None


def test_disagreements_name_run_and_step():
    run = SimpleNamespace(
        name="sft-s0",
        checkpoints=pd.DataFrame({"step": [1, 2], "exact": [1, 1]}),
        predictions=pd.DataFrame({"step": [1, 2], "exact": [True, False]}),
    )
    assert diagnose.disagreements(run) == ["sft-s0 step 2: 1 exact in checkpoints, 0 in predictions"]
