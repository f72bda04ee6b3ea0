# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Comparing the arms
#
# ## Question
#
# Three ways to go on from one checkpoint: A continued SFT, B DPO, C GRPO. Which is ahead once they have spent the same,
# what does each target cost, and where does GRPO's time go? This notebook reads the records of the runs, trains
# nothing, and computes every number and every judging sentence that the two articles print.
#
# ## Departures
#
# The published study reports raw p-values; here a verdict needs p below `alpha` after Holm's adjustment within its
# table, and raw and mid-p stand beside. Backward, clipping and optimizer are timed apart; the study had a residual.
#
# ## Parameters

# %% tags=["parameters"]
profile: str = "laptop"  # whose runs to compare
seeds: list = []  # random seeds to compare; empty: every seed that any arm has
alpha: float = 0.05  # significance level, after Holm within a table
targets: list = []  # further accuracies to reach and hold, beside the arms' last ones (share of documents)
price_usd_per_hour: float = 4.41  # price of one GPU (USD per hour); no part of any run
price_of: str = "an H100 in the published study"  # what that is the price of
max_remainder: float = 0.15  # largest part of a GRPO bill that may be under no timer (share)
smooth_steps: int = 5  # moving average in figures by step (optimizer steps)

# %% [markdown]
# ## Data
#
# The runs are those that the stages before this one used, recorded or trained here; one that is missing stops the
# notebook with its name. Building a curve checks that the run began from its seed's shared start and was scored on the
# same documents.

# %%
import pandas as pd
import yaml
from myst_nb import glue

from lib import compare, cost, diagnose, plots, records
from lib.compare import LETTERS, NAMES, by_seed
from lib.paths import BOOK

published = yaml.safe_load((BOOK / "published.yaml").read_text())
there = records.pinned_runs(profile)
arms = {arm: {run.seed for run in there if run.arm == arm} for arm in NAMES}
wanted = seeds or sorted(set.union(*arms.values())) or [0]
setup = records.pinned(profile, "setup")
starts = {seed: records.pinned(profile, f"start-s{seed}") for seed in wanted}
# Given seeds must all be there; otherwise an arm may lack some, but not all.
runs = {
    (arm, seed): records.pinned(profile, f"{arm}-s{seed}")
    for seed in wanted
    for arm in ("sft", "grpo", "dpo")  # the published order
    if seeds or seed in arms[arm] or not arms[arm]
}
curves = {key: compare.curve(run, starts[run.seed]) for key, run in runs.items()}

# %%
both = [seed for seed in wanted if ("sft", seed) in runs and ("grpo", seed) in runs]
if not both:
    raise ValueError(
        f"profile {profile}: no seed has both sft and grpo; runs are {[run.name for run in runs.values()]}"
    )
devices = sorted({(r.info["device"]["kind"], r.info["device"]["name"]) for r in (*starts.values(), *runs.values())})
kind = devices[0][0]
if any(other != kind for other, _ in devices):
    raise ValueError(f"profile {profile}: runs on {devices} have no common cost axis, expected one kind of device")
unit = cost.unit(kind)
n = int(setup.checkpoints["n"].iloc[-1])
published_price = published["setup"]["usd_per_hour"]

# %% [markdown]
# How numbers are written. Tables are laid out from numbers, ours above the published study's; each has its numbers at
# full precision behind its download link.


# %% tags=["hide-input"]
def number(value, form):
    return "-" if pd.isna(value) else format(value, form)


def accuracy(value):
    return number(value, ".4f")


def p_value(p):
    return "<0.0001" if p < 0.0001 else number(p, ".2g")


def percent(share, form=".1%"):
    return "not measured" if pd.isna(share) else format(share, form)


def versus(left, right):
    return "-" if pd.isna(left) else f"{left:.0f} / {right:.0f}"


def moved(first, final, form=".2f"):
    return "not measured" if pd.isna(first) else f"{first:{form}} to {final:{form}}"


def times(multiple):
    return "-" if pd.isna(multiple) else f"{multiple:.2g}x"


def spent(hours, source="here"):
    if source == "published":
        return cost.show_cost(hours, "cuda", published_price)
    return cost.show_cost(hours, kind, price_usd_per_hour)


def run_name(row):
    return f"{row.source}, seed {row.seed}"


def beside(rows, key):
    """Our rows, then the published study's of that section."""
    theirs = pd.DataFrame(published[key]["rows"]).assign(source="published")
    return pd.concat([rows.assign(source="here"), theirs.dropna(axis=1, how="all")], ignore_index=True)


def give_table(key, rows, caption, show):
    """Glue a table for the articles: `show` maps each title to a function of a row."""
    glue(f"table_{key}", plots.table(plots.lay_out(rows, show), key, caption, csv=rows))


