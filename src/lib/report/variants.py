"""Variants beside their arms: what each changes, what it reached, and exact tests against its arm and its start.

No pictures here.
"""

import numpy as np
import pandas as pd

from lib.identity import other_settings
from lib.report import alarms, budgets, compare, diagnose
from lib.report.compare import LETTERS, NAMES, Curve
from lib.report.predictions import PLANNED

# What follows from another setting that is named, or from where a run begins.
IMPLIED = ("start_from", "start_weights", "reward", "own_start", "lora_rank", "gradient_accumulation_steps")

# Variants that answer a question together: left, right.
PAIRS = (("weak_start", "sft_weak"), ("unlabelled", "dpo_unlabelled"), ("group_16", "group_4"))


def called(arm: str, variant: str) -> str:
    """What predictions and tables call a variant: by its name alone where it is one of GRPO, else with the arm."""
    return variant if arm == "grpo" else f"{arm}_{variant}"


def words(name: str) -> str:
    """What a variant, a start or an arm is, in words; by its name as `called`."""
    own = {"base": "base model", "start": "shared start"} | {arm: f"{LETTERS[arm]} {NAMES[arm]}" for arm in NAMES}
    own |= {variant: text for variant, (_, text) in PLANNED.items()}
    return own.get(name, name.replace("_", " "))


def begun_from(run, there: dict):
    """The record that a run began from, of `there` by name: a start or an arm, or the setup where that is all."""
    parents = [there[name] for name in run.info["parents"]]
    return next((parent for parent in parents if parent.arm != "setup"), parents[0])


def differs(run, start, arm) -> str:
    """What a variant, begun from `start`, has otherwise than its arm's run, from their identities, as a phrase."""
    if arm is None:
        return "not known: its arm has no such run"
    origin = "the base model" if start.arm == "setup" else start.name.rpartition("-s")[0]
    texts = [] if start.name in arm.info["parents"] and start.arm != "setup" else [f"from {origin}"]
    changed = other_settings(run.info["identity"], arm.info["identity"])
    texts += [f"{name} {mine}" for name, (mine, _) in changed.items() if name not in IMPLIED]
    return ", ".join(texts) or "nothing: the same again"


def table(beside: dict, ends: dict[tuple, Curve], begun: dict, runs: dict, curves: dict[tuple, Curve]) -> pd.DataFrame:
    """Every variant at its end against its arm's end and against what it began from: one row each, Holm over all tests.

    beside, ends, begun: by (name as `called`, seed) the record, its curve, and the record that it began from. runs,
    curves: the same of the arms, by (arm, seed); where one is missing, the test against it is too.
    Columns: `name`, `arm`, `seed`, `differs`, `start`, `last`, `arm_last` (accuracies), `hours`, `arm_hours`,
    `bill_ratio` (of the arm's hours), `lean_ratio` (of `lean_hours`), `zero_first`, `zero_last` (zero-variance groups
    in the first and the last tenth of the steps; GRPO's only), and of each test, `start_` and `arm_`, `better`, `worse`
    (documents), `p`, `p_holm`. In the order of PLANNED, what is not there first.
    """
    rows = []
    for (name, seed), curve in ends.items():
        key, end = (curve.arm, seed), len(curve.points) - 1
        arm = curves.get(key)
        row = {"name": name, "arm": curve.arm, "seed": seed}
        row["differs"] = differs(beside[name, seed], begun[name, seed], runs.get(key))
        row |= {"start": curve.points["accuracy"][0], "last": compare.last(curve), "hours": curve.end_hours}
        row |= {"arm_last": compare.last(arm) if arm else None, "arm_hours": arm.end_hours if arm else None}
        tests = {"start": compare.mcnemar_at(curve, curve, end, 0)}
        tests["arm"] = compare.mcnemar_at(curve, arm or curve, end, len(arm.points) - 1 if arm else None)
        for against, test in tests.items():
            row |= {f"{against}_better": test["left_better"], f"{against}_worse": test["right_better"]}
            row[f"{against}_p"] = test["p"]
        signal = diagnose.group_signal(beside[name, seed].steps) if curve.arm == "grpo" else {}
        rows.append(row | {key: signal.get(key) for key in ("zero_first", "zero_last")})
    found = pd.DataFrame(rows)
    if found.empty:
        return found
    numbers = [column for column in found if column not in ("name", "arm", "differs")]
    found = found.astype(dict.fromkeys(numbers, float)).astype({"seed": int})
    found["bill_ratio"] = found["hours"] / found["arm_hours"]
    found["lean_ratio"] = found["hours"] / [lean_hours(key, beside, ends) for key in ends]
    p = found[["start_p", "arm_p"]].melt(ignore_index=False).rename(columns={"value": "p"})
    for against, tested in compare.add_holm(p.reset_index(names="row")).groupby("variable"):
        found[f"{against}_holm"] = tested.set_index("row")["p_holm"]
    return _in_order(found)


def _in_order(found: pd.DataFrame) -> pd.DataFrame:
    """Rows by name, in the order of PLANNED, what is not there first, then by seed."""
    order = {name: at for at, name in enumerate(PLANNED)}
    return found.sort_values(["name", "seed"], key=lambda of: of.map(order).fillna(-1) if of.name == "name" else of)


