"""The statistics, on numbers small enough to check by hand."""

from types import SimpleNamespace

import pandas as pd
import pytest

from lib.report import compare
from lib.report.compare import Curve


def make_curve(arm, hours, exact_rows, end_hours=None, seed=0):
    """A curve from strings such as "110": one a checkpoint, the start first, one character a document."""
    exact = pd.DataFrame({k: [c == "1" for c in row] for k, row in enumerate(exact_rows)})
    exact.index = [f"d{i}" for i in range(len(exact))]
    points = pd.DataFrame({"step": range(len(hours)), "hours": hours, "n": len(exact), "exact": exact.sum().to_numpy()})
    points["accuracy"] = points["exact"] / points["n"]
    return Curve(f"{arm}-s{seed}", arm, seed, points, exact, end_hours or hours[-1])


@pytest.mark.parametrize(
    ("better", "worse", "p", "mid_p"),
    [
        (0, 0, 1.0, 1.0),  # no discordant pair: nothing against equality
        (0, 1, 1.0, 0.5),
        (0, 3, 2 / 8, 1 / 8),
        (1, 3, 10 / 16, 2 / 16 + 4 / 16),
        (2, 2, 1.0, 1 - 6 / 16 / 2),
        (0, 5, 2 / 32, 1 / 32),
    ],
)
def test_mcnemar_by_hand(better, worse, p, mid_p):
    assert compare.mcnemar(better, worse) == pytest.approx((p, mid_p))
    assert compare.mcnemar(worse, better) == pytest.approx((p, mid_p))


@pytest.mark.parametrize(
    ("better", "worse", "p"), [(83, 54, "0.016"), (117, 66, "0.0002"), (131, 75, "0.0001"), (18, 13, "0.47")]
)
def test_mcnemar_gives_the_published_p_values(better, worse, p):
    decimals = len(p) - len("0.")
    assert f"{compare.mcnemar(better, worse)[0]:.{decimals}f}" == p


def test_holm_by_hand():
    # smallest times 3, next times 2, and never below one that was smaller
    assert compare.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert compare.holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert compare.holm([]) == []


def test_add_holm_leaves_untested_rows_missing_and_out_of_the_family():
    table = compare.add_holm(pd.DataFrame({"p": [0.02, float("nan"), 0.03]}))
    assert table["p_holm"].tolist()[::2] == pytest.approx([0.04, 0.04])
    assert pd.isna(table["p_holm"][1])


def test_discordant_pairs_by_document_id_not_by_position():
    left = pd.Series([True, True, False], index=["a", "b", "c"])
    right = pd.Series([True, False, False], index=["c", "b", "a"])
    assert compare.discordant(left, right) == (2, 1)


def test_discordant_refuses_different_documents():
    left = pd.Series([True, True], index=["a", "b"])
    with pytest.raises(ValueError, match="not scored on the same documents.*'b'"):
        compare.discordant(left, pd.Series([True, True], index=["a", "c"]))


def test_exact_by_document_refuses_a_document_twice_and_a_step_without_rows():
    predictions = pd.DataFrame({"step": [1, 1], "id": ["a", "a"], "exact": [True, False]})
    with pytest.raises(ValueError, match="'a' twice at step 1"):
        compare.exact_by_document(predictions, 1, "sft-s0")
    with pytest.raises(ValueError, match="sft-s0: .* no rows of step 2"):
        compare.exact_by_document(predictions, 2, "sft-s0")


def test_newest_within_a_budget():
    arm = make_curve("sft", [0, 0.1, 0.2], ["00", "01", "11"], end_hours=0.25)
    assert [compare.newest_within(arm, hours) for hours in (0, 0.09, 0.1, 0.2, 0.25)] == [0, 0, 1, 2, 2]
    assert compare.newest_within(arm, 0.251) is None  # ended: never read on
    late = compare.repriced(arm, [1.0, 1.1, 1.2, 1.25])  # the same, with the shared start on the bill
    assert [compare.newest_within(late, hours) for hours in (0.9, 1.0, 1.1, 1.26)] == [None, 0, 1, None]


def test_at_budgets_compares_on_equal_spend_and_stops_at_the_end_of_a_run():
    sft = make_curve("sft", [0, 0.1, 0.2], ["0000", "1000", "1111"])
    grpo = make_curve("grpo", [0, 0.15, 0.4], ["0000", "0110", "1111"])
    table = compare.at_budgets(sft, grpo, [0.1, 0.2, 0.3])
    assert table["left_accuracy"].tolist()[:2] == [0.25, 1.0]
    assert table["right_accuracy"].tolist() == [0.0, 0.5, 0.5]
    assert table["right_step"].tolist() == [0, 1, 1]  # at 0.1 h GRPO is still the shared start
    assert table["left_better"].tolist()[:2] == [1, 2]
    assert table.loc[2, ["left_accuracy", "left_better", "p", "mid_p"]].isna().all()