def note(key, text):
    """Glue a text for the articles; nothing is shown here."""
    glue(key, str(text), display=False)


TESTED = {  # the last columns of every table with a test
    "p": lambda row: p_value(row.p),
    "p (Holm)": lambda row: p_value(row.p_holm),
    "mid-p": lambda row: p_value(row.mid_p),
}

# %% tags=["hide-input"]
device = " and ".join(name for _, name in devices)
their = published["setup"]
note("profile", profile)
note("device", device)
note("unit", unit)
note("model", setup.info["model"]["name"])
note("n", n)
note("seeds", "one seed" if len(wanted) == 1 else f"{len(wanted)} seeds")
note("alpha", alpha)
note(
    "price",
    f"${price_usd_per_hour:.2f} an hour, the price of {price_of}" if kind == "cuda" else "not priced: a CPU ran",
)
note("base_accuracy", accuracy((setup.checkpoints["exact"] / setup.checkpoints["n"]).iloc[-1]))
note("start_accuracy", by_seed({seed: accuracy(curves[arm, seed].points["accuracy"][0]) for arm, seed in runs}))
note("published_setup", f"{their['model']}, on {their['text']}, one {their['device']}")
note("published_n", f"{their['n']:,} held-out documents, {their['seeds']} seeds")
guessed = published["predictions"]
note(
    "published_predictions",
    "{made} predictions, of which {wrong} were wrong and {mixed} held in one seed only".format(**guessed),
)
note("published_price", f"${published_price:.2f} an hour")

# %% [markdown]
# ## What each arm reached
#
# *Last* is the final checkpoint. *Best* was chosen after the fact on the documents it is scored on, so it flatters. The
# test compares last with the shared start. *From scratch* adds what the start cost.

# %%
rows = []
for (arm, seed), curve in curves.items():
    points, end = curve.points, len(curve.points) - 1
    best = points["accuracy"].idxmax()
    start_hours = cost.device_hours(starts[seed].info["billed_s"], starts[seed].info["device"]["count"])
    rows.append(
        {"arm": arm, "seed": seed, "start": points["accuracy"][0], "last": compare.last(curve)}
        | {"best": points["accuracy"][best], "best_hours": points["hours"][best]}
        | {"hours": curve.end_hours, "from_scratch_hours": curve.end_hours + start_hours}
        | {"standard_error": compare.standard_error(points["exact"][end], points["n"][end])}
        | compare.mcnemar_at(curve, curve, end, 0)
    )
final = compare.add_holm(pd.DataFrame(rows))

# %% tags=["hide-input"]
give_table(
    "final",
    beside(final, "final"),
    f"Final checkpoints, {n} held-out documents here. The counts are documents that only one of the two has right.",
    {
        "arm": lambda row: f"{LETTERS[row.arm]} {NAMES[row.arm]}",
        "run": run_name,
        "start": lambda row: accuracy(row.start),
        "last": lambda row: accuracy(row.last),
        "best": lambda row: accuracy(row.best),
        "best at": lambda row: "-" if pd.isna(row.best_hours) else cost.show_hours(row.best_hours),
        f"spent ({unit})": lambda row: spent(row.hours, row.source),
        "from scratch": lambda row: "-" if pd.isna(row.from_scratch_hours) else spent(row.from_scratch_hours),
        "last / start better": lambda row: versus(row.left_better, row.right_better),
    }
    | TESTED,
)
for arm, rows in final.groupby("arm"):
    rows = list(rows.itertuples())
    note(f"last_{arm}", by_seed({row.seed: f"{accuracy(row.last)} for {spent(row.hours)}" for row in rows}))
    note(f"best_{arm}", by_seed({row.seed: f"{accuracy(row.best)} at {spent(row.best_hours)}" for row in rows}))
    gains = {row.seed: f"{100 * (row.last - row.start):+.1f} points, p {p_value(row.p_holm)}" for row in rows}
    note(f"gain_{arm}", by_seed(gains))
standard_error = f"{100 * final['standard_error'].max():.2g} points"
note("standard_error", standard_error)
bills = {seed: run.info["billed_s"] * run.info["device"]["count"] / 3600 for seed, run in starts.items()}
note("start_cost", by_seed({seed: spent(hours) for seed, hours in bills.items()}))
note("runs", len(there))
note("total_cost", spent(sum(run.info["billed_s"] * run.info["device"]["count"] for run in there) / 3600))
note("evaluation_cost", spent(sum(run.info["evaluation_s"] * run.info["device"]["count"] for run in there) / 3600))

# %% [markdown]
# ## At equal spend
#
# Every arm enters with its newest checkpoint within the budget; one whose run has ended is *ended* and is not read on.
# The budgets are the ends of all runs of a seed but the longest: past those, nothing is left to compare. The headline
# is read at the most that both A and C have spent.

