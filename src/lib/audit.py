"""Checks on records: `python -m lib.audit record PROFILE | verify | replay PROFILE RUN STEPS`."""

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pandas as pd

from lib import clock, evaluate, grpo, params, records, runs
from lib.paths import RESULTS, RUNS

STAGES = {"start": "01_sft", "sft": "01_sft", "dpo": "02_dpo", "grpo": "03_grpo"}
# A replayed loss may differ from the recorded one by this much: other hardware and other kernels round otherwise.
REPLAY_TOLERANCE = 0.05


def record(profile: str) -> list[str]:
    """Copy this copy's finished, pinned runs of a profile to book/results and return their names."""
    found = [r for r in records.pinned_runs(profile) if r.folder.is_relative_to(RUNS)]
    if not found:
        raise FileNotFoundError(f"no live finished run of profile {profile} in {records.shown(RUNS / profile)}")
    for run in found:
        target = RESULTS / profile / run.name
        temporary = target.with_name(target.name + ".part")
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.copytree(run.folder, temporary)
        shutil.rmtree(target, ignore_errors=True)
        os.replace(temporary, target)
    return [run.name for run in found]


def problems(run: records.Record) -> list[str]:
    """Everything in a record that does not follow from its own files, one line each (empty: it verifies)."""
    found = []
    for name, sha256 in run.info["files"].items():
        path = run.folder / name
        if not path.exists():
            found.append(f"{name} is missing")
        elif records.file_sha256(path) != sha256:
            found.append(f"{name} is not the file that run.json names (sha256)")
    extra = {str(p.relative_to(run.folder)) for p in run.folder.rglob("*") if p.is_file()} - {
        *run.info["files"],
        "run.json",
    }
    found += [f"{name} is not named in run.json" for name in sorted(extra)]
    if found:
        return found  # what follows would only repeat it
    if run.info["id"] != runs.digest(run.info["identity"]):
        found.append("id is not the sha256 of identity")
    for row in run.checkpoints.to_dict("records"):
        counted = evaluate.count(run.predictions[run.predictions["step"] == row["step"]])
        found += [
            f"checkpoint {row['step']}: {k} is {row[k]}, predictions give {v}"
            for k, v in counted.items()
            if row[k] != v
        ]
    by_kind = run.phases.groupby("kind")["host_s"].sum()
    sums = {"billed_s": by_kind.get("train", 0.0) + by_kind.get("setup", 0.0), "train_s": by_kind.get("train", 0.0)}
    for key, seconds in sums.items():
        if abs(run.info[key] - seconds) > 1e-6 * max(1.0, seconds):
            found.append(f"{key} is {run.info[key]}, phases give {seconds}")
    latest = run.checkpoints["billed_s"].max()
    if latest > run.info["billed_s"] * (1 + 1e-9):
        found.append(f"a checkpoint was billed {latest} s, more than the run's {run.info['billed_s']} s")
    if run.has("rollouts"):
        counted = grpo.step_counts(run.rollouts).set_index("step")
        steps = run.steps.set_index("step")
        means = run.rollouts.groupby("step")["reward"].mean()
        if not counted.index.equals(steps.index):
            found.append("rollouts and steps do not have the same steps")
        else:
            found += [f"steps.{c} is not what the rollouts give" for c in counted if not counted[c].equals(steps[c])]
            if (means - steps["reward"]).abs().max() > 1e-4:
                found.append("steps.reward is not the mean of the rollouts' rewards")
    return found


def verify() -> int:
    """Check every recorded run and its parents; prints a line a run and returns the number of failures."""
    failures = 0
    folders = sorted(path.parent for path in RESULTS.glob("*/*/run.json"))
    for folder in folders:
        run = records.load(folder)
        found = problems(run)
        for name, parent_id in run.info["parents"].items():
            parent = folder.parent / name / "run.json"
            if not parent.exists() or json.loads(parent.read_text())["id"] != parent_id:
                found.append(f"parent {name} with id {parent_id[:12]} is not recorded beside it")
        print(f"{records.shown(folder)}: {'ok' if not found else 'DOES NOT VERIFY'}")
        for line in found:
            print(f"  {line}")
        failures += bool(found)
    print(f"{len(folders)} recorded runs, {failures} do not verify")
    return failures


def replay(profile: str, name: str, steps: int) -> int:
    """Retrain the first steps of a recorded run here and compare the losses; prints them, returns 1 if they differ.

    The run's stage is executed as usual, with the run forced live into a scratch folder and stopped after `steps`.
    """
    from lib import execute

    recorded = records.load(RESULTS / profile / name)
    if recorded.arm not in STAGES:
        raise ValueError(
            f"run {name} trains nothing; expected one of {', '.join(STAGES)} with its seed, such as dpo-s0"
        )
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["REPLAY"] = f"{name}:{scratch}:{steps}"
        try:
            execute.execute(
                STAGES[recorded.arm],
                params.effective(STAGES[recorded.arm], profile, recorded.seed),
                Path(scratch) / "replay.ipynb",
            )
        except execute.NotebookError as error:
            if "ReplayDone" not in str(error):
                raise
        again = pd.DataFrame(clock.read_lines(Path(scratch) / "steps.jsonl")).set_index("step")["loss"]
    before = recorded.steps.set_index("step")["loss"].loc[again.index]
    table = pd.DataFrame({"recorded": before, "replayed": again, "difference": again - before})
    print(table.to_string())
    differ = bool((table["difference"].abs() > REPLAY_TOLERANCE).any())
    print(f"{name}: losses {'DIFFER' if differ else 'agree'} within {REPLAY_TOLERANCE} over {len(again)} steps")
    return int(differ)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["record", profile]:
            print(f"recorded: {', '.join(record(profile))}")
        case ["verify"]:
            sys.exit(verify() > 0)
        case ["replay", profile, name, steps] if steps.isdigit() and int(steps) > 0:
            sys.exit(replay(profile, name, int(steps)))
        case _:
            sys.exit("usage: python -m lib.audit record PROFILE | verify | replay PROFILE RUN STEPS")
