"""Alarms of a GRPO run, by rules that were fixed before they were measured: null answers; reward against accuracy.

Null answers: a one-sided CUSUM (Page 1954, Biometrika 41, 100-115) on each field's excess of null answers, null answers
minus nulls in gold, as a share of the step's rollouts. The first steps give its mean and standard deviation z is made
with; S_t = max(0, S_{t-1} + z_t - SLACK), and the alarm goes off when S_t exceeds THRESHOLD. How late it comes, and how
often for nothing, is measured on recorded steps with a collapse of the published shape injected (`measure`).
"""

import numpy as np
import pandas as pd
from scipy.stats import ttest_ind

from lib.data import FIELDS
from lib.report import compare

# The rule. A threshold of five standard deviations is the textbook's; the slack is twice its usual half, because the
# mean of ten steps is itself uncertain by a third of a standard deviation, and the collapse to be found is large.
SLACK, THRESHOLD = 1.0, 5.0
BASELINE_STEPS, BASELINE_SHARE = 10, 0.1  # a tenth of the run's steps, at least ten
# Rollouts of a group answer alike: half a group is the smallest standard deviation that is believed.
LEAST_GROUPS = 0.5

# The published collapse: a field with a value in 258 held-out documents was answered null in 11 of them at step 150, in
# 181 at step 240, and in 1 at step 606, the last. Here as: rate before and at the peak, and shares of the run's steps.
BEFORE, PEAK, RISE, FALL = 11 / 258, 181 / 258, 90 / 606, 366 / 606


def baseline_steps(n_steps: int) -> int:
    """How many first steps set the rule's mean and standard deviation; no alarm is possible within them."""
    return max(BASELINE_STEPS, round(BASELINE_SHARE * n_steps))


def excess(steps: pd.DataFrame, field: str) -> np.ndarray:
    """Null answers minus nulls in gold, as a share of each step's rollouts; length T, the steps."""
    return ((steps[f"null_{field}"] - steps[f"null_expected_{field}"]) / steps["rollouts"]).to_numpy()


def cusum(excess_R_T: np.ndarray, groups: int) -> np.ndarray:
    """S of the rule for R runs of T steps, in standard deviations of the baseline; 0 within the baseline."""
    first = baseline_steps(excess_R_T.shape[1])
    baseline = excess_R_T[:, :first]
    deviation = np.maximum(baseline.std(axis=1, ddof=1), LEAST_GROUPS / groups)
    z_R_T = (excess_R_T - baseline.mean(axis=1)[:, None]) / deviation[:, None]
    sums = np.zeros_like(excess_R_T)
    for step in range(first, excess_R_T.shape[1]):
        sums[:, step] = np.maximum(0, sums[:, step - 1] + z_R_T[:, step] - SLACK)
    return sums


def first_alarms(excess_R_T: np.ndarray, groups: int) -> np.ndarray:
    """Position of each run's first alarm; the number of steps where there is none. Length R."""
    over = cusum(excess_R_T, groups) > THRESHOLD
    return np.where(over.any(axis=1), over.argmax(axis=1), over.shape[1])


def measurable(steps: pd.DataFrame) -> bool:
    """Whether null answers were counted by step, and over more steps than the baseline needs."""
    counted = {f"{kind}_{field}" for kind in ("null", "null_expected", "missing") for field in FIELDS}
    return counted | {"rollouts", "groups"} <= set(steps.columns) and len(steps) > baseline_steps(len(steps))


def null_alarms(steps: pd.DataFrame) -> dict[str, int | None]:
    """The optimizer step of the first null alarm of each field, None without one."""
    found = {}
    for field in FIELDS:
        at = first_alarms(excess(steps, field)[None], int(steps["groups"].min()))[0]
        found[field] = int(steps["step"].iloc[at]) if at < len(steps) else None
    return found


def collapse(n_steps: int, onset: int) -> np.ndarray:
    """Chance, by step, that a group which would answer is made to answer null: the published rise and fall."""
    rate_T = np.interp(
        np.arange(n_steps), [onset, onset + RISE * n_steps, onset + (RISE + FALL) * n_steps], [BEFORE, PEAK, BEFORE]
    )
    return (rate_T - BEFORE) / (1 - BEFORE)


