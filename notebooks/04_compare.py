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
# table, and raw and mid-p stand beside. Where no test decides, a statement is *not shown*; where there is nothing to
# test, *not measured*. Backward, clipping and optimizer are timed apart; the study had a residual.
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
# same documents, and all must have been scored on the held-out split.

# %%
import pandas as pd
import yaml

from lib import alarms, compare, cost, diagnose, errors, layouts, outcomes, plots, preference, records, show
from lib.compare import NAMES
from lib.data import FIELDS
from lib.outcomes import HELD, NOT_MEASURED, NOT_SHOWN, WRONG, across_seeds, by_seed, either
from lib.paths import BOOK, RESULTS
from lib.show import accuracy, number, p_value, per_seed, percent

published = yaml.safe_load((BOOK / "published.yaml").read_text())
# Only names are read here: a pin of a seed or an arm that is not asked for may be stale.
pins = {path.stem for path in (records.RUNS / profile / "pins").glob("*.json")}
arms = {arm: {int(pin.split("-s")[1]) for pin in pins if pin.startswith(f"{arm}-s")} for arm in NAMES}
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
of_dpo, grpo = ({seed: run for (name, seed), run in runs.items() if name == arm} for arm in ("dpo", "grpo"))
there = [setup, *starts.values(), *runs.values()]
compare.check_judged(there)
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
unit, device = cost.unit(kind), " and ".join(name for _, name in devices)
n = int(setup.checkpoints["n"].iloc[-1])
their = published["setup"]
spent = show.spender(kind, price_usd_per_hour, their["usd_per_hour"])


def hours(runs, key="billed_s"):
    """Device-hours of some runs together."""
    return sum(cost.device_hours(run.info[key], run.info["device"]["count"]) for run in runs)


# %% [markdown]
# Tables are laid out from numbers, ours above the published study's; each has its numbers at full precision behind its
# download link.

# %% tags=["hide-input"]
show.notes(
    {
        "profile": profile,
        "device": device,
        "unit": unit,
        "model": setup.info["model"]["name"],
        "n": n,
        "seeds": "one seed" if len(wanted) == 1 else f"{len(wanted)} seeds",
        "alpha": alpha,
        "price": f"${price_usd_per_hour:.2f} an hour, the price of {price_of}"
        if kind == "cuda"
        else "not priced: a CPU ran",
        "base_accuracy": accuracy((setup.checkpoints["exact"] / setup.checkpoints["n"]).iloc[-1]),
        "start_accuracy": by_seed({seed: accuracy(curve.points["accuracy"][0]) for (_, seed), curve in curves.items()}),
        "published_setup": f"{their['model']}, on {their['text']}, one {their['device']}",
        "published_n": f"{their['n']:,} held-out documents, {their['seeds']} seeds",
        "published_predictions": "{made} predictions, of which {wrong} were wrong and {mixed} held in one seed "
        "only".format(**published["predictions"]),
        "published_price": f"${their['usd_per_hour']:.2f} an hour",
    }
)

# %% [markdown]
# ## What each arm reached
#
# *Last* is the final checkpoint. *Best* was chosen after the fact on the documents it is scored on, so it flatters. The
# test compares last with the shared start. *From scratch* adds what the start cost.

# %%
final = compare.final_table(curves, {seed: hours([start]) for seed, start in starts.items()})
change = {arm: outcomes.of_rows(rows, alpha) for arm, rows in final.groupby("arm")}
change

# %% tags=["hide-input"]
show.table(
    "final",
    show.beside(final, published["final"]),
    f"Final checkpoints, {n} held-out documents here. The counts are documents that only one of the two has right.",
    layouts.final(spent, unit),
)
by_point = [compare.standard_error(p.exact, p.n) for curve in curves.values() for p in curve.points.itertuples()]
standard_error = f"{100 * max(by_point):.2g} points"  # of any checkpoint on the curves
for arm, rows in final.groupby("arm"):
    show.notes(
        {
            f"last_{arm}": (rows, lambda row: f"{accuracy(row.last)} for {spent(row.hours)}"),
            f"best_{arm}": (rows, lambda row: f"{accuracy(row.best)} at {spent(row.best_hours)}"),
            f"gain_{arm}": (rows, lambda r: f"{100 * (r.last - r.start):+.1f} points, p {p_value(r.p_holm)}"),
        }
    )
show.notes(
    {
        "standard_error": standard_error,
        "start_cost": by_seed({seed: spent(hours([start])) for seed, start in starts.items()}),
        "runs": len(there),
        "total_cost": spent(hours(there)),
        "evaluation_cost": spent(hours(there, "evaluation_s")),
    }
)

