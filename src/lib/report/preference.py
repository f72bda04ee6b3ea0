"""What DPO does to its pairs, checkpoint by checkpoint: log-probs against the shared start, margin, and two alarms.

Reads the table `likelihood` of a DPO record (`likelihood.checkpoints` wrote it): fixed training and held-out pairs,
judged alike at the start (step 0) and at every checkpoint. All changes are against the start, in nats.
"""

import pandas as pd
from scipy.stats import binomtest, ttest_1samp

from lib.report import compare

# Level of each condition of an alarm, at each checkpoint: strict, because a run has many checkpoints.
ALPHA = 0.01
SIDES = ("chosen", "rejected")


def changes(table: pd.DataFrame) -> pd.DataFrame:
    """`table` with `chosen` and `rejected`, the change of each summed log-prob since step 0 (nats a completion).

    Raises ValueError unless every step has the pairs of step 0.
    """
    start = table[table["step"] == 0].set_index(["set", "id"])
    for step, rows in table.groupby("step"):
        if set(rows.set_index(["set", "id"]).index) != set(start.index):
            raise ValueError(f"likelihood: step {step} has other pairs than step 0, expected the same at every step")
    keys = pd.MultiIndex.from_frame(table[["set", "id"]])
    return table.assign(
        **{side: table[f"{side}_logp"] - start[f"{side}_logp"].reindex(keys).to_numpy() for side in SIDES}
    )


def by_checkpoint(table: pd.DataFrame) -> pd.DataFrame:
    """One row a set and checkpoint, step 0 first: how its pairs moved since the start.

    `pairs`; `chosen`, `rejected`: mean change of the summed log-prob; `*_token`: the same, of all pairs together, per
    completion token; `margin`: mean of chosen - rejected change (TRL's margin is beta times it); `pushed_down`: the
    share of the margin that comes from rejected answers falling (above 1 where chosen ones fell too; missing without a
    margin); `preference`: share of pairs whose chosen answer gained more than the rejected one (TRL's accuracy; missing
    at the start); `ranked`: share whose chosen answer is the likelier one; `greedy`, `greedy_token`: mean log-prob of
    the checkpoint's own greedy answers, and per token. `chosen_fell_p`: one-sided t-test of chosen changes below 0;
    `preference_p`: one-sided exact binomial test of preference above a half, pairs without change left out.
    """
    rows = []
    for (name, step), pairs in changes(table).groupby(["set", "step"], sort=False):
        row = {"set": name, "step": step, "pairs": len(pairs)}
        for side in SIDES:
            row[side] = pairs[side].mean()
            row[f"{side}_token"] = pairs[side].sum() / pairs[f"{side}_tokens"].sum()
        row["margin"] = row["chosen"] - row["rejected"]
        row["pushed_down"] = pushed_down(row["rejected"], row["margin"])
        row["ranked"] = (pairs["chosen_logp"] > pairs["rejected_logp"]).mean()
        row["greedy"] = pairs["greedy_logp"].mean()
        row["greedy_token"] = pairs["greedy_logp"].sum(min_count=1) / pairs["greedy_tokens"].sum(min_count=1)
        if step:
            won, lost = ((sign * (pairs["chosen"] - pairs["rejected"]) > 0).sum() for sign in (1, -1))
            row["preference"] = won / len(pairs)
            row["preference_p"] = binomtest(won, won + lost, alternative="greater").pvalue if won + lost else 1.0
            # without spread there is no test: all pairs moved alike
            spread = len(pairs) > 1 and pairs["chosen"].std() > 0
            row["chosen_fell_p"] = ttest_1samp(pairs["chosen"], 0, alternative="less").pvalue if spread else 1.0
        rows.append(row)
    return pd.DataFrame(rows)


def pushed_down(rejected: float, margin: float) -> float:
    """Share of a margin that comes from the rejected answer falling; missing where the margin is not above 0."""
    return -rejected / margin if margin > 0 else float("nan")


def alarms(moved: pd.DataFrame, arm: compare.Curve, judged: str = "heldout") -> pd.DataFrame:
    """`by_checkpoint` of the set `judged`, without the start, with the two alarms and what they rest on.

    `displaced`: chosen answers got less likely, and preference is above a half; both below ALPHA.
    `parted`: preference is above a half, and exact records are fewer than at the start by the exact McNemar test; both
    below ALPHA. `exact`: share of exact records; `exact_p`: p of that test.
    """
    rows = moved[(moved["set"] == judged) & (moved["step"] > 0)].copy()
    position = {int(step): at for at, step in enumerate(arm.points["step"])}
    absent = [step for step in rows["step"] if int(step) not in position]
    if absent:
        raise ValueError(f"{arm.name}: likelihood has step {absent[0]}, which is no checkpoint of the run")
    tests = [compare.mcnemar_at(arm, arm, position[int(step)], 0) for step in rows["step"]]
    fewer = [test["left_better"] < test["right_better"] and test["p"] < ALPHA for test in tests]
    preferred = rows["preference_p"] < ALPHA
    return rows.assign(
        exact=[arm.points["accuracy"][position[int(step)]] for step in rows["step"]],
        exact_p=[test["p"] for test in tests],
        displaced=(rows["chosen_fell_p"] < ALPHA) & preferred,
        parted=preferred & pd.Series(fewer, index=rows.index),
    )


def with_alarms(table: pd.DataFrame, arm: compare.Curve, judged: str = "heldout") -> pd.DataFrame:
    """`by_checkpoint` of a likelihood table, the start too, with `exact` and the columns of `alarms`.

    Those are known of the set `judged` alone, and stay missing elsewhere; the start has no alarm.
    """
    moved = by_checkpoint(table)
    told = alarms(moved, arm, judged)[["set", "step", "exact", "exact_p", "displaced", "parted"]]
    joined = moved.merge(told, on=["set", "step"], how="left")
    joined.loc[(joined["set"] == judged) & (joined["step"] == 0), "exact"] = arm.points["accuracy"][0]
    return joined


def first_middle_last(moved: pd.DataFrame) -> pd.DataFrame:
    """The rows of a few checkpoints of each seed and set, the start left out."""
    by_set = moved[moved["step"] > 0].groupby(["seed", "set"], sort=False)
    return pd.concat([rows.iloc[sorted({0, (len(rows) - 1) // 2, len(rows) - 1})] for _, rows in by_set])


def alarm_phrase(rows: pd.DataFrame, alarm: str) -> str:
    """At how many checkpoints an alarm (a bool column) went off, and first where, as a phrase."""
    on = rows[rows[alarm]]
    if on.empty:
        return f"at none of {len(rows)} checkpoints"
    return f"at {len(on)} of {len(rows)} checkpoints, first at step {int(on['step'].iloc[0])}"
