"""Choose a setting on the development split: `python -m lib.trials PROFILE SEED STAGE PARAMETER VALUE...`.

Each value is one ordinary execution of the stage, judged on `dev` and kept out of the profile's own runs; its result is
a row of book/results/<profile>/trials.csv, which the book prints with its bill.
"""

import sys

import pandas as pd

from lib import execute, params, records
from lib.paths import RESULTS, RUNS

ARMS = {"01_sft": "sft", "02_dpo": "dpo", "03_grpo": "grpo"}


def trial(profile: str, seed: int, stage: str, parameter: str, value: str) -> dict:
    """Execute the stage with one changed parameter and return the row of its last checkpoint.

    Raises lib.params.ParameterError for a parameter or value that the stage does not take.
    """
    apart = f"{profile}-trials"
    folder = RUNS / apart / "notebooks"
    needed = [("00_setup", []), ("01_sft", [])] if stage != "01_sft" else [("00_setup", [])]
    for name, changed in [*needed, (stage, [(parameter, value)])]:
        values = params.effective(name, profile, seed, changed) | {"profile": apart}
        if name != "00_setup":
            values["judged_split"] = "dev"
        execute.execute(name, values, folder / f"{name}-trial.ipynb")
    record = records.pinned(apart, f"{ARMS[stage]}-s{seed}")
    last, info = record.checkpoints.iloc[-1], record.info
    counts = {"n": int(last["n"]), "exact": int(last["exact"]), "best_exact": int(record.checkpoints["exact"].max())}
    made = {"billed_s": info["billed_s"], "device": info["device"]["name"], "commit": info["commit"], "id": info["id"]}
    return (
        {"arm": record.arm, "seed": seed, "parameter": parameter, "value": float(value), "split": "dev"} | counts | made
    )


def main(profile: str, seed: int, stage: str, parameter: str, values: list[str]) -> None:
    path = RESULTS / profile / "trials.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    for value in values:
        rows = pd.DataFrame([trial(profile, seed, stage, parameter, value)])
        if path.exists():
            before = pd.read_csv(path)
            rows = pd.concat([before[~before["id"].isin(rows["id"])], rows])  # the same trial again replaces its row
        rows.to_csv(path, index=False)
        print(rows.tail(1).to_string(index=False))


if __name__ == "__main__":
    if len(sys.argv) < 6 or sys.argv[3] not in ARMS:
        sys.exit(f"usage: python -m lib.trials PROFILE SEED STAGE PARAMETER VALUE...   (STAGE: {', '.join(ARMS)})")
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:5], sys.argv[5:])