# %% [markdown]
# ## At equal spend
#
# Every arm enters with its newest checkpoint within the budget; one whose run has ended is *ended* and is not read on.
# The budgets are the ends of all runs of a seed but the longest: past those, nothing is left to compare. The headline
# is read at the most that both A and C have spent.

# %%
equal_spend = compare.equal_spend_table(curves, both)
decisive = equal_spend.dropna(subset=["p"]).groupby("seed").tail(1)
headline = outcomes.verdict(decisive, NAMES["sft"], NAMES["grpo"], alpha, wanted)
print(headline)

# %% tags=["hide-input"]
show.table(
    "equal_spend",
    show.beside(equal_spend, published["equal_spend"]),
    "Exact records at equal spend. A is continued SFT; better counts documents that only this arm has right.",
    layouts.equal_spend(of_dpo),
)


def line(row):
    a, c = show.entered(row.left_accuracy, row.left_hours), show.entered(row.right_accuracy, row.right_hours)
    return f"{a} against {c} after {spent(row.budget_hours)} each, p {p_value(row.p_holm)}"


show.notes({"headline": headline, "equal_spend": (decisive, line)})

# %% [markdown]
# One budget can be lucky. So: the same comparison at every checkpoint that A saved, Holm over the budgets of a seed.

# %%
all_budgets = compare.all_budgets_table(curves, both, alpha)

# %% tags=["hide-input"]
show.table(
    "all_budgets",
    show.beside(all_budgets, published["all_budgets"]),
    f"At how many of A's checkpoint budgets one arm is significantly ahead (p < {alpha}). Compared: both still ran. "
    "C's own: of these, budgets at which C had saved a checkpoint; before that it enters with the shared start.",
    layouts.ALL_BUDGETS,
)


def line(row):
    ahead = f"A is ahead at {row.left_wins} of {row.compared} budgets and C at {row.right_wins}, after Holm "
    own = f" (C had saved a checkpoint of its own at {row.own} of them, and is the shared start before)"
    return f"{ahead}{row.left_wins_holm} and {row.right_wins_holm}{own}" if row.compared else "none, since C had ended"


show.notes({"all_budgets": (all_budgets, line)})

# %% [markdown]
# The other pairs, each at the most that both have spent, and the order at the arms' own ends, where the spend differs.

# %%
pairs = compare.pairs_table(curves, wanted)

# %% tags=["hide-input"]
show.table(
    "pairs",
    pairs,
    "Other comparisons, Holm over this table. Without a budget each arm is at its own end, and the spend is unequal.",
    layouts.PAIRS,
)

# %% [markdown]
# ## Reach and hold
#
# An arm reaches a target at the first checkpoint from which it stays at or above it. First touch asks for less, and
# stands beside because many plots suggest it. An arm that was there at the start spent nothing, and has no multiple.

# %%
reach = compare.reach_table(curves, both, targets)


# %% tags=["hide-input"]
def reached(row):
    """What holding a target took, as a phrase."""
    multiple = f", {show.times(row.multiple)}" if pd.notna(row.multiple) else ""
    return f"GRPO {spent(row.grpo_hours)}, continued SFT {spent(row.sft_hours)}{multiple}"


show.table(
    "reach_hold",
    show.beside(reach, published["reach_and_hold"]),
    "Billed hours until an arm reaches a target and holds it to its end; never: it did not.",
    layouts.reach_hold(spent, of_dpo),
)
of_c, of_a = reach[reach["of"] == "C's last"], reach[reach["of"] == "A's last"]
show.notes({"reach_c": (of_c, reached), "reach_a": (of_a, reached)})

# %% [markdown]
# ## Cost
#
# The curves of all runs on one axis. The right panel ends where the second-longest arm does.

# %% tags=["hide-input"]
ends = sorted(max(curve.end_hours for curve in curves.values() if curve.arm == arm) for arm in NAMES)
told = [f"{NAMES[arm]} ends at {per_seed(rows, lambda r: accuracy(r.last))}" for arm, rows in final.groupby("arm")]
show.figure(
    "cost_curves",
    lambda points: plots.cost_curves(points, NAMES, unit, 1.05 * ends[-2], headline),
    [curve.points.assign(arm=curve.arm, seed=curve.seed) for curve in curves.values()],
    alt=f"Line chart of exact records against billed {unit}, one line an arm and seed, all from the shared start. "
    f"{'; '.join(told)}.",
    caption=f"Exact records on {n} held-out documents against billed {unit} on {device}. One checkpoint's standard "
    f"error is at most {standard_error}; it covers the sampling of documents, and the seeds show the rest.",
    absent="No run was compared.",
)

