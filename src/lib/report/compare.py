"""Statistics of the comparison: exact tests paired by document, at equal budgets. No pictures here.

An arm's curve starts with the shared start, at 0 hours unless the rule of the bill counts what came before it; a budget
always means spent hours, and no arm is read past the end of its run.
"""

from math import sqrt
from typing import NamedTuple

import pandas as pd
from scipy.stats import binom, binomtest
from statsmodels.stats.multitest import multipletests

from lib.report import cost

# The other pairs that are compared: (left, right, at equal spend, else each at its own end).
PAIRS = (("sft", "dpo", True), ("grpo", "dpo", True), ("sft", "grpo", False), ("grpo", "dpo", False))

NAMES = {"sft": "continued SFT", "dpo": "DPO", "grpo": "GRPO"}
LETTERS = {"sft": "A", "dpo": "B", "grpo": "C"}


class Curve(NamedTuple):
    """One run as the comparison reads it.

    points: one row a checkpoint, the shared start first as step 0: `step`, `hours`, `n`, `exact`, `accuracy`.
    exact_D_C: bool, documents (index: id) x checkpoints (columns: position in `points`).
    end_hours: all that the run spent; past it the run has no value.
    """

    name: str
    arm: str
    seed: int
    points: pd.DataFrame
    exact_D_C: pd.DataFrame
    end_hours: float


def check_judged(runs) -> None:
    """Raise ValueError unless every record's checkpoints were judged on the held-out documents."""
    # Records from before the parameter existed lack it; all of those were judged on heldout.
    judged = {run.name: run.info["parameters"].get("judged_split", "heldout") for run in runs}
    other = [f"{name} on {split}" for name, split in judged.items() if split != "heldout"]
    if other:
        raise ValueError(f"only runs judged on heldout can be compared (judged_split); judged were {', '.join(other)}")


def exact_by_document(predictions: pd.DataFrame, step: int, run: str) -> pd.Series:
    """`exact` of one checkpoint, indexed by document id. Raises ValueError for no rows or an id that comes twice."""
    rows = predictions[predictions["step"] == step]
    if rows.empty:
        raise ValueError(f"{run}: predictions.parquet has no rows of step {step}")
    if rows["id"].duplicated().any():
        twice = rows.loc[rows["id"].duplicated(), "id"].iloc[0]
        raise ValueError(f"{run}: predictions.parquet has document {twice!r} twice at step {step}")
    return rows.set_index("id")["exact"].astype(bool)


def curve(run, start) -> Curve:
    """The curve of one arm's record, from the last checkpoint of its start's record.

    Raises ValueError if the run did not begin from this very `start`, or was scored on other documents than it.
    """
    if run.info["parents"].get(start.name) != start.info["id"]:
        parents, wanted = run.info["parents"], {start.name: start.info["id"]}
        raise ValueError(f"{run.name} did not begin from this {start.name}: parents are {parents}, expected {wanted}")
    count = run.info["device"]["count"]
    own = run.checkpoints.sort_values("billed_s")
    shared = start.checkpoints.sort_values("step").tail(1)
    points = pd.concat([shared.assign(billed_s=0.0), own])[["step", "billed_s", "n", "exact"]].reset_index(drop=True)
    points["hours"] = [cost.device_hours(billed_s, count) for billed_s in points["billed_s"]]
    points["accuracy"] = points["exact"] / points["n"]
    exact = {0: exact_by_document(start.predictions, shared["step"].item(), start.name)}
    for position, step in enumerate(own["step"], start=1):
        exact[position] = exact_by_document(run.predictions, step, run.name)
        check_same_documents(exact[0], exact[position], start.name, f"{run.name} step {step}")
    points.loc[0, "step"] = 0
    end_hours = cost.device_hours(run.info["billed_s"], count)
    return Curve(run.name, run.info["arm"], run.info["seed"], points, pd.DataFrame(exact), end_hours)


def repriced(arm: Curve, hours: list[float]) -> Curve:
    """The same curve under another rule of the bill: `hours` of each of its points, then of its end."""
    return arm._replace(points=arm.points.assign(hours=hours[:-1]), end_hours=hours[-1])


def check_same_documents(left, right, left_name: str, right_name: str) -> None:
    """Raise ValueError unless both (series or tables) are indexed by the same document ids."""
    alone = set(left.index) ^ set(right.index)
    if alone:
        raise ValueError(
            f"{left_name} and {right_name} were not scored on the same documents: "
            f"{len(alone)} ids in one only, first {min(alone, key=str)!r}"
        )


