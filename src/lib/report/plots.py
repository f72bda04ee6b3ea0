"""Pictures and tables for the pages. Nothing is computed here: every function draws the numbers it is given.

Colours: seaborn's colour-blind palette, one fixed colour an arm; seeds differ by line style. `picture` and `table` turn
a figure or a table into HTML that carries its own image or CSV, so that a page needs no other file and no network.
"""

import base64
import html
import io
import textwrap

import matplotlib
import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from IPython.display import HTML
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

PALETTE = sns.color_palette("colorblind")
ARM_COLOURS = {"sft": PALETTE[0], "dpo": PALETTE[1], "grpo": PALETTE[2]}
SEED_STYLES = ["-", "--", ":", "-."]
GREY = "0.45"
SIDES = {"chosen": PALETTE[0], "rejected": PALETTE[3]}
# How a field was answered: one colour everywhere.
ANSWER_COLOURS = {"null": PALETTE[5], "null_expected": PALETTE[2], "missing": PALETTE[4], "wrong": PALETTE[3]}
ANSWER_COLOURS["spurious"] = PALETTE[0]

matplotlib.rcParams.update(
    {
        "figure.dpi": 100,
        "savefig.dpi": 150,
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.alpha": 0.3,
        "legend.frameon": False,
    }
)


def seed_style(seed: int) -> str:
    return SEED_STYLES[seed % len(SEED_STYLES)]


def seed_handles(seeds: list[int]) -> list[Line2D]:
    """Legend entries that explain the line styles."""
    return [Line2D([], [], color=GREY, linestyle=seed_style(seed), label=f"seed {seed}") for seed in seeds]


def colour_handles(colours: dict, **how) -> list[Line2D]:
    """Legend entries that explain colours: {label: colour}."""
    return [Line2D([], [], color=colour, label=label, **how) for label, colour in colours.items()]


def cost_curves(points: pd.DataFrame, arm_names: dict[str, str], unit: str, zoom: float, title: str) -> Figure:
    """Accuracy against what was spent: the whole of every run, and, where that is much less, the first `zoom` of it.

    points: one row a checkpoint: `arm`, `seed`, `spent`, `accuracy`, in the order saved. unit: of `spent` and `zoom`,
    such as GPU-hours.
    """
    panels = 2 if zoom < 0.7 * points["spent"].max() else 1
    figure, axes = plt.subplots(1, panels, figsize=(10, 4.4), sharey=True, squeeze=False, layout="constrained")
    axes = axes[0]
    for axis in axes:
        for (arm, seed), line in points.groupby(["arm", "seed"], sort=False):
            axis.plot(
                line["spent"], line["accuracy"], seed_style(seed), color=ARM_COLOURS[arm], marker="o", markersize=3
            )
        axis.set_xlabel(f"billed {unit}")
    axes[0].set_ylabel("exact records, share of held-out documents")
    axes[0].set_xlim(left=0)
    axes[0].set_title("every run to its end", loc="left", fontsize=10)
    if panels == 2:
        axes[1].set_xlim(0, zoom)
        axes[1].set_title(f"the first {zoom:.3g} {unit}", loc="left", fontsize=10)
    arms = colour_handles({arm_names[arm]: ARM_COLOURS[arm] for arm in points["arm"].unique()})
    handles = arms + seed_handles(sorted(points["seed"].unique()))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=9)
    figure.suptitle(textwrap.fill(title, 95), x=0.01, ha="left", fontsize=12, fontweight="bold")
    return figure


