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
# # What fits, and what it will cost
#
# ## Question
#
# The other pages say what some runs cost. What would yours? Does a model fit on the cards at hand, under which method;
# how long does a step take; and what does a budget buy? Nothing is trained here and nothing needs a GPU: the formulas
# are `lib.sizing` and `lib.report.steptime`. What was measured stands beside them; what was not is called a
# formula.
#
# ## Departures
#
# An unpublished hardware note of a vendor asks the same of memory. It rests on the papers of DeepSeekMath
# {cite}`shao2024deepseekmath` and DeepSeek-R1, and on ZeRO. Its figures are reproduced below with the formula beside
# each. It counts model states alone; here activations, the output layer, the engine and its cache are counted too, and
# what decides is not what PyTorch allocates but what the driver reports in use.
#
# ## Parameters

# %% tags=["parameters"]
profile: str = "laptop"  # whose recorded curves the planner reads
seeds: list = []  # random seeds of these; empty: every seed that any arm has
tier_rows: int = 4  # of the tier table: sequences in a micro-batch on each card
tier_prompt: int = 512  # their prompts (tokens)
tier_completion: int = 512  # their completions (tokens)
tier_prompts: int = 8  # prompts whose rollouts are in flight on each card
tier_group: int = 8  # rollouts a prompt
budgets: list = []  # of the planner (device-hours); empty: parts and multiples of what the runs spent
dollars: list = []  # the same as amounts of money, on a GPU
labels: int = 0  # labelled documents at hand; 0: as many as were measured
start_accuracy: float = 0.0  # accuracy of your start (share of documents); 0: as measured
price_per_hour: float = 4.41  # price of one GPU (per hour)
price_currency: str = "USD"  # its currency (ISO 4217)

# %% [markdown]
# ## Data
#
# The sizes of some models are in `book/models.yaml`: the fields of each one's `config.json`. Any other one can be read
# in the same way, `sizing.read(json.load(open("config.json")))`, dense or a mixture of experts.

# %%
import pandas as pd

from lib import sizing
from lib.report import bench_layouts, benches, layouts, show, sizes, study
from lib.report.show import percent

models = sizing.models()
counted = pd.DataFrame([{"model": name} | sizing.parameters(shape) for name, shape in models.items()])
counted["adapter"] = [sizing.adapter_parameters(shape, rank=16) for shape in models.values()]
counted["cache_kib"] = [sizing.kv_cache(shape, 1, 1, 0, 1) / 1024 for shape in models.values()]

# %% [markdown]
# Parameters are counted by formula; the sums are the published ones, which a test compares. The cache is what one token
# of a rollout keeps while it is generated: keys and values, two bytes each, of every layer.

# %% tags=["hide-input"]
millions = {"all": "total", "in linear layers": "linear", "embedding": "embedding", "used by a token": "active"}
columns = {"model": lambda row: row.model}
columns |= {title: layouts.only(name, lambda v: f"{v / 1e6:,.0f}") for title, name in millions.items()}
columns |= {"LoRA, rank 16": lambda row: f"{row.adapter / 1e6:,.1f}"}
columns |= {"cache of a token (KiB)": lambda row: f"{row.cache_kib:,.0f}"}
show.table("models", counted, columns)

# %% [markdown]
# What is called measured comes from two benches, `lib.bench.memory` and `lib.bench.grpo_step`, in these sessions:

# %% tags=["hide-input"]
benches_read = {"memory": sizes.measured(), "grpo_step": benches.grpo_step()}
show.table("bench_sessions", benches.sessions(benches_read), bench_layouts.SESSIONS)

