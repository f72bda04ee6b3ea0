# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # GRPO: arm C, with every phase timed
#
# **Question.** What does a rule-checked reward buy for each hour, and where do the hours go? And how many groups of
# rollouts carry any signal at all?
#
# **Departures from the published study** {cite}`fan2026curves`: model, text and sizes are the profile's. The trainer is
# TRL's own, unchanged, or with `lean` one that leaves out the work that cannot change its gradient (`lib.lean`); its
# methods are timed on this one instance.

# %% tags=["parameters"]
profile: str = "laptop"  # which profile these parameters belong to
judged_split: str = "heldout"  # documents that judge the checkpoints (dev when settings are being chosen)
max_unaccounted: float = 0.02  # largest part of a bill that may be under no timer (share); no part of any run
seed: int = 0  # seed of data order and rollouts
start_from: str = "start"  # whose last weights to begin from: start, sft, start-weak (runs of the seed), or base
lora_rank: int = 0  # from the base model: rank of the fresh LoRA adapter (0: full fine-tuning)
lora_alpha: int = 32  # from the base model: LoRA scale is lora_alpha / lora_rank
labels: bool = True  # the reward reads the gold record; without, it sees schema and support by the text alone
hard_samples: int = 0  # only prompts with a wrong one among so many samples, billed (0: all prompts)
variant: str = ""  # name of this run beside the arm's own, such as lean ("": the own one); no part of any run
gradient_checkpointing: bool = False  # recompute activations in the backward pass (TRL's default is true)
prompts_per_step: int = 8  # prompts (groups) an optimizer step
group_size: int = 8  # rollouts a prompt
micro_batch_rollouts: int = 64  # rollouts in one forward and backward pass
grpo_temperature: float = 1.0  # sampling temperature of the rollouts
grpo_learning_rate: float = 2e-4  # of arm C
grpo_steps: int = 60  # optimizer steps
grpo_cap_hours: float = 2.5  # stop when this many hours are billed
grpo_save_steps: int = 6  # optimizer steps between checkpoints
correction: bool = True  # TRL's importance-sampling correction for the engine's probabilities, with vllm only
lean: bool = False  # the lean trainer: the same gradient as TRL's, for less time
loss_type: str = "dapo"  # TRL's default
vllm_memory_share: float = 0.3  # GPU memory for the colocated engine, with vllm only (share)
stop_after_dead_steps: int = 0  # end the run after this many optimizer steps in a row without any signal (0: never)
price_per_hour: float = 0.0  # price of one GPU, for the progress line (per hour; 0: none); no part of any run

# %%

import json

from lib import clock as clocks
from lib import data, decode, evaluate, grpo, records, rewards, runs, wasted
from lib.paths import ROOT
from lib.report import alarms, bill, compare, cost, diagnose, errors, layouts, plots

setup = records.pinned(profile, "setup")
start = setup if start_from == "base" else records.pinned(profile, f"{start_from}-s{seed}")
given = setup.info["parameters"]
generation = decode.settings(setup)  # how every checkpoint is decoded

# %% tags=["checks", "hide-input"]
import re

own = f"grpo-{variant}" if variant else "grpo"
if start_from == own or not re.fullmatch(r"base|(start|sft|dpo|grpo)(-[a-z][a-z0-9_]*)?", start_from):
    raise ValueError(f"start_from: got {start_from!r}, expected base, or another run than {own}, such as start or sft")
if judged_split not in ("heldout", "dev"):
    raise ValueError(f"judged_split: got {judged_split!r}, expected heldout, or dev while settings are chosen")
if hard_samples and not labels:
    raise ValueError(f"got hard_samples {hard_samples} and labels {labels}, expected labels True, or hard_samples 0")
if not correction and given["engine"] != "vllm":
    raise ValueError(f"correction: got False with engine {given['engine']}, which samples from the policy itself")
if group_size < 2:
    raise ValueError(f"group_size: got {group_size}, expected 2 or more")
if prompts_per_step > given["n_pool"]:
    raise ValueError(f"prompts_per_step: got {prompts_per_step}, expected at most n_pool, {given['n_pool']}")
