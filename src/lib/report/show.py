"""How numbers are written, and how the comparing notebook hands them to the articles: formats, tables, texts, figures.

A formatter takes one value and gives a text; a missing value is "-" or "not measured", never 0. `table`, `note` and
`figure` glue what the pages print under a key.
"""

from math import isfinite

import pandas as pd

from lib.report import cost, plots
from lib.report.outcomes import by_seed

told: dict[str, str] = {}  # every text that this notebook glued, by key


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
    """A multiple of A's hours; the ends of `reach.multiples` in words."""
    if pd.isna(multiple):
        return "-"
    return f"{multiple:.2g}x" if isfinite(multiple) else "no bound" if multiple > 0 else "A never"


def entered(value, step=None) -> str:
    """An accuracy at a budget: marked while it is still the shared start's (step 0), "ended" past the run's end."""
    return "ended" if pd.isna(value) else accuracy(value) + (" (start)" if step == 0 else "")


def tenths(row) -> str:
    """Shares of zero-variance groups in the first, middle and last tenth."""
    return " / ".join(percent(share, ".0%") for share in (row.zero_first, row.zero_middle, row.zero_last))


def only(name: str, form):
    """A function of a row that writes one of its values."""
    return lambda row: form(getattr(row, name))


def run_name(row) -> str:
    return f"{row.source}, seed {row.seed}"


def timer(per_hour: float):
    """The formatter of hours in the unit of our axis (`cost.axis`); those of source "published" in hours."""

    def timed(hours, source="here") -> str:
        return cost.show_hours(hours, 1 if source == "published" else per_hour)

    return timed


def pricer(kind: str, price_per_hour: float, currency: str, published_usd_per_hour: float):
    """The formatter of the price of hours, ours or (source "published") the study's.

    "never" where the hours are missing, a dash where no price applies.
    """

    def priced(hours, source="here") -> str:
        where, rate, money = (kind, price_per_hour, currency)
        if source == "published":
            where, rate, money = ("cuda", published_usd_per_hour, "USD")
        amount = cost.price(hours, where, rate)
        return "never" if pd.isna(hours) and cost.UNITS[where] == "GPU-hours" else cost.show_price(amount, money)

    return priced


def spender(timed, priced):
    """The formatter of hours with their price, where one applies: "0.133 h, $0.59"."""

    def spent(hours, source="here") -> str:
        return ", ".join(dict.fromkeys(text for text in (timed(hours, source), priced(hours, source)) if text != "-"))

    return spent


def per_seed(rows: pd.DataFrame, text) -> str:
    """`text` of each row, one row a seed, as a phrase."""
    return by_seed({row.seed: text(row) for row in rows.itertuples()})


def beside(rows: pd.DataFrame, published: dict) -> pd.DataFrame:
    """Our rows, then the published study's (a section of published.yaml), told apart by the column `source`."""
    theirs = pd.DataFrame(published["rows"]).assign(source="published")
    return pd.concat([rows.assign(source="here"), theirs.dropna(axis=1, how="all")], ignore_index=True)


def note(key: str, text) -> None:
    """Glue a text for the articles; nothing is shown."""
    told[key] = str(text)
    glue(key, told[key], display=False)


def notes(texts: dict) -> None:
    """Glue texts by key; a pair (rows, function of a row) becomes a phrase with one text a seed."""
    for key, text in texts.items():
        note(key, per_seed(*text) if isinstance(text, tuple) else text)


def table(key: str, rows: pd.DataFrame, caption: str, columns: dict, csv: pd.DataFrame | None = None) -> None:
    """Glue `table_<key>`: `columns` maps each title to a function of a row. The download is `csv`, else `rows`."""
    glue(f"table_{key}", plots.table(plots.lay_out(rows, columns), key, caption, csv=rows if csv is None else csv))


def figure(key: str, draw, drawn: list[pd.DataFrame], alt: str, caption: str, absent: str) -> None:
    """Glue `figure_<key>`: `draw` of the joined tables (one a seed); `absent` in its place where there are none."""
    if drawn:
        glue(f"figure_{key}", plots.picture(draw(pd.concat(drawn)), alt=alt, caption=caption))
    else:
        missing(f"figure_{key}", absent)


def missing(key: str, text: str) -> None:
    """Glue what stands in the place of a table or figure that has no numbers."""
    glue(key, plots.absent(text))
