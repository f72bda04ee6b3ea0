"""What DPO and GRPO report about themselves, and where fields go wrong: summaries of a record's tables. No pictures.

A column that a run did not log makes its summary missing (NaN), never 0.
"""

import pandas as pd

from lib.data import FIELDS

DPO_MEASURES = ("chosen_logp", "rejected_logp", "chosen_logp_token", "rejected_logp_token", "accuracy")
NULLABLE = tuple(field for field in FIELDS if field != "name")  # every document names its person
MISTAKES = ("missing", "wrong", "spurious")


def column(steps: pd.DataFrame, name: str) -> pd.Series:
    """A column of the step table; all missing if the run did not log it."""
    return steps[name] if name in steps else pd.Series(float("nan"), index=steps.index)


def tenths(values: pd.Series) -> tuple[float, float, float]:
    """Means over the first, the middle and the last tenth of the steps (at least one step each), in step order."""
    size = max(1, len(values) // 10)
    middle = (len(values) - size) // 2
    return tuple(float(values.iloc[at : at + size].mean()) for at in (0, middle, len(values) - size))


def dpo_ends(steps: pd.DataFrame) -> dict:
    """`<measure>_first` and `<measure>_last` (means of tenths) of DPO's measures: log-probs in nats, accuracy of pairs.

    `displaced`: chosen and rejected both lost log-prob while preference accuracy rose (likelihood displacement);
    None where one of them was not logged.
    """
    row: dict = {}
    for measure in DPO_MEASURES:
        row[f"{measure}_first"], _, row[f"{measure}_last"] = tenths(column(steps, measure))
    rise = {m: row[f"{m}_last"] - row[f"{m}_first"] for m in ("chosen_logp", "rejected_logp", "accuracy")}
    known = not any(pd.isna(change) for change in rise.values())
    fell = rise["chosen_logp"] < 0 and rise["rejected_logp"] < 0
    return row | {"displaced": fell and rise["accuracy"] > 0 if known else None}


def group_signal(steps: pd.DataFrame) -> dict:
    """GRPO's signal: zero-variance groups and entropy (nats per token) by tenths, and steps that moved nothing.

    `zero_*`: share of groups whose rollouts all got one reward. `gradient_zero`: share of steps with gradient norm
    exactly 0. `all_right`, `all_wrong`: share of groups whose every rollout is an exact record, or none is.
    """
    groups = column(steps, "groups")
    constant = column(steps, "zero_variance_groups") / groups
    row = {"zero_all": constant.mean()}
    row["zero_first"], row["zero_middle"], row["zero_last"] = tenths(constant)
    row["entropy_first"], _, row["entropy_last"] = tenths(column(steps, "entropy"))
    gradient = column(steps, "grad_norm")
    row["gradient_zero"] = float((gradient == 0).mean()) if gradient.notna().all() else float("nan")
    for which in ("right", "wrong"):
        row[f"all_{which}"] = (column(steps, f"groups_all_{which}") / groups).mean()
    return row


def null_shares(steps: pd.DataFrame) -> pd.DataFrame | None:
    """Shares of each step's rollouts, None if not logged: `null_<field>` answered null, `null_expected_<field>` null in
    gold, `missing_<field>` answered null where gold has a value.
    """
    names = [f"{prefix}_{field}" for field in FIELDS for prefix in ("null", "null_expected", "missing")]
    if not {"rollouts", *names} <= set(steps.columns):
        return None
    return steps[names].div(steps["rollouts"], axis=0).assign(step=steps["step"])


def gold_values(predictions: list[pd.DataFrame], field: str) -> int:
    """Documents whose gold has a value in `field`, read off the verdicts: missing, wrong, or right with a value.

    A document whose every completion was invalid tells nothing, and is not counted.
    """
    known: set = set()
    for table in predictions:
        verdict = table[f"{field}_verdict"]
        has_value = verdict.isin(["missing", "wrong"]) | ((verdict == "right") & table[field].notna())
        known |= set(table.loc[has_value, "id"])
    return len(known)


def null_checkpoints(start: pd.DataFrame, own: pd.DataFrame) -> list[dict]:
    """Fields answered null where gold has a value (verdict missing) on the held-out documents, at four checkpoints.

    start, own: checkpoint tables of the shared start and of the run. Returns rows `checkpoint` (start, first, most
    nulls, last), `step` (0 for the start), a count a field, and `all`.
    """
    own = own.sort_values("step")
    missing = [f"{field}_missing" for field in NULLABLE]
    most = own[missing].sum(axis=1).idxmax()
    chosen = {"start": start.sort_values("step").iloc[-1], "first": own.iloc[0], "most nulls": own.loc[most]}
    rows = []
    for checkpoint, row in (chosen | {"last": own.iloc[-1]}).items():
        counts = {field: int(row[f"{field}_missing"]) for field in NULLABLE}
        step = 0 if checkpoint == "start" else int(row["step"])
        rows.append({"checkpoint": checkpoint, "step": step, **counts, "all": sum(counts.values())})
    return rows


def mistakes(checkpoint: pd.Series) -> dict:
    """Fields gone wrong at one checkpoint: `<field>_<mistake>` counts, `invalid` completions, `places_share`.

    places_share: of all missing, wrong and spurious fields, those that are places; None where nothing is wrong.
    """
    row = {f"{field}_{kind}": int(checkpoint[f"{field}_{kind}"]) for field in FIELDS for kind in MISTAKES}
    total = sum(row.values())
    places = sum(count for name, count in row.items() if "_place_" in name)
    return row | {
        "invalid": int(checkpoint["n"] - checkpoint["valid"]),
        "places_share": places / total if total else None,
    }


def disagreements(run) -> list[str]:
    """Checkpoints whose exact count is not the one that the predictions give, as readable lines."""
    recounted = run.predictions.groupby("step")["exact"].sum()
    return [
        f"{run.name} step {row.step}: {row.exact} exact in checkpoints, {recounted.get(row.step)} in predictions"
        for row in run.checkpoints.itertuples()
        if recounted.get(row.step) != row.exact
    ]
