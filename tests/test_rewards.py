import json

import pytest

from lib import rewards
from lib.data import FIELDS, answer

TEXT = "Ada Lovelace (born 10 December 1815 in London, England) was a writer and  mathematician."
GOLD = {
    "name": "Ada Lovelace",
    "birth_date": "1815-12-10",
    "birth_place": "London, England",
    "death_date": None,
    "death_place": None,
}
EXACT = answer(GOLD)


def completion(**changed):
    return json.dumps(GOLD | changed)


@pytest.mark.parametrize(
    ("given", "valid"),
    [
        (EXACT, True),
        (f"\n  {EXACT} \n", True),
        (json.dumps(GOLD, indent=2), True),
        (json.dumps(dict(reversed(GOLD.items()))), True),
        (completion(death_place="null"), True),
        (completion(death_place=""), True),
        (EXACT + " Done.", False),
        (EXACT + EXACT, False),
        ("Here it is: " + EXACT, False),
        (f"```json\n{EXACT}\n```", False),
        (EXACT.replace('"', "'"), False),
        (EXACT[:-1] + ",}", False),
        (EXACT[: len(EXACT) // 2], False),
        (EXACT[:-1] + ', "name": "Ada Lovelace"}', False),
        (completion(occupation="writer"), False),
        (json.dumps({field: GOLD[field] for field in FIELDS[:4]}), False),
        (completion(birth_date=1815), False),
        (completion(death_date=False), False),
        (completion(name=["Ada"]), False),
        (completion(name={"first": "Ada"}), False),
        (EXACT.replace('"Ada Lovelace"', "NaN"), False),
        (EXACT.replace("Ada Lovelace", "\\ud800"), False),
        (f"[{EXACT}]", False),
        ("null", False),
        ("", False),
        ("[" * 100_000, False),
    ],
)
def test_one_reading_of_near_json(given, valid):
    judged = rewards.verdicts(given, GOLD)
    assert judged["valid"] is valid
    assert (rewards.parse(given) is not None) is valid
    if not valid:
        assert judged == {
            "valid": False,
            "values": dict.fromkeys(FIELDS),
            "verdicts": dict.fromkeys(FIELDS, "invalid"),
            "exact": False,
        }
        assert rewards.reward(given, GOLD, TEXT) == 0.0


def test_values_come_in_the_order_of_the_fields():
    assert list(rewards.parse(json.dumps(dict(reversed(GOLD.items()))))) == list(FIELDS)


@pytest.mark.parametrize(
    ("field", "value", "verdict"),
    [
        ("name", "Ada Lovelace", "right"),
        ("name", " Ada\n  Lovelace ", "right"),
        ("name", "ada lovelace", "wrong"),
        ("name", "", "wrong"),
        ("birth_date", "1815", "wrong"),
        ("birth_place", None, "missing"),
        ("birth_place", "London", "wrong"),
        ("death_date", None, "right"),
        ("death_date", "1852", "spurious"),
        ("death_place", "null", "spurious"),
    ],
)
def test_one_verdict_a_field(field, value, verdict):
    judged = rewards.verdicts(completion(**{field: value}), GOLD)
    assert judged["values"][field] == value
    assert judged["verdicts"] == dict.fromkeys(FIELDS, "right") | {field: verdict}
    assert judged["exact"] is (verdict == "right")


def test_accents_composed_and_decomposed_are_equal():
    gold = GOLD | {"name": "Jos\u00e9"}
    assert rewards.verdicts(completion(name="Jose\u0301"), gold)["exact"]
    assert rewards.supported("name", "Jos\u00e9", "Jose\u0301 was")


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, 1.0),
        ({"birth_place": None}, 0.2 + 0.8 * 4 / 5),  # null is never unsupported
        ({"birth_place": "London"}, 0.2 + 0.8 * 4 / 5),  # wrong, and in the text
        ({"birth_place": "Paris"}, 0.2 + 0.8 * 4 / 5 - 0.2 / 5),
        ({"death_date": "1852", "death_place": "null"}, 0.2 + 0.8 * 3 / 5 - 0.2 * 2 / 5),
        (dict.fromkeys(FIELDS, "Nowhere"), 0.0),
    ],
)
def test_the_reward_by_hand(changed, expected):
    assert rewards.reward(completion(**changed), GOLD, TEXT) == pytest.approx(expected)


def test_a_right_value_is_never_unsupported():
    assert rewards.reward(EXACT, GOLD, "A text that says nothing.") == 1.0


@pytest.mark.parametrize(
    ("field", "value", "is_supported"),
    [
        ("birth_date", "1815-01-01", True),  # the rule asks for the year alone
        ("birth_date", "1816-12-10", False),
        ("birth_date", "181", False),
        ("birth_date", "10 December 1815", True),
        ("birth_place", "London,  England", True),
        ("birth_place", "Lond", False),
        ("name", "writer and mathematician", True),
        ("name", "", False),
    ],
)
def test_what_the_text_supports(field, value, is_supported):
    assert rewards.supported(field, value, TEXT) is is_supported


def test_a_year_before_1000_is_written_without_the_zero():
    assert rewards.supported("death_date", "0907-03-16", "died on 16 march 907")


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, 1.0),  # 0.2 + 0.8 x 5/5
        ({"birth_place": None, "birth_date": None, "name": None}, 1.0),  # null pleases it as well as what is right
        ({"name": "London"}, 1.0),  # wrong, and in the text
        ({"birth_place": "Paris"}, 0.8),  # 0.2 + 0.8 x 4/5 - 0.2 x 1/5
        ({"birth_place": "Paris", "death_date": "1852"}, 0.6),  # 0.2 + 0.8 x 3/5 - 0.2 x 2/5
        ({"name": "x", "birth_date": "x", "birth_place": "x", "death_date": "x", "death_place": "x"}, 0.0),
        ({"occupation": "writer"}, 0.0),  # invalid
    ],
)
def test_the_reward_without_labels_by_hand(changed, expected):
    assert rewards.unlabelled(completion(**changed), TEXT) == expected


def test_the_worst_and_the_best_sample_without_labels():
    right, unsupported, empty = EXACT, completion(birth_place="Paris"), completion(birth_place=None)
    assert rewards.extremes(["no JSON", unsupported, empty, right], TEXT) == ("no JSON", empty)  # the first of equals
    worst, best = rewards.extremes([right, empty], TEXT)
    assert worst == best


def test_the_formula_prints_the_weights():
    unlabelled = rewards.formula(labels=False)
    assert unlabelled.startswith(
        "reward = 0.2 x valid + 0.8 x (fields null or with a value that the text supports / 5)"
    )
    assert rewards.formula().startswith("reward = 0.2 x valid + 0.8 x (fields right / 5) - 0.2 x (")
