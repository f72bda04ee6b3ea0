"""Summaries of DPO's and GRPO's own measures, by hand; what was not logged is missing."""

from types import SimpleNamespace

import pandas as pd
import pytest

from lib.data import FIELDS
from lib.report import diagnose


def test_tenths_are_means_of_whole_steps():
    assert diagnose.tenths(pd.Series(range(20))) == (0.5, 9.5, 18.5)
    assert diagnose.tenths(pd.Series([3.0, 5.0, 7.0])) == (3, 5, 7)  # fewer than ten steps: one each
    assert diagnose.tenths(pd.Series([2.0])) == (2, 2, 2)


def dpo_steps(chosen, rejected, accuracy, logps=(-1, -3), spread=0.01):
    """Forty steps; tenths are of four. Values of the first and the last four, shaken by `spread` from step to step."""
    shake = pd.Series([spread, -spread] * 20)
    steps = pd.DataFrame({"chosen_reward": [0.0] * 36 + [chosen] * 4, "rejected_reward": [0.0] * 36 + [rejected] * 4})
    steps = steps.assign(accuracy=[accuracy[0]] * 36 + [accuracy[1]] * 4).add(shake, axis=0)
    return steps.assign(chosen_logp=[logps[0]] * 36 + [logps[1]] * 4, rejected_logp=-1.0, pairs=16)


def test_displacement_needs_both_less_likely_than_at_the_start_and_preference_up():
    assert diagnose.dpo_ends(dpo_steps(-0.2, -0.6, [0.5, 0.7]))["displaced"] is True
    # other pairs in the last tenth, with lower log-probs: these very pairs got likelier
    assert diagnose.dpo_ends(dpo_steps(0.1, -0.6, [0.5, 0.7]))["displaced"] is False
    assert diagnose.dpo_ends(dpo_steps(-0.2, -0.6, [0.7, 0.5]))["displaced"] is False
    # a mean below 0 that lies within what steps differ by shows nothing
    assert diagnose.dpo_ends(dpo_steps(-0.01, -0.6, [0.5, 0.7], spread=0.05))["displaced"] is False
    unlogged = diagnose.dpo_ends(pd.DataFrame({"accuracy": [0.5, 0.7]}))
    assert unlogged["displaced"] is None
    assert pd.isna(unlogged["chosen_logp_first"])
    assert unlogged["accuracy_last"] == 0.7
    assert diagnose.dpo_ends(dpo_steps(-0.2, -0.6, [0.5, 0.7]))["pushed_down"] == pytest.approx(1.5)
    assert pd.isna(unlogged["pushed_down"])


def test_a_batch_of_one_pair_does_not_weigh_as_a_step():
    steps = dpo_steps(-0.2, -0.6, [0.5, 0.7])
    steps.loc[39, ["pairs", "chosen_logp"]] = 1, -60.0
    assert diagnose.dpo_ends(steps)["chosen_logp_last"] == -3


def test_a_trend_needs_more_than_two_different_tenths():
    assert diagnose.trend(pd.Series([1, 2, 2, 3, 3, 4])) == "held"
    assert diagnose.trend(pd.Series([4, 3, 3, 2, 2, 1])) == "wrong"
    assert diagnose.trend(pd.Series([1, 3, 2, 1, 3, 2])) == "not shown"
    assert diagnose.trend(pd.Series([2, 2, 2])) == "not shown"
    assert pd.isna(diagnose.trend(pd.Series([1, None, 3])))


def test_group_signal_by_hand():
    steps = pd.DataFrame(
        {"groups": 4, "zero_variance_groups": [1, 2, 4], "zero_variance_all_right": [1, 1, 2]}
        | {
            "zero_variance_all_wrong": [0, 1, 1],
            "zero_variance_between": [0, 0, 1],
            "entropy": [0.3, 0.2, 0.1],
            "grad_norm": [1.0, 0.0, 0.0],
        }
    )
    row = diagnose.group_signal(steps)
    assert [row[f"zero_{which}"] for which in ("first", "middle", "last")] == [0.25, 0.5, 1.0]
    assert row["gradient_zero"] == pytest.approx(2 / 3)
    assert row["constant_right"] == pytest.approx(4 / 7)
    assert row["constant_between"] == row["constant_wrong"] == pytest.approx(1 / 7)
    table = diagnose.signal_tenths(steps).set_index("measure")
    assert table.loc["of these, equal in between"].tolist() == [0, 0, 0.25]
    assert table.loc["steps with gradient exactly 0"].tolist() == [0, 1, 1]
    assert table.loc["importance ratio, mean"].isna().all()
    unlogged = diagnose.group_signal(steps.drop(columns="zero_variance_all_wrong"))
    assert unlogged["zero_last"] == 1 and pd.isna(unlogged["constant_wrong"])
    assert all(pd.isna(value) for value in diagnose.group_signal(pd.DataFrame({"step": [1]})).values())


