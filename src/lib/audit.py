"""Checks on records: `python -m lib.audit record PROFILE SEED... | verify | replay PROFILE RUN STEPS`."""

import os
import shutil
import sys
import tempfile
from pathlib import Path

import pandas as pd

from lib import clock, data, evaluate, grpo, records, rewards, variants
from lib.build import params
from lib.identity import digest
from lib.paths import RESULTS, RUNS

# A replayed loss may differ from the recorded one by this much: other hardware and other kernels round otherwise.
REPLAY_TOLERANCE = 0.05


def record(profile: str, seeds: list[int]) -> list[str]:
    """Copy this copy's finished, pinned runs of a profile, of these seeds, to book/results and return their names.

    Raises FileNotFoundError where there is none, and ValueError, before anything is copied, for a run that is not
    finished, is another profile's, or does not verify.
    """
    pinned = [run for run in records.pinned_runs(profile) if run.seed is None or run.seed in seeds]
    found = [run for run in pinned if run.folder.is_relative_to(RUNS)]
    if not found:
        what = f"seeds {', '.join(map(str, seeds))} of profile {profile}"
        raise FileNotFoundError(f"no live finished run of {what} in {records.shown(RUNS / profile)}")
    ids = {run.name: run.info["id"] for run in pinned}
    for run in found:
        wrong = [
            f"{key} is {run.info[key]!r}, expected {expected!r}"
            for key, expected in (("status", "finished"), ("profile", profile), ("run", run.folder.parent.name))
            if run.info[key] != expected
        ]
        wrong += [
            f"it began from another {name} than the pinned one"
            for name, parent_id in run.info["parents"].items()
            if ids.get(name) != parent_id
        ]
        wrong += problems(run)
        if wrong:
            raise ValueError(f"{records.shown(run.folder)} is not recorded:\n  " + "\n  ".join(wrong))
    for run in found:
        target = RESULTS / profile / run.name
        temporary = target.with_name(target.name + ".part")
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.copytree(run.folder, temporary)
        shutil.rmtree(target, ignore_errors=True)
        os.replace(temporary, target)
    return [run.name for run in found]


def problems(run: records.Record) -> list[str]:
    """Everything in a record that does not follow from its own files, one line each (empty: it verifies).

    Raises FileNotFoundError, KeyError or ValueError for a folder that is no whole record.
    """
    found = _file_problems(run)
    if found:
        return found  # what follows would only repeat it
    if "sealed" in run.info and run.info["sealed"] != records.seal(run.info):
        found.append("run.json is not as it was written (its sha256, sealed)")
    if run.info["id"] != digest(run.info["identity"]):
        found.append("id is not the sha256 of identity")
    identity = run.info["identity"]
    named = {key: identity[key] for key in ("arm", "seed", "parents")}
    named |= {key: identity[key]["values"] for key in ("parameters", "trainer")}
    found += [f"{key} is not that of identity" for key, value in named.items() if run.info[key] != value]
    found += _judgement_problems(run.predictions, "predictions")
    if run.has("predictions_outside"):
        found += _judgement_problems(run.predictions_outside, "predictions_outside")
        if set(run.predictions_outside["step"]) != {run.checkpoints["step"].max()}:
            found.append("predictions_outside are not those of the last checkpoint")
    for row in run.checkpoints.to_dict("records"):
        counted = evaluate.count(run.predictions[run.predictions["step"] == row["step"]])
        found += [
            f"checkpoint {row['step']}: {k} is {row[k]}, predictions give {v}"
            for k, v in counted.items()
            if row[k] != v
        ]
    found += _bill_problems(run)
    if run.has("likelihood"):
        found += _likelihood_problems(run)
    if run.arm == "start" and not run.variant:  # the arms begin from these weights
        judged = run.checkpoints["weights_sha256"].iloc[-1]
        if evaluate.weights_sha256(run.weights) != judged:
            found.append(f"weights are not those of the last checkpoint (sha256 {judged[:12]})")
    if run.has("rollouts"):
        found += _judgement_problems(run.rollouts, "rollouts")
        counted = grpo.step_counts(run.rollouts).set_index("step")
        steps = run.steps.set_index("step")
        means = run.rollouts.groupby("step")["reward"].mean()
        if not counted.index.equals(steps.index):
            found.append("rollouts and steps do not have the same steps")
        else:
            both = counted.columns.intersection(steps.columns)  # an older record has fewer counts
            found += [f"steps.{c} is not what the rollouts give" for c in both if not counted[c].equals(steps[c])]
            if not ((means - steps["reward"]).abs() <= 1e-4).all():  # nor NaN
                found.append("steps.reward is not the mean of the rollouts' rewards")
    return found