# %%
tables = []
for seed in both:
    own = {arm: curves[arm, seed] for arm in NAMES if (arm, seed) in curves}
    ends = sorted(curve.end_hours for curve in own.values())
    table = compare.at_budgets(own["sft"], own["grpo"], ends[:-1]).assign(seed=seed, dpo_accuracy=float("nan"))
    if "dpo" in own:
        table["dpo_accuracy"] = [compare.accuracy_within(own["dpo"], hours) for hours in ends[:-1]]
    tables.append(table)
equal_spend = compare.add_holm(pd.concat(tables, ignore_index=True))
decisive = equal_spend.dropna(subset=["p"]).groupby("seed").tail(1)
headline = compare.verdict(decisive, NAMES["sft"], NAMES["grpo"], alpha)
print(headline)


# %% tags=["hide-input"]
def entered(value, saved_hours=None):
    """An accuracy in the table: marked while it is still the shared start's, "ended" past the run's end."""
    return "ended" if pd.isna(value) else accuracy(value) + (" (start)" if saved_hours == 0 else "")


give_table(
    "equal_spend",
    beside(equal_spend, "equal_spend"),
    "Exact records at equal spend. A is continued SFT; better counts documents that only this arm has right.",
    {
        "budget": lambda row: f"{cost.show_hours(row.budget_hours)}",
        "run": run_name,
        "A": lambda row: entered(row.left_accuracy, row.left_hours),
        "C GRPO": lambda row: entered(row.right_accuracy, row.right_hours),
        "B DPO": lambda row: (
            "not run" if row.source == "here" and ("dpo", row.seed) not in runs else entered(row.dpo_accuracy)
        ),
        "A / C better": lambda row: versus(row.left_better, row.right_better),
    }
    | TESTED,
)
lines = {
    row.seed: f"{entered(row.left_accuracy, row.left_hours)} against {entered(row.right_accuracy, row.right_hours)} "
    f"after {spent(row.budget_hours)} each, p {p_value(row.p_holm)}"
    for row in decisive.itertuples()
}
note("headline", headline)
note("equal_spend", by_seed(lines))

# %% [markdown]
# One budget can be lucky. So: the same comparison at every checkpoint that A saved, Holm over the budgets of a seed.

# %%
rows = []
for seed in both:
    sft, grpo = curves["sft", seed], curves["grpo", seed]
    table = compare.add_holm(compare.at_budgets(sft, grpo, sft.points["hours"][1:].tolist()))
    row = {"seed": seed, "budgets": len(table), "compared": table["p"].notna().sum()}
    row["left_wins"], row["right_wins"] = compare.wins(table, alpha)
    row["left_wins_holm"], row["right_wins_holm"] = compare.wins(table, alpha, "p_holm")
    rows.append(row)
all_budgets = pd.DataFrame(rows)

# %% tags=["hide-input"]
give_table(
    "all_budgets",
    beside(all_budgets, "all_budgets"),
    f"At how many of A's checkpoint budgets one arm is significantly ahead (p < {alpha}). Compared: both still ran.",
    {
        "run": run_name,
        "A's budgets": lambda row: number(row.budgets, ".0f"),
        "compared": lambda row: number(row.compared, ".0f"),
        "A ahead": lambda row: number(row.left_wins, ".0f"),
        "C ahead": lambda row: number(row.right_wins, ".0f"),
        "A ahead (Holm)": lambda row: number(row.left_wins_holm, ".0f"),
        "C ahead (Holm)": lambda row: number(row.right_wins_holm, ".0f"),
    },
)
lines = {
    row.seed: f"A is ahead at {row.left_wins} of {row.compared} budgets and C at {row.right_wins}, "
    f"after Holm {row.left_wins_holm} and {row.right_wins_holm}"
    if row.compared
    else "none, since C had ended"
    for row in all_budgets.itertuples()
}
note("all_budgets", by_seed(lines))

# %% [markdown]
# The other pairs, each at the most that both have spent, and A against C at their own ends, where the spend differs.

# %%
rows = []
for seed in wanted:
    for left, right, equal in (("sft", "dpo", True), ("grpo", "dpo", True), ("sft", "grpo", False)):
        if (left, seed) in curves and (right, seed) in curves:
            pair = curves[left, seed], curves[right, seed]
            budget = min(curve.end_hours for curve in pair)
            at = [compare.newest_within(curve, budget) if equal else len(curve.points) - 1 for curve in pair]
            accuracies = [curve.points["accuracy"][i] for curve, i in zip(pair, at, strict=True)]
            row = {"seed": seed, "left": left, "right": right, "budget_hours": budget if equal else None}
            row |= {"left_accuracy": accuracies[0], "right_accuracy": accuracies[1]}
            rows.append(row | compare.mcnemar_at(*pair, *at))
