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
count_pair_sampling: bool = True  # on the bill: DPO's sampling of preference pairs
count_start: bool = False  # on the bill: the shared start, for every arm
count_base_evaluation: bool = False  # on the bill: evaluating the base model, for every arm
count_resumes: bool = False  # on the bill: second loads and lost work of interrupted runs
count_tuning: bool = False  # on the bill: the trials of an arm's settings, whole for every seed
price_per_hour: float = 4.41  # price of one GPU (per hour); no part of any run; default: book/published.yaml
price_currency: str = "USD"  # its currency (ISO 4217)
price_device: str = "an H100"  # what it is the price of
price_date: str = "2026-10"  # when it was
resamples: int = 2000  # draws of the held-out documents behind every interval
resample_seed: int = 0  # random seed of these draws
max_unaccounted: float = 0.02  # largest part of a bill that may be under no timer (share)
smooth_steps: int = 5  # moving average in figures by step (optimizer steps)
predictions: str = "book/predictions.yaml"  # file of predictions to score, from the project's root

# %% [markdown]
# ## Data
#
# The runs are those that the stages before this one used, recorded or trained here; one that is missing stops the
# notebook with its name. Building a curve checks that the run began from its seed's shared start and was scored on the
# same documents, and all must have been scored on the held-out split.

# %%
import pandas as pd
import yaml

from lib import records
from lib.data import FIELDS
from lib.paths import BOOK, RESULTS, ROOT
from lib.report import (
    alarms,
    benches,
    budgets,
    compare,
    cost,
    diagnose,
    errors,
    layouts,
    ledger,
    outcomes,
    plots,
    power,
    preference,
    reach,
    resample,
    show,
)
from lib.report.compare import LETTERS, NAMES
from lib.report.outcomes import HELD, NOT_MEASURED, NOT_SHOWN, WRONG, across_seeds, by_seed, either
from lib.report.show import accuracy, number, p_value, per_seed, percent

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
device = " and ".join(name for _, name in devices)
unit, per_hour = cost.axis(kind, max(curve.end_hours for curve in curves.values()))
n = int(setup.checkpoints["n"].iloc[-1])
their = published["setup"]
timed = show.timer(per_hour)
priced = show.pricer(kind, price_per_hour, price_currency, their["usd_per_hour"])
spent = show.spender(timed, priced)


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
        "price": f"{cost.show_price(price_per_hour, price_currency)} an hour ({price_currency}, {price_device}, "
        f"{price_date})"
        if kind == "cuda"
        else "not priced: a CPU ran",
        "base_accuracy": accuracy((setup.checkpoints["exact"] / setup.checkpoints["n"]).iloc[-1]),
        "start_accuracy": by_seed({seed: accuracy(curve.points["accuracy"][0]) for (_, seed), curve in curves.items()}),
        "published_setup": f"{their['model']}, on {their['text']}, one {their['device']}",
        "published_n": f"{their['n']:,} held-out documents, {their['seeds']} seeds",
        "published_predictions": "{made} predictions, of which {wrong} were wrong and {mixed} held in one seed "
        "only".format(**published["predictions"]),
        "published_price": f"${their['usd_per_hour']:.2f} an hour (USD, an {their['device']}, {their['price_date']})",
    }
)

# %% [markdown]
# ## What each arm reached
#
# First what stands on the bill: the parameters `count_...` say it, and every table and figure below follows. Trials can
# be added only where they ran on the runs' own device.

# %%
path = RESULTS / setup.info["profile"] / "trials.csv"
recorded_trials = pd.read_csv(path) if path.exists() else None
addable = recorded_trials is not None and set(recorded_trials["device"]) <= {name for _, name in devices}
rule = {
    "pair_sampling": count_pair_sampling,
    "start": count_start,
    "base_evaluation": count_base_evaluation,
    "resumes": count_resumes,
    "tuning": count_tuning,
}
if count_tuning and not addable:
    raise ValueError(
        f"count_tuning: profile {profile} has no trials on {device} (trials.csv), so they cannot be billed"
    )


def under(rule, curves, runs):
    """Curves of some runs with their hours under a rule of the bill."""
    return {
        key: compare.repriced(curve, cost.hours_under(rule, runs[key], starts[curve.seed], setup, recorded_trials))
        for key, curve in curves.items()
    }


as_billed, curves = curves, under(rule, curves, runs)
print(cost.rule_text(rule))

# %% [markdown]
# *Last* is the final checkpoint. *Best* was chosen after the fact on the documents it is scored on, so it flatters. The
# test compares last with the shared start. *From scratch* adds what the start cost.

