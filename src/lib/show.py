"""How numbers are written, and how the comparing notebook hands them to the articles: formats, tables, texts, figures.

A formatter takes one value and gives a text; a missing value is "-" or "not measured", never 0. `table`, `note` and
`figure` glue what the pages print under a key.
"""

import pandas as pd

from lib import cost, plots
from lib.outcomes import by_seed


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
    return "-" if pd.isna(multiple) else f"{multiple:.2g}x"


def entered(value, saved_hours=None) -> str:
    """An accuracy at a budget: marked while it is still the shared start's, "ended" past the run's end."""
    return "ended" if pd.isna(value) else accuracy(value) + (" (start)" if saved_hours == 0 else "")


def tenths(row) -> str:
    """Shares of zero-variance groups in the first, middle and last tenth."""
    return " / ".join(percent(share, ".0%") for share in (row.zero_first, row.zero_middle, row.zero_last))


def only(name: str, form):
    """A function of a row that writes one of its values."""
    return lambda row: form(getattr(row, name))


def run_name(row) -> str:
    return f"{row.source}, seed {row.seed}"


def spender(kind: str, usd_per_hour: float, published_usd_per_hour: float):
    """The formatter of hours: with dollars where they apply, at our price or (source "published") at the study's."""

    def spent(hours, source="here") -> str:
        price = ("cuda", published_usd_per_hour) if source == "published" else (kind, usd_per_hour)
        return cost.show_cost(hours, *price)

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
    glue(key, str(text), display=False)


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
