"""Two findings on TRL that its users may want to know, each with a measurement: base drift, undercounted groups."""

import numpy as np
import pandas as pd

from lib import records
from lib.paths import RESULTS


def base_drift() -> pd.DataFrame | None:
    """Rows of `lib.bench.base_drift`, one a trainer and number of weight syncs; None where nothing was recorded."""
    path = RESULTS / "bench" / "base_drift.csv"
    if not path.exists():
        return None
    return records.read_table(
        path, ("device", "trainer", "peft", "trl", "commit"), ("syncs", "base_change", "lora_delta", "ratio")
    )


def recorded_grpo() -> list:
    """Every recorded GRPO run, of all profiles, that has rollouts: (profile and name, record)."""
    folders = sorted(path.parent for path in RESULTS.glob("*/grpo*/run.json"))
    found = [(f"{folder.parent.name} {folder.name}", records.load(folder)) for folder in folders]
    return [(name, run) for name, run in found if run.has("rollouts")]


def constant_groups(runs) -> pd.DataFrame:
    """Groups whose rewards are all equal, by max == min, and as TRL counts them: one row a run (pairs name, record).

    `run`, `device`, `groups`, `constant`, `trl` (its `frac_reward_zero_std`, logged by step, times the groups; missing
    where it was not logged), `spurious`: constant groups with an advantage other than 0 in the recorded rollouts, and
    `advantage`, the largest of them (absolute).
    """
    found = []
    for name, run in runs:
        rollouts = run.rollouts.assign(size=run.rollouts["advantage"].abs())
        groups = rollouts.groupby(["step", "group"]).agg(
            low=("reward", "min"), high=("reward", "max"), advantage=("size", "max")
        )
        constant = groups[groups["low"] == groups["high"]]
        spurious = constant[constant["advantage"] > 0]
        row = {"run": name, "device": run.info["device"]["name"], "groups": len(groups), "constant": len(constant)}
        logged = run.steps.set_index("step").get("frac_reward_zero_std")
        trl = None if logged is None else (logged * groups.groupby("step").size()).sum(min_count=1)
        found.append(row | {"trl": trl, "spurious": len(spurious), "advantage": spurious["advantage"].max()})
    return pd.DataFrame(found)


def one_after_the_other(reward: float, rollouts: int) -> tuple[float, float]:
    """(standard deviation, advantage) that TRL computes for a group whose `rollouts` rewards all are `reward`.

    In float32, the sums added one after the other, as torch does on a CPU: the mean is off by a rounding, and the
    advantage is that over the deviation plus 1e-4 (trl.trainer.grpo_trainer). Another order of adding may be exact.
    """
    one = np.float32
    rewards = np.full(rollouts, reward, dtype=one)
    gap = rewards - np.cumsum(rewards)[-1] / one(rollouts)
    variance = np.cumsum(gap * gap)[-1] / one(rollouts) * (one(rollouts) / one(rollouts - 1))
    deviation = np.sqrt(variance)
    return float(deviation), float(gap[0] / (deviation + one(1e-4)))