def differences(rows: pd.DataFrame, pairs: dict, letters: dict[str, str], unit: str, alpha: float) -> Figure:
    """Difference between two arms at every budget with its interval: a column a pair, a row a seed.

    rows: one row a comparison: `seed`, `left`, `right` (arms), `spent` (in `unit`), `difference`, `low`, `high` (in
    points), `p_holm`. A filled mark has p_holm below alpha. pairs: (left, right) -> the panel's title. letters: the
    arms' names in the legend. Panels of one pair share their axes.
    """
    seeds = sorted(rows["seed"].unique())
    size = {"figsize": (10, 0.8 + 2.3 * len(seeds)), "layout": "constrained"}
    figure, axes = plt.subplots(len(seeds), len(pairs), sharey="col", sharex="col", squeeze=False, **size)
    for seed, line in zip(seeds, axes, strict=True):
        for (pair, title), axis in zip(pairs.items(), line, strict=True):
            own = rows[(rows["seed"] == seed) & (rows["left"] == pair[0]) & (rows["right"] == pair[1])]
            for row in own.itertuples():
                colour = ARM_COLOURS[pair[0] if row.difference > 0 else pair[1]] if row.p_holm < alpha else GREY
                axis.plot([row.spent] * 2, [row.low, row.high], color=colour, linewidth=1.2)
                inside = colour if row.p_holm < alpha else "white"
                axis.plot(row.spent, row.difference, "o", color=colour, markerfacecolor=inside, markersize=4)
            axis.axhline(0, color=GREY, linewidth=0.8)
            axis.set_title(f"{title}, seed {seed}", loc="left", fontsize=10)
            if own.empty:
                axis.text(0.5, 0.6, "not compared", transform=axis.transAxes, ha="center", color=GREY)
            axis.margins(x=0.06, y=0.1)
    for axis in axes[-1]:
        axis.set_xlabel(f"billed {unit}")
        axis.set_xlim(left=0)
    for axis in axes[:, 0]:
        axis.set_ylabel("difference (points)")
    marks = {f"{letters[arm]} is ahead": (colour, colour) for arm, colour in ARM_COLOURS.items() if arm in letters}
    marks["no difference is shown"] = (GREY, "white")
    handles = [
        Line2D([], [], color=colour, marker="o", markersize=4, markerfacecolor=inside, label=label)
        for label, (colour, inside) in marks.items()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=9)
    return figure


def dpo_training(lines: pd.DataFrame) -> Figure:
    """DPO's own measures by step: log-probs of chosen and rejected, summed and per token, and preference accuracy.

    lines: one row a step: `seed`, `step`, and the five columns drawn (already smoothed if they are to be).
    """
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.6), layout="constrained")
    panels = [("", "log-prob, sum over completion (nats)"), ("_token", "log-prob per token (nats)")]
    for axis, (suffix, label) in zip(axes, panels, strict=False):
        for seed, line in lines.groupby("seed"):
            for answer, colour in SIDES.items():
                axis.plot(line["step"], line[f"{answer}_logp{suffix}"], seed_style(seed), color=colour)
        axis.set_ylabel(label)
    for seed, line in lines.groupby("seed"):
        axes[2].plot(line["step"], line["accuracy"], seed_style(seed), color=PALETTE[4])
    axes[2].axhline(0.5, color=GREY, linewidth=0.8)
    axes[2].set_ylabel("preference accuracy, share of pairs")
    axes[0].legend(handles=colour_handles(SIDES) + seed_handles(sorted(lines["seed"].unique())), fontsize=9)
    step_axes(axes)
    return figure


def time_shares(shares: pd.DataFrame) -> Figure:
    """Horizontal bars: share of the billed seconds by part (in the order given, first on top), one bar a seed.

    shares: rows `part`, `seed`, `share`; a missing share is written as "not measured", not drawn as 0.
    """
    parts, seeds = list(shares["part"].unique()), sorted(shares["seed"].unique())
    figure, axis = plt.subplots(figsize=(8, 0.9 + 0.34 * len(parts)), layout="constrained")
    height = 0.8 / len(seeds)
    for number, seed in enumerate(seeds):
        values = shares[shares["seed"] == seed].set_index("part")["share"]
        for place, part in enumerate(parts):
            y = place + (number - (len(seeds) - 1) / 2) * height
            value = values[part]
            if pd.isna(value):
                axis.text(0.3, y, "not measured", va="center", fontsize=8, color=GREY)
                continue
            axis.barh(y, 100 * value, height * 0.9, color=PALETTE[2], alpha=1 - 0.5 * number / len(seeds))
            axis.text(100 * value + 0.3, y, f"{100 * value:.1f}% (seed {seed})", va="center", fontsize=8)
    axis.set_yticks(range(len(parts)), parts)
    axis.invert_yaxis()
    axis.grid(axis="y", visible=False)
    axis.set_xlabel("share of billed seconds (%)")
    axis.set_xlim(0, 100 * shares["share"].max() * 1.25)
    return figure