# %% [markdown]
# ## Memory, term by term
#
# With $h$ the hidden width, $q$ and $k$ the widths of all query and of all key-value heads, $a$ query heads, $f$ the
# width of the MLP, $L$ layers, $r$ the rank of an adapter:
#
# - **State.** $P (b_w + b_g + b_m + b_o)$ bytes for $P$ trained parameters: weight, gradient, master copy, moments.
#   ZeRO {cite}`rajbhandari2020zero` divides the last two by the cards at stage 1, the gradient at 2, the weight at 3,
#   as FSDP does. A frozen base is $2 P$, and about $0.52 P$ in its linear layers with QLoRA {cite}`dettmers2023qlora`.
# - **Activations.** What a layer keeps for its backward pass, a token, counted as Korthikanti et al. do
#   {cite}`korthikanti2023reducing` under bf16 autocast: $16 h + 4 q + 4 k + 8 f + 4 a + 8$ bytes with trained bf16
#   weights, $18 h + 6 q + 4 k + 8 f + 14 r + 4 a + 8$ with LoRA. More with query-key norms, with a padding mask (keys
#   and values are repeated, each layer keeps its own mask) and with float32 weights. A test compares the sum with what
#   PyTorch keeps on a CPU, byte for byte. Recomputation keeps $2 h$ a layer, and one layer whole.
# - **Output layer.** TRL never holds the logits: a tile of 4,096 tokens by 32,768 entries at a time, and float32 sums
#   of the gradients, $4 h$ a scored token and, where the layer is trained, $4 V h$.
# - **Rollouts.** Another $2 P$ in the engine, and $4 L k$ a token of keys and values; those of a prompt are shared by
#   its group {cite}`kwon2023pagedattention`.
# - **Reference, critic, reward model.** A copy of the weights; the whole state and its activations again; another
#   model's weights.
#
# The peak is the largest of a few moments: the end of the forward pass, the backward of the output layer, of the last
# layer, of the first, and the moment when all gradients are there.

# %%
seven = models["Qwen2.5-7B"]
work = sizing.batch("grpo", 16, 327, 44)
rows = []
for update, checkpointing in (("lora", True), ("lora", False), ("full", True), ("full", False)):
    how = dict(states="16", checkpointing=checkpointing)
    parts = sizing.training(seven, "grpo", update, *work, **how)
    rows.append(dict(update=update, checkpointing=checkpointing) | parts)
peaks = pd.DataFrame(rows)

# %% tags=["hide-input"]
columns = {"update": lambda row: row.update}
columns |= {"activations": lambda row: "recomputed" if row.checkpointing else "kept"}
for name in ("weights", "optimizer", "gradients", "activations", "head", "allocated"):
    title = {"head": "output layer"}.get(name, name)
    columns[title] = lambda row, name=name: f"{getattr(row, name) / sizing.GIB:.2f}"
columns |= {"peak at": lambda row: "output layer" if row.moment == "head" else row.moment}
show.table("peaks", peaks, columns)

# %% [markdown]
# ## The hardware note, figure by figure
#
# A full update keeps, a parameter, its weight, its gradient and what AdamW remembers. How many bytes that is, is a
# convention, and the note's is one of several.

# %% tags=["hide-input"]
columns = {"bytes a parameter": lambda row: f"{row.bytes:.0f}", "convention": lambda row: row.states}
columns |= layouts.written_as(".0f", {name: name for name in ("weights", "gradients", "master", "moments")})
columns |= layouts.written_as(".1f", {"7.0 billion (GB)": "gb", "Qwen2.5-7B (GB)": "real_gb"})
show.table("conventions", sizes.conventions(models["Qwen2.5-7B"]), columns)

# %% tags=["hide-input"]
columns = {"of": lambda row: row.what, "the note (GB)": lambda row: row.note, "formula": lambda row: row.formula}
columns |= layouts.written_as(".1f", {"by formula (GB)": "value", "with the model's own count": "real"})
show.table("note", sizes.note(models), columns)

# %% [markdown]
# Where the note is unclear or wrong:
#
# - Its sum holds, and its convention is nobody's default. Float32 moments beside bf16 weights, with no float32 copy of
#   the weights, is neither mixed precision (ZeRO {cite}`rajbhandari2020zero` keeps the copy) nor what PyTorch does with
#   bf16 weights, whose AdamW keeps bf16 moments. TRL's default for a model given by name is float32 weights.
# - It takes billions of parameters from the model's name; the counts are above.
# - *Not on one card* hangs on both: the table of conventions spans a factor of more than two.
# - A reference model is named for GRPO at large; at beta 0, TRL's default, there is none, and with LoRA it is the model
#   itself with its adapter switched off. A reward by rule needs no reward model.
# - Logits are not mentioned, and need not be: TRL's output layer makes them tile by tile. Where they are whole, they
#   can be the largest single tensor.
# - *Scrapes onto one 48 GB card* (LoRA, 7 billion) is told without a length. Below, it depends on the activations and
#   on the engine's share, not on the state.

