"""Predictions: what a file may say, how each comes out by seed, and the Brier score, by hand."""

import pandas as pd
import pytest
import yaml

from lib.report import predictions
from lib.report.predictions import PredictionError

NAN = float("nan")
QUANTITIES = {
    "gain_sft": {0: 0.1, 1: 0.2}, "gain_grpo": {0: 0.05, 1: 0.2}, "gain_lean": {}, "half": {0: 0.1, 1: NAN}
}  # fmt: skip


def entry(**fields):
    usual = {"statement": "A gains", "quantity": "gain_sft", "comparison": ">", "threshold": 0.15}
    return usual | {"probability": 0.8, "seen": "nothing"} | fields


def write(tmp_path, text):
    path = tmp_path / "own.yaml"
    path.write_text(text if isinstance(text, str) else yaml.safe_dump(text))
    return path


def load(tmp_path, **fields):
    given = {key: value for key, value in entry(**fields).items() if value is not ...}
    return predictions.load(write(tmp_path, {"profile": "p", "predictions": {"mine": given}}), QUANTITIES)


def test_a_good_file_is_read(tmp_path):
    assert load(tmp_path) == ("p", {"mine": entry()})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"quantity": "gain_sfd"}, "mine: quantity: got 'gain_sfd', expected .*did you mean gain_sft"),
        ({"quantity": ["gain_sft"]}, r"mine: quantity: got \['gain_sft'\]"),
        ({"threshold": "gain_gpro"}, "mine: threshold: got 'gain_gpro', .*did you mean gain_grpo"),
        ({"threshold": True}, "mine: threshold: got True, expected a number"),
        ({"threshold": NAN}, "mine: threshold: got nan"),
        ({"comparison": "=="}, "mine: comparison: got '==', expected one of >, >=, <, <=, between"),
        ({"comparison": "between"}, "mine: threshold: got 0.15, expected two numbers"),
        ({"comparison": "between", "threshold": [2, 1]}, r"mine: threshold: got \[2, 1\], expected two numbers"),
        ({"threshold": [1, 2]}, "mine: threshold: got"),
        ({"probability": 1.2}, "mine: probability: got 1.2, expected a number from 0 to 1"),
        ({"probability": "0.5"}, "mine: probability: got '0.5'"),
        ({"probability": True}, "mine: probability: got True"),
        ({"seen": " "}, "mine: seen: got ' ', expected a text"),
        ({"seen": ...}, "mine: seen is missing"),
        ({"comparison": [">"]}, r"mine: comparison: got \['>'\]"),
        ({"treshold": 1}, "mine: unknown key 'treshold' .did you mean threshold"),
    ],
)
def test_a_bad_prediction_is_one_error_that_names_file_entry_and_field(tmp_path, fields, message):
    with pytest.raises(PredictionError, match=f"own.yaml: {message}"):
        load(tmp_path, **fields)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("profile: p\npredictions: {}\n", "predictions: got {}"),
        ("profile: 3\npredictions: {a: {}}\n", "profile: got 3"),
        ("- a\n", "expected the keys profile, predictions"),
        ("profile: p\nprofile: q\npredictions: {}\n", "profile comes twice"),
        ("profile: p\npredictions: {a: 3}\n", "a: got 3, expected the keys statement"),
        ("profile: [\n", "cannot be read"),
    ],
)
def test_a_bad_file_is_one_error(tmp_path, text, message):
    with pytest.raises(PredictionError, match=f"own.yaml: .*{message}"):
        predictions.load(write(tmp_path, text), QUANTITIES)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(PredictionError, match="none.yaml: cannot be read"):
        predictions.load(tmp_path / "none.yaml", QUANTITIES)


@pytest.mark.parametrize(
    ("fields", "by_seed", "outcome"),
    [
        ({}, {0: False, 1: True}, "held in 1 of 2 seeds"),
        ({"threshold": 0.1}, {0: False, 1: True}, "held in 1 of 2 seeds"),
        ({"threshold": 0.1, "comparison": ">="}, {0: True, 1: True}, "held"),
        ({"threshold": 0.2, "comparison": "<"}, {0: True, 1: False}, "held in 1 of 2 seeds"),
        ({"threshold": 0.2, "comparison": "<="}, {0: True, 1: True}, "held"),
        ({"threshold": [0.1, 0.2], "comparison": "between"}, {0: True, 1: True}, "held"),
        ({"threshold": [0.3, 0.4], "comparison": "between"}, {0: False, 1: False}, "wrong"),
        ({"threshold": "gain_grpo"}, {0: True, 1: False}, "held in 1 of 2 seeds"),  # of the same seed
        ({"threshold": "half", "comparison": ">="}, {0: True, 1: None}, "held; not decidable in 1"),
        ({"quantity": "half"}, {0: False, 1: None}, "wrong; not decidable in 1"),
        ({"quantity": "gain_lean"}, {}, "not decidable"),
        ({"threshold": "gain_lean"}, {0: None, 1: None}, "not decidable"),
    ],
)
def test_outcomes(fields, by_seed, outcome):
    assert predictions.held(entry(**fields), QUANTITIES) == by_seed
    assert predictions.outcome(by_seed) == outcome


def test_brier_by_hand():
    """0.8 held in one seed of two: (0.04 + 0.64) / 2 = 0.34. 0.9 held: 0.01. Half decidable, 0.3, wrong: 0.09."""
    table = predictions.scored(
        {
            "one": entry(),
            "two": entry(threshold=0, probability=0.9),
            "half": entry(quantity="half", probability=0.3),
            "none": entry(quantity="gain_lean", probability=0.0),
        },
        QUANTITIES,
        blind=True,
    )
    assert table["brier"].tolist()[:3] == pytest.approx([0.34, 0.01, 0.09]) and pd.isna(table["brier"][3])
    assert table["decided"].tolist() == [2, 2, 1, 0]
    score = predictions.brier(table)
    assert score["brier"] == pytest.approx(0.44 / 3)
    assert score["expected"] == pytest.approx((0.16 + 0.09 + 0.21) / 3)


def test_what_had_been_seen_is_not_scored():
    table = predictions.scored({"one": entry(), "none": entry(quantity="gain_lean")}, QUANTITIES, blind=False)
    assert table["outcome"].tolist() == ["not scored (would be: held in 1 of 2 seeds)", "not decidable"]
    assert table["brier"].isna().all() and table["decided"].tolist() == [0, 0]


def test_nothing_decidable_has_no_score():
    table = predictions.scored({"none": entry(quantity="gain_lean")}, QUANTITIES, blind=True)
    assert all(pd.isna(value) for value in predictions.brier(table).values())