def add_interval(found: pd.DataFrame, exact: dict, n: int, level: float) -> pd.DataFrame:
    """`table` with `difference` to its arm's end, and `low` and `high` of its percentile interval, in points.

    exact: `precision.draws` of the arms' and the variants' curves. Missing where there is no such run of the arm.
    """
    tails, rows = [(1 - level) / 2, (1 + level) / 2], []
    for row in found.itertuples():
        arm = exact.get((row.arm, row.seed))
        between = float("nan") if arm is None else (exact[row.name, row.seed][:, -1] - arm[:, -1]) / n
        rows.append([100 * (row.last - row.arm_last), *(100 * np.quantile(between, tails))])
    return found.assign(**pd.DataFrame(rows, columns=["difference", "low", "high"], index=found.index, dtype=float))


def between(ends: dict[tuple, Curve], seeds: list[int]) -> pd.DataFrame:
    """PAIRS at the most that both have spent, Holm over them; empty where no two that belong together are there.

    Columns of `compare.at_budgets`, `seed`, `left`, `right` (names).
    """
    rows = []
    for seed in seeds:
        for left, right in PAIRS:
            pair = ends.get((left, seed)), ends.get((right, seed))
            if None not in pair:
                both = compare.at_budgets(*pair, [min(curve.end_hours for curve in pair)])
                rows.append(both.assign(seed=seed, left=left, right=right))
    return compare.add_holm(pd.concat(rows, ignore_index=True)) if rows else pd.DataFrame()


def divergence(ends: dict[tuple, Curve], beside: dict, alpha: float) -> pd.DataFrame:
    """The alarm of `alarms.divergence` in every variant of GRPO that logged its reward: one row each.

    ends, beside: by (name as `called`, seed) the curve and the record. Columns: `name`, `seed`, `reward_first`,
    `reward_last` (of the steps before the first and the last checkpoint), `start`, `last` (accuracies), `checkpoints`,
    `alarms` (at how many), `first_alarm` (its step, or missing). In the order of `table`.
    """
    rows = []
    for (name, seed), curve in ends.items():
        told = alarms.divergence(curve, beside[name, seed].steps, alpha) if curve.arm == "grpo" else None
        if told is not None:
            row = {"name": name, "seed": seed, "start": curve.points["accuracy"][0], "last": compare.last(curve)}
            row |= {"reward_first": told["reward"].iloc[0], "reward_last": told["reward"].iloc[-1]}
            row |= {"checkpoints": len(told), "alarms": int(told["alarm"].sum())}
            rows.append(row | {"first_alarm": told.loc[told["alarm"], "step"].min()})
    return _in_order(pd.DataFrame(rows, columns=None if rows else ["name", "seed"]))


def lean_hours(key: tuple, beside: dict, ends: dict[tuple, Curve]) -> float:
    """Hours of the arm's lean run of that seed, of a variant that is lean as well and not that run; else missing.

    What a lean variant saves against its arm is mostly what the lean run saves too.
    """
    (name, seed), run = key, beside[key]
    lean = called(run.arm, "lean")
    both = (lean, seed) in ends and run.info["identity"]["parameters"]["values"].get("lean") and name != lean
    return ends[lean, seed].end_hours if both else float("nan")


def by_trainer(curves: dict[tuple, Curve], ends: dict[tuple, Curve], seeds: list[int], alpha: float) -> pd.DataFrame:
    """The comparison with lean runs in the arms' places, as `budgets.under_rules` has it for rules of the bill.

    First as run, then with C lean, then with every arm lean that has lean runs; over the seeds of which C's lean run is
    there. Empty where there is none.
    """
    seeds = [seed for seed in seeds if ("lean", seed) in ends]
    if not seeds:
        return pd.DataFrame()
    own = {key: curve for key, curve in curves.items() if key[1] in seeds}
    sets = {"as run": own, "C lean": own | {("grpo", seed): ends["lean", seed] for seed in seeds}}
    lean = [arm for arm in NAMES if all((called(arm, "lean"), seed) in ends for seed in seeds)]
    if len(lean) > 1:
        arms = own | {(arm, seed): ends[called(arm, "lean"), seed] for arm in lean for seed in seeds}
        sets[f"{', '.join(LETTERS[arm] for arm in lean)} lean"] = arms
    return budgets.under_rules(sets, seeds, alpha)


def all_tests(found: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The tests of `table` by name, `lean_over_start` and `lean_over_grpo`, with the columns that other tests have.

    One row a seed: `seed`, `left_better`, `right_better`, `p_holm`; left is the variant.
    """
    tests = {}
    for (name, arm), rows in found.groupby(["name", "arm"]) if len(found) else ():
        for against, other in (("start", "start"), ("arm", arm)):
            columns = {f"{against}_better": "left_better", f"{against}_worse": "right_better"}
            columns |= {f"{against}_p_holm": "p_holm"}
            tests[f"{name}_over_{other}"] = rows[["seed", *columns]].rename(columns=columns)
    return tests


def quantities(found: pd.DataFrame) -> dict[str, dict]:
    """What predictions may name of the variants of `table`: {"exact_last_lean": {seed: value}, ...}."""
    columns = {"start": "exact_start", "last": "exact_last", "hours": "billed_hours"}
    columns |= {column: column for column in ("bill_ratio", "zero_first", "zero_last")}
    return {
        f"{what}_{name}": dict(zip(rows["seed"], rows[column], strict=True))
        for name, rows in (found.groupby("name") if len(found) else ())
        for column, what in columns.items()
        if rows[column].notna().any()
    }