pairs = compare.add_holm(pd.DataFrame(rows))

# %% tags=["hide-input"]
give_table(
    "pairs",
    pairs,
    "Other comparisons, Holm over this table. Without a budget each arm is at its own end, and the spend is unequal.",
    {
        "pair": lambda row: f"{LETTERS[row.left]} and {LETTERS[row.right]}, seed {row.seed}",
        "budget": lambda row: "-" if pd.isna(row.budget_hours) else cost.show_hours(row.budget_hours),
        "first": lambda row: accuracy(row.left_accuracy),
        "second": lambda row: accuracy(row.right_accuracy),
        "first / second better": lambda row: versus(row.left_better, row.right_better),
    }
    | TESTED,
)

# %% [markdown]
# ## Reach and hold
#
# An arm reaches a target at the first checkpoint from which it stays at or above it. First touch asks for less, and
# stands beside because many plots suggest it. An arm that was there at the start spent nothing, and has no multiple.

# %%
rows = []
for seed in both:
    sft, grpo = curves["sft", seed], curves["grpo", seed]
    asked = [("C's last", compare.last(grpo)), ("A's last", compare.last(sft)), *(("asked for", t) for t in targets)]
    for of, target in asked:
        row = {"seed": seed, "of": of} | compare.reach_row(sft, grpo, target)
        dpo = curves.get(("dpo", seed))
        rows.append(row | {"dpo_hours": compare.reach_and_hold(dpo, target) if dpo else None})
reach = pd.DataFrame(rows)


# %% tags=["hide-input"]
def reach_dpo(row):
    known = row.source == "here" and ("dpo", row.seed) in runs
    return spent(row.dpo_hours) if known else "-"


def reached(row):
    """What holding a target took, as a phrase."""
    if pd.notna(row.multiple):
        return f"GRPO {spent(row.grpo_hours)}, continued SFT {spent(row.sft_hours)}, {times(row.multiple)}"
    return f"GRPO {spent(row.grpo_hours)}, continued SFT {spent(row.sft_hours)}"


give_table(
    "reach_hold",
    beside(reach, "reach_and_hold"),
    "Billed hours until an arm reaches a target and holds it to its end; never: it did not.",
    {
        "target": lambda row: f"{accuracy(row.target)} ({row.of})",
        "run": run_name,
        "A": lambda row: spent(row.sft_hours, row.source),
        "C GRPO": lambda row: spent(row.grpo_hours, row.source),
        "B DPO": reach_dpo,
        "C / A": lambda row: times(row.multiple),
        "C / A, first touch": lambda row: times(row.touch_multiple),
    },
)
for key, of in (("reach_c", "C's last"), ("reach_a", "A's last")):
    note(key, by_seed({row.seed: reached(row) for row in reach[reach["of"] == of].itertuples()}))

# %% [markdown]
# ## Cost
#
# The curves of all runs on one axis. The right panel ends where the second-longest arm does.

# %% tags=["hide-input"]
points = pd.concat([curve.points.assign(arm=curve.arm, seed=curve.seed) for curve in curves.values()])
ends = sorted(max(curve.end_hours for curve in curves.values() if curve.arm == arm) for arm in NAMES)
told = [
    f"{NAMES[arm]} ends at " + by_seed({s: accuracy(compare.last(c)) for (a, s), c in curves.items() if a == arm})
    for arm in NAMES
]
glue(
    "figure_cost_curves",
    plots.picture(
        plots.cost_curves(points, NAMES, unit, 1.05 * ends[-2], headline),
        alt=f"Line chart of exact records against billed {unit}, one line an arm and seed, all from the shared start. "
        + "; ".join(told)
        + ".",
        caption=f"Exact records on {n} held-out documents against billed {unit} on {device}. One checkpoint's standard "
        f"error is at most {standard_error}; it covers the sampling of documents, and the seeds show the rest.",
    ),
)

# %% [markdown]
# ## Diagnostics
#
# ### DPO: its own measures against the task
#
# Means over the first and the last tenth of the steps. Log-probs are sums over a completion, in nats, averaged over the
# batch; per token beside, because a sum also falls when completions get longer.

# %%
dpo = pd.DataFrame([{"seed": seed} | diagnose.dpo_ends(run.steps) for (arm, seed), run in runs.items() if arm == "dpo"])
of_dpo = final[final["arm"] == "dpo"].set_index("seed")
worse = {seed: bool(row["last"] < row["start"]) for seed, row in of_dpo.iterrows()}
displaced = {row.seed: bool(row.displaced) for row in dpo.itertuples() if row.displaced is not None}
dpo_verdict = compare.across_seeds(
    {seed: displaced[seed] and worse[seed] for seed in displaced},
    "DPO got better at its own preference metric while both log-probs fell and the task got worse",
    "DPO did not show the published pattern: preference metric up, both log-probs and the task down",
    "DPO's log-probs were not measured",
)
print(dpo_verdict)