if prompts_per_step * group_size % micro_batch_rollouts or micro_batch_rollouts % group_size:
    raise ValueError(
        f"micro_batch_rollouts: got {micro_batch_rollouts}, expected a multiple of group_size {group_size} that "
        f"divides prompts_per_step x group_size = {prompts_per_step * group_size}"
    )

# %% [markdown]
# ## Config
#
# A step takes `prompts_per_step` groups of `group_size` rollouts. TRL wants the micro-batch and the accumulation:

# %%
rollouts_per_step = prompts_per_step * group_size
config = dict(
    max_steps=grpo_steps,
    per_device_train_batch_size=micro_batch_rollouts,
    gradient_accumulation_steps=rollouts_per_step // micro_batch_rollouts,
    num_generations=group_size,
    max_completion_length=given["max_completion_tokens"],
    temperature=grpo_temperature,
    learning_rate=grpo_learning_rate,
    loss_type=loss_type,
    beta=0.0,  # no reference model, as in the published study
    gradient_checkpointing=gradient_checkpointing,
    use_vllm=given["engine"] == "vllm",  # colocated: engine and trainer share the GPU
    vllm_importance_sampling_correction=correction,
    logging_steps=1,
    save_steps=grpo_save_steps,  # every checkpoint is evaluated
    seed=seed,
)
print(
    f"{rollouts_per_step} rollouts a step: "
    f"{config['gradient_accumulation_steps']} micro-batches of {micro_batch_rollouts}"
)
run = runs.open_run(
    "03_grpo",
    profile,
    "grpo",
    seed,
    data=setup.info["data_fingerprint"],
    model=setup.info["model"],
    parents=(setup, start),
    parameters=dict(
        judged_split=judged_split,
        start_weights=start.checkpoints["weights_sha256"].iloc[-1],
        start_from=start_from,
        reward=rewards.formula(labels),
        labels=labels,
        hard_samples=hard_samples,
        grpo_cap_hours=grpo_cap_hours,
        vllm_memory_share=vllm_memory_share,
        lean=lean,
        stop_after_dead_steps=stop_after_dead_steps,
        **(dict(lora_rank=lora_rank, lora_alpha=lora_alpha) if start_from == "base" else {}),
    ),
    trainer=("GRPOConfig", config),
    variant=variant,
    engine=given["engine"],
)

# %% [markdown]
# ## Reward
#
# The same function that judges every evaluation decides here; the formula was fixed before the first record. Without
# `labels` another one, which sees no gold record, earns; what a rollout had right is still noted.

# %%
print(rewards.formula(labels))


def reward(completions, gold, text, **_):
    """One reward a rollout; TRL repeats the columns `gold` and `text` for each rollout of a prompt."""
    if not labels:
        return [rewards.unlabelled(c[0]["content"], t) for c, t in zip(completions, text, strict=True)]
    return [rewards.reward(c[0]["content"], g, t) for c, g, t in zip(completions, gold, text, strict=True)]


def prompt_row(document):
    """What GRPOTrainer gets: the chat prompt, and the columns that the reward reads."""
    gold = {field: document[field] for field in data.FIELDS}
    prompt = data.messages(document, given["instruction"])
    return dict(prompt=prompt, id=document["id"], text=document["text"], gold=gold)


# %% [markdown]
# ## Train
#
# Prompts: the whole pool; or, with `hard_samples`, the documents alone of which the start has a sample wrong, by their
# labels. These samples are billed, and kept, so that an interrupted run does not pay for them twice.

