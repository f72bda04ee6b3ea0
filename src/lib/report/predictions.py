"""Predictions: a file of statements with probabilities, checked when read, and scored against what was measured.

A file names the profile that it was made for, and its predictions by a short name each:

    profile: h200
    predictions:
      sft_wins:
        statement: At equal spend A is significantly ahead of C
        quantity: sft_leads          # a name that 04_compare computes, a value a seed
        comparison: ">="             # >, >=, <, <= or between (both ends included)
        threshold: 1                 # a number, the name of another quantity, or for between [low, high]
        probability: 0.9
        seen: what was known when this was written
"""

import difflib
import operator
from pathlib import Path

import pandas as pd

from lib import written
from lib.report.compare import NAMES
from lib.report.outcomes import HELD, NOT_SHOWN, WRONG

COMPARISONS = {
    ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le,
    "between": lambda value, ends: ends[0] <= value <= ends[1],
}  # fmt: skip
FIELDS = ("statement", "quantity", "comparison", "threshold", "probability", "seen")


# Runs that are planned beside the three arms: the arm that each is compared with, and what it is, in few words (the
# caption of their table has more). A prediction may use their names (those of `variants.called`), and is not decidable
# until a run fills them in. `bill_ratio` is in the hours of that arm.
PLANNED = {
    "lean": ("grpo", "C lean"),
    "weak_start": ("grpo", "C from the weak start"),
    "from_base": ("grpo", "C from the base model"),
    "unlabelled": ("grpo", "C without labels"),
    "hard_prompts": ("grpo", "C on hard prompts"),
    "after_sft": ("grpo", "C from A's last checkpoint"),
    "uncorrected": ("grpo", "C without the engine's correction"),
    "group_4": ("grpo", "C with groups of four"),
    "group_16": ("grpo", "C with groups of sixteen"),
    "sft_gentle": ("sft", "A with a lower learning rate and warm-up"),
    "sft_rerun": ("sft", "A again under the same seed"),
    "sft_lean": ("sft", "A lean"),
    "sft_weak": ("sft", "A from the weak start"),
    "dpo_lean": ("dpo", "B lean"),
    "dpo_tenfold": ("dpo", "B with ten times the learning rate"),
    "dpo_unlabelled": ("dpo", "B without labels"),
}


class PredictionError(ValueError):
    """What is wrong with a file of predictions: file, entry, field, what came, what was expected."""


def planned() -> list[str]:
    """Names of the quantities of the runs in PLANNED, and of the arms on Wikipedia's documents."""
    of_grpo = [name for name, (arm, _) in PLANNED.items() if arm == "grpo"]
    names = [f"{what}_{v}" for v in PLANNED for what in ("exact_start", "exact_last", "billed_hours", "bill_ratio")]
    names += [f"{what}_{v}" for v in of_grpo for what in ("zero_first", "zero_last")]
    names += [f"exact_wikipedia_{arm}" for arm in ("start", *NAMES)]
    tested = [f"{v}_over_start" for v in PLANNED] + [f"{v}_over_{arm}" for v, (arm, _) in PLANNED.items()]
    tested += [f"{arm}_over_start_on_wikipedia" for arm in NAMES] + ["grpo_over_sft_on_wikipedia"]
    return names + [f"{what}{name}" for name in tested for what in ("", "p_", "difference_")]


def column(rows: pd.DataFrame, name: str) -> dict:
    """{seed: value} of a table with one row a seed."""
    return dict(zip(rows["seed"], rows[name], strict=True))


def of_tests(tested: dict[str, pd.DataFrame], n: int) -> dict[str, dict]:
    """Of each test by name (one row a seed): `p_<name>`, after Holm, and `difference_<name>`, share of n documents."""
    found = {}
    for name, rows in tested.items():
        difference = (rows["left_better"] - rows["right_better"]) / n
        found |= {f"p_{name}": column(rows, "p_holm"), f"difference_{name}": column(rows.assign(d=difference), "d")}
    return found


def of_verdicts(verdicts: dict[str, dict]) -> dict[str, dict]:
    """Outcomes by name and seed as numbers: held 1, wrong -1, not shown 0, not measured missing."""
    as_number = {HELD: 1, NOT_SHOWN: 0, WRONG: -1}
    return {name: {seed: as_number.get(how) for seed, how in result.items()} for name, result in verdicts.items()}


def complete(quantities: dict[str, dict], seeds: list[int]) -> dict[str, dict]:
    """Quantities as floats, missing (NaN) in a seed without a value; then the planned ones, without any seed."""
    found = {
        name: {seed: float("nan") if pd.isna(values.get(seed)) else float(values[seed]) for seed in seeds}
        for name, values in quantities.items()
    }
    return found | {name: {} for name in planned() if name not in found}


def load(path: Path, quantities) -> tuple[str, dict[str, dict]]:
    """The profile that a file of predictions was made for, and its predictions {name: {field: value}}.

    quantities: the names that a prediction may use. Raises PredictionError at the first thing that is wrong.
    """
    try:
        content = written.read(Path(path))
    except ValueError as error:
        raise PredictionError(str(error)) from None
    _keys(content, ("profile", "predictions"), str(path))
    if not (isinstance(content["profile"], str) and content["profile"]):
        raise PredictionError(f"{path}: profile: got {content['profile']!r}, expected the name of a profile")
    entries = content["predictions"]
    if not (isinstance(entries, dict) and entries):
        raise PredictionError(f"{path}: predictions: got {entries!r}, expected one entry a prediction, by name")
    for name, entry in entries.items():
        _check(entry, quantities, f"{path}: {name}")
    return content["profile"], entries


