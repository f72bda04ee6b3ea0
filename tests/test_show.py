"""How numbers are written: a missing one is a dash or "not measured", never 0."""

import re

import pandas as pd
import pytest

from lib.paths import NOTEBOOKS
from lib.report import show

NAN = float("nan")


def test_missing_values_are_written_as_missing():
    texts = [show.accuracy(NAN), show.p_value(NAN), show.times(None), show.versus(NAN, NAN), show.number(None, ".1f")]
    assert texts == ["-"] * 5
    assert show.percent(NAN) == show.moved(NAN, NAN) == "not measured"
    assert show.entered(NAN) == "ended"


def test_values():
    assert show.p_value(0.00009) == "<0.0001"
    assert show.versus(83.0, 54.0) == "83 / 54"
    assert show.entered(0.5, 0) == "0.5000 (start)" and show.entered(0.5, 7) == "0.5000"
    assert show.moved(-1.691, -3.73) == "-1.69 to -3.73"


@pytest.fixture
def ours(monkeypatch):
    """Sets in what our spend is written; the study's is in hours at $4.41."""

    def write_in(*units):
        monkeypatch.setitem(show.units, "here", show.Units(*units))
        monkeypatch.setitem(show.units, "published", show.Units(1, "cuda", 4.41, "USD"))

    return write_in


def test_spent_has_a_price_where_one_applies_and_the_studys_for_the_study(ours):
    ours(3600, "cpu", 1.0, "USD")
    assert [show.spent(0.5), show.spent(0.133, "published"), show.spent(NAN)] == ["1,800 s", "0.133 h, $0.59", "never"]
    ours(1, "cuda", 2.0, "EUR")
    assert [show.spent(0.01), show.spent(NAN)] == ["0.01 h, EUR 0.02", "never"]


def test_a_price_alone_says_never_and_on_a_cpu_a_dash(ours):
    ours(1, "cuda", 2.0, "EUR")
    assert [show.priced(0.5), show.priced(NAN), show.priced(0.133, "published")] == ["EUR 1.00", "never", "$0.59"]
    ours(1, "cpu", 2.0, "USD")
    assert [show.priced(hours) for hours in (0.5, NAN)] == ["-", "-"]


def test_multiples_at_the_ends_of_their_order():
    texts = [show.times(value) for value in (12.6, float("inf"), float("-inf"), NAN)]
    assert texts == ["13x", "no bound", "A never", "-"]


def test_beside_keeps_ours_first_and_drops_what_the_study_never_gives():
    table = show.beside(pd.DataFrame({"seed": [3], "p": [0.5]}), {"rows": [{"seed": 0, "p": 0.1, "hours": None}]})
    assert table["source"].tolist() == ["here", "published"]
    assert list(table.columns) == ["seed", "p", "source"]


def test_beside_puts_rows_of_one_kind_together_ours_first():
    ours = pd.DataFrame({"of": ["C", "A"], "seed": [0, 0]})
    theirs = {"rows": [{"of": "A", "seed": 1}, {"of": "C", "seed": 2}]}
    table = show.beside(ours, theirs, "of")
    assert table["of"].tolist() == ["C", "C", "A", "A"] and table["seed"].tolist() == [0, 2, 0, 1]


def test_notes_turn_rows_into_one_text_a_seed(monkeypatch):
    glued = {}
    monkeypatch.setattr(show, "glue", lambda key, value, display=True: glued.update({key: value}))
    rows = pd.DataFrame({"seed": [0, 1], "last": [0.5, 0.25]})
    show.notes({"n": 3, "last": (rows, lambda row: show.accuracy(row.last))})
    assert glued == {"n": "3", "last": "0.5000 (seed 0), 0.2500 (seed 1)"}


@pytest.fixture
def glued(monkeypatch):
    """What is glued, by key; a picture is its drawing with its texts."""
    found = {}
    monkeypatch.setattr(show, "glue", lambda key, value, display=True: found.update({key: value}))
    monkeypatch.setattr(show, "told", {"n": "200", "where": "here"})
    monkeypatch.setattr(show.plots, "picture", lambda figure, alt, caption: (figure, alt, caption))
    texts = {"tables": {"t": "Of {n}, {x}."}, "figures": {"f": {"alt": "A", "caption": "B {x}"}}}
    texts["absent"] = {"table_t": "no {n}", "figure_f": "none"}
    monkeypatch.setattr(show, "words", lambda: texts)
    return found


def test_a_table_has_its_caption_filled_and_says_so_where_it_has_no_rows(glued):
    columns = {"a {where}": lambda row: f"{row.a:.1f}"}
    show.table("t", pd.DataFrame({"a": [1.25]}), columns, x=3)
    html = glued["table_t"].data
    assert "Of 200, 3." in html and "<th>a here</th>" in html and "<td>1.2</td>" in html
    with pytest.raises(ValueError, match="tables: t names 'x', expected"):
        show.table("t", pd.DataFrame({"a": [1.25]}), columns)
    with pytest.raises(ValueError, match="captions.yaml: tables: got no u, expected its text"):
        show.table("u", pd.DataFrame({"a": [1.25]}), columns)
    for none in (None, pd.DataFrame(columns=["a"])):
        show.table("t", none, columns)
        assert "no 200" in glued["table_t"].data


def test_a_figure_has_its_texts_and_says_so_where_it_has_no_rows(glued):
    show.figure("f", lambda rows, times: times * len(rows), pd.DataFrame({"step": [1]}), 5, x=3)
    assert glued["figure_f"] == (5, "A", "B 3")
    show.figure("f", len, pd.DataFrame(columns=["step"]))
    assert "none" in glued["figure_f"].data


def test_every_caption_is_of_a_table_or_figure_that_a_notebook_makes():
    source = "".join((NOTEBOOKS / f"{stage}.py").read_text() for stage in ("04_compare", "05_sizing"))
    tables, figures, absent = (set(show.words()[part]) for part in ("tables", "figures", "absent"))
    assert set(re.findall(r'show\.table\(\s*"(\w+)"', source)) == {t for t in tables if not t.startswith("findings_")}
    assert set(re.findall(r'show\.figure\(\s*"(\w+)"', source)) == figures
    assert (
        {f"figure_{key}" for key in figures}
        <= absent
        <= {f"table_{t}" for t in tables} | {f"figure_{f}" for f in figures}
    )
