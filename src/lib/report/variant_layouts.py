"""Columns of the tables of variants, of the text from elsewhere and of the baseline, as in `lib.report.layouts`."""

import pandas as pd

from lib.data import FIELDS
from lib.report.compare import LETTERS, NAMES
from lib.report.layouts import FIRST_SECOND, NO_BREAK, RULES, TESTED, better, columns, counts, fields, only
from lib.report.show import accuracy, moved, number, p_value, spent, versus


def _from_to(first, last) -> str:
    return "-" if pd.isna(first) else f"{first:.0%} to {last:.0%}"


VARIANTS = {
    "variant": lambda row: row.name.replace("_", " "),
    "of": lambda row: f"{LETTERS[row.arm]}, seed {row.seed}".replace(" ", NO_BREAK),
    "differs by": lambda row: row.differs,
    "from, to": lambda row: moved(row.start, row.last, ".4f"),
    "it / its start better": lambda row: versus(row.start_better, row.start_worse),
    "its p (Holm)": lambda row: p_value(row.start_p_holm),
    "its arm's last": lambda row: accuracy(row.arm_last),
    "it / its arm better": lambda row: versus(row.arm_better, row.arm_worse),
    "p of it (Holm)": lambda row: p_value(row.arm_p_holm),
    "spent": lambda row: spent(row.hours),
    "of its arm's": lambda row: number(row.bill_ratio, ".0%"),
    "of the lean run's": lambda row: number(row.lean_ratio, ".0%"),
    "zero-variance groups": lambda row: _from_to(row.zero_first, row.zero_last),
}


def of_seed(row) -> str:
    """A run's name and seed; the base model has none."""
    return row.name.replace("_", " ") + (f", seed {row.seed}" if row.seed != "" else "")


RUN_OF = {"run": lambda row: of_seed(row).replace(" ", NO_BREAK)}
BY_TRAINER = {"trainers": RULES["rule"]} | {title: cell for title, cell in RULES.items() if title != "rule"}
OUTSIDE = (
    RUN_OF
    | {"exact": lambda row: f"{row.exact} of {row.n}", "invalid": only("invalid", counts)}
    | fields(
        FIELDS,
        lambda row, field: "{} of {}; {} of {}".format(
            *(getattr(row, f"{field}_{what}") for what in ("right", "known", "filled", "null"))
        ),
    )
)
OUTSIDE_TESTS = (
    {"pair": lambda row: f"{NAMES.get(row.left, row.left)} and {NAMES.get(row.right, row.right)}, seed {row.seed}"}
    | FIRST_SECOND
    | better("first / second better")
    | TESTED
)
BIRTH_PLACES = {"by": lambda row: row.by, "right": lambda row: f"{row.right} of {row.n}"} | columns(
    {"wrong": "wrong", "missing": "missing", "spurious": "spurious"}, counts
)