# %%
if run.live:
    splits, outside = records.splits(setup), records.outside(setup)
    other_runs = records.pinned_runs(profile)
    weights = None if start_from == "base" else start.weights
    clock = run.start_clock()
    with clock.phase("imports"):
        from datasets import Dataset
        from peft import LoraConfig
        from transformers import set_seed
        from trl import GRPOConfig, GRPOTrainer

        from lib.lean.trainer import LeanGRPOTrainer
    pool, hard = splits["pool"], run.folder / "hard"
    if hard_samples and not (hard / "clock.json").exists():
        hard.mkdir(exist_ok=True)
        with clock.phase("pair_sampling"):
            ((_, samples_P_N),) = decode.complete(
                [data.messages(d, given["instruction"]) for d in pool],
                {"start": weights},
                n=hard_samples,
                temperature=grpo_temperature,
                seed=seed,
                work=run.folder / "sampling",
                **generation,
            )
        clocks.write_json(hard / "ids.json", [d["id"] for d in grpo.hard(pool, samples_P_N)])
        clock.savepoint(hard / "clock.json")
    if hard_samples:
        ids = set(json.loads((hard / "ids.json").read_text()))
        pool = [d for d in pool if d["id"] in ids]
        if len(pool) < prompts_per_step:
            raise ValueError(f"hard_samples: {len(pool)} prompts are hard, expected {prompts_per_step} or more")
    if not run.trained:
        with clock.phase("model_load"):
            tokenizer = decode.load_tokenizer(ROOT / given["base"])
            policy = decode.load_policy(ROOT / given["base"], weights, given["dtype"], trainable=True)
            adapter = dict(r=lora_rank, lora_alpha=lora_alpha, target_modules="all-linear", task_type="CAUSAL_LM")
        with clock.phase("engine_start" if config["use_vllm"] else "trainer_setup"):
            trainer = (LeanGRPOTrainer if lean else GRPOTrainer)(  # the same arguments, the same gradient
                model=policy,
                reward_funcs=reward,
                args=GRPOConfig(
                    vllm_gpu_memory_utilization=vllm_memory_share,
                    vllm_max_model_length=given["context_tokens"],
                    chat_template_kwargs=data.CHAT,
                    **run.machine(given["dtype"]),
                    **config,
                ),
                train_dataset=Dataset.from_list([prompt_row(d) for d in pool]),
                processing_class=tokenizer,
                peft_config=LoraConfig(**adapter) if start_from == "base" and lora_rank else None,
            )
            set_seed(seed)  # the colocated engine seeds itself with 0 whatever the run's seed is
            grpo.observe(trainer, run)
            wasted.watch(trainer, run, stop_after_dead_steps, price_per_hour, trained=not lean)
            run.watch(trainer, grpo.phases(trainer))
            run.stop_at_cap(trainer, grpo_cap_hours)
        trainer.train(resume_from_checkpoint=run.resume_from())
        run.mark_trained()
        del trainer, policy
    grpo.check_seeds_differ(run, other_runs)
    predictions, checkpoints = evaluate.checkpoints(
        run, dict(run.checkpoints()), splits[judged_split], given["instruction"], outside, **generation
    )
    clock.stop()
    rollouts = grpo.rollouts(run.folder)
    run.finish(
        steps=runs.logged_steps(run.folder).merge(grpo.step_counts(rollouts), on="step", validate="1:1"),
        tables=dict(
            predictions=predictions,
            checkpoints=checkpoints,
            rollouts=rollouts,
            **evaluate.outside(run, run.checkpoints()[-1][0], outside),
        ),
        facts=dict(pool=len(splits["pool"]), prompts=len(pool)),
    )
record = run.record

# %% [markdown]
# ## Cost: where the time goes
#
# Timers sit around TRL's methods; each second is in the innermost one. Backward, clipping and optimizer are measured,
# not what is left over. Unaccounted is what no timer saw; above `max_unaccounted` the notebook stops. The gaps compare
# the rows with other clocks: the device's events over all steps, the system's clock over the whole attempt.

# %% tags=["hide-input"]
bill.tables(record, f"Arm C, seed {seed}", max_unaccounted)

# %% [markdown]
# ## Diagnostics: groups without signal
#
# A group whose rollouts all earn the same reward has advantage 0 in every rollout: it is generated, forwarded and
# back-propagated for nothing. Groups are counted by maximum = minimum of their rewards. Their share of each step's
# seconds is booked as wasted, and shown in the terminal while the run goes on; with `stop_after_dead_steps` a run ends
# that has had nothing to learn from for so many steps.