# %% tags=["hide-input"]
give_table(
    "dpo",
    beside(dpo, "dpo"),
    "DPO from the first tenth of its steps to the last. Log-probs in nats.",
    {
        "run": run_name,
        "chosen, sum": lambda row: moved(row.chosen_logp_first, row.chosen_logp_last),
        "rejected, sum": lambda row: moved(row.rejected_logp_first, row.rejected_logp_last),
        "chosen, per token": lambda row: moved(row.chosen_logp_token_first, row.chosen_logp_token_last, ".3f"),
        "rejected, per token": lambda row: moved(row.rejected_logp_token_first, row.rejected_logp_token_last, ".3f"),
        "preference accuracy": lambda row: moved(row.accuracy_first, row.accuracy_last),
    },
)
note("dpo_verdict", dpo_verdict)
lines = {row.seed: moved(row.chosen_logp_first, row.chosen_logp_last) for row in dpo.itertuples()}
note("dpo_chosen", by_seed(lines))
note("dpo_rejected", by_seed({r.seed: moved(r.rejected_logp_first, r.rejected_logp_last) for r in dpo.itertuples()}))
note("dpo_preference", by_seed({r.seed: moved(r.accuracy_first, r.accuracy_last) for r in dpo.itertuples()}))
note("dpo_task", by_seed({seed: moved(row["start"], row["last"], ".4f") for seed, row in of_dpo.iterrows()}))


def smooth(values):
    """Moving average over `smooth_steps`, shorter at the start."""
    return values.rolling(smooth_steps, min_periods=1).mean()


if displaced:
    steps = {seed: runs["dpo", seed].steps for seed in displaced}
    drawn = [
        table[list(diagnose.DPO_MEASURES)].apply(smooth).assign(step=table["step"], seed=seed)
        for seed, table in steps.items()
    ]
    picture = plots.picture(
        plots.dpo_training(pd.concat(drawn)),
        alt="Three line charts by optimizer step: log-prob of chosen and rejected answers, summed and per token, and "
        f"preference accuracy. Chosen, summed, first to last tenth: {by_seed(lines)}.",
        caption=f"DPO's own measures, moving average over {smooth_steps} steps. Grey: a coin's accuracy.",
    )
else:
    picture = plots.absent("DPO's log-probs were not measured in these runs.")
glue("figure_dpo", picture)

# %% [markdown]
# ### Which fields go wrong
#
# At the last checkpoint. The fields of an invalid completion, which is not a record at all, count in no column.

# %%
rows = []
for seed in wanted:
    rows.append(
        {"arm": "start", "seed": seed} | diagnose.mistakes(starts[seed].checkpoints.sort_values("step").iloc[-1])
    )
    for arm in NAMES:
        if (arm, seed) in runs:
            last = runs[arm, seed].checkpoints.sort_values("step").iloc[-1]
            rows.append({"arm": arm, "seed": seed} | diagnose.mistakes(last))
mistakes = pd.DataFrame(rows)

# %% tags=["hide-input"]
give_table(
    "errors",
    mistakes,
    f"Fields missing / wrong / spurious at the last checkpoint, of {n} held-out documents.",
    {"arm": lambda row: f"{NAMES.get(row.arm, 'shared start')}, seed {row.seed}"}
    | {
        field.replace("_", " "): lambda row, field=field: " / ".join(
            str(getattr(row, f"{field}_{m}")) for m in diagnose.MISTAKES
        )
        for field in ("name", *diagnose.NULLABLE)
    }
    | {"places' share": lambda row: percent(row.places_share), "invalid": lambda row: str(row.invalid)},
)
shares = mistakes.loc[mistakes["arm"] != "start", "places_share"]
note("places_share", f"{percent(shares.min())} to {percent(shares.max())}")
note("published_places_share", percent(published["errors"]["places_share"], ".0%"))

# %% [markdown]
# ### GRPO: the bill
#
# Every billed second is in one row; inside a step of a GPU run the device's clock decides. A part that no timer saw
# stays missing, and its time is in the remainder; above `max_remainder` the notebook stops.

# %%
UPDATE = ["backward", "gradient clipping", "optimizer"]  # one residual in the published study
grpo = {seed: run for (arm, seed), run in runs.items() if arm == "grpo"}
tables = [cost.share_table(r.phases, r.info["billed_s"], max_remainder, r.name).assign(seed=s) for s, r in grpo.items()]
bill = pd.concat(tables, ignore_index=True)
shares = bill.pivot(index="part", columns="seed", values="share").reindex(bill["part"].unique())
update = shares.loc[UPDATE].sum(min_count=1)
training = shares.loc[["no-grad forward", "grad forward", *UPDATE]].sum(min_count=1)
generating = shares.loc["generation"]
trains_more = (training > generating)[generating.notna() & training.notna()].to_dict()
headline_bill = compare.across_seeds(
    trains_more,
    "GRPO pays more for training on its rollouts than for generating them",
    "GRPO pays more for generating its rollouts than for training on them",
    "GRPO's bill was not split into generating and training",
)
print(headline_bill)