# %%
final = compare.final_table(curves, {seed: 0.0 if count_start else hours([s]) for seed, s in starts.items()})
change = {arm: outcomes.of_rows(rows, alpha) for arm, rows in final.groupby("arm")}
change

# %% tags=["hide-input"]
show.table(
    "final",
    show.beside(final, published["final"]),
    f"Final checkpoints, {n} held-out documents here. The counts are documents that only one of the two has right.",
    layouts.final(spent, timed, unit),
)
by_point = [compare.standard_error(p.exact, p.n) for curve in curves.values() for p in curve.points.itertuples()]
standard_error = f"{100 * max(by_point):.2g} points"  # of any checkpoint on the curves
for arm, rows in final.groupby("arm"):
    show.notes(
        {
            f"last_{arm}": (rows, lambda row: f"{accuracy(row.last)} for {spent(row.hours)}"),
            f"best_{arm}": (rows, lambda row: f"{accuracy(row.best)} at {spent(row.best_hours)}"),
            f"gain_{arm}": (
                rows,
                lambda r: f"{100 * (r.last - r.start):+.1f} points, p {p_value(r.p_holm)} after Holm",
            ),
        }
    )
show.notes(
    {
        "rule": cost.rule_text(rule),
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
    layouts.equal_spend(timed, of_dpo),
)


def line(row):
    a, c = show.entered(row.left_accuracy, row.left_step), show.entered(row.right_accuracy, row.right_step)
    return f"{a} against {c} after {spent(row.budget_hours)} each, p {p_value(row.p_holm)} after Holm"


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
# Now every pair, at every budget at which either of the two saved a checkpoint and both still ran. The test is the
# verdict, Holm over the budgets of one pair and seed. Beside it stands how large the difference is: its interval comes
# from the same documents drawn again with replacement, all runs judged on the same draw, and covers that sampling
# alone. And how small a difference could have been seen: the smallest that is significant among as many disagreements,
# and the smallest true one that a single test shows four times in five.

# %%
interval = 1 - alpha
drawn = resample.draws(curves, resamples, resample_seed)
every_budget = resample.add_interval(budgets.table(curves, wanted), curves, drawn, interval)
every_budget = power.add_smallest(every_budget, n, alpha)
by_pair = budgets.summary(every_budget, alpha)

# %% tags=["hide-input"]
show.table(
    "budgets_summary",
    by_pair,
    f"Every pair at every budget at which either saved a checkpoint. Ahead: at how many with p < {alpha}, raw and "
    "after Holm over them. At the last of these budgets: the difference, first minus second, with its "
    f"{interval:.0%} interval, and the smallest differences that so many documents with so many disagreements can "
    "show (points, one test).",
    layouts.BUDGETS_SUMMARY,
)
show.table(
    "budgets",
    every_budget,
    "Every comparison. Counts are documents that only one of the two has right.",
    layouts.budgets(timed),
)
titles = {pair: f"{LETTERS[pair[0]]} minus {LETTERS[pair[1]]}" for pair in budgets.PAIRS}
told = {pair: by_pair[(by_pair["left"] == pair[0]) & (by_pair["right"] == pair[1])] for pair in budgets.PAIRS}


def line(row):
    """At the most that both have spent: the difference, its interval, its verdict."""
    return f"{layouts.difference(row)}, p {p_value(row.p_holm)} after Holm over {row.compared}"


show.figure(
    "differences",
    lambda rows: plots.differences(rows, titles, LETTERS, unit, alpha),
    [every_budget.assign(spent=per_hour * every_budget["budget_hours"])],
    alt="Difference in exact records by budget with its interval, a panel a pair and seed. At the last budget, in "
    f"points: {'; '.join(f'{titles[pair]} {per_seed(rows, layouts.difference)}' for pair, rows in told.items())}.",
    caption=f"Difference in exact records at each budget, with {interval:.0%} intervals from {resamples:,} draws of "
    f"the {n} documents (seed {resample_seed}): they cover the sampling of documents, not training again. Filled and "
    "coloured by the arm ahead: significant after Holm over the panel.",
    absent="No two arms were compared.",
)
low, high = every_budget["detectable"].min(), every_budget["detectable"].max()
show.notes(
    {
        "differences": (told["sft", "grpo"], line),
        "interval": f"{interval:.0%}",
        "resamples": f"{resamples:,} draws, random seed {resample_seed}",
        "detectable": f"{low:.1f} to {high:.1f} points" if pd.notna(low) else "none",
    }
)

# %% [markdown]
# Seeds are not averaged. What lies between two seeds of one arm, and, where a run was trained again under its own seed,
# between the two, is the variation that no test over documents sees.

# %%
again = {key: records.reruns(run) for key, run in runs.items()}
again = {
    key: [under(rule, {key: compare.curve(other, starts[key[1]])}, {key: other})[key] for other in others]
    for key, others in again.items()
}
variation = budgets.variation(curves, again)

# %% tags=["hide-input"]
if variation.empty:
    show.missing("table_variation", "Every arm has one run here, so nothing is known of its variation.")
else:
    show.table(
        "variation",
        variation,
        "Runs of one arm against each other at their own ends, the widest gap between two checkpoints at the same "
        "step, and what each spent.",
        layouts.variation(timed),
    )
between = variation[~variation["rerun"]].groupby("arm", sort=False)["difference"].agg(lambda d: d.abs().max())
repeated = variation[variation["rerun"]]
show.notes(
    {
        "variation": "; ".join(f"{NAMES[arm]} {points:.1f} points" for arm, points in between.items())
        or "not measured: one seed",
        "rerun": "; ".join(
            f"{NAMES[r.arm]}, {r.pair}: {layouts.points(r.difference)} points, for {spent(r.left_hours)} and "
            f"{spent(r.right_hours)}"
            for r in repeated.itertuples()
        )
        or "not measured: no run was trained twice under one seed",
    }
)

# %% [markdown]
# The other pairs, each at the most that both have spent, and the order at the arms' own ends, where the spend differs.

# %%
pairs = compare.pairs_table(curves, wanted)

# %% tags=["hide-input"]
show.table(
    "pairs",
    pairs,
    "Other comparisons, Holm over this table. Without a budget each arm is at its own end, and the spend is unequal.",
    layouts.pairs(timed),
)

# %% [markdown]
# ## Reach and hold
#
# An arm reaches a target at the first checkpoint from which it stays at or above it. First touch asks for less, and
# stands beside because many plots suggest it. An arm that was there at the start spent nothing, and has no multiple.

# %%
reached = reach.table(curves, both, targets)
reached = reached.assign(
    **{
        f"{arm}_price": [cost.price(spent_hours, kind, price_per_hour) for spent_hours in reached[f"{arm}_hours"]]
        for arm in NAMES
    }
)


# %% tags=["hide-input"]
def line(row):
    """What holding a target took, as a phrase."""
    multiple = f", {show.times(row.multiple)}" if pd.notna(row.multiple) else ""
    return f"GRPO {spent(row.grpo_hours)}, continued SFT {spent(row.sft_hours)}{multiple}"


show.table(
    "reach_hold",
    show.beside(reached, published["reach_and_hold"]),
    "What was billed until an arm reaches a target and holds it to its end; never: it did not. "
    f"Prices: {price_currency}, a dash where a CPU ran.",
    layouts.reach_hold(timed, priced, of_dpo),
)
of_c, of_a = reached[reached["of"] == "C's last"], reached[reached["of"] == "A's last"]
show.notes({"reach_c": (of_c, line), "reach_a": (of_a, line)})

# %% [markdown]
# A multiple is a quotient of two moments, and each is where a noisy curve crosses a noisy line. So the documents are
# drawn again, and in each draw both curves, the target and the multiple are taken anew. *Never* keeps its place: below
# every number where A never arrives, above where only C never does, or where A was there at the start.

# %%
again_reached = reach.resampled(curves, drawn, both, targets, interval)

# %% tags=["hide-input"]
show.table(
    "reach_resampled",
    again_reached,
    f"C's multiple of A's cost in {resamples:,} draws of the documents (seed {resample_seed}): median and "
    f"{interval:.0%} interval over all draws, and shares of the draws. An arm's last accuracy is taken anew in each "
    "draw. No bound: C never arrives, or A was there at the start.",
    layouts.REACH_RESAMPLED,
)


def line(row):
    return (
        f"{layouts.multiples(row)}, A sooner in {percent(row.sft_sooner)} of the draws, "
        f"never there in {percent(row.sft_never)}"
    )


of_c_again = again_reached[again_reached["of"] == "C's last"]
show.notes({f"reach_again_{how}": (of_c_again[of_c_again["rule"] == how], line) for how in ("hold", "touch")})

# %% [markdown]
# ## Cost
#
# The curves of all runs on one axis, under the rule of the bill. The right panel ends with the second-longest arm.

# %% tags=["hide-input"]
ends = sorted(max(curve.end_hours for curve in curves.values() if curve.arm == arm) for arm in NAMES)
told = [f"{NAMES[arm]} ends at {per_seed(rows, lambda r: accuracy(r.last))}" for arm, rows in final.groupby("arm")]
show.figure(
    "cost_curves",
    lambda points: plots.cost_curves(points, NAMES, unit, 1.05 * per_hour * ends[-2], headline),
    [
        curve.points.assign(arm=curve.arm, seed=curve.seed, spent=per_hour * curve.points["hours"])
        for curve in curves.values()
    ],
    alt=f"Line chart of exact records against billed {unit}, one line an arm and seed, all from the shared start. "
    f"{'; '.join(told)}.",
    caption=f"Exact records on {n} held-out documents against billed {unit} on {device}; {cost.rule_text(rule)}. "
    f"One checkpoint's standard error is at most {standard_error}; it covers the sampling of documents, and the seeds "
    "show the rest.",
    absent="No run was compared.",
)

# %% [markdown]
# A rule of the bill is a choice. So the comparison is made again with each switch flipped: does the answer hang on it?

# %%
variants = {
    name: under(changed, as_billed, runs) if addable or not changed["tuning"] else None
    for name, changed in cost.other_rules(rule).items()
}
rules = budgets.under_rules(variants, both, alpha)
letters = {f"{left}_{right}": (LETTERS[left], LETTERS[right]) for left, right in budgets.PAIRS}
rules_verdict = outcomes.on_rules(rules, letters)
print(rules_verdict)

# %% tags=["hide-input"]
show.table(
    "rules",
    rules,
    "The same comparison under other rules of the bill: who leads at the most that both have spent (p after Holm), and "
    "what holding C's last accuracy took. Start: that arm had saved nothing by then. Not measured: no trial of "
    "settings on this device is recorded, or an arm is missing.",
    layouts.other_rules(timed, budgets.PAIRS),
)
applied = rules.dropna(subset=["multiple"]).groupby("seed")["multiple"].agg(["min", "max"])
show.notes(
    {
        "rules_verdict": rules_verdict,
        "rules_multiple": by_seed(
            {seed: f"{show.times(row['min'])} to {show.times(row['max'])}" for seed, row in applied.iterrows()}
        )
        or "none",
    }
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
trials = None if recorded_trials is None else cost.tried(recorded_trials, first)
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
# ### Where each run's seconds went
#
# Every billed second is in one row; inside a step of a GPU run the device's clock decides. A part that no timer saw
# stays missing, and its time is unaccounted; above `max_unaccounted` the notebook stops. Other clocks check the sums:
# the device's events over all steps, and the system's clock over a whole attempt.

# %%
trained = {run.name: run for run in (*starts.values(), *runs.values())}
bills, by_run = cost.bill(trained, max_unaccounted)
closed = ledger.table(trained.values())

# %% tags=["hide-input"]
show.table(
    "bills",
    pd.DataFrame({"part": [part for part in by_run.index if by_run["seconds"].loc[part].notna().any()]}),
    "Billed seconds by part, and their share of the run. A dash: no timer saw such a part in this run.",
    layouts.bills(by_run),
    csv=bills,
)
show.table(
    "ledger",
    closed,
    "How well the seconds add up. Unaccounted: share of the billed seconds under no timer; worst step: the optimizer "
    "step with most of it. Device to host: the device's column over all steps against the host's. Rows to system "
    "clock: all rows of the attempts that ended. Processor seconds: of all threads, a second of wall-clock.",
    layouts.LEDGER,
)
passes = [ledger.passes(run).assign(run=name) for name, run in trained.items()]
show.table(
    "passes",
    pd.concat(passes, ignore_index=True),
    "What went through the model. A pass with gradient includes its backward. Padded: positions without a token.",
    layouts.PASSES,
)
show.table(
    "work",
    closed,
    "What the seconds were spent on. Utilisation: FLOPs that the real tokens need, over the train seconds at the "
    "device's dense bfloat16 rate by its datasheet. Energy: the whole device's, in the billed time; its error is what "
    "one update of the counter can hide.",
    layouts.WORK,
)
worst = closed.loc[closed["unaccounted"].idxmax()]
show.note("ledger_worst", f"{percent(worst.unaccounted)} in {worst.run}")

# %% [markdown]
# ### GRPO: the bill

# %%
bill, parts = cost.bill(grpo, max_unaccounted)
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
remainder = by_seed({seed: percent(shares.loc[cost.UNACCOUNTED, seed]) for seed in grpo})
show.figure(
    "bill",
    plots.time_shares,
    [bill[bill["part"].isin(seen)]],
    alt=f"Horizontal bars: share of GRPO's billed seconds by part, one bar a seed. Most: {most}.",
    caption=f"Shares of GRPO's billed time on {device}. Unaccounted, under no timer: {remainder}.",
    absent="GRPO's bill was not measured.",
)
told = {"generation": generating, "training": training, "update": shares.loc[cost.TOGETHER]}
told |= {"reward": shares.loc["reward function"]}
show.notes({f"bill_{key}": by_seed({s: percent(values[s]) for s in grpo}) for key, values in told.items()})
show.notes(
    {
        "headline_bill": headline_bill,
        "checkpointing": checkpointing,
        "bill_total": by_seed({seed: spent(hours([run])) for seed, run in grpo.items()}),
        "bill_most": most,
        "bill_remainder": remainder,
        "published_bill": f"{theirs['seconds'].sum():,.0f} of {published['bill']['billed_s']:,.0f} s",
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
# ### GRPO: the same gradient for less
#
# `lib.lean` leaves out of TRL's step what cannot change its gradient; `lib.bench.grpo_step` timed both in one process,
# in turn, on one engine. Whole steps, without timers inside; the bench is its own record, whatever the profile.

# %%
bench = benches.grpo_step()
faster = None if bench is None else benches.whole_steps(bench[0])

# %% tags=["hide-input"]
if faster is None:
    show.missing("table_lean", "No bench of the lean trainer is recorded.")
    show.notes(dict.fromkeys(("lean_live", "lean_dead", "lean_bench"), "not measured"))
else:
    session, versions = bench[1][-1], bench[1][-1]["versions"]
    show.table(
        "lean",
        faster,
        "Seconds of a GRPO step, stock TRL and lean: medians, quartiles in brackets. Dead groups: made so by rewards "
        "that are all equal. Positions: through the lean trainer's pass with gradient, padding included.",
        layouts.LEAN,
        csv=bench[0],
    )
    lean_only = faster[faster["variant"] == "lean"].sort_values("dead_share")
    texts = [f"{show.times(r.multiple)} ({r.stock_s:.2f} s to {r.s:.2f} s)" for r in lean_only.itertuples()]
    show.notes(
        {
            "lean_live": texts[0],
            "lean_dead": texts[-1],
            "lean_bench": f"{session['device']['name']}, {session['session'][:10]}, "
            f"commit {str(session['commit'])[:10]}, TRL {versions['trl']}, vLLM {versions['vllm']}",
        }
    )
cost_of_timers = benches.timers()
show.note(
    "timers_ab",
    "not measured"
    if cost_of_timers is None
    else "{on:.3f} s a step with them ({on_low:.3f} to {on_high:.3f} by turn), {off:.3f} s without ({off_low:.3f} to "
    "{off_high:.3f}), {n} steps each on {device}".format(**cost_of_timers),
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
# gold. `lib.report.alarms` has it, and it was fixed before this table was first made. The table measures it on the
# recorded steps, drawn anew: how often it goes off for nothing, and how soon after a collapse of the published shape
# began.

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
# ## Verdicts and quantities by name
#
# What follows scores statements of three kinds: the published study's findings, the sentences of the articles, and
# predictions. All draw on the names given here. A verdict is held, wrong (the other way round), not shown or not
# measured, a seed each. As a quantity it is 1, -1, 0 or missing; a tested one has its p after Holm and its difference
# (of the documents that only one side has, as a share of all) beside it.


# %%
def pair(left, right, equal):
    """Rows of `pairs` for two arms: at equal spend, or each at its own end."""
    here = (pairs["left"] == left) & (pairs["right"] == right)
    return pairs[here & (pairs["budget_hours"].notna() == equal)]


tested = {
    "sft_over_grpo": decisive,
    "sft_over_dpo": pair("sft", "dpo", equal=True),
    "grpo_over_dpo": pair("grpo", "dpo", equal=True),
    "sft_over_grpo_at_end": pair("sft", "grpo", equal=False),
    "grpo_over_dpo_at_end": pair("grpo", "dpo", equal=False),
    **{f"{arm}_over_start": final[final["arm"] == arm] for arm in NAMES},
    "null_hacking": nulls[nulls["checkpoint"] == "last"],
}
verdicts = {name: outcomes.of_rows(rows, alpha) for name, rows in tested.items()}
at_end = [verdicts["sft_over_grpo_at_end"], verdicts["grpo_over_dpo_at_end"]]
opposite = {HELD: WRONG, WRONG: HELD}
more_budgets = all_budgets["left_wins_holm"] - all_budgets["right_wins_holm"]
verdicts |= {
    "order_at_end": {s: outcomes.all_of([step.get(s, NOT_MEASURED) for step in at_end]) for s in wanted},
    "sft_never_behind": {r.seed: r.right_wins == 0 if r.compared else None for r in all_budgets.itertuples()},
    "sft_ahead_at_more_budgets": {
        row.seed: None if not row.compared else NOT_SHOWN if more == 0 else more > 0
        for row, more in zip(all_budgets.itertuples(), more_budgets, strict=True)
    },
    "grpo_holds_later": {r.seed: outcomes.sooner(r) for r in of_c.itertuples()},
    "grpo_holds_sft_later": {r.seed: outcomes.sooner(r) for r in of_a.itertuples()},
    "dpo_below_start": {seed: opposite.get(o, o) for seed, o in verdicts["dpo_over_start"].items()},
    "displacement": displaced,
    "places_dominate": {s: share > 0.5 for s, share in of_arms.groupby("seed")["places_share"].min().dropna().items()},
    "training_dominates": trains_more,
    "groups_saturate": saturates,
    "entropy_falls": {
        r.seed: None if pd.isna(r.entropy_last - r.entropy_first) else r.entropy_last < r.entropy_first
        for r in signal.itertuples()
    },
}
fell = "entropy fell from the first tenth of the steps to the last"
entropy_verdict = either(
    {seed: verdicts["entropy_falls"].get(seed) for seed in wanted},
    fell,
    fell.replace("fell", "did not fall"),
    "entropy was not measured",
)
show.note("entropy_verdict", entropy_verdict)
verdicts = {name: {s: outcomes.counted(result.get(s)) for s in wanted} for name, result in verdicts.items()}


# %%
def column(rows, name):
    """{seed: value} of a table with one row a seed."""
    return dict(zip(rows["seed"], rows[name], strict=True))


def change_of(name):
    """{seed: last tenth - first tenth} of one of DPO's own measures."""
    return column(dpo.assign(change=dpo[f"{name}_last"] - dpo[f"{name}_first"]), "change")


quantities = {
    "exact_base": dict.fromkeys(wanted, float((setup.checkpoints["exact"] / setup.checkpoints["n"]).iloc[-1])),
    "exact_start": {seed: float(curve.points["accuracy"][0]) for (_, seed), curve in curves.items()},
    "billed_hours_start": {seed: hours([start]) for seed, start in starts.items()},
    "reach_multiple": column(of_c, "multiple"),  # GRPO's hours to hold its last accuracy, in continued SFT's
    "touch_multiple": column(of_c, "touch_multiple"),
    "chosen_logp_change": change_of("chosen_logp"),  # nats
    "rejected_logp_change": change_of("rejected_logp"),
    "preference_accuracy_change": change_of("accuracy"),
    "entropy_ratio": column(signal.assign(ratio=signal["entropy_last"] / signal["entropy_first"]), "ratio"),
    "token_ratio": column(tokens[tokens["source"] == "here"], "ratio"),
    "bill_training": training.to_dict(),
}
for arm in NAMES:
    rows = tested[f"{arm}_over_start"]
    quantities |= {f"exact_last_{arm}": column(rows, "last"), f"exact_best_{arm}": column(rows, "best")}
    quantities |= {f"billed_hours_{arm}": column(rows, "hours")}
    quantities |= {f"places_share_{arm}": column(of_arms[of_arms["arm"] == arm], "places_share")}
    ratios = {
        s: curves[arm, s].end_hours / curves["sft", s].end_hours
        for s in wanted
        if {(arm, s), ("sft", s)} <= set(curves)
    }
    quantities[f"bill_ratio_{arm}"] = ratios  # in continued SFT's hours
for measure in ("zero_first", "zero_middle", "zero_last", "constant_right", "gradient_zero"):
    quantities[measure] = column(signal, measure)
for name, part in {
    "generation": "generation",
    "sync": "weight sync to the engine",
    "nograd": "no-grad forward",
    "update": cost.TOGETHER,
    "remainder": cost.UNACCOUNTED,
}.items():
    quantities[f"bill_{name}"] = shares.loc[part].to_dict()
for moment in at.index.unique("checkpoint"):
    quantities[f"nulls_{moment.replace(' ', '_')}"] = at.xs(moment, level="checkpoint")["all"].to_dict()
for name, result in verdicts.items():
    quantities[name] = {seed: {HELD: 1, NOT_SHOWN: 0, WRONG: -1}.get(how) for seed, how in result.items()}
for name, rows in tested.items():
    quantities[f"p_{name}"] = column(rows, "p_holm")
    quantities[f"difference_{name}"] = column(rows.assign(d=(rows["left_better"] - rows["right_better"]) / n), "d")

# %% [markdown]
# Names of runs that are planned and were not made yet: a prediction may use them now, and is not decidable until a run
# fills them in. On the right of each is the arm that it is compared with; its `bill_ratio` is in that arm's hours.

# %%
later = {
    "lean": "grpo",  # the same updates as C, made cheaper
    "weak_start": "grpo",  # C from a start that is right on about a third of the documents
    "from_base": "grpo",  # C from the base model
    "unlabelled": "grpo",  # a reward that sees schema and support by the text, and no label
    "hard_prompts": "grpo",  # prompts of which a sample went wrong
    "after_sft": "grpo",  # C from A's last checkpoint
    "uncorrected": "grpo",  # without the correction for the engine's probabilities
    "group_4": "grpo",
    "group_16": "grpo",
    "sft_gentle": "sft",  # A with a lower learning rate and warm-up
    "sft_rerun": "sft",  # A again, same seed
}
planned = [
    *(f"{name}_{v}" for v in later for name in ("exact_start", "exact_last", "billed_hours", "bill_ratio")),
    *(f"{name}_{v}" for v, arm in later.items() if arm == "grpo" for name in ("zero_first", "zero_last")),
    *(f"exact_wikipedia_{arm}" for arm in ("start", *NAMES)),
]
statements = [f"{v}_over_start" for v in later] + [f"{v}_over_{arm}" for v, arm in later.items()]
statements += [f"{arm}_over_start_on_wikipedia" for arm in NAMES] + ["grpo_over_sft_on_wikipedia"]
planned += [f"{prefix}{name}" for name in statements for prefix in ("", "p_", "difference_")]
quantities = {  # a seed without a value has a missing one
    name: {seed: float("nan") if pd.isna(values.get(seed)) else float(values[seed]) for seed in wanted}
    for name, values in quantities.items()
}
quantities |= {name: {} for name in planned if name not in quantities}

# %% tags=["hide-input", "hide-output"]
rows = [{"name": name} | {f"seed_{seed}": values.get(seed) for seed in wanted} for name, values in quantities.items()]
show.table(
    "quantities",
    pd.DataFrame(rows),
    "Every quantity that a prediction may name, with its value here; a dash: not measured, or not run yet.",
    layouts.quantities(wanted),
)

# %% [markdown]
# ## What the published study found, asked of these runs
#
# The statements in `published.yaml` are the study's findings, taken as predictions for ours, and were fixed before any
# run here was recorded. A statement that one arm or checkpoint is better than another is scored by the exact test after
# Holm: held, wrong (the other way round), or not shown. The others are counted.

# %% tags=["hide-input"]
for article, statements in published["findings"].items():
    if article == "source":
        continue
    found = pd.DataFrame([{"key": k, **f, "here": outcomes.outcome(verdicts[k])} for k, f in statements.items()])
    show.table(
        f"findings_{article}",
        found,
        "The published findings, taken as predictions for these runs and scored by rule; significance is "
        f"p < {alpha}, after Holm unless the statement says raw.",
        layouts.FINDINGS,
    )
    tally = found["here"].where(found["here"].isin(outcomes.OUTCOMES), "not alike in all seeds").value_counts()
    told = ", ".join(f"{count} {how}" for how, count in sorted(tally.items()))
    show.note(f"findings_{article}", f"of {len(found)}, {told}")

# %% [markdown]
# ## What the articles say, and what each sentence rests on
#
# Every sentence of the articles that judges is one of those glued above, and is made from its verdict: where the
# verdict turns, the sentence does. A row a sentence; one that rests on two tests has two.

# %%
MCNEMAR, COUNTED = "exact McNemar, paired by document, Holm", "counted, no test"
REDRAWN = "counted over draws of the documents, no test"
SIGNAL, REWARD = "GRPO: where the signal goes", "GRPO: what the reward does not show"
claims = [  # key of the glued sentence, its verdict (none: the sentence is the count), what is tested, how, where
    ("headline", "sft_over_grpo", "A is ahead of C at the most both spent", MCNEMAR, "At equal spend"),
    ("equal_spend", "sft_over_grpo", "A is ahead of C at the most both spent", MCNEMAR, "At equal spend"),
    ("all_budgets", "sft_ahead_at_more_budgets", "A leads at more budgets than C", MCNEMAR, "At equal spend"),
    ("differences", None, "A minus C at the most both spent, Holm over the pair's budgets", MCNEMAR, "At equal spend"),
    ("gain_sft", "sft_over_start", "A ends above its start", MCNEMAR, "What each arm reached"),
    ("gain_dpo", "dpo_over_start", "B ends above its start", MCNEMAR, "What each arm reached"),
    ("gain_grpo", "grpo_over_start", "C ends above its start", MCNEMAR, "What each arm reached"),
    ("reach_c", "grpo_holds_later", "A holds C's last accuracy on fewer hours", COUNTED, "Reach and hold"),
    ("reach_a", "grpo_holds_sft_later", "A holds its own last accuracy on fewer hours", COUNTED, "Reach and hold"),
    ("reach_again_hold", None, "A holds C's last accuracy sooner", REDRAWN, "Reach and hold"),
    ("reach_again_touch", None, "A touches C's last accuracy sooner", REDRAWN, "Reach and hold"),
    ("rules_verdict", None, "who leads under each rule of the bill", MCNEMAR, "Cost"),
    ("tuning", None, "where each learning rate stands among its trials", COUNTED, "Cost"),
    ("dpo_verdict", "displacement", "both log-probs fall, preference accuracy rises", COUNTED, "DPO"),
    ("dpo_verdict", "dpo_over_start", "B ends above its start", MCNEMAR, "DPO"),
    ("headline_bill", "training_dominates", "training costs more than generating", COUNTED, "GRPO: the bill"),
    ("bill_most", None, "the largest part of the bill", COUNTED, "GRPO: the bill"),
    (
        "groups_verdict",
        "groups_saturate",
        "more zero-variance groups in the last tenth than the first",
        COUNTED,
        SIGNAL,
    ),
    ("entropy_verdict", "entropy_falls", "lower entropy in the last tenth than the first", COUNTED, SIGNAL),
    ("null_verdict", "null_hacking", "more documents with a null for a value than at the start", MCNEMAR, REWARD),
    ("nulls_peak", None, "the field with the highest share", COUNTED, REWARD),
]

# %% tags=["hide-input"]
rows = []
for key, name, statement, test, section in claims:
    p = {seed: p_value(p) for seed, p in quantities.get(f"p_{name}", {}).items()}
    row = {"key": key, "sentence": show.told[key], "tested": statement, "test": test, "section": section}
    how = "the sentence says it" if name is None else outcomes.outcome(verdicts[name])
    rows.append(row | {"outcome": how, "p": by_seed(p) if p else "-"})
show.table(
    "claims",
    pd.DataFrame(rows),
    "The sentences of the articles that judge, as they stand on the pages, and the verdict each is made from.",
    layouts.CLAIMS,
)

# %% [markdown]
# ## What was predicted
#
# Each prediction of the file is one comparison of a quantity with a number or with another quantity. It is scored in
# every seed that has the quantity. The Brier score is (probability - outcome)^2, averaged over a prediction's seeds,
# then over predictions, so that a prediction counts once however many seeds it has; what cannot be decided is left out
# and counted.

# %%
from lib.report.predictions import brier, load, scored, standing

made_for, predicted = load(ROOT / predictions, quantities)
scores = scored(predicted, quantities)
score = brier(scores)
known_before = standing(records.file_sha256(ROOT / predictions), [run.info.get("predictions_sha256") for run in there])
print(f"{score}; {known_before}")

# %% tags=["hide-input"]
decidable = scores["decided"] > 0
scores["here"] = [by_seed({s: number(v, ".4g") for s, v in values.items()}) or "not run" for values in scores["values"]]
show.table(
    "predictions",
    scores.drop(columns="values"),
    f"Predictions made for profile {made_for}, scored on {profile}. The file is {known_before}. Brier: averaged over a "
    "prediction's seeds; 0 is perfect, 0.25 is what one half earns.",
    layouts.PREDICTIONS,
)
missed = scores[scores["brier"] > 0.25]
tally = scores["outcome"].str.split(";").str[0].value_counts()
show.notes(
    {
        "predictions_profile": made_for,
        "predictions_standing": known_before,
        "predictions_tally": f"of {len(scores)}, " + ", ".join(f"{k} {how}" for how, k in sorted(tally.items())),
        "predictions_missed": "; ".join(
            f"“{r.statement}” (given {r.probability:.0%}; {r.outcome})" for r in missed.itertuples()
        )
        or "none",
        "predictions_brier": f"{number(score['brier'], '.3f')} over the {decidable.sum()} that can be decided; "
        f"{number(score['expected'], '.3f')} would be the average if every probability were right, 0.25 that of a coin",
    }
)

# %% [markdown]
# ## Recap
#
# The two articles print what was glued here, and nothing else. To ask another question, change a parameter above or add
# a target, and build the book again: nothing is trained for it.
