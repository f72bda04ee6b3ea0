"""Where a finding of the published study did not come out here: what most likely made the difference, in its numbers.

A cause is named only where the numbers bear it out; where they do not, or nobody has looked, that is what is said.
"""

from pathlib import Path

import pandas as pd

from lib import records
from lib.report import diagnose
from lib.report.outcomes import NOT_MEASURED
from lib.report.show import number

UNKNOWN = "not known"


def likely(of_dpo: list, of_sft: list, published: dict, results: Path) -> dict[str, str]:
    """Causes by the key of the finding. of_dpo, of_sft: records, one a seed. published: published.yaml.

    results: the folder of all recorded profiles, whose trials of DPO's learning rate are told.
    """
    less = moved_less(of_dpo, published["dpo"])
    trials = "" if less == UNKNOWN else "".join(tried(path) for path in sorted(results.glob("*/trials.csv")))
    share_null = 1 - published["nulls"]["gold"]["birth_place"] / published["setup"]["n"]
    fewer = fewer_nulls([run.predictions for run in of_sft], share_null)
    return {"dpo_below_start": less + trials, "displacement": less, "sft_never_behind": fewer}


def add(found: pd.DataFrame, verdicts: dict[str, dict], likely: dict[str, str]) -> pd.DataFrame:
    """Findings (`key`, `published`) with `cause`: a dash where every seed that was measured agrees with the study."""
    measured = {key: set(verdicts[key].values()) - {NOT_MEASURED} for key in found["key"]}
    differ = {row.key: measured[row.key] - {row.published} for row in found.itertuples()}
    return found.assign(cause=[likely.get(key, UNKNOWN) if differ[key] else "-" for key in found["key"]])


def moved_less(runs: list, published: dict) -> str:
    """Whether DPO moved less than in the study, by the log-prob of the rejected answers; section `dpo` of its file."""
    ends = pd.DataFrame([diagnose.dpo_ends(run.steps) for run in runs])
    beta = pd.Series([run.info["trainer"].get("beta") for run in runs], dtype=float)
    pairs = sum(diagnose.column(run.steps, "pairs").sum(min_count=1) for run in runs) / max(1, len(runs))
    theirs = pd.DataFrame(published["rows"])
    moved = {}  # side -> ours (all runs), the study's mean
    for side in ("chosen", "rejected"):
        fell = theirs[f"{side}_logp_last"] - theirs[f"{side}_logp_first"]
        moved[side] = (ends[f"{side}_reward"] / beta if runs else beta), fell.mean()
    ours, study = moved["rejected"]
    if ours.empty or not (ours > study).all():
        return UNKNOWN
    chosen, of_study = moved["chosen"]
    return (
        f"B moved less: against the start, chosen answers ended {chosen.mean():+.2f} nats and rejected ones "
        f"{ours.mean():+.2f}, after {number(pairs, ',.0f')} pairs; in the study, first to last tenth, {of_study:+.1f} "
        f"and {study:+.1f}, after {published['pairs']:,}"
    )


def tried(path: Path) -> str:
    """What came of DPO at the learning rates in a trials.csv, of its first seed; nothing where fewer than two are."""
    trials = records.trials(path)
    trials = trials[trials["parameter"] == "dpo_learning_rate"].sort_values("value")
    trials = trials[trials["seed"] == trials["seed"].min()]
    if trials["value"].nunique() < 2:
        return ""
    rates, exact = (" / ".join(f"{value:g}" for value in trials[column]) for column in ("value", "exact"))
    return f". Tried on profile {path.parent.name}: learning rates {rates} ended at {exact} of {trials['n'].iloc[0]}"


def fewer_nulls(of_sft: list[pd.DataFrame], share_null: float) -> str:
    """Whether fewer places of birth are null than in the study, whose A dipped where it filled these.

    of_sft: predictions of continued SFT, a table a seed. share_null: the study's.
    """
    shares, filled = [], []
    for table in of_sft:
        verdict = table["birth_place_verdict"]
        null = (verdict == "spurious") | ((verdict == "right") & table["birth_place"].isna())
        shares.append(null.groupby(table["step"]).mean().max())
        filled.append((verdict == "spurious").groupby(table["step"]).sum().max())
    if not shares or max(shares) >= share_null:
        return UNKNOWN
    return (
        f"fewer places of birth are null: {max(shares):.1%}, and A filled at most {max(filled)} at a checkpoint; "
        f"in the study {share_null:.1%}, and A dipped where it filled them"
    )