def _keys(mapping, expected, place):
    """Raise PredictionError unless `mapping` has exactly these keys."""
    if not isinstance(mapping, dict):
        raise PredictionError(f"{place}: got {mapping!r}, expected the keys {', '.join(expected)}")
    for key in mapping:
        if key not in expected:
            raise PredictionError(f"{place}: unknown key {key!r}{_near(key, expected)}; expected {', '.join(expected)}")
    for key in expected:
        if key not in mapping:
            raise PredictionError(f"{place}: {key} is missing; expected {', '.join(expected)}")


def _check(entry, quantities, place):
    """Raise PredictionError for the first field of one prediction that is not as it must be."""
    _keys(entry, FIELDS, place)

    def wrong(field, expected):
        return PredictionError(f"{place}: {field}: got {entry[field]!r}, expected {expected}")

    for field in ("statement", "seen"):
        if not (isinstance(entry[field], str) and entry[field].strip()):
            raise wrong(field, "a text")
    known = "a quantity that 04_compare computes"
    if not isinstance(entry["quantity"], str) or entry["quantity"] not in quantities:
        raise wrong("quantity", known + _near(entry["quantity"], quantities))
    comparison, threshold = entry["comparison"], entry["threshold"]
    if not isinstance(comparison, str) or comparison not in COMPARISONS:
        raise wrong("comparison", f"one of {', '.join(COMPARISONS)}")
    if comparison == "between":
        ends = threshold if isinstance(threshold, list) else []
        if not (len(ends) == 2 and all(map(_number, ends)) and ends[0] <= ends[1]):
            raise wrong("threshold", "two numbers for between, [low, high]")
    elif isinstance(threshold, str):
        if threshold not in quantities:
            raise wrong("threshold", f"a number, or {known}{_near(threshold, quantities)}")
    elif not _number(threshold):
        raise wrong("threshold", f"a number, or {known}")
    if not (_number(entry["probability"]) and 0 <= entry["probability"] <= 1):
        raise wrong("probability", "a number from 0 to 1")


def _number(value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and pd.notna(value)


def _near(name, names) -> str:
    near = difflib.get_close_matches(str(name), list(names), n=1, cutoff=0.4)
    return f" (did you mean {near[0]}?)" if near else ""


def held(prediction: dict, quantities: dict[str, dict]) -> dict[int, bool | None]:
    """Whether a prediction held, by seed of its quantity; None where a number that it needs is missing.

    quantities: {name: {seed: value}}.
    """
    result: dict[int, bool | None] = {}
    for seed, value in quantities[prediction["quantity"]].items():
        threshold = prediction["threshold"]
        if isinstance(threshold, str):
            threshold = quantities[threshold].get(seed)
        missing = pd.isna(value) or (not isinstance(threshold, list) and pd.isna(threshold))
        result[seed] = None if missing else bool(COMPARISONS[prediction["comparison"]](value, threshold))
    return result


def outcome(held_by_seed: dict[int, bool | None]) -> str:
    """How a prediction came out: held, wrong, "held in 1 of 2 seeds", or not decidable."""
    decided = [value for value in held_by_seed.values() if value is not None]
    if not decided:
        return "not decidable"
    text = "held" if all(decided) else f"held in {sum(decided)} of {len(decided)} seeds" if any(decided) else "wrong"
    missing = len(held_by_seed) - len(decided)
    return text + (f"; not decidable in {missing}" if missing else "")


def rule(prediction: dict) -> str:
    """What decides a prediction, as text: "gain_dpo between -0.01 and 0.03"."""
    threshold = prediction["threshold"]
    ends = f"{threshold[0]} and {threshold[1]}" if isinstance(threshold, list) else threshold
    return f"{prediction['quantity']} {prediction['comparison']} {ends}"


def scored(predictions: dict[str, dict], quantities: dict[str, dict], blind: bool) -> pd.DataFrame:
    """One row a prediction: its fields, `name`, `rule`, `values` ({seed: value}), `outcome`, `decided`, `brier`.

    blind: whether the predictions are older than the runs; if not, nothing is scored, and an outcome is in brackets.

    decided: in how many seeds it could be scored. brier: the mean over these of (probability - outcome)^2, outcome 1 or
    0 (Brier 1950); missing where there is none.
    """
    rows = []
    for name, prediction in predictions.items():
        found = held(prediction, quantities)
        errors = [(prediction["probability"] - value) ** 2 for value in found.values() if value is not None]
        row = {"name": name, **prediction, "rule": rule(prediction), "values": quantities[prediction["quantity"]]}
        if not blind:
            errors = []
        told = outcome(found)
        row |= {"outcome": told if blind or told == "not decidable" else f"not scored (would be: {told})"}
        row |= {"decided": len(errors)}
        rows.append(row | {"brier": sum(errors) / len(errors) if errors else float("nan")})
    return pd.DataFrame(rows)


def brier(table: pd.DataFrame) -> dict[str, float]:
    """Over the decidable rows of `scored`: `brier`, their mean (each prediction counts once, however many seeds), and
    `expected`, what it would be on average if every probability were exactly right: the mean of p (1 - p).

    Missing where nothing is decidable.
    """
    decidable = table[table["brier"].notna()]
    p = decidable["probability"].astype(float)
    return {"brier": float(decidable["brier"].mean()), "expected": float((p * (1 - p)).mean())}


def standing(sha256: str, began: list[str | None]) -> str:
    """Whether a file of predictions is older than the runs that it is scored on, as a phrase.

    sha256: the file's. began: that of book/predictions.yaml when each run began; None where the run did not note it.
    """
    texts = {
        "unchanged since {} runs began": began.count(sha256),
        "not the one that {} runs began under": len(began) - began.count(sha256) - began.count(None),
        "not known to be older than {} runs, which did not note it": began.count(None),
    }
    return ", ".join(text.format(f"{count} of {len(began)}") for text, count in texts.items() if count)
