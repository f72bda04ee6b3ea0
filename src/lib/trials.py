"""Choose a setting on the development split: `python -m lib.trials PROFILE SEED STAGE PARAMETER VALUE...`.

Each value is one ordinary execution of the stage, judged on `dev` and kept out of the profile's own runs, in
runs/<profile>-trials; its result is a row of book/results/<profile>/trials.csv, which the book prints with its bill.
An arm is tried by its lean trainer: the same gradient, for less. The shared start is trained there first, once, and
judged on `dev` too; for a trial of the start's own settings that is all: arm A is trained only to be tried.

Trials may share a device, each in its own copy of the project: TRIALS_AT_ONCE says how many do. It goes into the table,
since a shared device's seconds are more than each trial alone would take.
"""

import os
import sys
from pathlib import Path

import pandas as pd

from lib import records
from lib.build import execute, params
from lib.paths import RESULTS, RUNS

ARMS = {"01_sft": "sft", "02_dpo": "dpo", "03_grpo": "grpo"}
START_ENDS = "## Arm A: config"  # the first heading of 01_sft after the shared start


def judged_arm(stage: str, parameter: str) -> str:
    """The arm that a trial of this parameter reports: the stage's, but the shared start for its own settings."""
    return "start" if parameter.startswith("start_") else ARMS[stage]


def trial(profile: str, seed: int, stage: str, parameter: str, value: str) -> dict:
    """Execute the stage with one changed parameter and return the row of its last checkpoint."""
    apart = f"{profile}-trials"
    needed = ["00_setup"] if stage == "01_sft" else ["00_setup", "01_sft"]
    lean = [] if judged_arm(stage, parameter) == "start" else [("lean", "true")]
    for name, changed in [*((name, []) for name in needed), (stage, [(parameter, value), *lean])]:
        values = params.effective(name, profile, seed, changed) | {"profile": apart}
        if name != "00_setup":  # a trial is read for what it got right: its bill need not close on a shared device
            values |= {"judged_split": "dev", "max_unaccounted": 1.0}
        until = START_ENDS if name == "01_sft" and judged_arm(stage, parameter) != "sft" else None
        execute.execute(name, values, RUNS / apart / "notebooks" / f"{name}-trial.ipynb", until=until)
    record = records.pinned(apart, f"{judged_arm(stage, parameter)}-s{seed}")
    last, info = record.checkpoints.iloc[-1], record.info
    counts = {"n": int(last["n"]), "exact": int(last["exact"]), "best_exact": int(record.checkpoints["exact"].max())}
    made = {"billed_s": info["billed_s"], "device": info["device"]["name"], "commit": info["commit"], "id": info["id"]}
    made["trainer"] = "lean" if info["parameters"].get("lean") else "stock"
    made["at_once"] = int(os.environ.get("TRIALS_AT_ONCE", 1))
    tried = {"parameter": parameter, "value": float(value), "split": "dev"}
    return {"arm": record.arm, "seed": seed} | tried | counts | made


def check(profile: str, seed: int, stage: str, parameter: str, value: str) -> None:
    """Raise ParameterError for a parameter or value that the stage does not take, or that is no number."""
    given = params.effective(stage, profile, seed, [(parameter, value)])[parameter]
    if type(given) not in (int, float):
        raise params.ParameterError(f"{parameter}: got {given!r}, expected a number: the table of trials holds numbers")


def main(profile: str, seed: int, stage: str, parameter: str, values: list[str]) -> Path:
    """Try all values and write their rows; returns the path of the table. The same trial again replaces its row.

    Raises lib.build.params.ParameterError, as `check`, and ValueError for a damaged table, before anything runs.
    """
    for value in values:
        check(profile, seed, stage, parameter, value)
    path = RESULTS / profile / "trials.csv"
    records.trials(path)  # a damaged table stops here, not after the first trial
    path.parent.mkdir(parents=True, exist_ok=True)
    for value in values:
        rows = pd.DataFrame([trial(profile, seed, stage, parameter, value)])
        before = records.trials(path)
        if before is not None:
            rows = pd.concat([before[~before["id"].isin(rows["id"])], rows])
        rows.to_csv(path.with_suffix(".part"), index=False)
        path.with_suffix(".part").replace(path)
        print(rows.tail(1).to_string(index=False))
    return path


if __name__ == "__main__":
    if len(sys.argv) < 6 or sys.argv[3] not in ARMS or not sys.argv[2].isdigit():
        sys.exit(
            f"got {' '.join(sys.argv[1:])!r}, expected PROFILE SEED STAGE PARAMETER VALUE..., with a whole number for "
            f"SEED and one of {', '.join(ARMS)} for STAGE"
        )
    try:
        main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:5], sys.argv[5:])
    except params.ParameterError as error:
        sys.exit(f"Wrong parameters; nothing was run.\n{error}")
    except (execute.NotebookError, ValueError) as error:
        sys.exit(str(error))