# %% [markdown]
# ## Predicted against measured
#
# `lib.bench.memory` trains models of random weights with TRL's own trainers on a GPU and notes the most that PyTorch
# had allocated, and what the driver reports in use on the device: context, the allocator's reserve and the engine
# included. Its configurations were fixed, and predicted by the formulas alone, before the first was measured
# (`book/memory_predicted.csv`). Those of role *fit* may then fit four constants that no formula knows; the others,
# *held out*, score both.

# %%
measured, sessions = sizes.measured() or (None, [])
constants = None if measured is None else sizes.fit(measured, models)
compared = None if measured is None else sizes.beside(measured, models, constants)
print(f"allocated, predicted before: {sizes.told(compared, 'before_error')}")
print(f"allocated, with fitted constants: {sizes.told(compared, 'fitted_error')}")
print(f"in use, predicted before: {sizes.told(compared, 'before_nvml_error')}")
print(f"in use, with fitted constants: {sizes.told(compared, 'nvml_error')}")
print(f"fits or not, in use as predicted before: {sizes.fits_told(compared)}")

# %% tags=["hide-input"]
columns = {
    "configuration": lambda row: row.configuration.replace("_", " ").replace("bfloat16", "bf16"),
    "role": lambda row: row.role.replace("_", " "),
}
columns |= layouts.written_as(".1f", {"allocated, predicted (GiB)": "before_gib"})
columns |= {"measured": sizes.measured_or_why} | layouts.written_as("+.1%", {"error": "before_error"})
columns |= layouts.written_as(".1f", {"in use, predicted (GiB)": "before_nvml_gib", "in use": "in_use_gib"})
columns |= layouts.written_as("+.1%", {"its error": "before_nvml_error", "error, fitted": "nvml_error"})
device = sorted({session["device"]["name"] for session in sessions})
show.notes(
    {
        "memory_in_use": sizes.told(compared, "nvml_error"),
        "memory_fits": sizes.fits_told(compared),
        "memory_device": " and ".join(device) or "no device",
        "memory_constants": ", ".join(f"{k} {v:.3g}" for k, v in (constants or {}).items()) or "not fitted",
    }
)
show.table("memory", compared, columns)

# %% [markdown]
# ## What fits
#
# Each verdict is a number of bytes below a card's. State is sharded by ZeRO-3 over the cards, activations are
# recomputed, and an engine, spread over the cards, sleeps while the trainer trains. A full update takes 16 bytes a
# parameter. *With offload*: with the optimizer, or the weights as well, in the host's memory, whose size is not
# checked; it costs time that is not estimated here. Sharding, offload, a sleeping engine, QLoRA, PPO and mixtures of
# experts are formulas alone: the measurements above are of one card and of dense models.
# Where constants were fitted, these verdicts use them.

# %%
job = dict(rows=tier_rows, prompt=tier_prompt, completion=tier_completion, prompts=tier_prompts, group=tier_group)
large = {name: shape for name, shape in models.items() if name != "SmolLM2-135M"}  # which fits everywhere
known = constants or sizing.CONSTANTS
tiers = sizes.tiers(large, constants=known, **job)

# %% tags=["hide-input"]
columns = {"model": lambda row: layouts.unbroken(row.model)}
columns |= {"update": lambda row: row.update, "method": lambda row: row.method.upper()}
for n, size in sizes.CARDS:
    columns[f"{n} x {size}"] = layouts.only(f"on_{n}x{size}", sizes.SHORT.get)
show.note("tier_job", f"{tier_rows} x ({tier_prompt} + {tier_completion})")
show.note("tier_rollouts", f"{tier_prompts} x {tier_group}")
show.table("tiers", sizes.wide(tiers), columns, csv=tiers)

