"""Columns of the tables of variants, of the text from elsewhere and of the baseline, as in `lib.report.layouts`."""

import pandas as pd

from lib.data import FIELDS
from lib.report.compare import NAMES
from lib.report.layouts import (
    BUDGET,
    FIRST_SECOND,
    NO_BREAK,
    RULES,
    TESTED,
    better,
    columns,
    counts,
    difference,
    fields,
    only,
    points,
)
from lib.report.show import moved, number, p_value, spent
from lib.report.variants import words


def _from_to(first, last) -> str:
    return "-" if pd.isna(first) else f"{first:.0%} to {last:.0%}"


def _p(p) -> str:
    return f"p{NO_BREAK}{p_value(p)}"


def of_seed(row) -> str:
    """A run in words, with its seed; the base model has none."""
    return words(row.name) + (f", seed {row.seed}" if row.seed != "" else "")


VARIANTS = {  # what differs, the counts of documents and the raw p are in the download
    "variant": of_seed,
    "from, to": lambda row: moved(row.start, row.last, ".4f"),
    "change (points)": lambda row: f"{points(100 * (row.last - row.start))}, {_p(row.start_p_holm)}",
    "against its arm (points)": lambda row: (
        "-" if pd.isna(row.difference) else f"{difference(row)}, {_p(row.arm_p_holm)}"
    ),
    "spent": lambda row: spent(row.hours),
    "of its arm's": lambda row: number(row.bill_ratio, ".0%"),
    "of the lean run's": lambda row: number(row.lean_ratio, ".0%"),
    "zero-variance groups": lambda row: _from_to(row.zero_first, row.zero_last),
}
DIVERGENCE = {
    "variant": of_seed,
    "reward, first checkpoint to last": lambda row: moved(row.reward_first, row.reward_last, ".3f"),
    "exact, start to last": lambda row: moved(row.start, row.last, ".4f"),
    "alarm": lambda row: f"{row.alarms} of {row.checkpoints}" if row.alarms else "-",
    "first at step": lambda row: number(row.first_alarm, ".0f"),
}
BETWEEN = (
    {"pair": lambda row: f"{words(row.left)}; {words(row.right)}; seed {row.seed}"}
    | BUDGET
    | FIRST_SECOND
    | better("first / second better")
    | {title: TESTED[title] for title in ("p", "p (Holm)")}
)
BY_TRAINER = {"trainers": RULES["rule"]} | {title: cell for title, cell in RULES.items() if title != "rule"}
OUTSIDE = (
    {"run": of_seed}
    | {"exact": lambda row: f"{row.exact} of {row.n}", "invalid": only("invalid", counts)}
    | fields(
        FIELDS,
        lambda row, field: "{} of {}; {} of {}".format(
            *(getattr(row, f"{field}_{what}") for what in ("right", "known", "filled", "null"))
        ).replace(" of ", f"{NO_BREAK}of{NO_BREAK}"),
    )
)
OUTSIDE_TESTS = (
    {"pair": lambda row: f"{NAMES.get(row.left, row.left)} and {NAMES.get(row.right, row.right)}, seed {row.seed}"}
    | FIRST_SECOND
    | better("first / second better")
    | TESTED
)
BIRTH_PLACES = {"by": of_seed, "right": lambda row: f"{row.right} of {row.n}"} | columns(
    {"wrong": "wrong", "missing": "missing", "spurious": "spurious"}, counts
)
