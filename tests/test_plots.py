"""Pictures say the same bytes for the same numbers, carry alt text, and never draw a missing value as 0."""

import base64
import re

import matplotlib

matplotlib.use("Agg")

import pandas as pd  # noqa: E402
import pytest  # noqa: E402

from lib.report import plots

STEPS = pd.DataFrame({"seed": 0, "step": [1, 2, 3], "zero_variance": [0.2, 0.5, 0.9], "entropy": [0.3, 0.2, 0.1]})
POINTS = pd.DataFrame({"arm": ["sft"] * 2 + ["grpo"] * 2, "seed": [0, 0, 1, 1], "spent": [0, 1, 0, 3], "accuracy": 0.5})
SHARES = pd.DataFrame({"part": ["generation", "backward"], "seed": 0, "share": [float("nan"), 0.7]})
NAMES = {"sft": "continued SFT", "grpo": "GRPO"}


RATES = pd.DataFrame({"seed": 0, "step": [1, 2], "null_name": 0.1, "null_birth_date": [0.2, 0.4]})
PAIRS = pd.DataFrame(
    {"seed": 0, "set": ["train", "heldout"] * 2, "step": [1, 1, 2, 2], "chosen": -1.0, "rejected": -3.0}
)
PAIRS = PAIRS.assign(preference=0.7, exact=0.5, greedy_token=-0.1)
REWARD = pd.DataFrame({"seed": 0, "step": [1, 2], "reward": 0.8})
ALARMED = pd.DataFrame({"seed": 0, "step": [1, 2], "accuracy": 0.5, "alarm": [False, True]})


def draw_curves():
    return plots.cost_curves(POINTS, NAMES, "CPU-hours", 1.0, "a title")


@pytest.mark.parametrize("draw", [draw_curves, lambda: plots.group_signal(STEPS), lambda: plots.time_shares(SHARES)])
def test_the_same_figure_gives_the_same_bytes_and_labels_its_axes(draw):
    first, second = (plots.picture(draw(), "alt", "caption").data for _ in range(2))
    assert first == second
    axes = draw().axes
    assert all(axis.get_xlabel() for axis in axes)


def test_field_rates_have_a_panel_a_field_and_a_line_an_alarm():
    axes = plots.field_rates(RATES, ["name", "birth_date"], {"null": "answered null"}, [("birth_date", 0, 2)]).axes
    assert [axis.get_title(loc="left") for axis in axes] == ["name", "birth date", ""]
    assert [len(axis.lines) for axis in axes] == [1, 2, 0]
    assert axes[1].lines[1].get_xdata() == [2, 2]


def test_pairs_draw_training_thin_and_only_held_out_beside_the_task():
    left, middle, right = plots.dpo_pairs(PAIRS).axes
    assert [line.get_linewidth() for line in left.lines[:2]] == [1, 1]
    assert (len(left.lines), len(middle.lines), len(right.lines)) == (5, 3, 1)  # with the lines at 0 and at a half


def test_a_divergence_alarm_is_a_cross_where_it_went_off():
    (axis,) = plots.reward_and_accuracy(REWARD, ALARMED).axes
    assert axis.lines[-1].get_marker() == "x" and list(axis.lines[-1].get_xdata()) == [2]


def test_picture_escapes_and_carries_its_alt_text():
    text = plots.picture(plots.group_signal(STEPS), 'groups "all" < 1', "it's a caption").data
    assert 'alt="groups &quot;all&quot; &lt; 1"' in text
    assert "<figcaption>it&#x27;s a caption</figcaption>" in text


def test_cost_curves_have_the_unit_the_title_and_one_style_a_seed():
    figure = draw_curves()
    assert figure.axes[0].get_xlabel() == "billed CPU-hours"
    assert figure.get_suptitle() == "a title"
    assert [line.get_linestyle() for line in figure.axes[0].lines] == ["-", "--"]
    assert len({line.get_color() for line in figure.axes[0].lines}) == 2


def test_differences_have_a_panel_a_pair_and_seed_and_fill_what_is_significant():
    row = {"left": "sft", "right": "grpo", "difference": 3.0, "low": 1.0, "high": 5.0}
    rows = pd.DataFrame([row | {"seed": s, "spent": 1 + s, "p_holm": p} for s, p in ((0, 0.01), (1, 0.2))])
    pairs = {("sft", "grpo"): "A minus C", ("sft", "dpo"): "A minus B"}
    figure = plots.differences(rows, pairs, {"sft": "A", "grpo": "C"}, "CPU-seconds", 0.05)
    titles = [axis.get_title(loc="left") for axis in figure.axes]
    assert titles == ["A minus C, seed 0", "A minus B, seed 0", "A minus C, seed 1", "A minus B, seed 1"]
    marks = [next(line for line in axis.lines if line.get_marker() == "o") for axis in figure.axes[::2]]
    assert marks[0].get_markerfacecolor() == plots.ARM_COLOURS["sft"] and marks[1].get_markerfacecolor() == "white"
    assert [text.get_text() for text in figure.axes[1].texts] == ["not compared"]


def test_a_share_that_was_not_measured_is_written_not_drawn():
    axis = plots.time_shares(SHARES).axes[0]
    assert len(axis.patches) == 1
    assert "not measured" in [text.get_text() for text in axis.texts]


def test_table_lays_out_texts_and_offers_the_numbers():
    numbers = pd.DataFrame({"arm": ["sft"], "last": [0.123456], "p": [float("nan")]})
    shown = plots.lay_out(numbers, {"arm": lambda row: row.arm.upper(), "last": lambda row: f"{row.last:.2f}"})
    text = plots.table(shown, "final", "A & B", csv=numbers).data
    assert "<td>SFT</td>" in text and "<td>0.12</td>" in text and "A &amp; B" in text
    name, data = re.search(r'download="([^"]+)" href="data:text/csv;charset=utf-8;base64,([^"]+)"', text).groups()
    assert name == "final.csv"
    assert base64.b64decode(data).decode() == "arm,last,p\nsft,0.123456,\n"