def _file_problems(run):
    """Files that are missing, changed, or not named in run.json."""
    found = []
    for name, sha256 in run.info["files"].items():
        path = run.folder / name
        if not path.exists():
            found.append(f"{name} is missing")
        elif records.file_sha256(path) != sha256:
            found.append(f"{name} is not the file that run.json names (sha256)")
    present = {str(path.relative_to(run.folder)) for path in run.folder.rglob("*") if path.is_file()}
    found += [f"{name} is not named in run.json" for name in sorted(present - {*run.info["files"], "run.json"})]
    return found


def _judgement_problems(table, name):
    """Verdicts that do not fit each other, the values, or `valid` and `exact`. Without the gold labels nobody can tell
    whether a value is right, but null is never wrong or spurious, and a value never missing."""
    verdicts = table[[f"{field}_verdict" for field in data.FIELDS]].set_axis(data.FIELDS, axis=1)
    null = table[list(data.FIELDS)].isna()
    valid = table["valid"].astype(bool)
    rules = {
        "a verdict that is none": ~verdicts.isin(rewards.VERDICTS).all(axis=1),
        "a valid answer with an invalid field": valid & (verdicts == "invalid").any(axis=1),
        "an invalid answer with a judged field": ~valid & (verdicts != "invalid").any(axis=1),
        "an invalid answer with a value": ~valid & ~null.all(axis=1),
        "a missing field with a value": ((verdicts == "missing") & ~null).any(axis=1),
        "a wrong or spurious field without a value": (verdicts.isin(["wrong", "spurious"]) & null).any(axis=1),
    }
    if "exact" in table:
        rules["exact is not what the five verdicts give"] = table["exact"].astype(bool) != (verdicts == "right").all(
            axis=1
        )
    return [f"{name}: {what}, in {bad.sum()} rows" for what, bad in rules.items() if bad.any()]


def _likelihood_problems(run):
    """Log-probs above 0 or without tokens, and a table that has not the same pairs at the start and each checkpoint."""
    table, found = run.likelihood, []
    for side in ("chosen", "rejected", "greedy"):
        known = table[table[f"{side}_logp"].notna() | table[f"{side}_tokens"].notna()]
        if not ((known[f"{side}_logp"] <= 0) & (known[f"{side}_tokens"] > 0)).all():
            found.append(f"likelihood: a {side} log-prob above 0, or without tokens")
    steps = {0, *run.checkpoints["step"]}
    if set(table["step"]) != steps:
        found.append(f"likelihood: steps {sorted(set(table['step']))}, expected {sorted(steps)}")
    pairs = {step: set(zip(rows["set"], rows["id"], strict=True)) for step, rows in table.groupby("step")}
    if table.duplicated(["step", "set", "id"]).any() or len(set(map(frozenset, pairs.values()))) != 1:
        found.append("likelihood: not the same pairs, once each, at every step")
    return found


def _bill_problems(run):
    """Seconds in run.json that are not the sums of the phases, and checkpoints billed more than the run."""
    found = []
    by_kind = run.phases.groupby("kind")["host_s"].sum()
    kinds = {"billed_s": ["train", "setup"], "train_s": ["train"]}
    kinds |= {f"{kind}_s": [kind] for kind in ("evaluation", "imports", "resume", "lost")}
    for key, summed in kinds.items():
        if key == "imports_s" and key not in run.info:
            continue  # an older record did not time them
        seconds = sum(by_kind.get(kind, 0.0) for kind in summed)
        if not abs(run.info[key] - seconds) <= 1e-6 * max(1.0, seconds):  # nor NaN
            found.append(f"{key} is {run.info[key]}, phases give {seconds}")
    for attempt in run.info["attempts"]:
        # An interrupted attempt, and one of an older record, has no second clock.
        apart = abs(attempt.get("wall_s", 0.0) - attempt.get("timed_s", 0.0))
        if apart > 0.05 + 1e-3 * attempt.get("wall_s", 0.0):
            found.append(
                f"attempt {attempt['attempt']}: the phases sum to {attempt['timed_s']:.3f} s, the system's clock says "
                f"{attempt['wall_s']:.3f} s"
            )
    latest = run.checkpoints["billed_s"].max()
    if not latest <= run.info["billed_s"] * (1 + 1e-9):
        found.append(f"a checkpoint was billed {latest} s, more than the run's {run.info['billed_s']} s")
    return found