def discordant(left: pd.Series, right: pd.Series) -> tuple[int, int]:
    """Documents that only `left` has right, and that only `right` has; bool series indexed by document id."""
    check_same_documents(left, right, "left", "right")
    right = right.reindex(left.index)
    return int((left & ~right).sum()), int((~left & right).sum())


def mcnemar(left_only: int, right_only: int) -> tuple[float, float]:
    """Exact two-sided McNemar test on the discordant counts: (p, mid-p).

    p: binomial test of `left_only` of all discordant pairs against 1/2 (McNemar 1947); without discordant pairs 1.
    mid-p: outcomes as extreme as the observed one weigh half (Fagerland, Lydersen, Laake 2013).
    """
    pairs = left_only + right_only
    if pairs == 0:
        return 1.0, 1.0
    fewer = min(left_only, right_only)
    p = float(binomtest(fewer, pairs).pvalue)
    as_extreme = binom.pmf(fewer, pairs, 0.5) * (1 if 2 * fewer == pairs else 2)
    more_extreme = 2 * binom.cdf(fewer - 1, pairs, 0.5)
    return p, float(more_extreme + as_extreme / 2)


def holm(p_values: list[float]) -> list[float]:
    """Holm's step-down adjustment of one family of p-values, in their order."""
    return [float(p) for p in multipletests(p_values, method="holm")[1]] if len(p_values) else []


def add_holm(table: pd.DataFrame) -> pd.DataFrame:
    """`table` with `p_holm` over its tested rows as one family; rows without a test (p missing) stay missing."""
    tested = table["p"].notna()
    table = table.assign(p_holm=float("nan"))
    table.loc[tested, "p_holm"] = holm(table.loc[tested, "p"].tolist())
    return table


def newest_within(arm: Curve, budget_hours: float) -> int | None:
    """Position of the newest checkpoint within the budget; None once the run has ended before it.

    None too for a budget that does not even pay for the shared start, where that is on the bill.
    """
    # Budgets are other runs' hours: leave room for float rounding of the same sum.
    within = int((arm.points["hours"] <= budget_hours * (1 + 1e-9)).sum())
    return None if budget_hours > arm.end_hours * (1 + 1e-9) or within == 0 else within - 1


def mcnemar_between(left: pd.Series, right: pd.Series) -> dict:
    """McNemar between two bool series indexed by document id: `left_better`, `right_better`, `p`, `mid_p`."""
    left_only, right_only = discordant(left, right)
    p, mid_p = mcnemar(left_only, right_only)
    return {"left_better": left_only, "right_better": right_only, "p": p, "mid_p": mid_p}


def mcnemar_at(left: Curve, right: Curve, at_left: int | None, at_right: int | None) -> dict:
    """McNemar between two checkpoints (positions in `points`); all None where one of the arms has ended."""
    if at_left is None or at_right is None:
        return dict.fromkeys(("left_better", "right_better", "p", "mid_p"))
    return mcnemar_between(left.exact_D_C[at_left], right.exact_D_C[at_right])


def at_budgets(left: Curve, right: Curve, budgets_hours: list[float]) -> pd.DataFrame:
    """Compare two arms on equal spend: one row a budget, each arm with its newest checkpoint within it.

    Columns: `budget_hours`, `left_accuracy`, `right_accuracy`, `left_step`, `right_step` (of that checkpoint; 0 is the
    shared start), `left_better`, `right_better` (documents), `p`, `mid_p`. Missing once an arm ended.
    """
    rows = []
    for budget_hours in budgets_hours:
        row = {"budget_hours": budget_hours}
        at = [newest_within(arm, budget_hours) for arm in (left, right)]
        for side, arm, position in zip(("left", "right"), (left, right), at, strict=True):
            row[f"{side}_accuracy"] = None if position is None else arm.points["accuracy"][position]
            row[f"{side}_step"] = None if position is None else arm.points["step"][position]
        rows.append(row | mcnemar_at(left, right, *at))
    return pd.DataFrame(rows).astype(float)


def wins(table: pd.DataFrame, alpha: float, p: str = "p") -> tuple[int, int]:
    """Rows of a comparison in which left is significantly better, and in which right is."""
    significant = table[p] < alpha
    return (
        int((significant & (table["left_better"] > table["right_better"])).sum()),
        int((significant & (table["right_better"] > table["left_better"])).sum()),
    )


def last(arm: Curve) -> float:
    """Accuracy of the run's final checkpoint."""
    return float(arm.points["accuracy"].iloc[-1])