def group_signal(lines: pd.DataFrame) -> Figure:
    """GRPO by step: share of groups whose rollouts all got one reward, and the policy's entropy.

    lines: one row a step: `seed`, `step`, `zero_variance`, `entropy` (nats per token), smoothed if they are to be.
    """
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for seed, line in lines.groupby("seed"):
        axes[0].plot(line["step"], 100 * line["zero_variance"], seed_style(seed), color=ARM_COLOURS["grpo"])
        axes[1].plot(line["step"], line["entropy"], seed_style(seed), color=ARM_COLOURS["grpo"])
    axes[0].set_ylabel("zero-variance groups (%)")
    axes[0].set_ylim(0, 103)
    axes[1].set_ylabel("entropy (nats per token)")
    axes[1].set_ylim(bottom=0)
    axes[0].legend(handles=seed_handles(sorted(lines["seed"].unique())), fontsize=9)
    step_axes(axes)
    return figure


def field_rates(lines: pd.DataFrame, fields: list[str], kinds: dict[str, str], alarms=()) -> Figure:
    """Shares of rollouts by step, one panel a field; the sixth place of two rows by three has the legend.

    lines: one row a step: `seed`, `step`, and `<kind>_<field>` (shares of the step's rollouts, smoothed if they are to
    be). kinds: kind (of ANSWER_COLOURS) -> its name in the legend. alarms: (field, seed, step), as vertical lines.
    """
    across = 3
    figure, axes = plt.subplots(-(-(len(fields) + 1) // across), across, figsize=(10, 6), layout="constrained")
    axes = axes.flatten()
    for axis, field in zip(axes, fields, strict=False):
        for seed, line in lines.groupby("seed"):
            for kind in kinds:
                axis.plot(line["step"], 100 * line[f"{kind}_{field}"], seed_style(seed), color=ANSWER_COLOURS[kind])
        for _, seed, step in (alarm for alarm in alarms if alarm[0] == field):
            axis.axvline(step, color="black", linestyle=seed_style(seed), linewidth=1)
        axis.set_title(field.replace("_", " "), loc="left")
        axis.set_ylim(0, max(5, 105 * lines[[f"{kind}_{field}" for kind in kinds]].max(axis=None)))
        axis.set_ylabel("rollouts (%)")
    names = colour_handles({label: ANSWER_COLOURS[kind] for kind, label in kinds.items()})
    names += seed_handles(sorted(lines["seed"].unique()))
    if alarms:
        names += colour_handles({"null alarm (seed by style)": "black"}, linewidth=1)
    for axis in axes[len(fields) :]:
        axis.set_axis_off()
    axes[len(fields)].legend(handles=names, loc="center", fontsize=11)
    step_axes(axes[: len(fields)])
    return figure


def dpo_pairs(lines: pd.DataFrame) -> Figure:
    """DPO by checkpoint, against the start: log-probs of chosen and rejected, preference and exact, greedy answers.

    lines: one row a checkpoint and set of pairs: `seed`, `set` ("train": drawn thin), `step`, `chosen`, `rejected`
    (changes in nats), `preference`, `exact` (shares, missing for train), `greedy_token` (nats; missing for train).
    """
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.8), layout="constrained")
    for (seed, name), line in lines.groupby(["seed", "set"], sort=False):
        train = name == "train"
        faint = {"alpha": 0.45, "linewidth": 1} if train else {"marker": "o", "markersize": 3}
        for answer, colour in SIDES.items():
            axes[0].plot(line["step"], line[answer], seed_style(seed), color=colour, **faint)
        if train:
            continue
        axes[1].plot(line["step"], line["preference"], seed_style(seed), color=PALETTE[4], **faint)
        axes[1].plot(line["step"], line["exact"], seed_style(seed), color=ARM_COLOURS["dpo"], **faint)
        axes[2].plot(line["step"], line["greedy_token"], seed_style(seed), color=PALETTE[2], **faint)
    axes[0].axhline(0, color=GREY, linewidth=0.8)
    axes[0].set_ylabel("change of summed log-prob (nats)")
    axes[1].axhline(0.5, color=GREY, linewidth=0.8)
    axes[1].set_ylabel("share")
    axes[2].set_ylabel("log-prob per token (nats)")
    names = colour_handles(SIDES) + colour_handles({"thin: training pairs": GREY}, alpha=0.45, linewidth=1)
    axes[0].legend(handles=names + seed_handles(sorted(lines["seed"].unique())), fontsize=8)
    kinds = {"pairs preferred": PALETTE[4], "records exact": ARM_COLOURS["dpo"]}
    axes[1].legend(handles=colour_handles(kinds), fontsize=8)
    for axis, title in zip(axes, ("pairs, against the start", "held-out documents", "own greedy answer"), strict=True):
        axis.set_title(title, loc="left", fontsize=10)
    step_axes(axes)
    return figure