def _place_problems(run):
    """A record that lies where another one belongs, or without its parents beside it."""
    profile, name = run.folder.parent.name, run.folder.name.split("-rerun")[0]
    places = {"profile": profile, "run": name}
    found = [f"{k} is {run.info[k]!r}, expected {v!r} here" for k, v in places.items() if run.info[k] != v]
    for name, parent_id in run.info["parents"].items():
        parent = run.folder.parent / name
        if not (parent / "run.json").exists() or records.load(parent).info["id"] != parent_id:
            found.append(f"parent {name} with id {parent_id[:12]} is not recorded beside it")
    return found


def verify() -> int:
    """Check every recorded run and its parents; prints a line a run and returns the number of failures."""
    failed = []
    folders = sorted(path for path in RESULTS.glob("*/*") if path.is_dir())
    if not folders:
        print(f"no recorded runs in {records.shown(RESULTS)}: nothing to verify")
    for folder in folders:
        try:
            run = records.load(folder)
            found = problems(run) + _place_problems(run)
        except Exception as error:  # not readable as a record, whatever stands in it
            run, found = None, [f"{type(error).__name__}: {error}"]
        unsealed = run and "sealed" not in run.info
        older = " (older than the seal on run.json: device, versions and facts are not covered)" if unsealed else ""
        print(f"{records.shown(folder)}: {'DOES NOT VERIFY' if found else 'ok'}{older}")
        for line in found:
            print(f"  {line}")
        failed += [records.shown(folder)] if found else []
    print(f"{len(folders)} recorded runs, {len(failed)} do not verify{': ' if failed else ''}{', '.join(failed)}")
    return len(failed)


def replay(profile: str, name: str, steps: int) -> int:
    """Retrain the first steps of a recorded run here and compare the losses; prints them, returns 1 if they differ.

    The run's stage is executed as usual, with the run forced live into a scratch folder and stopped after `steps`.
    """
    from lib.build import execute

    there = sorted(path.parent.name for path in (RESULTS / profile).glob("*-s*/run.json"))
    if name not in there:
        raise ValueError(
            f"RUN: got {name!r}, expected a recorded run that trained: {', '.join(there) or 'none is there'}"
        )
    recorded = records.load(RESULTS / profile / name)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder) / "run"
        os.environ["REPLAY"] = f"{recorded.name}:{scratch}:{steps}"
        stage, variant = variants.made_by(recorded)
        try:
            values = params.effective(stage, profile, recorded.seed, variant=variant)
            execute.execute(stage, values, Path(folder) / "replay.ipynb")
        except execute.NotebookError as error:
            if "ReplayDone" not in str(error):
                raise
        again = pd.DataFrame(clock.read_lines(scratch / "steps.jsonl")).set_index("step")["loss"]
        if os.environ.get("SYNCHRONISE"):
            phases = clock.ledger(scratch).query("kind == 'train'")
            clocks = phases.groupby("phase")[["host_s", "device_s"]].sum(min_count=1)
            print("both clocks, the device waited for at both ends of every phase (seconds):")
            print(clocks.assign(difference=clocks["host_s"] - clocks["device_s"]).round(4).to_string())
    before = recorded.steps.set_index("step")["loss"].loc[again.index]
    table = pd.DataFrame({"recorded": before, "replayed": again, "difference": again - before})
    print(table.to_string())
    differ = bool((table["difference"].abs() > REPLAY_TOLERANCE).any())
    print(f"{name}: losses {'DIFFER' if differ else 'agree'} within {REPLAY_TOLERANCE} over {len(again)} steps")
    return int(differ)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["record", profile, *seeds] if seeds and all(seed.isdigit() for seed in seeds):
            try:
                print(f"recorded: {', '.join(record(profile, [int(seed) for seed in seeds]))}")
            except (OSError, RuntimeError, ValueError) as error:
                sys.exit(str(error))
        case ["verify"]:
            sys.exit(verify() > 0)
        case ["replay", profile, name, steps] if steps.isdigit() and int(steps) > 0:
            try:
                sys.exit(replay(profile, name, int(steps)))
            except (OSError, RuntimeError, ValueError) as error:
                sys.exit(str(error))
        case _:
            sys.exit(
                f"got {' '.join(sys.argv[1:])!r}, expected record PROFILE SEED... | verify | replay PROFILE RUN STEPS, "
                "with whole numbers for SEED and STEPS"
            )
