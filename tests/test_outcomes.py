"""Sentences follow the tests: what is shown, what is not, what was not measured, and in how many seeds."""

from types import SimpleNamespace

import pandas as pd
import pytest

from lib.report import outcomes
from lib.report.outcomes import HELD, NOT_MEASURED, NOT_SHOWN, WRONG


def verdict_of(*rows, seeds=None, grpo_step=1):
    """The verdict on rows (left better, right better, p_holm), one a seed, over `seeds` (default: those rows)."""
    table = pd.DataFrame(rows, columns=["left_better", "right_better", "p_holm"]).assign(seed=range(len(rows)))
    table = table.assign(left_step=1, right_step=grpo_step)
    return outcomes.verdict(table, "continued SFT", "GRPO", 0.05, seeds or list(range(len(rows))))


def test_verdict_follows_the_numbers():
    assert verdict_of((9, 1, 0.01), (8, 0, 0.02)) == "At equal spend continued SFT beats GRPO, in 2 of 2 seeds"
    assert verdict_of((1, 9, 0.01), (0, 8, 0.02)) == "At equal spend GRPO beats continued SFT, in 2 of 2 seeds"
    assert verdict_of((9, 1, 0.01)) == "At equal spend continued SFT beats GRPO, in the one seed"
    assert verdict_of((9, 1, 0.01), (5, 4, 0.9)).endswith("GRPO, in 1 of 2 seeds; no difference is shown in 1")
    assert "no difference between continued SFT and GRPO is shown, in 2 of 2" in verdict_of((9, 8, 0.9), (5, 4, 0.9))
    disagree = verdict_of((9, 1, 0.01), (1, 9, 0.01))
    assert "the seeds disagree: continued SFT beats GRPO, in 1 of 2 seeds; continued SFT loses in 1" in disagree
    assert "could not be compared" in verdict_of((None, None, None))
    assert "could not be compared" in verdict_of(seeds=[0, 1])


def test_verdict_counts_seeds_without_a_comparison_out_loud():
    assert verdict_of((9, 1, 0.01), seeds=[0, 1]).endswith("GRPO, in 1 of 2 seeds; there was nothing to compare in 1")


def test_verdict_says_that_an_arm_enters_as_the_shared_start():
    assert verdict_of((9, 1, 0.01), grpo_step=0).endswith(
        "; GRPO had saved nothing by then and enters as the shared start (seed 0)"
    )
    assert "shared start" not in verdict_of((None, None, None), grpo_step=0)


@pytest.mark.parametrize(
    ("left", "right", "p", "expected"),
    [
        (9, 1, 0.01, HELD),
        (1, 9, 0.01, WRONG),
        (9, 1, 0.05, NOT_SHOWN),
        (1, 9, 0.9, NOT_SHOWN),
        (float("nan"), float("nan"), float("nan"), NOT_MEASURED),
        (None, None, None, NOT_MEASURED),
    ],
)
def test_shown_needs_significance_and_a_direction(left, right, p, expected):
    assert outcomes.shown(left, right, p, 0.05) == expected


def test_missing_is_never_wrong():
    assert [outcomes.counted(value) for value in (True, False, None, float("nan"))] == [
        HELD,
        WRONG,
        NOT_MEASURED,
        NOT_MEASURED,
    ]
    assert outcomes.counted(NOT_SHOWN) == NOT_SHOWN
    assert outcomes.all_of([HELD, HELD]) == HELD
    assert outcomes.all_of([HELD, NOT_SHOWN]) == NOT_SHOWN
    assert outcomes.all_of([NOT_SHOWN, NOT_MEASURED]) == NOT_MEASURED
    assert outcomes.all_of([NOT_MEASURED, WRONG]) == WRONG
    assert outcomes.all_of([]) == NOT_MEASURED


@pytest.mark.parametrize(
    ("sft", "grpo", "sft_end", "grpo_end", "expected"),
    [
        (1.0, 4.0, 2.0, 5.0, HELD),
        (4.0, 1.0, 5.0, 5.0, WRONG),
        (float("nan"), 4.0, 5.0, 5.0, WRONG),  # it ran long enough, and did not hold it
        (float("nan"), 4.0, 2.0, 5.0, NOT_SHOWN),  # it had ended before
        (0.0, 0.0, 2.0, 5.0, NOT_SHOWN),
        (1.0, float("nan"), 2.0, 5.0, HELD),  # GRPO ran long enough, and did not hold it
        (3.0, float("nan"), 4.0, 2.0, NOT_SHOWN),  # GRPO had ended before
        (float("nan"), float("nan"), 4.0, 2.0, NOT_SHOWN),
    ],
)
def test_sooner(sft, grpo, sft_end, grpo_end, expected):
    row = SimpleNamespace(sft_hours=sft, grpo_hours=grpo, sft_end_hours=sft_end, grpo_end_hours=grpo_end)
    assert outcomes.sooner(row) == expected


def test_sentences_over_seeds():
    assert outcomes.across_seeds({0: "it rose", 1: "it rose"}, "?") == "it rose"
    assert outcomes.across_seeds({0: "it rose", 1: "it fell"}, "?") == "it rose (seed 0), it fell (seed 1)"
    assert outcomes.across_seeds({0: "it rose", 1: None}, "?") == "it rose; measured in 1 of 2 seeds"
    assert outcomes.across_seeds({0: None}, "?") == outcomes.across_seeds({}, "?") == "?"


def test_either_is_said_by_seed_and_missing_is_neither():
    assert outcomes.either({0: True, 1: False}, "yes", "no", "?") == "yes (seed 0), no (seed 1)"
    assert outcomes.either({0: False, 1: None}, "yes", "no", "?") == "no; measured in 1 of 2 seeds"
    assert outcomes.either({0: float("nan")}, "yes", "no", "?") == "?"


def test_an_outcome_counts_the_seeds():
    assert outcomes.outcome({0: HELD, 1: HELD}) == "held"
    assert outcomes.outcome({0: WRONG}) == "wrong"
    assert outcomes.outcome({}) == "not measured"
    assert outcomes.outcome({0: WRONG, 1: HELD, 2: HELD}) == "held in 2 of 3 seeds, wrong in 1"
    assert outcomes.outcome({0: HELD, 1: NOT_MEASURED}) == "held in 1 of 2 seeds, not measured in 1"


def rules_of(*rows):
    return pd.DataFrame(rows, columns=["rule", "seed", "sft_grpo", "grpo_dpo"])


def test_whether_the_rule_of_the_bill_decides():
    letters = {"sft_grpo": ("A", "C"), "grpo_dpo": ("C", "B")}
    alike = rules_of(
        ("as set", 0, HELD, NOT_SHOWN), ("with x", 0, HELD, NOT_SHOWN), ("with y", 0, NOT_MEASURED, NOT_MEASURED)
    )
    said = outcomes.on_rules(alike, letters)
    assert said == "Who leads at equal spend is the same under all 1 other rules that could be applied"
    unlike = rules_of(("as set", 0, HELD, NOT_SHOWN), ("with x", 0, HELD, WRONG))
    assert "(with x, C and B, seed 0: not shown becomes B leads)" in outcomes.on_rules(unlike, letters)