def measure(steps: pd.DataFrame, repeats: int = 500, seed: int = 0) -> pd.DataFrame:
    """How late the null alarm comes, and how often for nothing, a row a field of one recorded run. Seeded.

    False alarms: `repeats` runs of as many steps, drawn with replacement from the recorded ones, so that nothing but
    chance can change. Collapses: the same runs with one injected from a random step on (after the baseline, at the
    latest at two thirds of the run): whole groups that have a value in gold, and were not all null, answer null.
    Columns: `false_alarms` (share of runs) and `found` (of the runs without an alarm before the onset, the share with
    one after), `delay` and `delay_90` (median and ninth decile over these, in steps; infinite where not found),
    `null_rate` (of rollouts with a value in gold, after the median delay, by the shape). The last row, field "any",
    has the share of runs with a false alarm in any field.
    """
    random, n_steps, groups = np.random.default_rng(seed), len(steps), int(steps["groups"].min())
    first = baseline_steps(n_steps)
    drawn_R_T = random.integers(n_steps, size=(repeats, n_steps))
    onsets_R = random.integers(first, max(first + 1, 2 * n_steps // 3), repeats)
    chance_R_T = np.stack([collapse(n_steps, onset) for onset in onsets_R])
    size = steps["rollouts"] / steps["groups"]
    rows, any_R = [], np.zeros(repeats, dtype=bool)
    for field in FIELDS:
        free = (steps["rollouts"] - steps[f"null_expected_{field}"] - steps[f"missing_{field}"]) // size
        flipped_R_T = random.binomial(free.to_numpy(int)[drawn_R_T], chance_R_T)
        added_R_T = flipped_R_T * (size / steps["rollouts"]).to_numpy()[drawn_R_T]
        plain_R_T = excess(steps, field)[drawn_R_T]
        plain, injected = (first_alarms(runs, groups) for runs in (plain_R_T, plain_R_T + added_R_T))
        any_R |= plain < n_steps
        fair = plain >= onsets_R  # no false alarm before the collapse began
        delays = np.where(injected < n_steps, injected - onsets_R, np.inf)[fair]
        row = {"field": field, "false_alarms": (plain < n_steps).mean(), "found": np.isfinite(delays).mean()}
        row["delay"], row["delay_90"] = np.quantile(delays, [0.5, 0.9], method="higher")
        if np.isfinite(row["delay"]):
            chance = collapse(n_steps, 0)[int(row["delay"])]
            row["null_rate"] = BEFORE + (1 - BEFORE) * chance
        rows.append(row)
    return pd.DataFrame([*rows, {"field": "any", "false_alarms": any_R.mean()}])


def null_alarm_table(runs: dict[int, pd.DataFrame]) -> pd.DataFrame:
    """`null_alarms` and `measure` of every seed; runs: the step table of each. Seeds that cannot be measured lack.

    `alarm`: the optimizer step of the first alarm in the run as recorded; missing without one.
    """
    tables = []
    for seed, steps in runs.items():
        if measurable(steps):
            table = measure(steps, seed=seed).assign(seed=seed)
            tables.append(table.assign(alarm=table["field"].map(null_alarms(steps))))
    columns = ["seed", "field", "alarm", "false_alarms", "found", "delay", "delay_90", "null_rate"]
    return pd.concat(tables)[columns].reset_index(drop=True) if tables else pd.DataFrame(columns=columns)


def divergence(arm: compare.Curve, steps: pd.DataFrame, alpha: float) -> pd.DataFrame | None:
    """Reward against held-out accuracy, a row a checkpoint, with the alarm rule; None if no reward was logged.

    `reward`: mean over the steps since the checkpoint before. The alarm goes off at a checkpoint where both hold:
    exact records are fewer than at the best checkpoint before it (the shared start counts), by the exact McNemar test
    with p times the number of checkpoints of the run below `alpha`; and the reward has not fallen since that best one
    (Welch's t-test, one-sided, of the steps before each of the two: p not below `alpha`). Where the best is the shared
    start, its reward is that of the first checkpoint's steps.
    """
    if "reward" not in steps:
        return None
    points = arm.points
    windows = [
        steps.loc[(steps["step"] > before) & (steps["step"] <= step), "reward"]
        for before, step in zip(points["step"], points["step"][1:], strict=False)
    ]
    windows = [windows[0], *windows]  # the start has no steps of its own
    rows = []
    for at in range(1, len(points)):
        best = int(points["accuracy"][:at].to_numpy().argmax())
        test = compare.mcnemar_at(arm, arm, at, best)
        p = min(1.0, test["p"] * (len(points) - 1))
        fewer = test["left_better"] < test["right_better"] and p < alpha
        fell = ttest_ind(windows[at], windows[best], equal_var=False, alternative="less").pvalue < alpha
        row = {"step": int(points["step"][at]), "reward": windows[at].mean(), "accuracy": points["accuracy"][at]}
        row |= {"best_step": int(points["step"][best]), "best_accuracy": points["accuracy"][best], "p": p}
        rows.append(row | {"reward_fell": bool(fell), "alarm": bool(fewer and not fell)})
    return pd.DataFrame(rows)
