"""How numbers are written, and how the comparing notebook hands them to the articles: formats, tables, texts, figures.

A formatter takes one value and gives a text; a missing value is "-" or "not measured", never 0. `table`, `note` and
`figure` glue what the pages print under a key.
"""

import re
from functools import cache
from math import isfinite
from typing import NamedTuple

import pandas as pd

from lib import written
from lib.paths import BOOK
from lib.report import cost, plots
from lib.report.outcomes import by_seed

told: dict[str, str] = {}  # every text that this notebook glued, by key
left_out: dict[str, str] = {}  # what stands in the place of a table or figure without numbers, by key


def glue(key: str, value, display: bool = True) -> None:
    """MyST-NB's glue, imported late: a machine that trains needs this module's formats, and may lack MyST-NB."""
    from myst_nb import glue as hand_over

    hand_over(key, value, display=display)


def number(value, form: str) -> str:
    return "-" if pd.isna(value) else format(value, form)


def accuracy(value) -> str:
    return number(value, ".4f")


def p_value(p) -> str:
    return "<0.0001" if p < 0.0001 else number(p, ".2g")


def percent(share, form: str = ".1%") -> str:
    return "not measured" if pd.isna(share) else format(share, form)


def versus(left, right) -> str:
    """Two counts, such as documents that only one side has right."""
    return "-" if pd.isna(left) else f"{left:.0f} / {right:.0f}"


def moved(first, final, form: str = ".2f") -> str:
    return "not measured" if pd.isna(first) else f"{first:{form}} to {final:{form}}"


def times(multiple) -> str:
    """A multiple, with two digits at least; the ends of `reach.multiples` in words."""
    if pd.isna(multiple):
        return "-"
    if isfinite(multiple):
        return f"{multiple:,.0f}x" if multiple >= 9.95 else f"{multiple:#.2g}x"
    return "no bound" if multiple > 0 else "A never"


def entered(value, step=None) -> str:
    """An accuracy at a budget: marked while it is still the shared start's (step 0), "ended" past the run's end."""
    return "ended" if pd.isna(value) else accuracy(value) + (" (start)" if step == 0 else "")


class Units(NamedTuple):
    """In what the spend of a source is written: `per_hour` of `cost.axis`, kind of device, its price and currency."""

    per_hour: float
    kind: str
    price_per_hour: float
    currency: str


units: dict[str, Units] = {}  # by source of a row, "here" or "published": the comparing notebook fills it


def timed(hours, source="here") -> str:
    return cost.show_hours(hours, units[source].per_hour)


def priced(hours, source="here") -> str:
    """The price of hours: "never" where the hours are missing, a dash where no price applies."""
    _, kind, price_per_hour, currency = units[source]
    if pd.isna(hours) and cost.unit(kind) == "GPU-hours":
        return "never"
    return cost.show_price(cost.price(hours, kind, price_per_hour), currency)


def spent(hours, source="here") -> str:
    """Hours with their price, where one applies: "0.133 h, $0.59"."""
    return ", ".join(dict.fromkeys(text for text in (timed(hours, source), priced(hours, source)) if text != "-"))


def per_seed(rows: pd.DataFrame, text) -> str:
    """`text` of each row, one row a seed, as a phrase."""
    return by_seed({row.seed: text(row) for row in rows.itertuples()})


def beside(rows: pd.DataFrame, published: dict, by: str | None = None) -> pd.DataFrame:
    """Our rows, then the published study's (a section of published.yaml), told apart by the column `source`.

    by: a column whose equal values are to stand together, ours above theirs, in the order in which they first come.
    """
    theirs = pd.DataFrame(published["rows"]).assign(source="published")
    both = pd.concat([rows.assign(source="here"), theirs.dropna(axis=1, how="all")], ignore_index=True)
    if by is None:
        return both
    return both.sort_values(by, kind="stable", key=lambda column: pd.factorize(column)[0], ignore_index=True)


def note(key: str, text) -> None:
    """Glue a text for the articles; nothing is shown."""
    told[key] = str(text)
    glue(key, told[key], display=False)


def notes(texts: dict) -> None:
    """Glue texts by key; a pair (rows, function of a row) becomes a phrase with one text a seed."""
    for key, text in texts.items():
        note(key, per_seed(*text) if isinstance(text, tuple) else text)


@cache
def words() -> dict:
    """Captions, texts for who cannot see a figure, and what stands where there is nothing to show."""
    shape = {"tables": {...: str}, "figures": {...: {"alt": str, "caption": str}}, "absent": {...: str}}
    return written.read(BOOK / "captions.yaml", shape)


def filled(part: str, key: str, facts: dict, what: str | None = None) -> str:
    """A text of book/captions.yaml with its names in braces filled; what: alt or caption, of a figure's two.

    Raises ValueError for a text that is not there, and for a name that is not known.
    """
    place = f"book/captions.yaml: {part}:"
    try:
        text = words()[part][key][what] if what else words()[part][key]
    except KeyError:
        raise ValueError(f"{place} got no {key}, expected its text") from None
    try:
        return text.format_map(told | facts)
    except KeyError as error:
        raise ValueError(f"{place} {key} names {error}, expected the key of a text glued before") from None
    except (ValueError, IndexError) as error:  # a brace without its other one, or with nothing between
        raise ValueError(f"{place} {key}: {error}, expected names in braces") from None


def absent(key: str, facts: dict) -> None:
    """Glue what stands in the place of a table or figure that has no numbers."""
    left_out[key] = filled("absent", key, facts)
    glue(key, plots.absent(left_out[key]))


def not_measured(article: str) -> None:
    """Glue `not_measured_<article>`: a list of what that page has a place for and `absent` stands in; may be empty."""
    asked = re.findall(r"\{glue\} (\w+)", (BOOK / f"{article}.md").read_text())
    texts = dict.fromkeys(left_out[key] for key in asked if key in left_out)
    glue(f"not_measured_{article}", plots.listed("Not measured in these runs, and so left out above:", texts))


def table(key: str, rows: pd.DataFrame | None, columns: dict, csv: pd.DataFrame | None = None, **facts) -> None:
    """Glue `table_<key>`, with its caption of book/captions.yaml, filled with the texts glued so far and `facts`.

    columns: title -> function of a row. The download is `csv`, else `rows`. Where there are none (None, or empty) the
    file's text for that stands in its place, if it has one.
    """
    if rows is None or (rows.empty and f"table_{key}" in words()["absent"]):
        return absent(f"table_{key}", facts)
    laid_out = plots.lay_out(rows, {title.format_map(told): cell for title, cell in columns.items()})
    caption = filled("tables", key, facts)
    glue(f"table_{key}", plots.table(laid_out, key, caption, csv=rows if csv is None else csv))


def figure(key: str, draw, rows: pd.DataFrame, *more, **facts) -> None:
    """Glue `figure_<key>`: `draw` of rows and what follows them; alt text and caption as for a table."""
    if rows.empty:
        return absent(f"figure_{key}", facts)
    texts = {what: filled("figures", key, facts, what) for what in ("alt", "caption")}
    glue(f"figure_{key}", plots.picture(draw(rows, *more), **texts))