def test_wins_count_significant_rows_each_way():
    rows = {"p": [0.01, 0.01, 0.2, None], "left_better": [9, 1, 5, None], "right_better": [1, 9, 4, None]}
    table = pd.DataFrame(rows, dtype=float)
    assert compare.wins(table, 0.05) == (1, 1)


def arms_of_a_seed():
    """A 100% at 2 h; C first saves at 3 h, and is below; B ends early, with nothing right."""
    sft = make_curve("sft", [0, 1, 2], ["10" * 6, "11" * 6, "11" * 6])
    grpo = make_curve("grpo", [0, 3, 4], ["10" * 6, "10" * 6, "11" * 3 + "10" * 3])
    return {("sft", 0): sft, ("grpo", 0): grpo, ("dpo", 0): make_curve("dpo", [0, 1.5], ["10" * 6, "00" * 6])}


def test_final_table_tests_last_against_start_over_all_runs():
    table = compare.final_table(arms_of_a_seed(), {0: 10}).set_index("arm")
    assert table.loc["sft", ["start", "last", "best_hours", "from_scratch_hours"]].tolist() == [0.5, 1.0, 1.0, 12.0]
    assert table.loc["dpo", ["left_better", "right_better"]].tolist() == [0, 6]
    assert table["p_holm"].tolist() == pytest.approx([3 * 2 / 64, 0.25, 3 * 2 / 64])  # sft, grpo (3 against 0), dpo


def test_equal_spend_table_has_the_ends_of_all_but_the_longest_run():
    table = compare.equal_spend_table(arms_of_a_seed(), [0])
    assert table["budget_hours"].tolist() == [1.5, 2]
    assert table["dpo_accuracy"].tolist()[0] == 0 and pd.isna(table["dpo_accuracy"][1])
    assert table["right_step"].tolist() == [0, 0]  # C had saved nothing yet


def test_all_budgets_and_pairs_by_hand():
    curves = arms_of_a_seed()
    row = compare.all_budgets_table(curves, [0], 0.05).iloc[0]
    assert row[["budgets", "compared", "left_wins", "right_wins"]].tolist() == [2, 2, 2, 0]
    pairs = compare.pairs_table(curves, [0])
    assert list(zip(pairs["left"], pairs["right"], strict=True)) == [pair[:2] for pair in compare.PAIRS]
    assert pairs["budget_hours"].tolist()[:2] == [1.5, 1.5] and pairs["budget_hours"][2:].isna().all()


def test_standard_error():
    assert compare.standard_error(50, 100) == pytest.approx(0.05)
    assert compare.standard_error(1731, 2000) == pytest.approx(0.0076, abs=1e-4)  # the published "about 0.75 points"
    assert compare.standard_error(10, 10) == 0


def record(name, checkpoints, predictions, parents, billed_s=0.0, count=1):
    info = {"id": f"id-{name}", "parents": parents, "arm": name.split("-")[0], "seed": 0, "billed_s": billed_s}
    info["device"] = {"count": count}
    checkpoints = pd.DataFrame(checkpoints, columns=["step", "billed_s", "n", "exact"])
    predictions = pd.DataFrame(predictions, columns=["step", "id", "exact"])
    return SimpleNamespace(name=name, info=info, checkpoints=checkpoints, predictions=predictions)


def test_curve_starts_at_zero_from_the_last_checkpoint_of_its_start():
    start = record("start-s0", [(5, 30, 2, 0), (9, 60, 2, 1)], [(9, "a", True), (9, "b", False), (5, "a", False)], {})
    parents = {"start-s0": "id-start-s0"}
    own = record("sft-s0", [(4, 1800, 2, 2)], [(4, "b", True), (4, "a", True)], parents, 3600, count=2)
    curve = compare.curve(own, start)
    assert curve.points["step"].tolist() == [0, 4]
    assert curve.points["hours"].tolist() == [0, 1.0]  # half an hour on two devices
    assert curve.points["accuracy"].tolist() == [0.5, 1.0]
    assert curve.end_hours == 2.0
    assert curve.exact_D_C.loc["b"].tolist() == [False, True]


def test_curve_refuses_another_start_and_other_documents():
    start = record("start-s0", [(9, 60, 1, 1)], [(9, "a", True)], {})
    stranger = record("sft-s0", [(4, 90, 1, 1)], [(4, "a", True)], {"start-s0": "id-of-another"})
    with pytest.raises(ValueError, match="sft-s0 did not begin from this start-s0"):
        compare.curve(stranger, start)
    elsewhere = record("sft-s0", [(4, 90, 1, 1)], [(4, "z", True)], {"start-s0": "id-start-s0"})
    with pytest.raises(ValueError, match="start-s0 and sft-s0 step 4 were not scored on the same documents"):
        compare.curve(elsewhere, start)