@pytest.mark.parametrize(
    ("constant", "says"),
    [
        ([4] * 6, "GRPO never had a signal"),
        ([1, 1, 2, 3, 4, 4], "GRPO used up its own signal"),
        ([0, 0, 1, 1, 2, 2], "GRPO lost part of its signal"),
        ([3, 2, 3, 2, 3, 2], "GRPO had little signal from the start"),
        ([1, 3, 1, 1, 3, 1], "GRPO kept its signal"),
    ],
)
def test_a_run_is_said_to_keep_its_signal_only_where_it_had_one(constant, says):
    steps = pd.DataFrame({"groups": 4, "zero_variance_groups": constant})
    assert diagnose.signal_sentence(diagnose.group_signal(steps)).startswith(says)


def test_signal_that_was_not_counted_is_not_judged():
    assert diagnose.signal_sentence(diagnose.group_signal(pd.DataFrame({"step": [1]}))) is None


def test_constant_groups_are_told_apart_from_the_rollouts_where_the_steps_do_not():
    rollouts = pd.DataFrame({"step": 1, "group": [0, 0, 1, 1, 2, 2], "reward": [1.0, 1.0, 0.5, 0.5, 0.2, 1.0]})
    rollouts = rollouts.assign(prompt_tokens=5, completion_tokens=2, valid=True, advantage=0.0)
    for field in FIELDS:
        rollouts[field], rollouts[f"{field}_verdict"], rollouts[f"{field}_gold_null"] = "x", "right", False
    rollouts["name_verdict"] = ["right", "right", "wrong", "wrong", "wrong", "right"]
    steps = pd.DataFrame({"step": [1], "groups": [3], "zero_variance_groups": [2]})
    run = SimpleNamespace(steps=steps, rollouts=rollouts, has=lambda name: True)
    counted = diagnose.constant_groups(run)
    kinds = ["zero_variance_all_right", "zero_variance_all_wrong", "zero_variance_between"]
    assert counted.loc[0, kinds].tolist() == [1, 1, 1]  # all but the name are right in the second group
    assert diagnose.constant_groups(SimpleNamespace(steps=steps, has=lambda name: False)) is steps
    assert diagnose.constant_groups(SimpleNamespace(steps=counted)) is counted


def test_dpo_sentence_needs_the_test_for_the_task():
    metric = "DPO got better at its own preference metric while both log-probs fell"
    assert diagnose.dpo_sentence(True, "wrong") == f"{metric}, and the task got worse"
    assert diagnose.dpo_sentence(True, "not shown") == f"{metric}, and no change on the task is shown"
    assert diagnose.dpo_sentence(False, "held").startswith("DPO did not show")
    assert diagnose.dpo_sentence(None, "wrong") is None


def test_smooth_is_shorter_at_the_start():
    table = pd.DataFrame({"step": [1, 2, 3], "entropy": [3.0, 1.0, 2.0]})
    assert diagnose.smooth(table, 2)["entropy"].tolist() == [3.0, 2.0, 1.5]


def test_null_shares_are_none_where_not_logged():
    assert diagnose.null_shares(pd.DataFrame({"step": [1], "rollouts": [8]})) is None
    counts = {f"{prefix}_{field}": [2] for field in FIELDS for prefix in ("null", "null_expected", *diagnose.MISTAKES)}
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


def nulls_of(step, missing):
    """Predictions of one checkpoint: the documents a, b, c, ..., of which those in `missing` have a place missing."""
    table = pd.DataFrame({"step": step, "id": list("abcdefgh")})
    for field in diagnose.NULLABLE:
        table[f"{field}_verdict"], table[field] = "right", "x"
    table.loc[table["id"].isin(list(missing)), "birth_place_verdict"] = "missing"
    return table


def test_null_test_pairs_documents_of_the_last_checkpoint_and_the_start():
    start = SimpleNamespace(name="start-s0", predictions=nulls_of(9, "ab"), checkpoints=pd.DataFrame({"step": [9]}))
    both = pd.concat([nulls_of(1, "abcdefgh"), nulls_of(2, "bcdefgh")])
    run = SimpleNamespace(name="grpo-s0", predictions=both, checkpoints=checkpoints(8, 7))
    test = diagnose.null_test(start, run)
    assert (test["left_better"], test["right_better"]) == (6, 1)
    assert test["p"] == pytest.approx(16 / 128)
    start.checkpoints = checkpoints(2).assign(step=9)
    table = diagnose.null_table({0: run}, {0: start}, {0: [start, run]})
    assert table["birth_place_gold"].tolist() == [8] * 4
    assert table["p_holm"].notna().tolist() == [False, False, False, True]


def test_joined_tables_say_their_seed_and_leave_out_what_is_not_there():
    table = diagnose.joined({0: pd.DataFrame({"a": [1]}), 1: None, 2: pd.DataFrame({"a": [2]})})
    assert table.to_dict("list") == {"a": [1, 2], "seed": [0, 2]}