# %% [markdown]
# How the runs came about. An interrupted run goes on from its last checkpoint; loading again and the work that was lost
# are shown, not billed.

# %% tags=["hide-input"]
show.table(
    "attempts",
    cost.attempts(there),
    "Every run behind these pages. Of the seconds only the billed ones are on a cost axis.",
    layouts.ATTEMPTS,
)

# %% [markdown]
# How the settings came about: what was tried on the development split, and which value the runs here used.

# %% tags=["hide-input"]
first = {run.arm: run for run in reversed([*starts.values(), *runs.values()])}  # one run an arm, of its first seed
path = RESULTS / profile / "trials.csv"
trials = cost.tried(pd.read_csv(path), first) if path.exists() else None
if trials is None:
    show.missing("table_trials", f"No trial of a setting is recorded for profile {profile}.")
else:
    show.table(
        "trials",
        trials,
        f"Settings tried, judged at the last checkpoint. Together they were billed {trials['billed_s'].sum():,.0f} s.",
        layouts.TRIALS,
    )
tuning = cost.tuning(trials, first, their["learning_rates"], NAMES)
show.note("tuning", tuning)
print(tuning)

# %% [markdown]
# ## Diagnostics
#
# ### DPO: its own measures against the task
#
# Means over the first and the last tenth of the steps. Log-probs are sums over a completion, in nats, averaged over the
# batch; per token beside, because a sum also falls when completions get longer. The tenths hold other pairs, so whether
# answers got less likely is read off the rewards of the last one: beta times the change against the start, on the same
# pairs. What happened to the task is the test of the last checkpoint against the start.

# %%
dpo = pd.DataFrame([{"seed": seed} | diagnose.dpo_ends(run.steps) for seed, run in of_dpo.items()])
displaced = {row.seed: None if pd.isna(row.displaced) else bool(row.displaced) for row in dpo.itertuples()}
dpo_verdict = across_seeds(
    {seed: diagnose.dpo_sentence(displaced.get(seed), change["dpo"].get(seed)) for seed in wanted},
    "DPO's log-probs were not measured",
)
print(dpo_verdict)

# %% tags=["hide-input"]
show.table(
    "dpo",
    show.beside(dpo, published["dpo"]),
    "DPO from the first tenth of its steps to the last. Log-probs in nats.",
    layouts.DPO,
)
show.notes(
    {
        "dpo_verdict": dpo_verdict,
        "dpo_chosen": (dpo, layouts.change("chosen_logp")),
        "dpo_rejected": (dpo, layouts.change("rejected_logp")),
        "dpo_preference": (dpo, layouts.change("accuracy")),
        "dpo_task": (final[final["arm"] == "dpo"], lambda row: show.moved(row.start, row.last, ".4f")),
    }
)
show.figure(
    "dpo",
    plots.dpo_training,
    [
        diagnose.smooth(of_dpo[seed].steps[["step", *diagnose.DPO_MEASURES]], smooth_steps).assign(seed=seed)
        for seed, known in displaced.items()
        if known is not None
    ],
    alt="Three line charts by optimizer step: log-prob of chosen and rejected answers, summed and per token, and "
    f"preference accuracy. Chosen, summed, first to last tenth: {per_seed(dpo, layouts.change('chosen_logp'))}.",
    caption=f"DPO's own measures, moving average over {smooth_steps} steps. Grey: a coin's accuracy.",
    absent="DPO's log-probs were not measured in these runs.",
)

# %% [markdown]
# The same on fixed pairs, some of the training pairs and pairs of held-out documents, judged alike at the shared start
# and at every checkpoint. *Displaced*: chosen answers got less likely, and in more than half of the pairs the chosen
# one gained on the rejected one. *Parted*: the same gain, and fewer exact records than at the start. Each condition
# needs a test below `preference.ALPHA` at that checkpoint, on held-out documents.

# %%
moved = {
    seed: preference.with_alarms(run.likelihood, curves["dpo", seed]).assign(seed=seed)
    for seed, run in of_dpo.items()
    if run.has("likelihood")
}
heldout = {seed: rows for seed, table in moved.items() if len(rows := table[table["set"] == "heldout"])}

