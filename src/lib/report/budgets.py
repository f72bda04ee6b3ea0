"""Every pair of arms at every budget, the same under other rules of the bill, and run against run of one arm.

Tables of tests and differences; no pictures here.
"""

from itertools import combinations

import pandas as pd

from lib.report import compare, outcomes, reach
from lib.report.compare import Curve

PAIRS = (("sft", "grpo"), ("sft", "dpo"), ("grpo", "dpo"))  # left, right


def table(curves: dict[tuple[str, int], Curve], seeds: list[int]) -> pd.DataFrame:
    """PAIRS of each seed at every checkpoint budget of either arm, as long as both ran: one row a comparison.

    Budgets at which both enter with the same two checkpoints as before (those of the third arm do) are no comparison of
    their own and no row. Columns of `compare.at_budgets`, `seed`, `left`, `right` (arms), `difference` (left minus
    right, points), and `p_holm`; Holm's family is one pair of one seed.
    """
    tables = []
    for seed in seeds:
        for left, right in PAIRS:
            if (left, seed) not in curves or (right, seed) not in curves:
                continue
            pair = curves[left, seed], curves[right, seed]
            budgets = sorted({hours for curve in pair for hours in curve.points["hours"][1:]})
            rows = compare.at_budgets(*pair, budgets).dropna(subset=["p"]).drop_duplicates(["left_step", "right_step"])
            difference = 100 * (rows["left_accuracy"] - rows["right_accuracy"])
            tables.append(compare.add_holm(rows).assign(seed=seed, left=left, right=right, difference=difference))
    return pd.concat(tables, ignore_index=True)


def summary(budgets: pd.DataFrame, alpha: float) -> pd.DataFrame:
    """Of `table`, one row a pair and seed: `compared` and wins of either side, raw and after Holm; and the last row.

    The last row is at the most that both have spent; all its columns are kept.
    """
    rows = []
    for _, own in budgets.groupby(["seed", "left", "right"], sort=False):
        row = own.iloc[-1].to_dict() | {"compared": len(own)}
        row["left_wins"], row["right_wins"] = compare.wins(own, alpha)
        row["left_wins_holm"], row["right_wins_holm"] = compare.wins(own, alpha, "p_holm")
        rows.append(row)
    return pd.DataFrame(rows)


def under_rules(variants: dict[str, dict | None], seeds: list[int], alpha: float) -> pd.DataFrame:
    """What the comparison says under several rules of the bill: one row a rule and seed.

    variants: rule, in words -> the curves under it; None where it could not be applied. For each of PAIRS, at the most
    that both have spent: the outcome of "left is better" in the column `<left>_<right>`; `<left>_<right>_p`, after Holm
    within the table that the comparison stands in; `<left>_<right>_start`, the arms that enter as the shared start.
    `sft_hours`, `grpo_hours`, `multiple`: to reach and hold C's last accuracy.
    """
    rows = []
    for rule, curves in variants.items():
        tested = {}
        if curves is not None:
            headline = compare.equal_spend_table(curves, seeds).dropna(subset=["p"]).groupby("seed").tail(1)
            others = compare.pairs_table(curves, seeds)
            tests = pd.concat([headline.assign(left="sft", right="grpo"), others[others["budget_hours"].notna()]])
            tested = {(row.left, row.right, row.seed): row for row in tests.itertuples()}
            spent = reach.table(curves, seeds, [])
            spent = spent[spent["of"] == "C's last"].set_index("seed")
        for seed in seeds:
            row = {"rule": rule, "seed": seed}
            for left, right in PAIRS:
                test = tested.get((left, right, seed))
                row[f"{left}_{right}"], row[f"{left}_{right}_p"] = outcomes.NOT_MEASURED, float("nan")
                row[f"{left}_{right}_start"] = ""
                if test is not None:
                    unsaved = [arm for arm, step in ((left, test.left_step), (right, test.right_step)) if step == 0]
                    row[f"{left}_{right}_start"] = "".join(f" ({compare.LETTERS[arm]}: start)" for arm in unsaved)
                    row[f"{left}_{right}"] = outcomes.shown(test.left_better, test.right_better, test.p_holm, alpha)
                    row[f"{left}_{right}_p"] = test.p_holm
            for key in ("sft_hours", "grpo_hours", "multiple"):
                row[key] = float("nan") if curves is None else spent.loc[seed, key]
            rows.append(row)
    return pd.DataFrame(rows).astype(dict.fromkeys(("sft_hours", "grpo_hours", "multiple"), float))


def variation(curves: dict[tuple[str, int], Curve], reruns: dict[tuple[str, int], list[Curve]]) -> pd.DataFrame:
    """How far runs of one arm lie apart: one row for two seeds, and for a run and its rerun under the same seed.

    Columns: `arm`, `pair` (in words), `rerun` (bool), at their own ends `left_accuracy`, `right_accuracy`, `difference`
    (left minus right, points), `left_better`, `right_better` (documents), `left_hours`, `right_hours`; and `widest`:
    the largest difference, either way, of two checkpoints at the same step (points).
    """
    compared = []
    for (arm, seed), curve in curves.items():
        compared += [(arm, f"seed {seed} and its rerun", True, curve, again) for again in reruns.get((arm, seed), [])]
    for arm in compare.NAMES:
        seeds = sorted(seed for other, seed in curves if other == arm)
        compared += [
            (arm, f"seeds {one} and {other}", False, curves[arm, one], curves[arm, other])
            for one, other in combinations(seeds, 2)
        ]
    rows = []
    for arm, pair, rerun, left, right in compared:
        row = {"arm": arm, "pair": pair, "rerun": rerun}
        row |= {"left_accuracy": compare.last(left), "right_accuracy": compare.last(right)}
        row["difference"] = 100 * (row["left_accuracy"] - row["right_accuracy"])
        ends = [curve.exact_D_C[len(curve.points) - 1] for curve in (left, right)]
        row["left_better"], row["right_better"] = compare.discordant(*ends)
        row |= {"left_hours": left.end_hours, "right_hours": right.end_hours}
        steps = left.points[1:].merge(right.points[1:], on="step")
        row["widest"] = 100 * (steps["accuracy_x"] - steps["accuracy_y"]).abs().max()
        rows.append(row)
    columns = ["arm", "pair", "rerun", "left_accuracy", "right_accuracy", "difference", "left_better", "right_better"]
    table = pd.DataFrame(rows, columns=[*columns, "left_hours", "right_hours", "widest"])
    return table.astype({"rerun": bool})  # so that `~` works without rows too