# %% tags=["hide-input"]
signal = diagnose.by_step(record.steps)  # a lean run whose groups are all dead logs no entropy
lines = record.steps.assign(seed=seed, zero_variance=signal["zero_variance"], entropy=signal["entropy"])
plots.picture(
    plots.group_signal(lines),
    "Two line charts by optimizer step: share of groups whose rewards are all equal, and entropy of the policy.",
    f"Arm C, seed {seed}: groups of {group_size} rollouts without variance in reward, and entropy in nats a token.",
)

# %% tags=["hide-input"]
zero_gradient = int((record.steps["grad_norm"] == 0).sum())
print(f"Steps whose gradient norm is exactly 0: {zero_gradient} of {len(record.steps)}.")
print(wasted.sentence(record.steps, stop_after_dead_steps))

# %% [markdown]
# All measures of the signal in the first, the middle and the last tenth of the steps. *Equal in between*: no rollout of
# the group is an exact record, but some field is right. Importance ratios exist only with a generating engine.

# %% tags=["hide-input"]
tenths = diagnose.signal_tenths(diagnose.constant_groups(record))
plots.table(plots.lay_out(tenths, layouts.TENTHS), "grpo_signal", f"Arm C, seed {seed}: means over tenths.", csv=tenths)

# %% [markdown]
# ## Diagnostics: reward against accuracy
#
# The alarm goes off at a checkpoint with significantly fewer exact records than the best one before it, while the
# reward has not fallen (`lib.report.alarms.divergence` states the rule).

# %% tags=["hide-input"]
points = alarms.divergence(compare.curve(record, start), record.steps, alpha=0.05).assign(seed=seed)
plots.picture(
    plots.reward_and_accuracy(lines, points),
    "Line chart by optimizer step: reward of the rollouts, and share of exact records at each checkpoint.",
    f"Arm C, seed {seed}: reward of the rollouts, and exact records of {judged_split}.",
)

# %% [markdown]
# ## Diagnostics: what the reward can hide
#
# A policy that answers null too often keeps most of its reward. So the null answers of each field are counted, beside
# the rollouts whose gold is null.

# %% tags=["hide-input"]
rates = diagnose.smooth(diagnose.null_shares(record.steps), 5).assign(seed=seed)
raised = alarms.null_alarms(record.steps) if alarms.measurable(record.steps) else {}
plots.picture(
    plots.field_rates(
        rates,
        list(data.FIELDS),
        {"null": "answered null", "null_expected": "gold is null"},
        [(field, seed, step) for field, step in raised.items() if step],
    ),
    "Five line charts by optimizer step, one a field: share of rollouts that answer null, and share with null in gold.",
    f"Arm C, seed {seed}: null answers a field, and null in gold; moving average over 5 steps.",
)

# %% tags=["hide-input"]
plots.picture(
    plots.field_rates(
        rates,
        list(data.FIELDS),
        {
            "missing": "null, gold has a value",
            "wrong": "another value than gold's",
            "spurious": "a value, gold is null",
        },
    ),
    "Five line charts by optimizer step, one a field: shares of rollouts whose field is missing, wrong or spurious.",
    f"Arm C, seed {seed}: mistakes a field; moving average over 5 steps.",
)

# %% [markdown]
# Which fields go wrong on the judged documents, by checkpoint (missing / wrong / spurious; step 0 is the shared start):

# %% tags=["hide-input"]
counts = errors.by_checkpoint(record, start)
plots.table(
    plots.lay_out(counts, layouts.MISTAKES_BY_CHECKPOINT),
    "grpo_errors",
    f"Arm C, seed {seed}: fields gone wrong, of {counts['n'].iloc[-1]} documents.",
    csv=counts,
)

# %% [markdown]
# ## Recap

# %% tags=["hide-input"]
first, last = start.checkpoints.iloc[-1], record.checkpoints.iloc[-1]
device = record.info["device"]
print(
    f"Arm C, seed {seed}: from {first.exact} to {last.exact} of {last.n} exact "
    f"in {cost.show_hours(last.billed_s / 3600)}"
)
print(f"({cost.unit(device['kind'])} on {device['name']}).")