def mistakes_by_checkpoint(counts: pd.DataFrame, fields: list[str], names: dict[str, str]) -> Figure:
    """Fields gone wrong at each checkpoint, a row a field and a column an arm; one scale a field.

    counts: one row a checkpoint: `arm`, `seed`, `step`, `<field>_missing`, `<field>_wrong`, `<field>_spurious`.
    """
    arms = [arm for arm in names if arm in set(counts["arm"])]
    kinds = {kind: ANSWER_COLOURS[kind] for kind in ("missing", "wrong", "spurious")}
    size = (10, 0.8 + 1.75 * len(fields))
    figure, axes = plt.subplots(
        len(fields), len(arms), figsize=size, sharey="row", sharex="col", squeeze=False, layout="constrained"
    )
    for row, field in zip(axes, fields, strict=True):
        for axis, arm in zip(row, arms, strict=True):
            for seed, line in counts[counts["arm"] == arm].groupby("seed"):
                for kind, colour in kinds.items():
                    axis.plot(line["step"], line[f"{field}_{kind}"], seed_style(seed), color=colour)
        most = counts[[f"{field}_{kind}" for kind in kinds]].max(axis=None)
        row[0].set_ylim(0, max(2, 1.08 * most))  # for the whole row: a limit set panel by panel would cut the next
        row[0].yaxis.set_major_locator(MaxNLocator(4, integer=True))
        row[0].set_ylabel(f"{field.replace('_', ' ')}\n(documents)")
    for axis, arm in zip(axes[0], arms, strict=True):
        axis.set_title(names[arm], loc="left")
    step_axes(axes[-1])
    handles = colour_handles(kinds) + seed_handles(sorted(counts["seed"].unique()))
    figure.legend(handles=handles, loc="outside lower center", ncols=7)
    return figure


def reward_and_accuracy(steps: pd.DataFrame, points: pd.DataFrame) -> Figure:
    """GRPO's reward by step, and exact held-out records by checkpoint, one panel a seed; alarms are crosses.

    steps: `seed`, `step`, `reward` (smoothed if it is to be). points: `seed`, `step`, `accuracy`, `alarm` (bool).
    """
    seeds = sorted(points["seed"].unique())
    figure, axes = plt.subplots(
        1, len(seeds), figsize=(min(11, 5.5 * len(seeds)), 3.6), sharey=True, squeeze=False, layout="constrained"
    )
    for axis, seed in zip(axes[0], seeds, strict=True):
        line, own = steps[steps["seed"] == seed], points[points["seed"] == seed]
        axis.plot(line["step"], line["reward"], color=PALETTE[4], label="reward of the rollouts (0 to 1)")
        axis.plot(
            own["step"], own["accuracy"], color=ARM_COLOURS["grpo"], marker="o", markersize=3,
            label="exact held-out records (share)",
        )  # fmt: skip
        alarms = own[own["alarm"]]
        if len(alarms):
            axis.plot(alarms["step"], alarms["accuracy"], "x", color="black", markersize=9, label="divergence alarm")
        axis.set_title(f"seed {seed}", loc="left", fontsize=10)
    axes[0][0].legend(fontsize=9)
    lowest = min(steps["reward"].min(), points["accuracy"].min())
    axes[0][0].set_ylim(max(0, lowest - 0.1), 1.03)
    step_axes(axes[0])
    return figure


