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
alpha: float = 0.05  # significance level, after Holm within a table (share)
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
model_name: str = "a tiny Qwen3-shaped model"  # what the base model is, in words
text_name: str = "synthetic biographies"  # what the documents are, in words
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

from lib import records
from lib.paths import BOOK, RESULTS, ROOT
from lib.report import budgets, compare, cost, layouts, outcomes, phrases, plots, precision, show, study, variants
from lib.report.compare import LETTERS, NAMES
from lib.report.outcomes import HELD, NOT_MEASURED, NOT_SHOWN, WRONG, across_seeds, by_seed, each_seed
from lib.report.show import accuracy, number, per_seed, percent, spent

published = study.published()
their = published["setup"]
wanted, setup, starts, runs = study.read(profile, seeds)
both = study.with_both(profile, runs)
of_dpo, grpo = ({seed: run for (name, seed), run in runs.items() if name == arm} for arm in ("dpo", "grpo"))
trained = [*starts.values(), *runs.values()]
there = [setup, *trained]
apart = study.variants(profile, there)
beside = {(variants.called(run.arm, run.variant), run.seed): run for run in apart if run.arm in NAMES}
twice = {(name, seed): other for (name, seed), run in runs.items() for other in records.reruns(run)[:1]}
behind = [*there, *apart, *twice.values()]
n = int(setup.checkpoints["n"].iloc[-1])
exact_base = float((setup.checkpoints["exact"] / setup.checkpoints["n"]).iloc[-1])
curves = {key: compare.curve(run, starts[run.seed]) for key, run in runs.items()}
exact_start = {seed: float(curve.points["accuracy"][0]) for (_, seed), curve in curves.items()}

# %%
kind, devices = study.devices(profile, trained)
device = " and ".join(devices)
unit, per_hour = cost.axis(kind, max(curve.end_hours for curve in curves.values()))
show.units["here"] = show.Units(per_hour, kind, price_per_hour, price_currency)
show.units["published"] = show.Units(1, "cuda", their["usd_per_hour"], "USD")
price = f"{cost.show_price(price_per_hour, price_currency)} an hour ({price_currency}, {price_device}, {price_date})"

# %% [markdown]
# Tables are laid out from numbers, ours above the published study's; each has its numbers at full precision behind its
# download link.

# %% tags=["hide-input"]
show.notes(
    {
        "profile": profile,
        "device": device,
        "unit": unit,
        "model": model_name,
        "text": text_name,
        "bound": f"{max_unaccounted:.0%}",
        "n": n,
        "seeds": "one seed" if len(wanted) == 1 else f"{len(wanted)} seeds",
        "alpha": alpha,
        "interval": f"{100 * (1 - alpha):g}%",
        "draws": f"{resamples:,}",
        "draw_seed": resample_seed,
        "resamples": f"{resamples:,} draws, random seed {resample_seed}",
        "smooth_steps": smooth_steps,
        "price": price if kind == "cuda" else "not priced: a CPU ran",
        "currency": price_currency,
        "base_accuracy": accuracy(exact_base),
        "start_accuracy": by_seed({seed: accuracy(share) for seed, share in exact_start.items()}),
    }
    | phrases.published(published)
)

# %% [markdown]
# ## What each arm reached
#
# First what stands on the bill: the parameters `count_...` say it, and every table and figure below follows. Trials can
# be added only where they ran on the runs' own device.

# %%
path = RESULTS / setup.info["profile"] / "trials.csv"
recorded_trials = records.trials(path)
addable = recorded_trials is not None and set(recorded_trials["device"]) <= set(devices)
rule = {
    "pair_sampling": count_pair_sampling,
    "start": count_start,
    "base_evaluation": count_base_evaluation,
    "resumes": count_resumes,
    "tuning": count_tuning,
}
if count_tuning and not addable:
    raise ValueError(f"count_tuning: profile {profile} has no trials on {device} (trials.csv) that could be billed")


def under(rule, curves, runs, begun=None):
    """Curves of some runs with their hours under a rule of the bill; begun: from what, if not from its seed's start."""
    start = begun or {key: starts[curve.seed] for key, curve in curves.items()}
    return {
        key: compare.repriced(curve, cost.hours_under(rule, runs[key], start[key], setup, recorded_trials))
        for key, curve in curves.items()
    }


as_billed, curves = curves, under(rule, curves, runs)
print(cost.rule_text(rule))

# %% [markdown]
# *Last* is the final checkpoint. *Best* was chosen after the fact on the documents it is scored on, so it flatters. The
# test compares last with the shared start. *From scratch* adds what the start cost.

# %%
start_hours = {seed: cost.total_hours([start]) for seed, start in starts.items()}
final = compare.final_table(curves, dict.fromkeys(starts, 0.0) if count_start else start_hours)
change = {arm: outcomes.of_rows(rows, alpha) for arm, rows in final.groupby("arm")}
change

# %% tags=["hide-input"]
show.table("final", show.beside(final, published["final"], "arm"), layouts.FINAL)
by_point = [compare.standard_error(p.exact, p.n) for curve in curves.values() for p in curve.points.itertuples()]
for arm, rows in final.groupby("arm"):
    show.notes({f"last_{arm}": (rows, phrases.last), f"best_{arm}": (rows, phrases.best)})
    show.notes({f"gain_{arm}": (rows, phrases.gain)})
