"""How numbers are written: a missing one is a dash or "not measured", never 0."""

import pandas as pd
import pytest

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


def test_spent_has_a_price_where_one_applies_and_the_studys_for_the_study():
    on_cpu = show.spender(show.timer(3600), show.pricer("cpu", 1.0, "USD", 4.41))
    assert [on_cpu(0.5), on_cpu(0.133, "published"), on_cpu(NAN)] == ["1,800 s", "0.133 h, $0.59", "never"]
    on_gpu = show.spender(show.timer(1), show.pricer("cuda", 2.0, "EUR", 4.41))
    assert [on_gpu(0.01), on_gpu(NAN)] == ["0.01 h, EUR 0.02", "never"]


def test_a_price_alone_says_never_and_on_a_cpu_a_dash():
    priced = show.pricer("cuda", 2.0, "EUR", 4.41)
    assert [priced(0.5), priced(NAN), priced(0.133, "published")] == ["EUR 1.00", "never", "$0.59"]
    assert [show.pricer("cpu", 2.0, "USD", 4.41)(hours) for hours in (0.5, NAN)] == ["-", "-"]


def test_multiples_at_the_ends_of_their_order():
    texts = [show.times(value) for value in (12.6, float("inf"), float("-inf"), NAN)]
    assert texts == ["13x", "no bound", "A never", "-"]


def test_beside_keeps_ours_first_and_drops_what_the_study_never_gives():
    table = show.beside(pd.DataFrame({"seed": [3], "p": [0.5]}), {"rows": [{"seed": 0, "p": 0.1, "hours": None}]})
    assert table["source"].tolist() == ["here", "published"]
    assert list(table.columns) == ["seed", "p", "source"]


def test_notes_turn_rows_into_one_text_a_seed(monkeypatch):
    glued = {}
    monkeypatch.setattr(show, "glue", lambda key, value, display=True: glued.update({key: value}))
    rows = pd.DataFrame({"seed": [0, 1], "last": [0.5, 0.25]})
    show.notes({"n": 3, "last": (rows, lambda row: show.accuracy(row.last))})
    assert glued == {"n": "3", "last": "0.5000 (seed 0), 0.2500 (seed 1)"}


@pytest.mark.parametrize("drawn", [[], [pd.DataFrame({"step": [1]})]])
def test_a_figure_without_numbers_says_so(monkeypatch, drawn):
    glued = {}
    monkeypatch.setattr(show, "glue", lambda key, value, display=True: glued.update({key: value}))
    monkeypatch.setattr(show.plots, "picture", lambda figure, alt, caption: figure)
    show.figure("dpo", len, drawn, "alt", "caption", absent="nothing was measured")
    assert glued["figure_dpo"] == 1 if drawn else "nothing was measured" in glued["figure_dpo"].data
