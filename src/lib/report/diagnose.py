"""What DPO and GRPO report about themselves, and where fields go wrong: summaries of a record's tables. No pictures.

A column that a run did not log makes its summary missing (NaN), never 0.
"""

import pandas as pd
from scipy.stats import spearmanr, ttest_1samp, ttest_ind

from lib import grpo
from lib.data import FIELDS
from lib.report import compare, preference
from lib.report.outcomes import HELD, NOT_SHOWN, WRONG

DPO_MEASURES = ("chosen_logp", "rejected_logp", "chosen_logp_token", "rejected_logp_token", "accuracy")
NULLABLE = tuple(field for field in FIELDS if field != "name")  # every document names its person
MISTAKES = ("missing", "wrong", "spurious")


def column(steps: pd.DataFrame, name: str) -> pd.Series:
    """A column of the step table; all missing if the run did not log it."""
    return steps[name] if name in steps else pd.Series(float("nan"), index=steps.index)


def smooth(table: pd.DataFrame, steps: int) -> pd.DataFrame:
    """Moving average of every column but `step` over `steps` rows, shorter at the start."""
    return table.set_index("step").rolling(steps, min_periods=1).mean().reset_index()


def joined(tables: dict[int, pd.DataFrame | None], smooth_steps: int | None = None) -> pd.DataFrame:
    """Tables by seed as one with a column `seed`, each smoothed if asked for; None is left out."""
    there = {seed: table for seed, table in tables.items() if table is not None}
    if smooth_steps:
        there = {seed: smooth(table, smooth_steps) for seed, table in there.items()}
    rows = [table.assign(seed=seed) for seed, table in there.items()]
    return pd.concat(rows) if rows else pd.DataFrame(columns=["seed"])