# %% [markdown]
# The note's own tiers, asked of the formulas: at its 12 bytes a parameter and at 16, with these lengths and, for its
# *long chains*, with completions of 8,192 tokens, one sequence in a micro-batch, and 8 rollouts in flight on each card:
# over eight cards, the 64 that DeepSeekMath samples for a prompt. An engine queues what has no room in its cache.

# %%
note_tiers = sizes.note_tiers(models, constants=known, **job)

# %% tags=["hide-input"]
columns = {"the note": lambda row: row.tier, "set-up": lambda row: row.what}
columns |= {"12 bytes": lambda row: row.at_12, "16 bytes": lambda row: row.at_16}
columns |= layouts.written_as(".1f", {"in use at 16 (GiB a card)": "used_gib"})
show.table("note_tiers", note_tiers, columns)

# %% [markdown]
# ## Seconds of a GRPO step
#
# A step is a sum of terms: arithmetic of the passes, casts around an adapter, layers launched in each micro-batch,
# decoding layer by layer and reading the weights for each token, weights sent to the engine, and what is fixed for each
# trainer. The amounts follow from shape and lengths; `lib.report.steptime` has the formulas. What a unit costs is
# fitted part by part on steps with timers inside, of shapes that were named before they were measured, and scored on
# whole steps and on the other shapes. Where the measured cells do not tell the rates apart nothing is fitted, and
# neither this chapter nor the interactive page gives seconds.

# %%
from lib.report import steptime

steps, notes = benches.grpo_step()
cells = steptime.cells(steps, notes, models)
rates = steptime.fit(cells)
timed = None if rates is None else steptime.scored(cells, rates)
print(steptime.told(timed))

# %% tags=["hide-input"]
columns = {"case": lambda row: row.case, "trainer": lambda row: row.variant}
columns |= {"zero-variance groups": lambda row: f"{row.dead_share:.0%}"}
columns |= {
    "steps": lambda row: "timers inside" if row.timed else "whole",
    "role": lambda row: "fit" if row.fit else "-" if row.case in steptime.FITTED else "held out",
}
columns |= layouts.columns({"n": "n"}, layouts.counts)
columns |= layouts.written_as(".2f", {"measured (s)": "seconds", "predicted": "predicted"})
columns |= layouts.written_as("+.1%", {"error": "error"}) | bench_layouts.SESSION
show.notes(
    {
        "steptime": steptime.told(timed),
        "steptime_rates": ", ".join(f"{k} {v:.3g}" for k, v in (rates or {}).items()) or "not fitted",
    }
)
show.table("steptime", timed, columns)

# %% [markdown]
# From there, the published set-up: its share of generation and sync, and from which mean completion on generating takes
# half of a step. Other GPUs than the one of the bench are computed from their datasheets' rates of arithmetic and of
# memory; nothing was measured on them.

# %%
shape = models["Qwen3-1.7B"]
ways = {"stock": dict(lean=False), "all savings": dict(lean=True)}
ways["all savings, 0.9 zero-variance"] = dict(lean=True, dead=0.9)
rows = []
for gpu in steptime.GPUS if rates else ():
    for way, how in ways.items():
        parts = steptime.step(shape, rates, 327, 44, gpu=gpu, **how)
        shares = {f"{name}_share": parts[name] / parts["step"] for name in ("generation", "sync", "training")}
        row = {"gpu": gpu, "how": "fitted" if gpu == steptime.MEASURED_ON else "datasheet", "way": way}
        row |= parts | {"both_share": shares["generation_share"] + shares["sync_share"]} | shares
        rows.append(row | {"crossing": steptime.crossing(shape, rates, 327, gpu=gpu, **how)})
lengths = pd.DataFrame(rows)

