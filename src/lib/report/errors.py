"""Which fields go wrong, how, and which of them no arm gets right: summaries of predictions and checkpoints."""

import pandas as pd

from lib.data import FIELDS
from lib.records import VERDICTS
from lib.report import compare
from lib.report.diagnose import MISTAKES


def birth_places(setup, scored: dict) -> pd.DataFrame | None:
    """Held-out places of birth by verdict: of the regular expression that the setup judged, then of each record.

    scored: records by (arm, seed). Columns: `name`, `seed`, `n`, and counts by verdict. None where the setup is from
    before the expression was judged.
    """
    if "baseline" not in setup.info["facts"]:
        return None
    rows = [{"name": "a regular expression", "seed": ""} | setup.info["facts"]["baseline"]]
    for (arm, seed), run in sorted(scored.items(), key=lambda item: ("start", *compare.NAMES).index(item[0][0])):
        last = run.checkpoints.sort_values("step").iloc[-1]
        row = {"name": arm, "seed": seed, "n": int(last["n"])}
        rows.append(row | {verdict: int(last[f"birth_place_{verdict}"]) for verdict in VERDICTS})
    return pd.DataFrame(rows)


def by_checkpoint(run, start) -> pd.DataFrame:
    """One row a checkpoint, the shared start first (step 0): `step`, `<field>_<mistake>` counts, and `invalid`.

    The fields of an invalid completion count in no mistake. run, start: records.
    """
    first = start.checkpoints.sort_values("step").tail(1).assign(step=0)
    table = pd.concat([first, run.checkpoints.sort_values("step")], ignore_index=True)
    counts = [f"{field}_{mistake}" for field in FIELDS for mistake in MISTAKES]
    return table.assign(invalid=table["n"] - table["valid"])[["step", "n", *counts, "invalid"]]


def last_predictions(run) -> pd.DataFrame:
    """Predictions of a record's last checkpoint, indexed by document id."""
    return run.predictions[run.predictions["step"] == run.checkpoints["step"].max()].set_index("id")


def field_changes(runs: dict, starts: dict) -> pd.DataFrame:
    """Each field at the last checkpoint (left) against the start (right), by seed; Holm over the fields of all seeds.

    `left_better`, `right_better`: documents of which only this side has the field right; exact McNemar test.
    `<mistake>_first`, `<mistake>_last`: counts at the start and at the last checkpoint. runs, starts: a record a seed.
    """
    rows = []
    for seed, run in runs.items():
        last, first = last_predictions(run), last_predictions(starts[seed])
        for field in FIELDS:
            row = {"seed": seed, "field": field}
            for mistake in MISTAKES:
                for when, table in (("first", first), ("last", last)):
                    row[f"{mistake}_{when}"] = int((table[f"{field}_verdict"] == mistake).sum())
            right = [table[f"{field}_verdict"] == "right" for table in (last, first)]
            rows.append(row | compare.mcnemar_between(*right))
    return compare.add_holm(pd.DataFrame(rows)) if rows else pd.DataFrame()


def most_worse(rows: pd.DataFrame) -> str:
    """The field and mistake that grew most from the start to the last checkpoint, as a phrase; rows of one seed."""
    grown = {
        (row.field, mistake): getattr(row, f"{mistake}_last") - getattr(row, f"{mistake}_first")
        for row in rows.itertuples()
        for mistake in MISTAKES
    }
    (field, mistake), growth = max(grown.items(), key=lambda item: item[1])
    if growth <= 0:
        return "no kind of mistake grew in any field"
    row = rows[rows["field"] == field].iloc[0]
    return f"{mistake} {field.replace('_', ' ')}, {row[f'{mistake}_first']} to {row[f'{mistake}_last']}"


def shown_worse(rows: pd.DataFrame, alpha: float) -> str:
    """Fields with significantly fewer documents right than at the start, after Holm, as a phrase; rows of one seed."""
    worse = rows[(rows["p_holm"] < alpha) & (rows["left_better"] < rows["right_better"])]["field"]
    return ", ".join(field.replace("_", " ") for field in worse) or "none"


def shared(last: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Fields that no arm has right at its last checkpoint: one row a document and field.

    last: by arm, predictions indexed by document id. Columns: `id`, `field`, `alike` (all arms gave the same valid
    answer, so the label may be the one that is wrong), `answers` (by arm, in order; None for null or invalid).
    """
    rows = []
    for field in FIELDS:
        verdicts = pd.DataFrame({arm: table[f"{field}_verdict"] for arm, table in last.items()})
        values = pd.DataFrame({arm: table[field] for arm, table in last.items()})
        for id_ in verdicts.index[(verdicts != "right").all(axis=1)]:
            answers = [None if pd.isna(value) else value for value in values.loc[id_]]
            alike = len(set(answers)) == 1 and "invalid" not in set(verdicts.loc[id_])
            rows.append({"id": id_, "field": field, "alike": alike, "answers": answers})
    return pd.DataFrame(rows, columns=["id", "field", "alike", "answers"])


def ceiling(last: dict[str, pd.DataFrame]) -> tuple[dict, pd.DataFrame]:
    """How many errors are of all arms: (counts, the rows of `shared`, those with one answer alike first).

    `any`: fields that at least one arm has not right; `all`: that none has right; `alike`: of these, with one answer
    by all arms; `<arm>`: share of that arm's errors that are errors of all; `documents`: documents that no arm has
    exact; `documents_any`: that at least one arm has not exact.
    """
    none = shared(last)
    wrong = {
        arm: pd.DataFrame({field: table[f"{field}_verdict"] != "right" for field in FIELDS}).sort_index()
        for arm, table in last.items()
    }
    tables = list(wrong.values())
    for table in tables[1:]:
        compare.check_same_documents(tables[0].iloc[:, 0], table.iloc[:, 0], "an arm", "another")
    anyone = sum(table.astype(int) for table in tables) > 0
    documents = pd.DataFrame({arm: table.any(axis=1) for arm, table in wrong.items()})
    counts = {"any": int(anyone.sum(axis=None)), "all": len(none), "alike": int(none["alike"].sum())}
    counts |= {"documents": int(documents.all(axis=1).sum()), "documents_any": int(documents.any(axis=1).sum())}
    for arm, table in wrong.items():
        errors = int(table.sum(axis=None))
        counts[arm] = len(none) / errors if errors else float("nan")
    return counts, none.sort_values(["alike", "field", "id"], ascending=[False, True, True])


def written(value) -> str:
    return "null" if value is None or value != value else str(value)


def ceiling_tables(found: dict[int, tuple], documents: dict, examples: int = 6) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Of `ceiling` by seed: the counts, a row a seed; and the first `examples` fields of each with `label` and `text`.

    documents: held-out documents by id, those that are at hand.
    """
    counts = pd.DataFrame([{"seed": seed} | dict.fromkeys(compare.NAMES) | own for seed, (own, _) in found.items()])
    rows = pd.concat([rows.head(examples).assign(seed=seed) for seed, (_, rows) in found.items()])
    known = [documents.get(id_) for id_ in rows["id"]]
    rows["label"] = [d and written(d[field]) or "-" for d, field in zip(known, rows["field"], strict=True)]
    rows["text"] = [d["text"] if d else "not at hand" for d in known]
    return counts.astype(dict.fromkeys(compare.NAMES, float)), rows