def tenths(values: pd.Series) -> tuple[float, float, float]:
    """Means over the first, the middle and the last tenth of the steps (at least one step each), in step order."""
    size = max(1, len(values) // 10)
    middle = (len(values) - size) // 2
    return tuple(float(values.iloc[at : at + size].mean()) for at in (0, middle, len(values) - size))


def full_batches(steps: pd.DataFrame) -> pd.DataFrame:
    """DPO's steps without those of fewer pairs: the last batch of an epoch may hold a single pair."""
    return steps[steps["pairs"] == steps["pairs"].max()] if "pairs" in steps else steps


def trend(values: pd.Series, alpha: float = 0.05) -> str | float:
    """Whether a measure rose over the steps: held, wrong (it fell), not shown; missing where it was not measured.

    By Spearman's rank correlation with the step, two-sided at `alpha`. Steps draw other prompts, so without a change
    they are exchangeable.
    """
    if values.isna().any() or values.empty:
        return float("nan")
    if values.nunique() < 2 or len(values) < 3:
        return NOT_SHOWN
    found = spearmanr(range(len(values)), values)
    return NOT_SHOWN if not found.pvalue < alpha else HELD if found.statistic > 0 else WRONG


def dpo_ends(steps: pd.DataFrame) -> dict:
    """`<measure>_first` and `<measure>_last` (means of tenths) of DPO's measures: log-probs in nats, accuracy of pairs.

    `chosen_reward`, `rejected_reward`: of the last tenth; beta times the change of log-prob against the shared start.
    `pushed_down`: the share of that tenth's margin that comes from rejected answers getting less likely.
    `displaced`: in the last tenth both are less likely than at the start, and preference accuracy rose (likelihood
    displacement), each shown by a one-sided t-test over steps at preference.ALPHA; None where one of them was not
    logged. Log-probs of the first and the last tenth would not do: they are of other pairs, and differ by what these
    are. Only `full_batches` count.
    """
    steps, row = full_batches(steps), {}
    size = max(1, len(steps) // 10)
    for measure in DPO_MEASURES:
        row[f"{measure}_first"], _, row[f"{measure}_last"] = tenths(column(steps, measure))
    # TRL's rewards are beta times the changes against the reference, so their shares are those of the changes.
    for side in preference.SIDES:
        *_, row[f"{side}_reward"] = tenths(column(steps, f"{side}_reward"))
    row["pushed_down"] = preference.pushed_down(row["rejected_reward"], row["chosen_reward"] - row["rejected_reward"])
    sides = [column(steps, f"{side}_reward").tail(size) for side in preference.SIDES]
    accuracy = column(steps, "accuracy")
    if any(values.isna().any() for values in (*sides, accuracy)) or not len(steps):
        return row | {"displaced": None}
    shown = [ttest_1samp(values, 0, alternative="less").pvalue < preference.ALPHA for values in sides]
    shown.append(
        ttest_ind(accuracy.tail(size), accuracy.head(size), equal_var=False, alternative="greater").pvalue
        < preference.ALPHA
    )
    return row | {"displaced": all(bool(s) for s in shown)}


def dpo_sentence(displaced: bool | None, task: str) -> str | None:
    """What one DPO run showed: its own measures, and the outcome of "the last checkpoint is better than the start"."""
    if displaced is None:
        return None
    own = "DPO got better at its own preference metric while both log-probs fell"
    if not displaced:
        own = "DPO did not show a rising preference metric with both log-probs falling"
    tasks = {HELD: "the task got better", WRONG: "the task got worse", NOT_SHOWN: "no change on the task is shown"}
    return f"{own}, and {tasks[task]}"


def constant_groups(run) -> pd.DataFrame:
    """A GRPO run's steps, with the kinds of zero-variance groups (all right, all wrong, between) counted from its
    rollouts where it did not log them; without either the columns stay absent.
    """
    kinds = [f"zero_variance_{kind}" for kind in ("all_right", "all_wrong", "between")]
    kinds = [kind for kind in kinds if kind not in run.steps]
    if not kinds or not run.has("rollouts"):
        return run.steps
    return run.steps.merge(grpo.step_counts(run.rollouts)[["step", *kinds]], on="step", how="left", validate="1:1")


def group_signal(steps: pd.DataFrame) -> dict:
    """GRPO's signal: zero-variance groups and entropy (nats per token) by tenths, and steps that moved nothing.

    `zero_*`: share of groups whose rollouts all got one reward; `rose`, `entropy_rose`: `trend` over all steps. Of
    these groups, the shares `constant_right`: every rollout is an exact record; `constant_between`: none is, but some
    field is right; `constant_wrong`: no field of any rollout is right.
    `gradient_zero`: share of steps with gradient norm exactly 0.
    """
    constant = column(steps, "zero_variance_groups")
    share = constant / column(steps, "groups")
    row = {"zero_all": share.mean()}
    row["zero_first"], row["zero_middle"], row["zero_last"] = tenths(share)
    row["entropy_first"], _, row["entropy_last"] = tenths(column(steps, "entropy"))
    row["rose"], row["entropy_rose"] = trend(share), trend(column(steps, "entropy"))
    gradient = column(steps, "grad_norm")
    row["gradient_zero"] = float((gradient == 0).mean()) if gradient.notna().all() else float("nan")
    for which, counts in kinds_of_groups(steps).items():
        row[f"constant_{which}"] = counts.sum(min_count=len(steps)) / constant.sum() if constant.sum() else float("nan")
    return row


def kinds_of_groups(steps: pd.DataFrame) -> dict[str, pd.Series]:
    """Zero-variance groups by step: `right` (all exact), `between` (none exact, a field right), `wrong` (no field)."""
    right, none, between = (column(steps, f"zero_variance_{kind}") for kind in ("all_right", "all_wrong", "between"))
    return {"right": right, "between": between, "wrong": none - between}


def signal_sentence(row: dict) -> str | None:
    """What became of one GRPO run's signal; `row` of `group_signal`. None where groups were not counted.

    It was used up only where most groups of the last tenth are constant and more than before, and kept only where less
    than half are in the first tenth and no rise is shown.
    """
    if pd.isna(row["rose"]):
        return None
    if row["zero_all"] == 1:
        return "GRPO never had a signal: every group was a zero-variance group, from the first step to the last"
    more = "zero-variance groups became more frequent over the steps"
    if row["rose"] == HELD:
        if row["zero_last"] > 0.5:
            return f"GRPO used up its own signal: {more}, to more than half"
        return f"GRPO lost part of its signal: {more}, to less than half"
    less = more.replace("became more frequent", "are not shown to become more frequent")
    if row["zero_first"] >= 0.5:
        return f"GRPO had little signal from the start: half of the groups or more had equal rewards, and {less}"
    return f"GRPO kept its signal: {less}"


def signal_tenths(steps: pd.DataFrame) -> pd.DataFrame:
    """GRPO's measures by step, one row a measure: means over first, middle and last tenth of the steps.

    Columns `measure`, `first`, `middle`, `last`. Groups are shares of all groups of a step (`kinds_of_groups`). Clip
    and importance ratios are the trainer's own; the latter exist where another engine than the trainer generates.
    """
    groups = column(steps, "groups")
    kinds = kinds_of_groups(steps)
    zero, gradient = column(steps, "zero_variance_groups") / groups, column(steps, "grad_norm")
    ratio = "sampling/importance_sampling_ratio"
    measures = {
        "zero-variance groups": zero,
        "of these, all right": kinds["right"] / groups,
        "of these, equal in between": kinds["between"] / groups,
        "of these, all wrong": kinds["wrong"] / groups,
        "steps with gradient exactly 0": (gradient == 0).where(gradient.notna()),
        "gradient norm": gradient,
        "reward, mean": column(steps, "reward"),
        "entropy (nats per token)": column(steps, "entropy"),
        "tokens clipped, share": column(steps, "clip_ratio/region_mean"),
        "importance ratio, smallest": column(steps, f"{ratio}/min"),
        "importance ratio, mean": column(steps, f"{ratio}/mean"),
        "importance ratio, largest": column(steps, f"{ratio}/max"),
        "log-prob, engine against trainer (nats per token)": column(steps, "sampling/sampling_logp_difference/mean"),
        "seconds wasted a step": column(steps, "wasted_s"),
    }
    rows = [(name, *tenths(values.astype(float))) for name, values in measures.items()]
    return pd.DataFrame(rows, columns=["measure", "first", "middle", "last"])


def signal_table(steps: dict[int, pd.DataFrame]) -> pd.DataFrame:
    """`signal_tenths` of each seed side by side, `<first, middle, last>_<seed>`; what no run logged is left out."""
    own = [signal_tenths(table).set_index("measure").add_suffix(f"_{seed}") for seed, table in steps.items()]
    return pd.concat(own, axis=1).dropna(how="all").reset_index()


def by_step(steps: pd.DataFrame) -> pd.DataFrame:
    """What `plots.group_signal` draws: `step`, `zero_variance` (share of groups), `entropy` (nats per token)."""
    share = column(steps, "zero_variance_groups") / column(steps, "groups")
    return pd.DataFrame({"step": steps["step"], "zero_variance": share, "entropy": column(steps, "entropy")})


def null_shares(steps: pd.DataFrame) -> pd.DataFrame | None:
    """Shares of each step's rollouts, None if not logged: `null_<field>` answered null, `null_expected_<field>` null in
    gold, and the mistakes `missing_<field>` (null where gold has a value), `wrong_<field>`, `spurious_<field>`.
    """
    names = [f"{prefix}_{field}" for field in FIELDS for prefix in ("null", "null_expected", *MISTAKES)]
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


def answered_null(predictions: pd.DataFrame, step: int, run: str) -> pd.Series:
    """Whether a document has a field answered null where gold has a value, at one checkpoint; index: document id."""
    verdicts = [f"{field}_verdict" for field in NULLABLE]
    rows = predictions[predictions["step"] == step]
    if rows.empty:
        raise ValueError(f"{run}: predictions.parquet has no rows of step {step}")
    return (rows.set_index("id")[verdicts] == "missing").any(axis=1)


def null_test(start, run) -> dict:
    """Exact test between a run's last checkpoint (left) and its start's (right): documents with a wrong null.

    `left_better`, `right_better`: documents that only this side answered null where gold has a value.
    """
    last = [(r.predictions, r.checkpoints["step"].max(), r.name) for r in (run, start)]
    return compare.mcnemar_between(*(answered_null(*checkpoint) for checkpoint in last))


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


def mistakes_table(scored: dict) -> pd.DataFrame:
    """`mistakes` at the last checkpoint of each record, by (arm, seed); the shared start's arm is "start"."""
    rows = [
        {"arm": arm, "seed": seed} | mistakes(run.checkpoints.sort_values("step").iloc[-1])
        for (arm, seed), run in scored.items()
    ]
    return pd.DataFrame(rows).astype({"places_share": float})


def peak_null(rates: pd.DataFrame) -> str:
    """The field with the highest share of rollouts that answer null where gold has a value, as a phrase."""
    peak = rates[[f"missing_{field}" for field in NULLABLE]].max()
    return f"{peak.idxmax().removeprefix('missing_').replace('_', ' ')}, {peak.max():.0%}"


def null_table(runs: dict, starts: dict, scored: dict) -> pd.DataFrame:
    """`null_checkpoints` of each seed's run, with `<field>_gold` (`gold_values`) and, at the last one, `null_test`.

    runs, starts: one record a seed. scored: by seed, all records whose predictions tell what gold has. Holm over seeds.
    """
    rows = []
    for seed, run in runs.items():
        gold = {f"{f}_gold": gold_values([r.predictions for r in scored[seed]], f) for f in NULLABLE}
        own = [{"seed": seed} | row | gold for row in null_checkpoints(starts[seed].checkpoints, run.checkpoints)]
        own[-1] |= null_test(starts[seed], run)
        rows += own
    return compare.add_holm(pd.DataFrame(rows))


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
