"""What a completion is worth: one reading of its JSON and one verdict a field, for reward and evaluation alike.

Nothing is repaired. A completion is valid when all of it, apart from white space around it, is one JSON object
(RFC 8259) with exactly the five keys, in any order, each once, and each value a string or null:

    completion                              verdict
    --------------------------------------  ----------------------------------------------------------------
    the object, white space around it       valid
    text before or after the object         invalid
    a code fence around it                  invalid
    single quotes, a trailing comma         invalid
    truncated in the middle                 invalid
    a key twice                             invalid, even where both values agree
    an extra key, a missing key             invalid
    a number (or bool, list) for a value    invalid, also for a date: 1897 is not "1897"
    half of a surrogate pair ("\\ud800")     invalid: it cannot be written as UTF-8
    "null", "None", "" or "unknown"         valid, and a value: only the bare null says that the text does not say

An invalid completion has the verdict `invalid` in all five fields. In a valid one a field is `right` when value and
gold are equal, both NFC-normalised and with runs of white space as one space, or both null; `missing` is null where
gold has a value, `spurious` a value where gold is null, `wrong` another value than gold's.
"""

import json
import re
import unicodedata

from lib.data import FIELDS

VERDICTS = ("right", "wrong", "missing", "spurious", "invalid")

# Fixed before the first recorded run. UNSUPPORTED is no larger than SCHEMA, so that no valid completion is worth less
# than an invalid one.
SCHEMA = 0.2
RIGHT = 0.8
UNSUPPORTED = 0.2


def formula(labels: bool = True) -> str:
    """The reward's formula with its weights, as one line of text; without labels that of `unlabelled`."""
    if not labels:
        return (
            f"reward = {SCHEMA} x valid + {RIGHT} x (fields null or with a value that the text supports / "
            f"{len(FIELDS)}) - {UNSUPPORTED} x (fields with a value that the text does not support / {len(FIELDS)})"
        )
    return (
        f"reward = {SCHEMA} x valid + {RIGHT} x (fields right / {len(FIELDS)}) "
        f"- {UNSUPPORTED} x (fields not right whose value the text does not support / {len(FIELDS)})"
    )


def parse(completion: str) -> dict[str, str | None] | None:
    """The five fields of a completion, in the order of FIELDS, or None where it is invalid (the module's table)."""
    try:
        pairs = json.loads(completion.strip(" \t\r\n"), object_pairs_hook=_Pairs)
        completion.encode()
        if not isinstance(pairs, _Pairs) or sorted(key for key, _ in pairs) != sorted(FIELDS):
            return None
        values = dict(pairs)
        for value in values.values():
            if value is not None:
                if not isinstance(value, str):
                    return None
                value.encode()  # raises UnicodeEncodeError, a ValueError, on half of a surrogate pair
    except (ValueError, RecursionError):
        return None
    return {field: values[field] for field in FIELDS}


class _Pairs(list):
    """A JSON object as its (key, value) pairs: a dict would hide keys that come twice."""


def verdicts(completion: str, gold: dict) -> dict:
    """Judges a completion against the gold document.

    Returns {"valid": bool, "values": {field: str or None}, "verdicts": {field: one of VERDICTS}, "exact": bool}; the
    values of an invalid completion are all None; exact means that all five fields are right.
    """
    values = parse(completion)
    if values is None:
        return {
            "valid": False,
            "values": dict.fromkeys(FIELDS),
            "verdicts": dict.fromkeys(FIELDS, "invalid"),
            "exact": False,
        }
    judged = {field: verdict(values[field], gold[field]) for field in FIELDS}
    return {
        "valid": True,
        "values": values,
        "verdicts": judged,
        "exact": all(verdict == "right" for verdict in judged.values()),
    }


def verdict(value: str | None, gold: str | None) -> str:
    """Of a field of a valid completion: right, wrong, missing or spurious (the module's text)."""
    if value is None:
        return "right" if gold is None else "missing"
    if gold is None:
        return "spurious"
    return "right" if normalise(value) == normalise(gold) else "wrong"


def reward(completion: str, gold: dict, text: str) -> float:
    """The reward of a completion, by `formula()`: from 0 to 1; 1 is an exact record, an invalid completion has 0.

    text: the document's text. A value that is right is never counted as unsupported.
    """
    judged = verdicts(completion, gold)
    if not judged["valid"]:
        return 0.0
    right = sum(verdict == "right" for verdict in judged["verdicts"].values())
    unsupported = sum(
        judged["verdicts"][field] != "right" and value is not None and not supported(field, value, text)
        for field, value in judged["values"].items()
    )
    # Rounded, so that equal records have equal rewards whatever the order of the sums.
    return round(SCHEMA + (RIGHT * right - UNSUPPORTED * unsupported) / len(FIELDS), 6)


def unlabelled(completion: str, text: str) -> float:
    """A reward that knows no label, by `formula(labels=False)`: from 0 to 1; 1 is a valid record of nulls and of values
    that the text supports, whether they are right or not; an invalid completion has 0.

    It is `reward` with "null, or supported" in the place of "right".
    """
    values = parse(completion)
    if values is None:
        return 0.0
    unsupported = sum(v is not None and not supported(field, v, text) for field, v in values.items())
    return round(SCHEMA + (RIGHT * (len(FIELDS) - unsupported) - UNSUPPORTED * unsupported) / len(FIELDS), 6)


def extremes(samples: list[str], text: str) -> tuple[str, str]:
    """The worst and the best sample of a document by `unlabelled`, the first of equals; one twice if all are equal."""
    earned = [unlabelled(sample, text) for sample in samples]
    return samples[earned.index(min(earned))], samples[earned.index(max(earned))]


def supported(field: str, value: str, text: str) -> bool:
    """Whether the text supports a value: a date's year stands in it as a number, a name or place as whole words.

    A date that does not start with a year of four digits must stand in the text as it is.
    """
    value = normalise(value)
    if field.endswith("_date") and re.match(r"[0-9]{4}(?![0-9])", value):
        value = str(int(value[:4]))  # the year 0907 is written 907
    return bool(value) and re.search(rf"(?<!\w){re.escape(value)}(?!\w)", normalise(text)) is not None


def normalise(value: str) -> str:
    """NFC, with runs of white space as one space and none around."""
    return " ".join(unicodedata.normalize("NFC", value).split())