# %% tags=["hide-input"]
if moved:
    by_set = pd.concat(moved.values()).query("step > 0").groupby(["seed", "set"], sort=False)
    show.table(
        "dpo_pairs",
        pd.concat([rows.iloc[sorted({0, (len(rows) - 1) // 2, len(rows) - 1})] for _, rows in by_set]),
        "Fixed pairs at the first, the middle and the last checkpoint, against the shared start (nats). Exact: of all "
        "held-out documents. All checkpoints are in the download.",
        layouts.DPO_PAIRS,
        csv=pd.concat(moved.values()),
    )
else:
    show.missing("table_dpo_pairs", "Fixed pairs were not judged by checkpoint in these runs.")
show.figure(
    "dpo_pairs",
    plots.dpo_pairs,
    list(moved.values()),
    alt="Three line charts by checkpoint: change of the log-prob of chosen and rejected answers, share of held-out "
    "pairs that prefer the chosen one with share of exact records, and log-prob of the greedy answer.",
    caption="Fixed pairs judged at every checkpoint. Left: against the shared start. Middle: grey is a coin. "
    "Right: how likely the checkpoint finds what it answers itself.",
    absent="Fixed pairs were not judged by checkpoint in these runs.",
)


def per_dpo_seed(tell):
    """A phrase over the DPO seeds; `tell` of a seed's checkpoints on held-out pairs, without the start."""
    told = {s: tell(heldout[s][heldout[s]["step"] > 0]) if s in heldout else None for s in of_dpo}
    return across_seeds(told, "not measured")


show.notes(
    {
        "dpo_displaced": per_dpo_seed(lambda rows: preference.alarm_phrase(rows, "displaced")),
        "dpo_parted": per_dpo_seed(lambda rows: preference.alarm_phrase(rows, "parted")),
        "dpo_heldout": per_dpo_seed(
            lambda rows: "chosen {chosen:+.2f}, rejected {rejected:+.2f} nats".format(**rows.iloc[-1])
        ),
        "dpo_pushed_down": by_seed({r.seed: percent(r.pushed_down, ".0%") for r in dpo.itertuples()}) or "not measured",
        "dpo_heldout_pushed_down": per_dpo_seed(lambda rows: percent(rows["pushed_down"].iloc[-1], ".0%")),
        "dpo_alarm_level": preference.ALPHA,
    }
)

# %% [markdown]
# ### Which fields go wrong
#
# At the last checkpoint. The fields of an invalid completion, which is not a record at all, count in no column.

# %%
scored = {
    key: run for seed in wanted for key, run in ((("start", seed), starts[seed]), *runs.items()) if key[1] == seed
}
mistakes = diagnose.mistakes_table(scored)

# %% tags=["hide-input"]
show.table(
    "errors",
    mistakes,
    f"Fields missing / wrong / spurious at the last checkpoint, of {n} held-out documents.",
    layouts.ERRORS,
)
of_arms = mistakes[mistakes["arm"] != "start"]
show.notes(
    {
        "places_share": f"{percent(of_arms['places_share'].min())} to {percent(of_arms['places_share'].max())}",
        "published_places_share": percent(published["errors"]["places_share"], ".0%"),
    }
)

# %% [markdown]
# DPO against the shared start, field by field: which got worse, and how. Holm over the fields of all seeds.

# %% tags=["hide-input"]
field_changes = errors.field_changes(of_dpo, starts)
show.table(
    "dpo_fields",
    field_changes,
    "DPO's fields from the start to its last checkpoint. Counts at the right: documents that have the field right at "
    "one of the two only.",
    layouts.FIELD_CHANGES,
)
by_seed_rows = dict(list(field_changes.groupby("seed")))
show.notes(
    {
        "dpo_worse": by_seed({seed: errors.most_worse(rows) for seed, rows in by_seed_rows.items()}),
        "dpo_fields_worse": across_seeds({s: errors.shown_worse(r, alpha) for s, r in by_seed_rows.items()}, "none"),
    }
)

# %% [markdown]
# By checkpoint, for every arm.

# %% tags=["hide-input"]
by_checkpoint = [
    errors.by_checkpoint(run, starts[seed]).assign(arm=arm, seed=seed) for (arm, seed), run in runs.items()
]
show.figure(
    "mistakes",
    lambda counts: plots.mistakes_by_checkpoint(counts, list(FIELDS), NAMES),
    by_checkpoint,
    alt="Line charts by checkpoint, a row a field and a column an arm: held-out documents whose field is missing, "
    "wrong or spurious, from the shared start on.",
    caption=f"Fields gone wrong by checkpoint, of {n} held-out documents; step 0 is the shared start.",
    absent="No checkpoint was judged.",
)

# %% [markdown]
# Fields that no arm has right at its last checkpoint. Where the labels are not known to be right, their number is an
# upper bound on what wrong labels cost; all arms giving one other answer is the sign to look for.

# %% tags=["hide-input"]
together = {
    seed: errors.ceiling({arm: errors.last_predictions(runs[arm, seed]) for arm in NAMES if (arm, seed) in runs})
    for seed in wanted
}
ceilings = pd.DataFrame([{"seed": seed} | dict.fromkeys(NAMES) | counts for seed, (counts, _) in together.items()])
ceilings = ceilings.astype(dict.fromkeys(NAMES, float))
show.table("ceiling", ceilings, "Fields, of all held-out documents, at the arms' last checkpoints.", layouts.CEILING)
documents = records.heldout_at_hand(setup)
examples = pd.concat([rows.head(6).assign(seed=seed) for seed, (_, rows) in together.items()])
known = [documents.get(id_) for id_ in examples["id"]]
examples["label"] = [d and layouts.written(d[f]) or "-" for d, f in zip(known, examples["field"], strict=True)]
examples["text"] = [d["text"] if d else "not at hand" for d in known]
order = " / ".join(arm for arm in NAMES if (arm, wanted[0]) in runs)
show.table(
    "ceiling_examples",
    examples,
    f"Some of them, those first that all arms answer alike. Answers: one, or {order}.",
    layouts.EXAMPLES,
)
verified = bool(documents) and all(document.get("verified") for document in documents.values())
show.notes(
    {
        "ceiling": (ceilings, lambda row: f"{row.all} of the {row.any} fields that some arm has not right"),
        "ceiling_documents": by_seed({s: f"{c['documents']} of {n}" for s, (c, _) in together.items()}),
        "ceiling_labels": "The labels of these documents are known to be right, so these are hard texts"
        if verified
        else "Whether these labels are right is not known here, so this bounds what wrong labels can cost",
    }
)

# %% [markdown]
# ### GRPO: the bill
#
# Every billed second is in one row; inside a step of a GPU run the device's clock decides. A part that no timer saw
# stays missing, and its time is in the remainder; above `max_remainder` the notebook stops.

# %%
bill, parts = cost.bill(grpo, max_remainder)
shares = parts["share"]
training = cost.training_share(shares)
generating = shares.loc["generation"]
trains_more = (training > generating).astype(object).where(training.notna() & generating.notna()).reindex(wanted)
headline_bill = either(
    trains_more.to_dict(),
    "GRPO pays more for training on its rollouts than for generating them",
    "GRPO pays more for generating its rollouts than for training on them",
    "GRPO's bill was not split into generating and training",
)
print(headline_bill)

# %% tags=["hide-input"]
theirs = pd.DataFrame(published["bill"]["rows"]).set_index("part")
seen = [part for part in parts.index if shares.loc[part].notna().any() or part in theirs.index]
checkpointing = either(
    {seed: run.info["trainer"].get("gradient_checkpointing") for seed, run in grpo.items()},
    "Activations were recomputed to save memory (gradient checkpointing), so backward holds a second forward",
    "Gradient checkpointing was off, so backward holds no second forward",
    "Whether backward recomputed activations is not recorded",
)
show.table(
    "bill",
    pd.DataFrame({"part": seen}),
    f"Where GRPO's billed seconds went. {checkpointing}. The last row adds three above it, because the study had them "
    "as one residual.",
    layouts.bill(parts, theirs),
    csv=bill,
)
alone = shares.drop(index=cost.TOGETHER)
most = by_seed({seed: f"{alone[seed].idxmax()} at {percent(alone[seed].max())}" for seed in grpo})
remainder = by_seed({seed: percent(shares.loc[cost.REMAINDER, seed]) for seed in grpo})
show.figure(
    "bill",
    plots.time_shares,
    [bill[bill["part"].isin(seen)]],
    alt=f"Horizontal bars: share of GRPO's billed seconds by part, one bar a seed. Most: {most}.",
    caption=f"Shares of GRPO's billed time on {device}. The remainder, under no timer, is {remainder}.",
    absent="GRPO's bill was not measured.",
)
told = {"generation": generating, "training": training, "update": shares.loc[cost.TOGETHER]}
told |= {"reward": shares.loc["reward function"]}
show.notes({f"bill_{key}": by_seed({s: percent(values[s]) for s in grpo}) for key, values in told.items()})
show.notes(
    {
        "headline_bill": headline_bill,
        "checkpointing": checkpointing,
        "bill_total": by_seed({seed: spent(curves["grpo", seed].end_hours) for seed in grpo}),
        "bill_most": most,
        "bill_remainder": remainder,
        "published_generation": percent(theirs["share"]["generation"]),
        "published_update": percent(theirs["share"][cost.TOGETHER]),
    }
)

# %% [markdown]
# Tokens say why. The trainer takes every rollout's whole sequence, prompt included, through each of its passes, while
# generation pays for completions only.

# %% tags=["hide-input"]
tokens = pd.DataFrame([{"seed": s, "steps": len(run.steps)} | cost.tokens(run.steps) for s, run in grpo.items()])
tokens = show.beside(tokens, published["tokens"]).astype({"trainer": float, "generated": float})
tokens["ratio"] = tokens["trainer"] / tokens["generated"]
show.table("tokens", tokens, "Tokens of the GRPO runs.", layouts.TOKENS)
for source, key in (("here", "token_ratio"), ("published", "published_token_ratio")):
    show.notes({key: (tokens[tokens["source"] == source], lambda row: number(row.ratio, ".2g"))})

# %% [markdown]
# ### GRPO: where the signal goes
#
# A group whose rollouts all got one reward has advantage 0 and moves nothing. Tenths of the steps, as above.
# What could be avoided is an upper bound: the no-grad forward serves only the engine's importance-sampling correction
# (at beta 0 and one iteration a batch), and a group without variance need not be trained on.

# %%
counted = {seed: diagnose.constant_groups(run) for seed, run in grpo.items()}
rows = [
    {"seed": seed} | diagnose.group_signal(counted[seed]) | cost.avoidable(run.phases, run.steps, run.info["billed_s"])
    for seed, run in grpo.items()
]
signal = pd.DataFrame(rows)
saturates = signal.set_index("seed")["rose"].reindex(wanted).to_dict()
told = {row["seed"]: diagnose.signal_sentence(row) for row in rows}
groups_verdict = across_seeds(
    {seed: told.get(seed) for seed in wanted}, "Groups without variance in reward were not counted"
)
print(groups_verdict)

# %% tags=["hide-input"]
show.table(
    "groups",
    show.beside(signal, published["groups"]),
    "GRPO's signal by tenths of the steps: zero-variance groups first / middle / last, entropy (nats per token) first "
    "to last. Of the zero-variance groups: all right, only exact records; equal in between, none exact but some field "
    "right; all wrong, no field right.",
    layouts.GROUPS,
)
by_tenth = pd.concat(
    [diagnose.signal_tenths(counted[seed]).set_index("measure").add_suffix(f"_{seed}") for seed in grpo], axis=1
)
show.table(
    "signal",
    by_tenth.dropna(how="all").reset_index(),
    "GRPO's measures over the first / middle / last tenth of its steps. A measure that no run logged is left out: "
    "importance ratios exist only where another engine than the trainer generates.",
    layouts.signal(list(grpo)),
)


def wasted(seed):
    """What a run spent on groups without signal, as a phrase; None where it was not measured."""
    seconds = diagnose.column(grpo[seed].steps, "wasted_s").sum(min_count=1)
    if pd.isna(seconds):
        return None
    cost_hours = cost.device_hours(seconds, grpo[seed].info["device"]["count"])
    return f"{spent(cost_hours)}, {percent(seconds / grpo[seed].info['billed_s'])} of the bill"


zero_variance = per_seed(signal, show.tenths)
show.figure(
    "groups",
    plots.group_signal,
    [
        diagnose.smooth(diagnose.by_step(counted[seed]), smooth_steps).assign(seed=seed)
        for seed, known in saturates.items()
        if pd.notna(known)
    ],
    alt="Two line charts by optimizer step: share of GRPO's groups without variance in reward, and entropy. "
    f"Groups in the first / middle / last tenth: {zero_variance}.",
    caption=f"GRPO's signal by step, moving average over {smooth_steps} steps.",
    absent="Zero-variance groups were not measured in these runs.",
)
show.notes(
    {
        "groups_verdict": groups_verdict,
        "zero_variance": zero_variance,
        "signal_nograd": (signal, lambda r: "no such pass was timed" if pd.isna(r.nograd) else percent(r.nograd)),
    }
    | {f"groups_all_{w}": (signal, show.only(f"constant_{w}", percent)) for w in ("right", "between", "wrong")}
    | {"wasted": across_seeds({seed: wasted(seed) for seed in grpo}, "not measured")}
    | {f"signal_{key}": (signal, show.only(key, percent)) for key in ("zero_all", "gradient_zero", "constant")}
)

# %% [markdown]
# ### GRPO: what the reward does not show
#
# Fields answered null where gold has a value, on held-out documents: at the start, at the first checkpoint, at the one
# with the most, and at the last. A policy may learn that null is safe while its reward stays high. The test compares,
# document by document, whether any field was so answered at the last checkpoint and at the start; Holm over the seeds.

# %%
nulls = diagnose.null_table(grpo, starts, {seed: [r for (_, s), r in scored.items() if s == seed] for seed in grpo})
at = nulls.set_index(["seed", "checkpoint"])
more_nulls = outcomes.of_rows(nulls[nulls["checkpoint"] == "last"], alpha)
says = {HELD: "more often than at the start", WRONG: "less often than at the start", NOT_SHOWN: "no change is shown"}
null_verdict = across_seeds({seed: says.get(more_nulls.get(seed)) for seed in wanted}, "not measured")
print(null_verdict)

# %% tags=["hide-input"]
rows = show.beside(nulls, published["nulls"])
for field, count in published["nulls"]["gold"].items():
    rows.loc[rows["source"] == "published", f"{field}_gold"] = count
show.table(
    "nulls",
    rows,
    "Held-out fields answered null where gold has a value, of the documents whose gold has one. Only here / at the "
    "start: documents with such a null at this checkpoint only, and at the start only.",
    layouts.NULLS,
)
rates = {seed: diagnose.null_shares(run.steps) for seed, run in grpo.items()}
rates = {seed: diagnose.smooth(table, smooth_steps) for seed, table in rates.items() if table is not None}
null_alarms = alarms.null_alarm_table({seed: run.steps for seed, run in grpo.items()})
raised = [(r.field, r.seed, r.alarm) for r in null_alarms.dropna(subset=["alarm"]).itertuples()]
nulls_peak = across_seeds({s: diagnose.peak_null(rates[s]) if s in rates else None for s in grpo}, "not measured")
show.figure(
    "nulls",
    lambda lines: plots.field_rates(
        lines, list(FIELDS), {"null": "answered null", "null_expected": "gold is null"}, raised
    ),
    [table.assign(seed=seed) for seed, table in rates.items()],
    alt="Line charts by optimizer step, one a field: rollouts that answer null, and rollouts whose gold is null. "
    f"Highest share with null where gold has a value: {nulls_peak}.",
    caption=f"Null answers in GRPO's rollouts, moving average over {smooth_steps} steps.",
    absent="Null answers by step were not measured in these runs.",
)
show.figure(
    "rollout_mistakes",
    lambda lines: plots.field_rates(
        lines,
        list(FIELDS),
        {
            "missing": "null, gold has a value",
            "wrong": "another value than gold's",
            "spurious": "a value, gold is null",
        },
    ),
    [table.assign(seed=seed) for seed, table in rates.items()],
    alt="Line charts by optimizer step, one a field: shares of rollouts whose field is missing, wrong or spurious.",
    caption=f"Mistakes in GRPO's rollouts by field, moving average over {smooth_steps} steps.",
    absent="Mistakes by field and step were not measured in these runs.",
)
moments = {"start": "at the start", "most nulls": "at its worst checkpoint", "last": "at the end"}
lines = {s: ", ".join(f"{at.loc[(s, moment), 'all']} {when}" for moment, when in moments.items()) for s in grpo}
show.notes({"nulls_peak": nulls_peak, "nulls_moved": by_seed(lines), "null_verdict": null_verdict})

# %% [markdown]
# Would a rule have noticed? The null alarm is a CUSUM {cite}`page1954` on each field's null answers minus the nulls in
# gold; `lib.alarms` has it, and it was fixed before this table was first made. The table measures it on the recorded
# steps, drawn anew: how often it goes off for nothing, and how soon after a collapse of the published shape began.

# %% tags=["hide-input"]
any_field = null_alarms[null_alarms["field"] == "any"]
fields_alone = null_alarms[null_alarms["field"] != "any"]
if len(null_alarms):
    show.table(
        "null_alarm",
        null_alarms,
        "The null alarm: when it went off in the runs as recorded; the share of runs without any change in which it "
        "goes off (any: in one field or more); the injected collapses that it finds, and after how many steps. Null "
        "rate by then: of the rollouts whose gold has a value, after the median delay.",
        layouts.NULL_ALARM,
    )
else:
    show.missing("table_null_alarm", "Null answers by step were not measured in these runs.")
recorded = {seed: rows for seed, rows in fields_alone.groupby("seed")}
show.notes(
    {
        "null_alarm_raised": across_seeds(
            {
                seed: ", ".join(
                    f"{r.field.replace('_', ' ')} at step {r.alarm:.0f}"
                    for r in recorded[seed].dropna(subset=["alarm"]).itertuples()
                )
                or "in no field"
                if seed in recorded
                else None
                for seed in grpo
            },
            "not measured",
        ),
        "null_alarm_delay": across_seeds(
            {s: f"{r['delay'].min():.0f} to {r['delay'].max():.0f} steps" for s, r in recorded.items()}, "not measured"
        ),
        "null_alarm_false": across_seeds(
            {r.seed: percent(r.false_alarms, ".0%") for r in any_field.itertuples()}, "not measured"
        ),
        "null_alarm_rule": f"a slack of {alarms.SLACK:g} and a threshold of {alarms.THRESHOLD:g} standard deviations",
    }
)

# %% [markdown]
# Reward against accuracy. The divergence alarm goes off at a checkpoint with significantly fewer exact records than the
# best one before it (exact test, p times the number of checkpoints, below `alpha`), while the reward has not fallen.

# %%
divergence = pd.concat(
    [
        table.assign(seed=seed)
        for seed, run in grpo.items()
        if (table := alarms.divergence(curves["grpo", seed], run.steps, alpha)) is not None
    ]
    or [pd.DataFrame(columns=["seed"])]
)

# %% tags=["hide-input"]
if len(divergence):
    show.table(
        "divergence",
        divergence,
        "GRPO's reward, and exact held-out records, by checkpoint. Best before: the most exact checkpoint so far, or "
        "the start; p is of the test against it.",
        layouts.DIVERGENCE,
    )
else:
    show.missing("table_divergence", "The reward was not logged in these runs.")
show.figure(
    "reward",
    lambda points: plots.reward_and_accuracy(
        pd.concat(
            diagnose.smooth(run.steps[["step", "reward"]], smooth_steps).assign(seed=seed)
            for seed, run in grpo.items()
            if "reward" in run.steps
        ),
        points,
    ),
    [divergence] if len(divergence) else [],
    alt="Line charts by optimizer step, one a seed: reward of GRPO's rollouts, and share of exact held-out records at "
    "each checkpoint.",
    caption=f"Reward of GRPO's rollouts, moving average over {smooth_steps} steps, and exact held-out records.",
    absent="The reward was not logged in these runs.",
)
show.note(
    "divergence",
    across_seeds({s: preference.alarm_phrase(rows, "alarm") for s, rows in divergence.groupby("seed")}, "not measured"),
)

# %% [markdown]
# ## What the published study found, asked of these runs
#
# The statements in `published.yaml` are the study's findings, taken as predictions for ours, and were fixed before any
# run here was recorded. A statement that one arm or checkpoint is better than another is scored by the exact test after
# Holm: held, wrong (the other way round), or not shown. The others are counted.

# %%
at_end = pairs[pairs["budget_hours"].isna()].groupby(["left", "right"])
order = [
    outcomes.of_rows(at_end.get_group(key), alpha) if key in at_end.groups else {}
    for key in (("sft", "grpo"), ("grpo", "dpo"))
]
opposite = {HELD: WRONG, WRONG: HELD}
scores = {
    "sft_leads": outcomes.of_rows(decisive, alpha),
    "order_at_end": {s: outcomes.all_of([step.get(s, NOT_MEASURED) for step in order]) for s in wanted},
    "sft_never_behind": {r.seed: r.right_wins == 0 if r.compared else None for r in all_budgets.itertuples()},
    "grpo_holds_later": {r.seed: outcomes.sooner(r) for r in of_c.itertuples()},
    "dpo_below_start": {seed: opposite.get(result, result) for seed, result in change["dpo"].items()},
    "displacement": displaced,
    "places_dominate": {s: share > 0.5 for s, share in of_arms.groupby("seed")["places_share"].min().dropna().items()},
    "training_dominates": trains_more,
    "groups_saturate": saturates,
    "null_hacking": more_nulls,
}
scores = {key: {seed: outcomes.counted(score.get(seed)) for seed in wanted} for key, score in scores.items()}

# %% tags=["hide-input"]
for article, statements in published["claims"].items():
    if article == "source":
        continue
    claims = pd.DataFrame([{"key": key, **c, "here": outcomes.outcome(scores[key])} for key, c in statements.items()])
    show.table(
        f"claims_{article}",
        claims,
        "The published findings, taken as predictions for these runs and scored by rule; significance is "
        f"p < {alpha}, after Holm unless the statement says raw.",
        layouts.CLAIMS,
    )
    tally = claims["here"].where(claims["here"].isin(outcomes.OUTCOMES), "not alike in all seeds").value_counts()
    told = ", ".join(f"{count} {how}" for how, count in sorted(tally.items()))
    show.note(f"claims_{article}", f"of {len(claims)}, {told}")

# %% [markdown]
# ## Recap
#
# The two articles print what was glued here, and nothing else. To ask another question, change a parameter above or add
# a target, and build the book again: nothing is trained for it.
