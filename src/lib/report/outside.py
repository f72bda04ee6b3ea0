"""Last checkpoints on a text from elsewhere: what each field was filled with, and exact tests between the arms."""

import pandas as pd

from lib.data import FIELDS
from lib.report import compare

PAIRS = (("sft", "start"), ("dpo", "start"), ("grpo", "start"), ("grpo", "sft"))  # left, right


def of(setup) -> dict | None:
    """What the setup noted of that text: `documents`, `known` ({field: labels that are not null}); None without it."""
    noted = setup.info["facts"].get("outside", {})
    return noted if noted.get("documents") else None


def judged(runs: dict, noted: dict | None) -> dict:
    """Of records by any key, those that were judged on that text; none where there is none."""
    return {key: run for key, run in runs.items() if noted and run.has("predictions_outside")}


def fields(runs: dict, noted: dict) -> pd.DataFrame:
    """One row a record, by (name, seed), those of one name together: `n`, `exact`, `invalid` documents, of each field

    `<field>_right` of `<field>_known` labels that are not null, and `<field>_filled` of `<field>_null` that are null
    (a spurious value, unless the label is wrong).
    """
    rows = []
    for (name, seed), run in runs.items():
        table = run.predictions_outside
        row = {"name": name, "seed": seed, "n": len(table), "exact": int(table["exact"].sum())}
        row["invalid"] = int((~table["valid"].astype(bool)).sum())
        for field in FIELDS:
            verdict = table[f"{field}_verdict"]
            known = noted["known"][field]
            row |= {f"{field}_known": known, f"{field}_null": len(table) - known}
            row[f"{field}_right"] = int(((verdict == "right") & table[field].notna()).sum())
            row[f"{field}_filled"] = int((verdict == "spurious").sum())
        rows.append(row)
    table = pd.DataFrame(rows)
    return table.sort_values("name", kind="stable", key=lambda own: pd.factorize(own)[0]) if rows else table


def tests(runs: dict, seeds: list[int]) -> pd.DataFrame:
    """PAIRS of each seed, exact records at the last checkpoints: `left`, `right`, `seed`, McNemar's columns, Holm.

    runs: records by (arm, seed), the shared start's arm is "start".
    """
    rows = []
    for seed in seeds:
        exact = {
            arm: compare.exact_by_document(run.predictions_outside, run.predictions_outside["step"].iloc[0], run.name)
            for (arm, own), run in runs.items()
            if own == seed
        }
        for left, right in PAIRS:
            if left in exact and right in exact:
                found = {"seed": seed, "left": left, "right": right}
                found |= {"left_accuracy": exact[left].mean(), "right_accuracy": exact[right].mean()}
                rows.append(found | compare.mcnemar_between(exact[left], exact[right]))
    return compare.add_holm(pd.DataFrame(rows)) if rows else pd.DataFrame()


def all_tests(found: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The rows of `tests` by the names that predictions use: "sft_over_start_on_wikipedia", ..., one row a seed."""
    groups = found.groupby(["left", "right"]) if len(found) else ()
    return {f"{left}_over_{right}_on_wikipedia": rows for (left, right), rows in groups}