def standard_error(exact: int, n: int) -> float:
    """Binomial standard error of one checkpoint's accuracy: sqrt(p (1 - p) / n). Sampling of documents only."""
    accuracy = exact / n
    return sqrt(accuracy * (1 - accuracy) / n)


def final_table(curves: dict[tuple[str, int], Curve], start_hours: dict[int, float]) -> pd.DataFrame:
    """Every run at its end, tested against its shared start (left is last, right is start), Holm over all runs.

    `best` is the highest checkpoint, picked on the documents that it is scored on. start_hours: by seed.
    """
    rows = []
    for (arm, seed), curve in curves.items():
        points, end = curve.points, len(curve.points) - 1
        best = points.loc[points["accuracy"].idxmax()]
        row = {"arm": arm, "seed": seed, "start": points["accuracy"][0], "last": last(curve)}
        row |= {"best": best["accuracy"], "best_hours": best["hours"], "hours": curve.end_hours}
        row |= {"from_scratch_hours": curve.end_hours + start_hours[seed]}
        row |= {"standard_error": standard_error(points["exact"][end], points["n"][end])}
        rows.append(row | mcnemar_at(curve, curve, end, 0))
    return add_holm(pd.DataFrame(rows))


def equal_spend_table(curves: dict[tuple[str, int], Curve], seeds: list[int]) -> pd.DataFrame:
    """Continued SFT (left) against GRPO (right) at the ends of all runs of a seed but the longest, Holm over all rows.

    Columns of `at_budgets`, `seed`, `of` (the arm that had spent all of its bill at this budget), and `dpo_accuracy`,
    `dpo_step` (missing where DPO was not run or has ended).
    """
    tables = []
    for seed in seeds:
        own = {arm: curves[arm, seed] for arm in NAMES if (arm, seed) in curves}
        arms = sorted(own, key=lambda arm: own[arm].end_hours)[:-1]
        ends = [own[arm].end_hours for arm in arms]
        table = at_budgets(own["sft"], own["grpo"], ends).assign(
            seed=seed, of=arms, dpo_accuracy=float("nan"), dpo_step=float("nan")
        )
        if "dpo" in own:
            beside = at_budgets(own["sft"], own["dpo"], ends)
            table[["dpo_accuracy", "dpo_step"]] = beside[["right_accuracy", "right_step"]]
        tables.append(table)
    return add_holm(pd.concat(tables, ignore_index=True))


def all_budgets_table(curves: dict[tuple[str, int], Curve], seeds: list[int], alpha: float) -> pd.DataFrame:
    """At how many of continued SFT's checkpoint budgets it (left) or GRPO (right) is significantly ahead, by seed.

    `compared`: budgets at which both still ran. `own`: those of them at which GRPO had saved a checkpoint; before, it
    enters with the shared start. Wins raw, and with Holm over the budgets of the seed.
    """
    rows = []
    for seed in seeds:
        sft, grpo = curves["sft", seed], curves["grpo", seed]
        table = add_holm(at_budgets(sft, grpo, sft.points["hours"][1:].tolist()))
        row = {"seed": seed, "budgets": len(table), "compared": int(table["p"].notna().sum())}
        row["own"] = int((table["right_step"] > 0).sum())
        row["left_wins"], row["right_wins"] = wins(table, alpha)
        row["left_wins_holm"], row["right_wins_holm"] = wins(table, alpha, "p_holm")
        rows.append(row)
    return pd.DataFrame(rows)


def pairs_table(curves: dict[tuple[str, int], Curve], seeds: list[int]) -> pd.DataFrame:
    """PAIRS of each seed, at the most that both have spent or (`budget_hours` missing) at their own ends; Holm."""
    rows = []
    for seed in seeds:
        for left, right, equal in PAIRS:
            if (left, seed) not in curves or (right, seed) not in curves:
                continue
            pair = curves[left, seed], curves[right, seed]
            budget = min(curve.end_hours for curve in pair)
            at = [newest_within(curve, budget) if equal else len(curve.points) - 1 for curve in pair]
            row = {"seed": seed, "left": left, "right": right, "budget_hours": budget if equal else None}
            for side, curve, position in zip(("left", "right"), pair, at, strict=True):
                row[f"{side}_accuracy"] = curve.points["accuracy"][position]
                row[f"{side}_step"] = curve.points["step"][position]
            rows.append(row | mcnemar_at(*pair, *at))
    return add_holm(pd.DataFrame(rows))