# %% tags=["hide-input"]
columns = {"GPU": lambda row: row.gpu, "rates": lambda row: row.how, "trainer": lambda row: row.way}
columns |= layouts.written_as(
    ".2f", {"step (s)": "step", "generation (s)": "generation", "sync (s)": "sync", "training (s)": "training"}
)
columns |= layouts.written_as(".1%", {"generation and sync": "both_share"})
columns |= layouts.written_as(",.0f", {"generation is half from (tokens)": "crossing"})
published = study.published()
its_steps, bill = published["tokens"]["rows"][0]["steps"], published["bill"]
a_step = {row["part"]: row["seconds"] / its_steps for row in bill["rows"]} | {"step": bill["billed_s"] / its_steps}
theirs = {"generation": a_step["generation"], "sync": a_step["weight sync to the engine"], "step": a_step["step"]}
theirs["training"] = sum(s for part, s in a_step.items() if "forward" in part or "backward" in part)
theirs["both_share"] = (theirs["generation"] + theirs["sync"]) / theirs["step"]
theirs |= {"gpu": published["setup"]["device"], "how": "published", "way": "stock", "crossing": None}
show.note("published_both", percent(theirs["both_share"]))
show.table("crossing", pd.concat([pd.DataFrame([theirs]), lengths]) if len(lengths) else lengths, columns)

# %% [markdown]
# ## What a budget buys
#
# Read off the recorded curves of the profile: each arm at its newest checkpoint within the budget, with an interval
# that covers the sampling of documents and spans the seeds. *Ended*: its run had ended, and what is left of the budget
# is saved. *Start*: it had saved nothing by then. Where intervals overlap, or the question lies outside what was
# measured (a longer run, fewer labels, another start), the answer is *not decidable*. It says nothing about another
# model, text or task.

# %%
from lib.report import compare, cost, planner
from lib.report.outcomes import by_seed

wanted, setup, starts, runs = study.read(profile, seeds)
kind, _ = study.devices(profile, [*starts.values(), *runs.values()])
curves = {key: compare.curve(run, starts[run.seed]) for key, run in runs.items()}
measured_labels = setup.info["parameters"].get("n_pool")
ends = sorted(curve.end_hours for curve in curves.values())
if dollars and (budgets or kind != "cuda"):
    raise ValueError(f"dollars: got {dollars} with budgets {budgets} on {kind}; expected budgets or, on a GPU, dollars")
if wrong := [amount for amount in dollars if type(amount) not in (int, float) or not 0 < amount < float("inf")]:
    raise ValueError(f"dollars: got {wrong[0]!r}, expected amounts of money above 0")
asked = budgets or [amount / price_per_hour for amount in dollars]
asked = asked or [0.25 * ends[0], 0.5 * ends[0], ends[0], ends[-1], 2 * ends[-1]]
outside = planner.inputs_outside(curves, labels or None, start_accuracy or None, measured_labels)
planned = planner.plan(curves, asked, outside)

# %% tags=["hide-input"]
unit, per_hour = cost.axis(kind, max(ends))
columns = {"budget": lambda row: cost.show_hours(row.hours, per_hour)}
columns |= {"price": lambda row: cost.show_price(cost.price(row.hours, kind, price_per_hour), price_currency)}
for arm, name in compare.NAMES.items():
    values = (arm, f"{arm}_low", f"{arm}_high", f"{arm}_note")
    columns[name] = lambda row, values=values: planner.shown(*(getattr(row, value) for value in values))
columns |= {"verdict": lambda row: row.verdict}
even = planner.break_even(curves, "grpo", "sft")
show.notes(
    {
        "plan_unit": unit,
        "plan_break_even": by_seed({s: cost.show_hours(h, per_hour) for s, h in even.items()}) or "not measured",
    }
)
show.table("plan", planned, columns)

# %% [markdown]
# ## The interactive page
#
# [What would yours take?](../sizing.md) computes with the same formulas, written down for the browser by
# `lib.report.expressions`. The exercises below it take their answers from here, too.

# %%
from IPython.display import HTML

from lib.report import page, quiz

on_page = {name: models[name] for name in ("Qwen3-1.7B", "SmolLM2-135M", "Qwen2.5-7B", "Qwen2.5-14B")}
show.glue("page", HTML(page.render(on_page, known, rates, rates and steptime.measured(cells))), display=False)
show.glue("exercises", HTML(quiz.render(quiz.exercises(models, known))), display=False)

# %% [markdown]
# ## Recap
#
# Memory is a sum of terms that can be written down; what cannot are four constants, and they are fitted on some
# measurements and scored on others. Seconds are terms, too, with rates that only measured steps can give. What a budget
# buys is not a formula: it is what some runs showed, and this chapter says where that ends.
