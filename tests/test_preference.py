"""DPO's pairs by hand: changes against the start, shares of the margin, and the two alarms."""

import pandas as pd
import pytest

from lib.report import preference
from lib.report.compare import Curve


def table(*moves, sets=("heldout",)):
    """Likelihood rows: at step 0 chosen -2, rejected -4; moves[k]: the changes [(chosen, rejected), ...] after that."""
    rows = []
    for step, pairs in enumerate([[(0, 0)] * len(moves[0]), *moves]):
        for name in sets:
            for number, (chosen, rejected) in enumerate(pairs):
                row = {"step": step, "set": name, "id": f"d{number}", "chosen_tokens": 10, "rejected_tokens": 20}
                row |= {"chosen_logp": -2.0 + chosen, "rejected_logp": -4.0 + rejected}
                rows.append(row | {"greedy_logp": -1.0 - step, "greedy_tokens": 5})
    return pd.DataFrame(rows)


def test_changes_are_against_the_start_and_the_margin_has_two_ends():
    row = preference.by_checkpoint(table([(-1, -3), (-3, -5), (1, 2), (1, 2)])).iloc[1]
    assert (row.chosen, row.rejected, row.margin) == (-0.5, -1.0, 0.5)
    assert (row.chosen_token, row.rejected_token) == (-0.05, -0.05)
    assert row.pushed_down == 2.0  # the rejected fall is twice the margin: the chosen fell too
    assert row.preference == 0.5
    assert row.ranked == 1.0  # -3 > -7, -5 > -9, -1 > -2, and the same again
    assert (row.greedy, row.greedy_token) == (-2.0, -0.4)
    start = preference.by_checkpoint(table([(-1, -3)])).iloc[0]
    assert start.margin == 0 and pd.isna(start.pushed_down) and pd.isna(start.preference)


def test_the_share_pushed_down_is_missing_without_a_margin():
    assert preference.pushed_down(-3.0, 4.0) == 0.75
    assert pd.isna(preference.pushed_down(-3.0, 0.0)) and pd.isna(preference.pushed_down(1.0, -1.0))


def curve(*right):
    points = pd.DataFrame({"step": range(len(right)), "accuracy": [r / 40 for r in right]})
    exact = pd.DataFrame({k: [document < r for document in range(40)] for k, r in enumerate(right)})
    return Curve("dpo-s0", "dpo", 0, points, exact, 1.0)


def alarms(moves, *right):
    found = preference.alarms(preference.by_checkpoint(table(moves)), curve(*right)).iloc[0]
    return bool(found.displaced), bool(found.parted)


FALL = [(-1.0 - 0.1 * k, -5) for k in range(8)]  # all eight pairs: p of the preference is 1 / 256
GAIN = [(1.0 + 0.1 * k, -5) for k in range(8)]
EVEN = FALL[:4] + [(-5, -1.0 - 0.1 * k) for k in range(4)]


def test_displacement_needs_a_falling_chosen_answer_and_more_than_half_of_the_pairs():
    assert alarms(FALL, 20, 20)[0] is True
    assert alarms(GAIN, 20, 20)[0] is False
    assert alarms(EVEN, 20, 20)[0] is False
    assert alarms(FALL[:6], 20, 20)[0] is False  # 1 / 64 is not below 0.01


def test_parting_needs_the_exact_test_against_the_start():
    assert alarms(GAIN, 20, 10)[1] is True  # ten documents lost, none won: p is 2 / 1024
    assert alarms(GAIN, 20, 13)[1] is False  # seven: 2 / 128
    assert alarms(GAIN, 10, 20)[1] is False  # better
    assert alarms(EVEN, 20, 10)[1] is False  # worse, but the pairs do not say otherwise


def test_alarms_are_read_on_held_out_pairs_alone():
    both = preference.by_checkpoint(table(FALL, sets=("train", "heldout")))
    assert len(both) == 4
    assert preference.alarms(both, curve(20, 20))["set"].tolist() == ["heldout"]
    joined = preference.with_alarms(table(FALL, sets=("train", "heldout")), curve(20, 30)).set_index(["set", "step"])
    assert joined["exact"].dropna().to_dict() == {("heldout", 0): 0.5, ("heldout", 1): 0.75}
    assert joined["displaced"].dropna().to_dict() == {("heldout", 1): True}


def test_alarms_are_told_with_their_first_checkpoint():
    rows = pd.DataFrame({"step": [5, 10, 15], "displaced": [False, True, True], "parted": False})
    assert preference.alarm_phrase(rows, "displaced") == "at 2 of 3 checkpoints, first at step 10"
    assert preference.alarm_phrase(rows, "parted") == "at none of 3 checkpoints"


def test_other_pairs_than_those_of_the_start_are_refused():
    with pytest.raises(ValueError, match="step 1 has other pairs than step 0"):
        preference.by_checkpoint(table(FALL).query("not (step == 1 and id == 'd3')"))
    with pytest.raises(ValueError, match="dpo-s0: likelihood has step 1, which is no checkpoint"):
        preference.alarms(preference.by_checkpoint(table(FALL)), curve(20))