# %% tags=["hide-input"]
seconds = bill.pivot(index="part", columns="seed", values="seconds").reindex(shares.index)
theirs = pd.DataFrame(published["bill"]["rows"]).set_index("part")
seen = [part for part in shares.index if shares.loc[part].notna().any() or part in theirs.index]
rows = [{"part": part, "seconds": seconds.loc[part], "share": shares.loc[part]} for part in seen]
together = "backward + clipping + optimizer"
rows.append({"part": together, "seconds": seconds.loc[UPDATE].sum(min_count=1), "share": update})
show = {"part": lambda row: row.part}
for seed in grpo:
    show[f"s, seed {seed}"] = lambda row, seed=seed: (
        "missing" if pd.isna(row.seconds[seed]) else f"{row.seconds[seed]:,.1f}"
    )
    show[f"share, seed {seed}"] = lambda row, seed=seed: (
        "missing" if pd.isna(row.share[seed]) else percent(row.share[seed])
    )
show["published, s"] = lambda row: f"{theirs['seconds'][row.part]:,}" if row.part in theirs.index else "-"
show["published, share"] = lambda row: percent(theirs["share"][row.part]) if row.part in theirs.index else "-"
caption = (
    "Where GRPO's billed seconds went. The last row adds three above it, because the study had them as one residual."
)
glue("table_bill", plots.table(plots.lay_out(pd.DataFrame(rows), show), "grpo_bill", caption, csv=bill))
remainder = by_seed({seed: percent(shares.loc[cost.REMAINDER, seed]) for seed in grpo})
most = by_seed({seed: f"{shares[seed].idxmax()} at {percent(shares[seed].max())}" for seed in grpo})
glue(
    "figure_bill",
    plots.picture(
        plots.time_shares(bill[bill["part"].isin(seen)]),
        alt=f"Horizontal bars: share of GRPO's billed seconds by part, one bar a seed. Most: {most}.",
        caption=f"Shares of GRPO's billed time on {device}. The remainder, under no timer, is {remainder}.",
    ),
)
note("headline_bill", headline_bill)
note("bill_total", by_seed({seed: spent(curves["grpo", seed].end_hours) for seed in grpo}))
note("bill_most", most)
note("bill_remainder", remainder)
for key, values in (("generation", generating), ("training", training), ("update", update)):
    note(f"bill_{key}", by_seed({seed: percent(values[seed]) for seed in grpo}))
note("bill_reward", by_seed({seed: percent(shares.loc["reward function", seed]) for seed in grpo}))
note("published_generation", percent(theirs["share"]["generation"]))
note("published_update", percent(theirs["share"][together]))

# %% [markdown]
# Tokens say why. The trainer takes every rollout's whole sequence, prompt included, through each of its passes, while
# generation pays for completions only.

# %% tags=["hide-input"]
tokens = pd.DataFrame([{"seed": s, "steps": len(run.steps)} | cost.tokens(run.steps) for s, run in grpo.items()])
tokens = beside(tokens, "tokens").assign(ratio=lambda table: table["trainer"] / table["generated"])
give_table(
    "tokens",
    tokens,
    "Tokens of the GRPO runs.",
    {
        "run": run_name,
        "steps": lambda row: number(row.steps, ","),
        "through each trainer pass": lambda row: number(row.trainer, ",.0f"),
        "generated": lambda row: number(row.generated, ",.0f"),
        "ratio": lambda row: number(row.ratio, ".2g"),
    },
)
for source, key in (("here", "token_ratio"), ("published", "published_token_ratio")):
    note(key, by_seed({row.seed: number(row.ratio, ".2g") for row in tokens[tokens["source"] == source].itertuples()}))

# %% [markdown]
# ### GRPO: where the signal goes
#
# A group whose rollouts all got one reward has advantage 0 and moves nothing. Tenths of the steps, as above.
# What could be avoided is an upper bound: the no-grad forward serves only the engine's importance-sampling correction
# (at beta 0 and one iteration a batch), and a group without variance need not be trained on.

# %%
rows = []
for seed, run in grpo.items():
    avoidable = cost.avoidable(run.phases, run.steps, run.info["billed_s"])
    rows.append({"seed": seed} | diagnose.group_signal(run.steps) | avoidable)
