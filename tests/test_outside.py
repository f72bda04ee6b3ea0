"""A text from elsewhere, and a regular expression: fills counted apart from what is right, by hand."""

import json
from types import SimpleNamespace

import pandas as pd
import pytest

from lib import baseline, clock, data, decode, evaluate, records, runs
from lib.report import outside

NOBODY = dict(name="Ada", birth_date="1815-12-10", birth_place="London", death_date=None, death_place=None)


def document(number, **fields):
    return {"id": f"d{number}", "text": f"Text {number}."} | NOBODY | fields


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (
            "A B, a Senator from Ohio; born in Troy, Miami County, Ohio, April 9, 1897; died in 1950",
            "Troy, Miami County, Ohio",
        ),
        ("A B; born near Macon, Ga., in 1863; moved to Paris, 1870", "Macon, Ga."),
        ("A B; born in New York City December 15, 1815; lawyer", "New York City"),
        ("A B; born April 9, 1897; moved to Troy, Ohio, in 1900", None),
    ],
)
def test_the_regular_expression(text, place):
    assert baseline.birth_place(text) == place


def test_the_regular_expression_is_judged_like_a_field():
    text = "A B; born in Troy, Ohio, April 9, 1897; lawyer"
    documents = [{"text": text, "birth_place": place} for place in ("Troy, Ohio", "Ohio", None)]
    documents.append({"text": "A B, a Senator", "birth_place": "Troy, Ohio"})
    assert baseline.counts(documents) == {"n": 4, "right": 1, "wrong": 1, "missing": 1, "spurious": 1}


def test_nobody_of_the_own_text_is_in_the_other_one():
    own = [document(1), document(2, name="Bea")]
    others = [document(3), document(4, name="Cyd"), document(5, name="Dee", text="Text  2."), document(2, name="Eve")]
    assert data.apart(others, own) == [others[1]]  # the same person, the same text, the same id
    assert data.known(own) == {"name": 2, "birth_date": 2, "birth_place": 2, "death_date": 0, "death_place": 0}


def test_the_last_checkpoint_alone_answers_the_other_text(tmp_path, monkeypatch):
    asked = []

    def complete(prompts, checkpoints, last_prompts, **_):
        for key in checkpoints:
            number = len(prompts) + (len(last_prompts) if key == list(checkpoints)[-1] else 0)
            asked.append((key, number))
            yield str(key), [[json.dumps(NOBODY)]] * number

    monkeypatch.setattr(decode, "complete", complete)
    run = runs.Run("01_sft", "p", "sft-s0", "sft", 0, {}, "data", {"name": "m", "sha256": ""}, tmp_path)
    run.clock = clock.Clock(tmp_path)
    run.clock.start()
    own, others = [document(1), document(2)], [document(3, birth_place=None), document(4), document(5)]
    predictions, _ = evaluate.checkpoints(run, {0: None, 4: None}, own, "Do.", others)
    assert asked == [(0, 2), (4, 5)] and len(predictions) == 4
    table = evaluate.outside(run, 4, others)["predictions_outside"]
    assert table["id"].tolist() == ["d3", "d4", "d5"] and set(table["step"]) == {4}
    assert table["birth_place_verdict"].tolist() == ["spurious", "right", "right"]
    evaluate.checkpoints(run, {0: None, 4: None}, own, "Do.", others)
    assert len(asked) == 2  # what is judged is not judged again
    assert evaluate.outside(run, 4, []) == {}


def judged(arm, places):
    """A record whose answers to four documents have these verdicts and values of the place of birth."""
    table = pd.DataFrame({"step": 9, "id": list("abcd"), "valid": True, "exact": [v == "right" for v, _ in places]})
    for field in data.FIELDS:
        table[field], table[f"{field}_verdict"] = "x", "right"
    table["birth_place_verdict"], table["birth_place"] = zip(*places, strict=True)
    return SimpleNamespace(name=f"{arm}-s0", predictions_outside=table)


def test_fills_are_counted_apart_by_hand():
    """Gold has three places and one null. One run copies two and fills the null; the other answers null throughout."""
    fills = judged("sft", [("right", "x"), ("right", "x"), ("wrong", "y"), ("spurious", "z")])
    nulls = judged("start", [("missing", None)] * 3 + [("right", None)])
    noted = {"documents": 4, "known": dict.fromkeys(data.FIELDS, 4) | {"birth_place": 3}}
    rows = outside.fields({("sft", 0): fills, ("start", 0): nulls}, noted).set_index("name")
    columns = [f"birth_place_{what}" for what in ("right", "known", "filled", "null")]
    assert rows.loc["sft", columns].tolist() == [2, 3, 1, 1] and rows.loc["start", columns].tolist() == [0, 3, 0, 1]
    assert rows["exact"].tolist() == [2, 1]
    (test,) = outside.tests({("sft", 0): fills, ("start", 0): nulls}, [0]).to_dict("records")
    assert (test["left_better"], test["right_better"], test["p"], test["p_holm"]) == (2, 1, 1.0, 1.0)
    assert set(outside.all_tests(pd.DataFrame([test]))) == {"sft_over_start_on_wikipedia"}


def test_the_other_text_is_read_again_by_its_recorded_ids(tmp_path):
    rows = [document(3), document(4), document(5)]
    path = tmp_path / "other.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    own = data.load("synthetic", n_documents=8)
    splits = {"start": own[:2], "pool": own[2:4], "dev": own[4:6], "heldout": own[6:]}
    table = pd.DataFrame(data.split_table(splits | {"outside": rows[1:]}), columns=["split", "id", "sha256"])
    parameters = dict(source="synthetic", path="", n_documents=8, data_seed=0, place_noise=0.0, outside_path=str(path))
    parameters["outside_sha256"] = data.fingerprint({"outside": rows})
    info = {"parameters": parameters, "data_fingerprint": data.fingerprint(splits)}
    setup = SimpleNamespace(info=info, splits=table, name="setup")
    assert records.splits(setup) == splits and records.outside(setup) == rows[1:]
    path.write_text(path.read_text().replace("Text 5.", "Text five."))
    with pytest.raises(ValueError, match="outside_path: .* changed since setup was recorded"):
        records.outside(setup)
    path.unlink()
    assert records.splits(setup) == splits  # which does not need the other text
