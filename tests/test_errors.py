"""Fields gone wrong, and those that no arm has right, by hand."""

from types import SimpleNamespace

import pandas as pd
import pytest

from lib.data import FIELDS
from lib.report import errors


def predictions(step=1, **verdicts):
    """Documents a to d, all right with the value "x"; verdicts: field -> {document: (verdict, value)}."""
    table = pd.DataFrame({"step": step, "id": list("abcd")}).set_index("id")
    for field in FIELDS:
        table[f"{field}_verdict"], table[field] = "right", "x"
        for document, (verdict, value) in verdicts.get(field, {}).items():
            table.loc[document, f"{field}_verdict"], table.loc[document, field] = verdict, value
    return table


def test_what_no_arm_has_right_is_counted_and_told_apart_by_their_answers():
    y, null = ("wrong", "y"), ("missing", None)
    last = {
        "sft": predictions(birth_place={"a": y, "b": null}, death_date={"c": y}),
        "dpo": predictions(birth_place={"a": y, "b": y}, death_date={"d": y}),
        "grpo": predictions(birth_place={"a": y, "b": null}, name={"a": y}),
    }
    counts, rows = errors.ceiling(last)
    assert (counts["any"], counts["all"], counts["alike"]) == (5, 2, 1)
    assert counts["sft"] == counts["dpo"] == counts["grpo"] == pytest.approx(2 / 3)
    assert (counts["documents"], counts["documents_any"]) == (2, 4)
    assert rows["id"].tolist() == ["a", "b"]  # the one with one answer first
    assert rows["answers"].tolist() == [["y"] * 3, [None, "y", None]]


def test_invalid_answers_are_not_alike():
    bad = predictions(name={"a": ("invalid", None)})
    assert errors.shared({"sft": bad, "dpo": bad})["alike"].tolist() == [False]


def record(table, step=1):
    return SimpleNamespace(predictions=table.reset_index(), checkpoints=pd.DataFrame({"step": [step]}))


def test_field_changes_pair_documents_and_name_the_mistake_that_grew():
    start = predictions(death_place={"a": ("missing", None)})
    end = predictions(death_place={"b": ("missing", None), "c": ("missing", None)}, name={"d": ("wrong", "z")})
    changes = errors.field_changes({0: record(end)}, {0: record(start)}).set_index("field")
    row = changes.loc["death_place"]
    assert (row.missing_first, row.missing_last, row.left_better, row.right_better) == (1, 2, 1, 2)
    assert row.p == 1.0
    assert changes.loc["name", "right_better"] == 1
    assert errors.shown_worse(changes.reset_index(), 0.05) == "none"  # one document shows nothing
    told = changes.reset_index().assign(p_holm=0.01)
    assert errors.shown_worse(told, 0.05) == "name, death place"
    assert errors.most_worse(changes.reset_index()) == "wrong name, 0 to 1"
    same = errors.field_changes({0: record(start)}, {0: record(start)})
    assert errors.most_worse(same) == "no kind of mistake grew in any field"