signal = pd.DataFrame(rows)
saturates = {row.seed: bool(row.zero_last > row.zero_first) for row in signal.itertuples() if pd.notna(row.zero_all)}
groups_verdict = compare.across_seeds(
    saturates,
    "GRPO used up its own signal: groups without variance in reward became more frequent from first to last tenth",
    "GRPO kept its signal: groups without variance in reward did not become more frequent from first to last tenth",
    "Groups without variance in reward were not counted",
)
print(groups_verdict)


# %% tags=["hide-input"]
def zeros(row):
    return " / ".join(percent(share, ".0%") for share in (row.zero_first, row.zero_middle, row.zero_last))


give_table(
    "groups",
    beside(signal, "groups"),
    "GRPO's signal by tenths of the steps: groups first / middle / last, entropy (nats per token) first to last.",
    {
        "run": run_name,
        "zero-variance groups": zeros,
        "entropy": lambda row: moved(row.entropy_first, row.entropy_last, ".4f"),
        "steps with gradient exactly 0": lambda row: percent(row.gradient_zero),
        "groups all right": lambda row: percent(row.all_right),
        "groups all wrong": lambda row: percent(row.all_wrong),
    },
)
if saturates:
    steps = {seed: grpo[seed].steps for seed in saturates}
    drawn = [
        pd.DataFrame({"step": table["step"], "zero_variance": table["zero_variance_groups"] / table["groups"]})
        .assign(entropy=diagnose.column(table, "entropy"))
        .set_index("step")
        .apply(smooth)
        .reset_index()
        .assign(seed=seed)
        for seed, table in steps.items()
    ]
    picture = plots.picture(
        plots.group_signal(pd.concat(drawn)),
        alt="Two line charts by optimizer step: share of GRPO's groups without variance in reward, and entropy. "
        f"Groups in the first / middle / last tenth: {by_seed({row.seed: zeros(row) for row in signal.itertuples()})}.",
        caption=f"GRPO's signal by step, moving average over {smooth_steps} steps.",
    )
else:
    picture = plots.absent("Zero-variance groups were not measured in these runs.")
glue("figure_groups", picture)
note("groups_verdict", groups_verdict)
note("zero_variance", by_seed({row.seed: zeros(row) for row in signal.itertuples()}))
for key in ("zero_all", "gradient_zero", "constant"):
    note(f"signal_{key}", by_seed({row.seed: percent(getattr(row, key)) for row in signal.itertuples()}))
nograd = {
    row.seed: "no such pass was timed" if pd.isna(row.nograd) else percent(row.nograd) for row in signal.itertuples()
}
note("signal_nograd", by_seed(nograd))

# %% [markdown]
# ### GRPO: what the reward does not show
#
# Fields answered null where gold has a value, on held-out documents: at the start, at the first checkpoint, at the one
# with the most, and at the last. A policy may learn that null is safe while its reward stays high.

# %%
rows = []
for seed, run in grpo.items():
    scored = [starts[seed].predictions, *(r.predictions for (_, s), r in runs.items() if s == seed)]
    gold = {f"{field}_gold": diagnose.gold_values(scored, field) for field in diagnose.NULLABLE}
    rows += [
        {"seed": seed} | row | gold for row in diagnose.null_checkpoints(starts[seed].checkpoints, run.checkpoints)
    ]
nulls = pd.DataFrame(rows)
at = nulls.set_index(["seed", "checkpoint"])["all"]
null_grew = {seed: bool(at[seed, "last"] > at[seed, "start"]) for seed in grpo}

# %% tags=["hide-input"]
table = beside(nulls, "nulls")
for field, count in published["nulls"]["gold"].items():
    table.loc[table["source"] == "published", f"{field}_gold"] = count
give_table(
    "nulls",
    table,
    "Held-out fields answered null where gold has a value, of the documents whose gold has one.",
    {"run": run_name, "checkpoint": lambda row: f"{row.checkpoint} (step {row.step})"}
    | {
        field.replace("_", " "): lambda row, field=field: (
            f"{getattr(row, field)} of {getattr(row, f'{field}_gold'):.0f}"
        )
        for field in diagnose.NULLABLE
    },
)
drawn = {seed: shares for seed, run in grpo.items() if (shares := diagnose.null_shares(run.steps)) is not None}
if drawn:
    drawn = {
        seed: rates.set_index("step").apply(smooth).reset_index().assign(seed=seed) for seed, rates in drawn.items()
    }
    peaks = {seed: rates[[f"missing_{field}" for field in diagnose.NULLABLE]].max() for seed, rates in drawn.items()}
    told = {
        s: f"{peak.idxmax().removeprefix('missing_').replace('_', ' ')}, {peak.max():.0%}" for s, peak in peaks.items()
    }
    nulls_peak = by_seed(told)
    picture = plots.picture(
        plots.null_rates(pd.concat(drawn.values()), ["name", *diagnose.NULLABLE]),
        alt="Line charts by optimizer step, one a field: rollouts that answer null, rollouts whose gold is null, and "
        f"rollouts that answer null where gold has a value. Highest of these: {nulls_peak}.",
        caption=f"Null answers in GRPO's rollouts, moving average over {smooth_steps} steps.",
    )
