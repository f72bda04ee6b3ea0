"""Every pair at every budget, other rules of the bill, runs of one arm: tables small enough to check by hand."""

import pytest
from test_compare import arms_of_a_seed, make_curve

from lib.report import budgets, compare
from lib.report.outcomes import HELD, NOT_MEASURED


def test_every_pair_at_every_distinct_budget():
    table = budgets.table(arms_of_a_seed(), [0])
    pairs = list(zip(table["left"], table["right"], table["budget_hours"], strict=True))
    # A saves at 1 and 2 h and ends, C at 3 and 4 h, B at 1.5 h and ends
    assert pairs == [
        ("sft", "grpo", 1),
        ("sft", "grpo", 2),
        ("sft", "dpo", 1),
        ("sft", "dpo", 1.5),
        ("grpo", "dpo", 1.5),
    ]
    assert table["left_step"].tolist() == [1, 2, 1, 1, 0]
    assert table["difference"].tolist() == [50, 50, 50, 100, 50]
    one = 2 / 2**6  # 6 against 0
    assert table["p_holm"].tolist() == pytest.approx([2 * one, 2 * one, one, 2 * 2 / 2**12, one])  # a family a pair


def test_a_budget_that_changes_nothing_is_no_comparison():
    sft = make_curve("sft", [0, 1, 2], ["00", "10", "11"], end_hours=9)
    grpo = make_curve("grpo", [0, 2, 5], ["00", "10", "10"], end_hours=5)
    assert budgets.table({("sft", 0): sft, ("grpo", 0): grpo}, [0])["budget_hours"].tolist() == [1, 2, 5]
    ended = grpo._replace(end_hours=4.0)  # what it saved after its end is not read
    assert budgets.table({("sft", 0): sft, ("grpo", 0): ended}, [0])["budget_hours"].tolist() == [1, 2]


def test_summary_counts_wins_and_keeps_the_last_budget():
    row = budgets.summary(budgets.table(arms_of_a_seed(), [0]), 0.05).iloc[0]
    assert row[["left", "right", "compared", "budget_hours"]].tolist() == ["sft", "grpo", 2, 2]
    assert row[["left_wins", "right_wins", "left_wins_holm", "right_wins_holm"]].tolist() == [2, 0, 0, 0]


def test_under_other_rules():
    curves = arms_of_a_seed()
    later = {key: compare.repriced(c, [1, *(c.points["hours"][1:] + 1), c.end_hours + 1]) for key, c in curves.items()}
    table = budgets.under_rules({"as set": curves, "with the start": later, "with trials": None}, [0], 0.1)
    assert table["rule"].tolist() == ["as set", "with the start", "with trials"]
    # A leads C by 6 to 0, adjusted over the two budgets at which a run ended
    assert table["sft_grpo"].tolist() == [HELD, HELD, NOT_MEASURED]
    assert table["sft_grpo_p"][0] == pytest.approx(2 * 2 / 2**6)
    assert table["sft_grpo_start"].tolist() == [" (C: start)", " (C: start)", ""]
    assert table["multiple"].tolist()[:2] == [4 / 1, 5 / 2]  # an hour more for both
    assert table.loc[2, ["sft_dpo_p", "multiple"]].isna().all()


def test_variation_between_seeds_and_reruns_is_shown_apart():
    zero = make_curve("sft", [0, 1, 2], ["0000", "1100", "1110"])
    one = make_curve("sft", [0, 1, 3], ["0000", "0000", "0111"], seed=1)
    rerun = make_curve("sft", [0, 1, 2], ["0000", "1100", "1111"])
    table = budgets.variation({("sft", 0): zero, ("sft", 1): one}, {("sft", 0): [rerun], ("sft", 1): []})
    assert table["pair"].tolist() == ["seed 0 and its rerun", "seeds 0 and 1"]
    assert table["difference"].tolist() == [-25, 0]
    assert table[["left_better", "right_better"]].to_numpy().tolist() == [[0, 1], [1, 1]]
    assert table["widest"].tolist() == [25, 50]  # at step 1 the seeds lie half of the documents apart
    alone = budgets.variation({("sft", 0): zero}, {})
    assert alone[~alone["rerun"]].empty and "arm" in alone[~alone["rerun"]]  # nothing to compare is no error