show.notes(
    {
        "rule": cost.rule_text(rule),
        "standard_error": f"{100 * max(by_point):.1f} points",  # of any checkpoint on the curves
        "start_cost": by_seed({seed: spent(hours) for seed, hours in start_hours.items()}),
        "runs": len(there),
        "total_cost": spent(cost.total_hours(there)),
        "evaluation_cost": spent(cost.total_hours(there, "evaluation_s")),
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
show.table("equal_spend", show.beside(equal_spend, published["equal_spend"], "of"), layouts.equal_spend(of_dpo))
show.notes({"headline": headline, "equal_spend": (decisive, phrases.equal_spend)})

# %% [markdown]
# One budget can be lucky. So: the same comparison at every checkpoint that A saved, Holm over the budgets of a seed.

# %%
all_budgets = compare.all_budgets_table(curves, both, alpha)

# %% tags=["hide-input"]
show.table("all_budgets", show.beside(all_budgets, published["all_budgets"]), layouts.ALL_BUDGETS)
show.notes({"all_budgets": (all_budgets, phrases.all_budgets)})

# %% [markdown]
# Now every pair, at every budget at which either of the two saved a checkpoint and both still ran. The test is the
# verdict, Holm over the budgets of one pair and seed. Beside it stands how large the difference is: its interval comes
# from the same documents drawn again with replacement, all runs judged on the same draw, and covers that sampling
# alone. And how small a difference could have been seen: the smallest that is significant among as many disagreements,
# and the smallest true one that a single test shows four times in five.

# %%
drawn = precision.draws(curves, resamples, resample_seed)
every_budget = precision.add_interval(budgets.table(curves, wanted), curves, drawn, 1 - alpha)
every_budget = precision.add_smallest(every_budget, n, alpha)
by_pair = budgets.summary(every_budget, alpha)

# %% tags=["hide-input"]
show.table("budgets", by_pair, layouts.BUDGETS, csv=every_budget)
titles = {pair: f"{LETTERS[pair[0]]} minus {LETTERS[pair[1]]}" for pair in budgets.PAIRS}
told = {pair: by_pair[(by_pair["left"] == pair[0]) & (by_pair["right"] == pair[1])] for pair in budgets.PAIRS}
show.notes({"differences": (told["sft", "grpo"], phrases.difference), "detectable": phrases.detectable(every_budget)})
show.figure(
    "differences",
    plots.differences,
    every_budget.assign(spent=per_hour * every_budget["budget_hours"]),
    *(titles, LETTERS, unit, alpha),
    by_pair="; ".join(f"{titles[pair]} {per_seed(rows, layouts.difference)}" for pair, rows in told.items()),
)

# %% [markdown]
# Seeds are not averaged. What lies between two seeds of one arm, and, where a run was trained again under its own seed,
# between the two, is the variation that no test over documents sees.

# %%
again = {
    key: [under(rule, {0: compare.curve(other, starts[run.seed])}, {0: other})[0] for other in records.reruns(run)]
    for key, run in runs.items()
}
variation = budgets.variation(curves, again)

# %% tags=["hide-input"]
show.table("variation", variation, layouts.VARIATION)
show.notes({"variation": phrases.between_seeds(variation), "rerun": phrases.reruns(variation)})

# %% [markdown]
# The other pairs, each at the most that both have spent, and the order at the arms' own ends, where the spend differs.

# %%
pairs = compare.pairs_table(curves, wanted)

# %% tags=["hide-input"]
show.table("pairs", pairs, layouts.OTHER_PAIRS)

# %% [markdown]
# ## Reach and hold
#
# An arm reaches a target at the first checkpoint from which it stays at or above it. First touch asks for less, and
# stands beside because many plots suggest it. An arm that was there at the start spent nothing, and has no multiple.

# %%
from lib.report import reach

reached = reach.table(curves, both, targets)
for arm in NAMES:
    reached[f"{arm}_price"] = [cost.price(hours, kind, price_per_hour) for hours in reached[f"{arm}_hours"]]
of_c, of_a = reached[reached["of"] == "C's last"], reached[reached["of"] == "A's last"]

# %% tags=["hide-input"]
show.table("reach_hold", show.beside(reached, published["reach_and_hold"], "of"), layouts.reach_hold(of_dpo))
show.notes({"reach_c": (of_c, phrases.reached), "reach_a": (of_a, phrases.reached)})

# %% [markdown]
# A multiple is a quotient of two moments, and each is where a noisy curve crosses a noisy line. So the documents are
# drawn again, and in each draw both curves, the target and the multiple are taken anew. *Never* keeps its place: below
# every number where A never arrives, above where only C never does, or where A was there at the start.

# %%
again_reached = reach.resampled(curves, drawn, both, targets, 1 - alpha)

# %% tags=["hide-input"]
show.table("reach_resampled", again_reached, layouts.REACH_RESAMPLED)
for how, rows in again_reached[again_reached["of"] == "C's last"].groupby("rule"):
    show.note(f"reach_again_{how}", per_seed(rows, phrases.reached_again))

# %% [markdown]
# ## Cost
#
# The curves of all runs on one axis, under the rule of the bill. Where the longest arm is much longer than the others,
# a second panel ends with the second-longest.

# %% tags=["hide-input"]
ends = sorted(max(curve.end_hours for curve in curves.values() if curve.arm == arm) for arm in NAMES)
told = [f"{NAMES[arm]} ends at {per_seed(rows, layouts.only('last', accuracy))}" for arm, rows in final.groupby("arm")]
points = pd.concat(c.points.assign(arm=c.arm, seed=c.seed, spent=per_hour * c.points["hours"]) for c in curves.values())
zoom = 1.05 * per_hour * ends[-2]
show.figure("cost_curves", plots.cost_curves, points, NAMES, unit, zoom, headline, ends="; ".join(told))

# %% [markdown]
# A rule of the bill is a choice. So the comparison is made again with each switch flipped: does the answer hang on it?

# %%
by_rule = {
    name: under(changed, as_billed, runs) if addable or not changed["tuning"] else None
    for name, changed in cost.other_rules(rule).items()
}
rules = budgets.under_rules(by_rule, both, alpha)
letters = {f"{left}_{right}": (LETTERS[left], LETTERS[right]) for left, right in budgets.PAIRS}
rules_verdict = outcomes.on_rules(rules, letters)
print(rules_verdict)

# %% tags=["hide-input"]
show.table("rules", rules, layouts.RULES)
show.notes({"rules_verdict": rules_verdict, "rules_multiple": phrases.multiple_by_rule(rules)})

# %% [markdown]
# How the runs came about. An interrupted run goes on from its last checkpoint; loading again and the work that was lost
# are shown, not billed.

# %% tags=["hide-input"]
folders = [records.shown(run.folder) for run in behind]
show.table("attempts", cost.attempts(behind).assign(record=folders), layouts.ATTEMPTS)

# %% [markdown]
# How the settings came about: what was tried on the development split, and which value the runs here used.

# %% tags=["hide-input"]
first = {run.arm: run for run in reversed(trained)}  # one run an arm, of its first seed
trials = None if recorded_trials is None else cost.tried(recorded_trials, first)
tried_s = 0 if trials is None else trials["billed_s"].sum()
show.table("trials", trials, layouts.TRIALS, billed=f"{tried_s:,.0f} s")
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
from lib.data import FIELDS
from lib.report import alarms, diagnose, errors, ledger, preference, variant_layouts
from lib.report.diagnose import joined

dpo = pd.DataFrame([{"seed": seed} | diagnose.dpo_ends(run.steps) for seed, run in of_dpo.items()])
dpo_variants = [
    {"seed": seed, "variant": name} | diagnose.dpo_ends(run.steps)
    for (name, seed), run in beside.items()
    if run.arm == "dpo"
]
displaced = {row.seed: None if pd.isna(row.displaced) else bool(row.displaced) for row in dpo.itertuples()}
dpo_verdict = across_seeds(
    {seed: diagnose.dpo_sentence(displaced.get(seed), change["dpo"].get(seed)) for seed in wanted},
    "DPO's log-probs were not measured",
)
print(dpo_verdict)

# %% tags=["hide-input"]
rows = pd.concat([dpo.assign(variant=None), pd.DataFrame(dpo_variants)])
show.table("dpo", show.beside(rows, published["dpo"]), layouts.DPO)
show.notes(
    {
        "dpo_verdict": dpo_verdict,
        "dpo_chosen": (dpo, layouts.change("chosen_logp")),
        "dpo_rejected": (dpo, layouts.change("rejected_logp")),
        "dpo_preference": (dpo, layouts.change("accuracy")),
        "dpo_task": (final[final["arm"] == "dpo"], lambda row: show.moved(row.start, row.last, ".4f")),
        "dpo_pushed_down": (dpo, lambda row: percent(row.pushed_down, ".0%")),
    }
)
own = ["step", *diagnose.DPO_MEASURES]
logged = {
    seed: None if known is None else diagnose.full_batches(of_dpo[seed].steps)[own] for seed, known in displaced.items()
}
show.figure("dpo", plots.dpo_training, joined(logged, smooth_steps))

# %% [markdown]
# The same on fixed pairs, some of the training pairs and pairs of held-out documents, judged alike at the shared start
# and at every checkpoint. *Displaced*: chosen answers got less likely, and in more than half of the pairs the chosen
# one gained on the rejected one. *Parted*: the same gain, and fewer exact records than at the start. Each condition
# needs a test below `preference.ALPHA` at that checkpoint, on held-out documents.

# %%
moved = joined(
    {
        seed: preference.with_alarms(run.likelihood, curves["dpo", seed]) if run.has("likelihood") else None
        for seed, run in of_dpo.items()
    }
)

# %% tags=["hide-input"]
few = moved if moved.empty else preference.first_middle_last(moved)
show.table("dpo_pairs", few, layouts.DPO_PAIRS, csv=moved)
show.figure("dpo_pairs", plots.dpo_pairs, moved)
heldout = moved if moved.empty else moved[(moved["set"] == "heldout") & (moved["step"] > 0)]
told = {
    "dpo_displaced": lambda rows: preference.alarm_phrase(rows, "displaced"),
    "dpo_parted": lambda rows: preference.alarm_phrase(rows, "parted"),
    "dpo_heldout": lambda rows: "chosen {chosen:+.2f}, rejected {rejected:+.2f} nats".format(**rows.iloc[-1]),
    "dpo_heldout_pushed_down": lambda rows: percent(rows["pushed_down"].iloc[-1], ".0%"),
}
show.notes({key: each_seed(heldout, tell, of_dpo) for key, tell in told.items()})
show.note("dpo_alarm_level", preference.ALPHA)

# %% [markdown]
# ### Which fields go wrong
#
# At the last checkpoint. The fields of an invalid completion, which is not a record at all, count in no column.

# %%
judged = {
    key: run for seed in wanted for key, run in ((("start", seed), starts[seed]), *runs.items()) if key[1] == seed
}
mistakes = diagnose.mistakes_table(judged)

# %% tags=["hide-input"]
show.table("errors", mistakes, layouts.ERRORS)
of_arms = mistakes[mistakes["arm"] != "start"]
low, high = of_arms["places_share"].min(), of_arms["places_share"].max()
show.note("places_share", f"{percent(low)} to {percent(high)}")

# %% [markdown]
# DPO against the shared start, field by field: which got worse, and how. Holm over the fields of all seeds.

# %% tags=["hide-input"]
field_changes = errors.field_changes(of_dpo, starts)
show.table("dpo_fields", field_changes, layouts.FIELD_CHANGES)
show.notes(
    {
        "dpo_worse": by_seed({seed: errors.most_worse(rows) for seed, rows in field_changes.groupby("seed")}),
        "dpo_fields_worse": each_seed(field_changes, lambda rows: errors.shown_worse(rows, alpha), unknown="none"),
    }
)

# %% [markdown]
# By checkpoint, for every arm.

# %% tags=["hide-input"]
by_checkpoint = pd.concat(
    errors.by_checkpoint(run, starts[seed]).assign(arm=arm, seed=seed) for (arm, seed), run in runs.items()
)
show.figure("mistakes", plots.mistakes_by_checkpoint, by_checkpoint, list(FIELDS), NAMES)

# %% [markdown]
# Fields that no arm has right at its last checkpoint. Where the labels are not known to be right, their number is an
# upper bound on what wrong labels cost; all arms giving one other answer is the sign to look for.

# %%
together = {
    seed: errors.ceiling({arm: errors.last_predictions(runs[arm, seed]) for arm in NAMES if (arm, seed) in runs})
    for seed in wanted
}
documents = records.heldout_at_hand(setup)
ceilings, examples = errors.ceiling_tables(together, documents)

# %% tags=["hide-input"]
show.table("ceiling", ceilings, layouts.CEILING)
order = " / ".join(arm for arm in NAMES if (arm, wanted[0]) in runs)
show.table("ceiling_examples", examples, layouts.EXAMPLES, order=order)
show.notes(
    {
        "ceiling": (ceilings, lambda row: f"{row.all} of the {row.any} fields that some arm has not right"),
        "ceiling_documents": by_seed({s: f"{c['documents']} of {n}" for s, (c, _) in together.items()}),
        "ceiling_labels": phrases.labels(documents),
    }
)

# %% [markdown]
# Places of birth alone, beside what a regular expression finds in the same documents (`lib.baseline`).

# %% tags=["hide-input"]
places = errors.birth_places(setup, judged)
show.table("birth_places", places, variant_layouts.BIRTH_PLACES)
labelled = setup.info["facts"].get("known")
show.notes(
    {
        "baseline": "not measured" if places is None else "{right} of {n}".format(**places.iloc[0]),
        "birth_place_nulls": "not measured" if labelled is None else f"{n - labelled['birth_place']} of {n}",
    }
)

# %% [markdown]
# ### Where each run's seconds went
#
# Every billed second is in one row; inside a step of a GPU run the device's clock decides. A part that no timer saw
# stays missing, and its time is unaccounted; above `max_unaccounted` the notebook stops. Other clocks check the sums:
# the device's events over all steps, and the system's clock over a whole attempt.

# %%
bills, by_run = cost.bill({run.name: run for run in trained}, max_unaccounted)
closed = ledger.table(trained)

# %% tags=["hide-input"]
timed_parts = [part for part in by_run.index if by_run["seconds"].loc[part].notna().any()]
show.table("bills", pd.DataFrame({"part": timed_parts}), layouts.bills(by_run), csv=bills)
show.table("ledger", closed, layouts.LEDGER)
passes = pd.concat([ledger.passes(run).assign(run=run.name) for run in trained], ignore_index=True)
show.table("passes", passes, layouts.PASSES)
show.table("work", closed, layouts.WORK)
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
headline_bill = phrases.costlier(trains_more.to_dict())
print(headline_bill)

# %% tags=["hide-input"]
theirs = pd.DataFrame(published["bill"]["rows"]).set_index("part")
seen = [part for part in parts.index if shares.loc[part].notna().any() or part in theirs.index]
alone = shares.drop(index=cost.TOGETHER)
of_bill = {"generation": generating, "training": training, "update": shares.loc[cost.TOGETHER]}
of_bill |= {"reward": shares.loc["reward function"], "remainder": shares.loc[cost.UNACCOUNTED]}
show.notes({f"bill_{key}": by_seed({s: percent(values[s]) for s in grpo}) for key, values in of_bill.items()})
show.notes(
    {
        "headline_bill": headline_bill,
        "checkpointing": phrases.checkpointing(grpo),
        "bill_total": by_seed({seed: spent(cost.total_hours([run])) for seed, run in grpo.items()}),
        "bill_most": by_seed({s: f"{alone[s].idxmax()} at {percent(alone[s].max())}" for s in grpo}),
        "published_bill": f"{theirs['seconds'].sum():,.0f} of {published['bill']['billed_s']:,.0f} s",
        "published_generation": percent(theirs["share"]["generation"]),
        "published_update": percent(theirs["share"][cost.TOGETHER]),
    }
)
show.note("remainders", " and ".join(sorted(cost.REMAINDERS - {cost.UNACCOUNTED})))
show.table("bill", pd.DataFrame({"part": seen}), layouts.bill(parts, theirs), csv=bill)
show.figure("bill", plots.time_shares, bill[bill["part"].isin(seen)])

# %% [markdown]
# One of these numbers, followed into the file of one run, and which phases of that file make which row of the bill.

# %%
example_seed, example = next(iter(grpo.items()))
by_phase = cost.by_phase(example.phases)
generated = by_phase[by_phase["phase"] == "generation"]
billed_s = example.info["billed_s"]

# %% tags=["hide-input"]
show.notes(
    {
        "example_seed": example_seed,
        "example_file": records.shown(example.folder / "phases.parquet"),
        "example_rows": f"{generated['n'].sum():,}",
        "example_seconds": f"{generated['seconds'].sum():,.2f} s",
        "example_billed": f"{billed_s:,.2f} s",
        "example_share": percent(generated["seconds"].sum() / billed_s),
        "example_outside": f"{billed_s - by_phase['seconds'].sum():z,.2f} s",
    }
)
show.table("phases", by_phase, layouts.PHASES)
show.table("files", ledger.files(example), layouts.FILES)

# %% [markdown]
# Tokens say why. The trainer takes every rollout's whole sequence, prompt included, through each of its passes, while
# generation pays for completions only.

# %% tags=["hide-input"]
tokens = pd.DataFrame([{"seed": s, "steps": len(run.steps)} | cost.tokens(run.steps) for s, run in grpo.items()])
tokens = show.beside(tokens, published["tokens"]).astype({"trainer": float, "generated": float})
tokens["ratio"] = tokens["trainer"] / tokens["generated"]
show.table("tokens", tokens, layouts.TOKENS)
for source, key in (("here", "token_ratio"), ("published", "published_token_ratio")):
    show.note(key, per_seed(tokens[tokens["source"] == source], lambda row: number(row.ratio, ".2g")))

# %% [markdown]
# ### GRPO: where the signal goes
#
# A group whose rollouts all got one reward, a *zero-variance group*, has advantage 0 and moves nothing. Tenths of the
# steps, as above. What could be avoided is an upper bound: the no-grad forward serves only the engine's
# importance-sampling correction (at beta 0 and one iteration a batch), and a zero-variance group need no training.

# %%
counted = {seed: diagnose.constant_groups(run) for seed, run in grpo.items()}
rows = [
    {"seed": seed} | diagnose.group_signal(counted[seed]) | cost.avoidable(run.phases, run.steps, run.info["billed_s"])
    for seed, run in grpo.items()
]
signal = pd.DataFrame(rows)
saturates = signal.set_index("seed")["rose"].reindex(wanted).to_dict()
told = {row["seed"]: diagnose.signal_sentence(row) for row in rows}
groups_verdict = across_seeds({seed: told.get(seed) for seed in wanted}, "Zero-variance groups were not counted")
print(groups_verdict)

# %% tags=["hide-input"]
show.table("groups", show.beside(signal, published["groups"]), layouts.GROUPS)
show.table("signal", diagnose.signal_table(counted), layouts.signal(list(grpo)))
show.notes(
    {
        "groups_verdict": groups_verdict,
        "zero_variance": (signal, layouts.tenths),
        "wasted": across_seeds({seed: phrases.wasted(run) for seed, run in grpo.items()}, "not measured"),
        "signal_nograd": (
            "no such pass was timed" if signal["nograd"].isna().all() else (signal, layouts.only("nograd", percent))
        ),
    }
    | {f"groups_all_{w}": (signal, layouts.only(f"constant_{w}", percent)) for w in ("right", "between", "wrong")}
    | {f"signal_{key}": (signal, layouts.only(key, percent)) for key in ("zero_all", "gradient_zero", "constant")}
)
by_step = {s: diagnose.by_step(counted[s]) if pd.notna(known) else None for s, known in saturates.items()}
show.figure("groups", plots.group_signal, joined(by_step, smooth_steps))

# %% [markdown]
# ### GRPO: the same gradient for less
#
# `lib.lean` leaves out of TRL's step what cannot change its gradient; `lib.bench.grpo_step` timed both in one process,
# in turn, on one engine. The bench is its own record, whatever the profile. Its sessions had different code, so two
# trainers are compared within one session only: the newest that timed both.

# %%
from lib.report import bench_layouts, bench_phrases, benches, projection, upstream

measured, sessions = benches.grpo_step()
faster, switches = benches.pairs(measured), benches.grid(measured, sessions)

# %% tags=["hide-input"]
show.table("lean", faster, bench_layouts.LEAN, csv=measured)
show.table("step_sessions", benches.sessions({"grpo_step": (measured, sessions)}), bench_layouts.SESSIONS)
show.table("lean_grid", switches, bench_layouts.GRID)
show.table("agreement", benches.agreement(sessions), bench_layouts.AGREEMENT)
show.notes(bench_phrases.lean(faster, sessions))
show.note("timers_ab", bench_phrases.timers(benches.timers()))

# %% [markdown]
# Where a step's seconds go in each trainer, with timers inside; what a step cannot go below; and the way from one
# trainer to the other, a saving at a time. The order of the savings matters: what one saves depends on those before it.

# %%
bench_phases = benches.phases(measured)
by_part, gap = benches.side_by_side(bench_phases), benches.floor(bench_phases, sessions)
chain = benches.waterfall(measured, sessions)
cut = benches.not_reached(chain, sessions)

# %% tags=["hide-input"]
show.table("lean_phases", by_part.rename_axis("part").reset_index(), bench_layouts.by_variant(by_part))
show.table("lean_floor", gap.rename_axis("part").reset_index(), bench_layouts.by_variant(gap))
show.table("waterfall", chain, bench_layouts.WATERFALL)
show.notes(bench_phrases.floor(gap) | bench_phrases.waterfall(chain, cut))
show.figure("waterfall", plots.waterfall, chain, cut, ends=show.told["waterfall_ends"])

# %% [markdown]
# Does a step cost what the study's count says, prompt tokens times rollouts times passes? Work and seconds by shape.

# %% tags=["hide-input"]
show.table("shapes", bench_phases, bench_layouts.SHAPES)
show.notes(bench_phrases.shapes(bench_phases))

# %% [markdown]
# The published bill and multiples under other trainers: each part of the published bill, scaled by the bench's ratio of
# that part. A projection, not a run; `lib.report.projection` lists what it assumes.

# %%
arm_steps, arm_sessions = projection.arm_step()
rates = projection.arm_rates(arm_steps)
other_bill = projection.bill(bench_phases, published)
other_multiples = projection.multiples(bench_phases, published, rates)

# %% tags=["hide-input"]
show.table("arm_rates", rates, bench_layouts.ARM_RATES)
show.table("arm_gradients", projection.arm_gradients(arm_sessions), bench_layouts.ARM_GRADIENTS)
show.table("projected_bill", other_bill, bench_layouts.projected(other_bill))
show.table("projected_multiples", other_multiples, bench_layouts.MULTIPLES)
show.notes(bench_phrases.projected(other_multiples, published, rates))

# %% [markdown]
# Two things found on the way, in TRL: what its weight sync leaves in the frozen base, and zero-variance groups that
# its own measure misses, in every recorded GRPO run of any profile.

# %%
drifted, missed = upstream.base_drift(), upstream.constant_groups(upstream.recorded_grpo())

# %% tags=["hide-input"]
show.notes(bench_phrases.drift(drifted) | bench_phrases.constant_groups(missed))
show.table("base_drift", drifted, bench_layouts.BASE_DRIFT)
show.table("constant_groups", missed, bench_layouts.CONSTANT_GROUPS)

# %% [markdown]
# ### GRPO: what the reward does not show
#
# Fields answered null where gold has a value, on held-out documents: at the start, at the first checkpoint, at the one
# with the most, and at the last. A policy may learn that null is safe while its reward stays high. The test compares,
# document by document, whether any field was so answered at the last checkpoint and at the start; Holm over the seeds.

# %%
nulls = diagnose.null_table(grpo, starts, {seed: [r for (_, s), r in judged.items() if s == seed] for seed in grpo})
at = nulls.set_index(["seed", "checkpoint"])
more_nulls = outcomes.of_rows(nulls[nulls["checkpoint"] == "last"], alpha)
null_verdict = phrases.null_verdict({seed: more_nulls.get(seed) for seed in wanted})
print(null_verdict)

# %% tags=["hide-input"]
rows = show.beside(nulls, published["nulls"])
for field, count in published["nulls"]["gold"].items():
    rows.loc[rows["source"] == "published", f"{field}_gold"] = count
show.table("nulls", rows, layouts.NULLS)
rates = joined({seed: diagnose.null_shares(run.steps) for seed, run in grpo.items()}, smooth_steps)
null_alarms = alarms.null_alarm_table({seed: run.steps for seed, run in grpo.items()})
raised = [(r.field, r.seed, r.alarm) for r in null_alarms.dropna(subset=["alarm"]).itertuples()]
show.notes(
    {
        "null_verdict": null_verdict,
        "nulls_moved": by_seed({seed: phrases.nulls_moved(rows) for seed, rows in nulls.groupby("seed")}),
        "nulls_peak": each_seed(rates, diagnose.peak_null, grpo),
    }
)
kinds = {"null": "answered null", "null_expected": "gold is null"}
show.figure("nulls", plots.field_rates, rates, list(FIELDS), kinds, raised)
kinds = {"missing": "null, gold has a value", "wrong": "another value than gold's", "spurious": "a value, gold is null"}
show.figure("rollout_mistakes", plots.field_rates, rates, list(FIELDS), kinds)

# %% [markdown]
# Would a rule have noticed? The null alarm is a CUSUM {cite}`page1954` on each field's null answers minus the nulls in
# gold. `lib.report.alarms` has it, and it was fixed before this table was first made. The table measures it on the
# recorded steps, drawn anew: how often it goes off for nothing, and how soon after a collapse of the published shape
# began.

# %% tags=["hide-input"]
any_field = null_alarms[null_alarms["field"] == "any"]
fields_alone = null_alarms[null_alarms["field"] != "any"]
show.table("null_alarm", null_alarms, layouts.NULL_ALARM)
show.notes(
    {
        "null_alarm_raised": each_seed(fields_alone, phrases.null_alarms, grpo),
        "null_alarm_delay": each_seed(fields_alone, phrases.null_alarm_delay),
        "null_alarm_false": each_seed(any_field, lambda rows: percent(rows["false_alarms"].item(), ".0%")),
        "null_alarm_rule": phrases.null_alarm_rule(),
    }
)

# %% [markdown]
# Reward against accuracy. The divergence alarm goes off at a checkpoint with significantly fewer exact records than the
# best one before it (exact test, p times the number of checkpoints, below `alpha`), while the reward has not fallen.

# %%
divergence = joined({seed: alarms.divergence(curves["grpo", seed], run.steps, alpha) for seed, run in grpo.items()})

# %% tags=["hide-input"]
rewards = {s: run.steps[["step", "reward"]] if "reward" in run.steps else None for s, run in grpo.items()}
show.table("divergence", divergence, layouts.DIVERGENCE)
show.figure("reward", plots.reward_and_accuracy, joined(rewards, smooth_steps), divergence)
show.note("divergence", each_seed(divergence, lambda rows: preference.alarm_phrase(rows, "alarm")))

# %% [markdown]
# ## Variants
#
# An arm's notebook run again with a few settings changed, or from another start. What differs is read off the two
# records. Each is compared at its own end: with the end of its arm's run of that seed, and with the checkpoint that it
# began from; exact tests, Holm over both tests of every variant and seed as one family. The bill is that of the rule
# above; a start that it counts is the run that the variant itself began from. Two that belong together, such as C and A
# from the weak start, are compared at the most that both have spent.

# %%
beside |= {(variants.called(name, "rerun"), seed): run for (name, seed), run in twice.items()}
known = {run.name: run for run in [*there, *apart]}
begun = {key: variants.begun_from(run, known) for key, run in beside.items()}
ends = under(rule, {key: compare.curve(run, begun[key]) for key, run in beside.items()}, beside, begun)
varied = variants.table(ends=ends, beside=beside, begun=begun, runs=runs, curves=curves)
varied = variants.add_interval(varied, precision.draws(curves | ends, resamples, resample_seed), n, 1 - alpha)
pairs_of_variants = variants.between(ends, wanted)

# %% tags=["hide-input"]
show.notes({"not_run": phrases.not_run({name for name, _ in beside}), "variants": phrases.variants(varied, alpha)})
show.note("lean_bills", phrases.lean_bills(varied))
show.table("variants", varied, variant_layouts.VARIANTS)
show.table("between", pairs_of_variants, variant_layouts.BETWEEN)

# %% [markdown]
# C's variants earn a reward too, some another one. Does the divergence alarm go off in them?

# %%
diverged = variants.divergence(ends, beside, alpha)

# %% tags=["hide-input"]
show.table("divergence_variants", diverged, variant_layouts.DIVERGENCE)
show.note("divergence_variants", phrases.diverged(diverged))

# %% [markdown]
# The comparison of the arms again, with lean runs in their places: what a cheaper trainer does to who leads, and to
# what holding C's last accuracy costs.

# %%
lean_rows = variants.by_trainer(curves, ends, both, alpha)

# %% tags=["hide-input"]
show.table("by_trainer", lean_rows, variant_layouts.BY_TRAINER)
show.note("multiple_by_trainer", phrases.multiple_by_trainer(lean_rows))

# %% [markdown]
# ## On a text from elsewhere
#
# The last checkpoints on documents of another text, of people who are in no document of this one. Its labels are null
# for some facts that the text states, so what fills a null is counted apart from what is right of the others. Tests:
# exact records, Holm over them.

# %%
from lib.report import outside

noted = outside.of(setup)
elsewhere = outside.judged({("base", ""): setup} | judged | beside, noted)
filled = outside.fields(elsewhere, noted)
outside_tests = outside.tests(elsewhere, wanted)

# %% tags=["hide-input"]
outside_path = setup.info["parameters"].get("outside_path", "")
arms = filled["name"].isin(("base", "start", *NAMES)) if len(filled) else []
show.table("outside", filled[arms], variant_layouts.OUTSIDE, csv=filled, path=outside_path)
show.table("outside_variants", filled[~arms] if len(filled) else filled, variant_layouts.OUTSIDE)
show.table("outside_tests", outside_tests, variant_layouts.OUTSIDE_TESTS)
show.note("outside", phrases.outside(filled))

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
    **variants.all_tests(varied),
}
on_wikipedia = outside.all_tests(outside_tests) if "wikipedia" in outside_path else {}  # as the quantities are called
verdicts = {name: outcomes.of_rows(rows, alpha) for name, rows in (tested | on_wikipedia).items()}
at_end = [verdicts["sft_over_grpo_at_end"], verdicts["grpo_over_dpo_at_end"]]
opposite = {HELD: WRONG, WRONG: HELD}
verdicts |= {
    "order_at_end": {s: outcomes.all_of([step.get(s, NOT_MEASURED) for step in at_end]) for s in wanted},
    "sft_never_behind": {r.seed: r.right_wins == 0 if r.compared else None for r in all_budgets.itertuples()},
    "sft_ahead_at_more_budgets": {r.seed: outcomes.more_wins(r) for r in all_budgets.itertuples()},
    "grpo_holds_later": {r.seed: outcomes.sooner(r) for r in of_c.itertuples()},
    "grpo_holds_sft_later": {r.seed: outcomes.sooner(r) for r in of_a.itertuples()},
    "dpo_below_start": {seed: opposite.get(o, o) for seed, o in verdicts["dpo_over_start"].items()},
    "displacement": {s: known if known is None else HELD if known else NOT_SHOWN for s, known in displaced.items()},
    "places_dominate": {s: share > 0.5 for s, share in of_arms.groupby("seed")["places_share"].min().dropna().items()},
    "training_dominates": trains_more,
    "groups_saturate": saturates,
    "entropy_falls": {row.seed: opposite.get(row.entropy_rose, row.entropy_rose) for row in signal.itertuples()},
}
show.note("entropy_verdict", phrases.entropy({seed: verdicts["entropy_falls"].get(seed) for seed in wanted}))
verdicts = {name: {s: outcomes.counted(result.get(s)) for s in wanted} for name, result in verdicts.items()}


# %%
from lib.report.predictions import brier, column, complete, load, of_tests, of_verdicts, scored, standing


def change_of(name):
    """{seed: last tenth - first tenth} of one of DPO's own measures."""
    return column(dpo.assign(change=dpo[f"{name}_last"] - dpo[f"{name}_first"]), "change")


quantities = {
    "exact_base": dict.fromkeys(wanted, exact_base),
    "exact_start": exact_start,
    "billed_hours_start": start_hours,
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
    pairs_of_arm = {s: (curves[arm, s], curves["sft", s]) for s in wanted if {(arm, s), ("sft", s)} <= set(curves)}
    quantities[f"bill_ratio_{arm}"] = {s: own.end_hours / sft.end_hours for s, (own, sft) in pairs_of_arm.items()}
for measure in ("zero_first", "zero_middle", "zero_last", "constant_right", "gradient_zero"):
    quantities[measure] = column(signal, measure)
of_bill = {"generation": "generation", "sync": "weight sync to the engine", "nograd": "no-grad forward"}
for name, part in (of_bill | {"update": cost.TOGETHER, "remainder": cost.UNACCOUNTED}).items():
    quantities[f"bill_{name}"] = shares.loc[part].to_dict()
for moment in at.index.unique("checkpoint"):
    quantities[f"nulls_{moment.replace(' ', '_')}"] = at.xs(moment, level="checkpoint")["all"].to_dict()
quantities |= variants.quantities(varied)
if on_wikipedia:
    for arm, rows in filled.assign(share=filled["exact"] / filled["n"]).groupby("name"):
        quantities |= {f"exact_wikipedia_{arm}": column(rows, "share")} if arm in ("start", *NAMES) else {}
    quantities |= of_tests(on_wikipedia, noted["documents"])
quantities = complete(quantities | of_verdicts(verdicts) | of_tests(tested, n), wanted)

# %% [markdown]
# A prediction may also name what runs that are planned, `lib.report.predictions.PLANNED`, would measure: it is not
# decidable until a run fills it in.

# %% tags=["hide-input", "hide-output"]
rows = [{"name": name} | {f"seed_{seed}": values.get(seed) for seed in wanted} for name, values in quantities.items()]
show.table("quantities", pd.DataFrame(rows), layouts.quantities(wanted))

# %% [markdown]
# ## What the published study found, asked of these runs
#
# The statements in `published.yaml` are the study's findings, taken as predictions for ours, and were fixed before any
# run here was recorded. A statement that one arm or checkpoint is better than another is scored by the exact test after
# Holm: held, wrong (the other way round), or not shown. The others are counted. Where one came out otherwise than in
# the study, `lib.report.causes` says what most likely made the difference, if its numbers bear it out.

# %% tags=["hide-input"]
from lib.report import causes

of_sft = [run for (arm, _), run in runs.items() if arm == "sft"]
likely = causes.likely(list(of_dpo.values()), of_sft, published, RESULTS)
for article, statements in published["findings"].items():
    if article == "source":
        continue
    found = pd.DataFrame([{"key": k, **f, "here": outcomes.outcome(verdicts[k])} for k, f in statements.items()])
    found = causes.add(found, verdicts, likely)
    show.table(f"findings_{article}", found, layouts.CAUSES if article == "cost_curves" else layouts.FINDINGS)
    here = found["here"].where(found["here"].isin(outcomes.OUTCOMES), "not alike in all seeds")
    show.note(f"findings_{article}", phrases.tally(here))

# %% [markdown]
# ## What the articles say, and what each sentence rests on
#
# Every sentence of the articles that judges is one of those glued above, and is made from its verdict: where the
# verdict turns, the sentence does. A row a sentence; one that rests on two tests has two.

# %%
claims = phrases.claims(verdicts, quantities)

# %% tags=["hide-input"]
show.table("claims", claims, layouts.CLAIMS)

# %% [markdown]
# ## What was predicted
#
# Each prediction of the file is one comparison of a quantity with a number or with another quantity. It is scored in
# every seed that has the quantity. The Brier score is (probability - outcome)^2, averaged over a prediction's seeds,
# then over predictions, so that a prediction counts once however many seeds it has; what cannot be decided is left out
# and counted. What its author had seen is no prediction: the project's own file is scored only on runs of its profile,
# and only if every one of them noted, when it began, that this was the file.

# %%
made_for, predicted = load(ROOT / predictions, quantities)
sha256, noted = records.file_sha256(ROOT / predictions), [run.info.get("predictions_sha256") for run in behind]
own_file = (ROOT / predictions).samefile(BOOK / "predictions.yaml")
blind = not own_file or (made_for == profile and set(noted) == {sha256})
scores = scored(predicted, quantities, blind)
score, known_before = brier(scores), standing(sha256, noted)
print(f"{score}; {known_before}")

# %% tags=["hide-input"]
scores["here"] = [by_seed({s: number(v, ".4g") for s, v in values.items()}) or "not run" for values in scores["values"]]
show.notes(
    {
        "predictions_profile": made_for,
        "predictions_standing": known_before,
        "predictions_score": phrases.predictions(score, scores),
    }
)
show.table("predictions", scores.drop(columns="values"), layouts.PREDICTIONS)

# %% [markdown]
# What the first article has a place for and these runs did not measure; its section on limits prints the list.

# %% tags=["hide-input"]
show.not_measured("cost_curves")

# %% [markdown]
# ## Recap
#
# The two articles print what was glued here, and nothing else. To ask another question, change a parameter above or add
# a target, and build the book again: nothing is trained for it.