else:
    nulls_peak = "not measured"
    picture = plots.absent("Null answers by step were not measured in these runs.")
glue("figure_nulls", picture)
note("nulls_peak", nulls_peak)
moments = {"start": "at the start", "most nulls": "at its worst checkpoint", "last": "at the end"}
lines = {s: ", ".join(f"{at[s, moment]} {when}" for moment, when in moments.items()) for s in grpo}
note("nulls_moved", by_seed(lines))

# %% [markdown]
# ## What the published study found, asked of these runs
#
# The statements were fixed, in `published.yaml`, before any run here was recorded. Each is scored by rule, seed by
# seed.

# %%
last = final.pivot(index="seed", columns="arm", values="last").dropna()
ordered = (last["sft"] > last["grpo"]) & (last["grpo"] > last["dpo"])
leads = (decisive["p_holm"] < alpha) & (decisive["left_better"] > decisive["right_better"])
reach_c = reach[reach["of"] == "C's last"]
sooner = reach_c["sft_hours"] < reach_c["grpo_hours"]
places = mistakes[mistakes["arm"] != "start"].groupby("seed")["places_share"].min() > 0.5
scores = {
    "sft_leads": dict(zip(decisive["seed"], leads, strict=True)),
    "order_at_end": ordered.to_dict(),
    "sft_never_behind": dict(zip(all_budgets["seed"], all_budgets["right_wins"] == 0, strict=True)),
    "grpo_holds_later": dict(zip(reach_c["seed"], sooner, strict=True)),
    "dpo_below_start": worse,
    "displacement": displaced,
    "places_dominate": places.to_dict(),
    "training_dominates": trains_more,
    "groups_saturate": saturates,
    "null_hacking": null_grew,
}

# %% tags=["hide-input"]
for article in ("cost_curves", "grpo_bill"):
    rows = [
        {"key": key, **claim, "here": compare.outcome(scores[key])}
        for key, claim in published["claims"][article].items()
    ]
    claims = pd.DataFrame(rows)
    give_table(
        f"claims_{article}",
        claims,
        f"Statements scored by rule; significance is p < {alpha}, after Holm unless the statement says raw.",
        {"statement": lambda row: row.text, "published study": lambda row: row.published, "here": lambda row: row.here},
    )
    uniform = claims["here"].isin(["held", "wrong", "not measured"])
    tally = claims["here"].where(uniform, "in some seeds only").value_counts()
    note(
        f"claims_{article}", f"of {len(claims)}, " + ", ".join(f"{count} {how}" for how, count in sorted(tally.items()))
    )

# %% [markdown]
# ## Other runs
#
# Variants of the arms, where there are any, each against its own start.

# %% tags=["hide-input"]
named = {run.name: run for run in there}
rows = []
for run in there:
    if run.arm in (*NAMES, "setup", "start"):
        continue
    parent = next(name for name in run.info["parents"] if name != "setup")
    curve = compare.curve(run, records.pinned(profile, parent))
    row = {"run": run.name, "parent": parent, "start": curve.points["accuracy"][0], "last": compare.last(curve)}
    row |= {"best": curve.points["accuracy"].max(), "hours": curve.end_hours}
    rows.append(row | compare.mcnemar_at(curve, curve, len(curve.points) - 1, 0))
if rows:
    give_table(
        "variants",
        compare.add_holm(pd.DataFrame(rows)),
        "Other runs, each from the last checkpoint of its parent.",
        {
            "run": lambda row: row.run,
            "from": lambda row: row.parent,
            "start": lambda row: accuracy(row.start),
            "last": lambda row: accuracy(row.last),
            "best": lambda row: accuracy(row.best),
            "spent": lambda row: spent(row.hours),
            "last / start better": lambda row: versus(row.left_better, row.right_better),
        }
        | TESTED,
    )
else:
    glue("table_variants", plots.absent("No variants were run in this profile."))

# %% [markdown]
# ## Do the records agree with themselves?
#
# The exact counts of all checkpoints, recounted from the predictions.

# %%
unlike = [line for run in (setup, *starts.values(), *runs.values()) for line in diagnose.disagreements(run)]
agree = "Every checkpoint's count agrees with its predictions"
records_agree = agree if not unlike else "Records disagree with themselves: " + "; ".join(unlike)
note("records_agree", records_agree)
print(records_agree)

# %% [markdown]
# ## Recap
#
# The two articles print what was glued here, and nothing else. To ask another question, change a parameter above or add
# a target, and build the book again: nothing is trained for it.