def waterfall(steps: pd.DataFrame, not_reached: list[str]) -> Figure:
    """Horizontal bars from the step without any saving to the last one measured, each saving where it takes over.

    steps: of `benches.waterfall`. A saving that made the step longer is hatched, in another colour; one that is not
    resolved is pale; first and last step are whole bars. not_reached: savings without a step, named and left empty.
    """
    names = ["no saving", *(f"+ {saving}" for saving in steps["saving"].iloc[1:]), "with these"]
    names += [f"+ {saving}" for saving in not_reached]
    figure, axis = plt.subplots(figsize=(8, 1.1 + 0.3 * len(names)), layout="constrained")
    longest = steps["s"].max()
    for place, row in enumerate(steps.itertuples()):
        if place == 0:
            axis.barh(place, row.s, 0.7, color=GREY)
            axis.text(row.s + 0.01 * longest, place, f"{row.s:.2f} s", va="center", fontsize=9)
            continue
        gained = row.saved_s >= 0
        axis.barh(
            place, abs(row.saved_s), 0.7, left=min(row.s, row.s + row.saved_s), alpha=1 if row.resolved else 0.4,
            color=PALETTE[0] if gained else PALETTE[1], hatch=None if gained else "////", edgecolor="white",
        )  # fmt: skip
        right = max(row.s, row.s + row.saved_s)
        axis.text(right + 0.01 * longest, place, f"{-row.saved_s:+.2f} s", va="center", fontsize=9)
        axis.plot([row.s, row.s], [place - 0.35, place + 1.35], color=GREY, linewidth=0.8)  # where the next one begins
    axis.barh(len(steps), steps["s"].iloc[-1], 0.7, color=GREY)
    axis.text(steps["s"].iloc[-1] + 0.01 * longest, len(steps), f"{steps['s'].iloc[-1]:.2f} s", va="center", fontsize=9)
    for place in range(len(steps) + 1, len(names)):
        axis.text(0.01 * longest, place, "not reached", va="center", fontsize=9, color=GREY)
    axis.set_yticks(range(len(names)), names)
    axis.set_ylim(len(names) - 0.4, -0.6)
    axis.grid(axis="y", visible=False)
    axis.set_xlim(0, 1.12 * longest)
    axis.set_xlabel("seconds of a step (median)")
    return figure


def step_axes(axes) -> None:
    """Label step axes alike, with whole numbers."""
    for axis in axes:
        axis.set_xlabel("optimizer step")
        axis.xaxis.set_major_locator(MaxNLocator(4, integer=True))


def picture(figure: Figure, alt: str, caption: str) -> HTML:
    """The figure as HTML: an inline PNG with its alt text and caption. The same figure gives the same bytes."""
    buffer = io.BytesIO()
    # The default metadata names the matplotlib version, which would change the bytes and not the picture.
    figure.savefig(buffer, format="png", metadata={"Software": None})
    plt.close(figure)
    data = base64.b64encode(buffer.getvalue()).decode()
    return HTML(
        f'<figure class="result"><img alt="{html.escape(alt)}" style="max-width:100%" '
        f'src="data:image/png;base64,{data}"><figcaption>{html.escape(caption)}</figcaption></figure>'
    )


def lay_out(rows: pd.DataFrame, show: dict) -> pd.DataFrame:
    """A table of texts from one of numbers: {title: function of a row that gives the cell's text}."""
    return pd.DataFrame([{title: cell(row) for title, cell in show.items()} for row in rows.itertuples()])


def table(rows: pd.DataFrame, name: str, caption: str, csv: pd.DataFrame | None = None) -> HTML:
    """A table as HTML with its caption and a download link of `<name>.csv`.

    rows: strings as shown. csv: the same at full precision, where it differs (missing values are empty cells).
    """
    text = (rows if csv is None else csv).to_csv(index=False, lineterminator="\n")
    data = base64.b64encode(text.encode()).decode()
    body = rows.to_html(index=False, border=0, na_rep="-", classes="table result", justify="left", escape=True)
    return HTML(
        f'<div style="overflow-x:auto">{body}</div><p class="table-note">{html.escape(caption)} '
        f'<a download="{name}.csv" href="data:text/csv;charset=utf-8;base64,{data}">Download {name}.csv</a></p>'
    )


def absent(text: str) -> HTML:
    """What stands in a picture's place when its numbers were not measured."""
    return HTML(f'<p class="absent"><em>{html.escape(text)}</em></p>')


def listed(introduced: str, texts) -> HTML:
    """Texts as a list with a line before it; nothing where there are none."""
    rows = "".join(f"<li>{html.escape(text)}</li>" for text in texts)
    return HTML(f"<p>{html.escape(introduced)}</p><ul>{rows}</ul>" if rows else "")
