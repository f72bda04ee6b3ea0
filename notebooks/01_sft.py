# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # SFT: the shared start, and arm A from it
#
# **Question.** What does supervised fine-tuning on gold records buy for each hour, once on few labelled documents (the
# start that all arms share) and then on the pool (arm A)?
#
# **Departures from the published study** {cite}`fan2026curves`: the model, the text and the sizes are the profile's.
# Trainer arguments that are not named below are TRL's defaults, as there. With `lean`, arm A's trainer leaves out work
# that cannot change TRL's gradient (`lib.lean`).

# %% tags=["parameters"]
profile: str = "laptop"  # which profile these parameters belong to
judged_split: str = "heldout"  # documents that judge the checkpoints (dev when settings are being chosen)
max_unaccounted: float = 0.02  # largest part of a bill that may be under no timer (share); no part of any run
seed: int = 0  # seed of data order and adapter initialisation
variant: str = ""  # name of arm A's run beside its own, such as lean ("": the own one); no part of any run
lora_rank: int = 0  # rank of the LoRA adapter on all linear layers (0: full fine-tuning)
lora_alpha: int = 32  # LoRA scale is lora_alpha / lora_rank
gradient_checkpointing: bool = False  # recompute activations in the backward pass (TRL's default is true)
own_start: bool = False  # the variant trains a start of its own, such as start-weak-s0, and arm A from it
start_documents: int = 0  # documents of the shared start (0: all of the split)
start_epochs: float = 3.0  # passes over the start documents
start_batch_documents: int = 32  # shared start: documents an optimizer step
start_learning_rate: float = 1e-3  # of the shared start
sft_epochs: float = 1.0  # arm A: passes over the pool
sft_batch_documents: int = 16  # arm A: documents an optimizer step
sft_learning_rate: float = 4e-3  # of arm A
sft_warmup_share: float = 0.0  # arm A: steps in which the learning rate rises from 0 (share)
sft_save_steps: int = 4  # arm A: optimizer steps between checkpoints
lean: bool = False  # arm A: the lean trainer: the same gradient as TRL's, for less time

# %%

from lib import data, decode, evaluate, records, runs
from lib.paths import ROOT
from lib.report import bill, compare, cost, errors, layouts, plots

setup = records.pinned(profile, "setup")
given = setup.info["parameters"]  # text, model and decoding are the setup's
generation = decode.settings(setup)  # how every checkpoint is decoded

# %% tags=["checks", "hide-input"]
if judged_split not in ("heldout", "dev"):
    raise ValueError(f"judged_split: got {judged_split!r}, expected heldout, or dev while settings are chosen")
if sft_warmup_share >= 1:
    raise ValueError(
        f"sft_warmup_share: got {sft_warmup_share}, expected a share below 1, since TRL reads 1 as one step"
    )
if start_documents > given["n_start"]:
    raise ValueError(f"start_documents: got {start_documents}, expected at most n_start, {given['n_start']}")


# %%
def gold_answers(documents):
    """What SFTTrainer gets: the chat prompt, and the gold record as the assistant's turn."""
    return [
        {
            "prompt": data.messages(d, given["instruction"]),
            "completion": [{"role": "assistant", "content": data.answer(d)}],
            "chat_template_kwargs": data.CHAT,
        }
        for d in documents
    ]


# %% [markdown]
# ## Shared start: config
#
# Only what differs from TRL's defaults, each with its reason.

# %%
start_config = dict(
    num_train_epochs=start_epochs,
    per_device_train_batch_size=start_batch_documents,
    learning_rate=start_learning_rate,
    max_length=given["context_tokens"],  # documents were filtered to fit: nothing is cut
    gradient_checkpointing=gradient_checkpointing,
    logging_steps=1,  # grad_norm is that of the last step in a logging window: log every step
    save_steps=100_000,  # only the last checkpoint is used
    seed=seed,
)
start = runs.open_run(
    "01_sft",
    profile,
    "start",
    seed,
    data=setup.info["data_fingerprint"],
    model=setup.info["model"],
    parents=(setup,),
    parameters=dict(
        judged_split=judged_split,
        lora_rank=lora_rank,
        lora_alpha=lora_alpha,
        lora_modules="all-linear",
        start_documents=start_documents,
    ),
    trainer=("SFTConfig", start_config),
    variant=variant if own_start else "",
    engine=given["engine"],
)

# %% [markdown]
# ## Shared start: train
#
# The clock starts before the model is loaded and stops when the last weights are on disk; evaluation is timed apart.

# %%
if start.live:
    splits, outside = records.splits(setup), records.outside(setup)
    labelled = splits["start"][: start_documents or None]
    clock = start.start_clock()
    with clock.phase("imports"):
        from datasets import Dataset
        from peft import LoraConfig
        from trl import SFTConfig, SFTTrainer
    if not start.trained:
        with clock.phase("model_load"):
            tokenizer = decode.load_tokenizer(ROOT / given["base"])
            model = decode.load_policy(ROOT / given["base"], None, given["dtype"])
        with clock.phase("trainer_setup"):
            adapter = dict(r=lora_rank, lora_alpha=lora_alpha, target_modules="all-linear", task_type="CAUSAL_LM")
            trainer = SFTTrainer(
                model=model,
                args=SFTConfig(**start.machine(given["dtype"]), **start_config),
                train_dataset=Dataset.from_list(gold_answers(labelled)),
                processing_class=tokenizer,
                peft_config=LoraConfig(**adapter) if lora_rank else None,
            )
            start.watch(trainer, {"compute_loss": "forward_grad"})
            evaluate.check_end_token(trainer, tokenizer)
        trainer.train(resume_from_checkpoint=start.resume_from())
        if lora_rank:
            evaluate.round_adapter(start.checkpoints()[-1][1])
        start.mark_trained()
        del trainer, model
    last_step, weights = start.checkpoints()[-1]
    predictions, checkpoints = evaluate.checkpoints(
        start, {last_step: weights}, splits[judged_split], given["instruction"], outside, **generation
    )
    clock.stop()
    start.finish(
        steps=runs.logged_steps(start.folder),
        tables=dict(predictions=predictions, checkpoints=checkpoints, **evaluate.outside(start, last_step, outside)),
        facts=dict(documents=len(labelled)),
        weights=None if start.name != f"start-s{seed}" else weights,  # a variant's: its checkpoint in this copy will do
    )

# %% tags=["hide-input"]
row = start.record.checkpoints.iloc[-1]
print(f"Shared start, seed {seed}: {row.exact} of {row.n} records of {judged_split} exact after step {row.step}.")
print(
    f"Billed {start.record.info['billed_s']:.1f} s, of which the optimizer loop {start.record.info['train_s']:.1f} s."
)

# %% [markdown]
# ## Arm A: config
#
# Arm A goes on from the shared start's weights with the gold records of the pool.

# %%
sft_config = dict(
    num_train_epochs=sft_epochs,
    per_device_train_batch_size=sft_batch_documents,
    learning_rate=sft_learning_rate,
    warmup_steps=sft_warmup_share,  # below 1 it is a share of the steps
    max_length=given["context_tokens"],
    gradient_checkpointing=gradient_checkpointing and not lean,  # what lean keeps of a batch is small enough
    logging_steps=1,
    save_steps=sft_save_steps,  # every checkpoint is evaluated: this is the resolution of the cost curve
    seed=seed,
)
run = runs.open_run(
    "01_sft",
    profile,
    "sft",
    seed,
    data=setup.info["data_fingerprint"],
    model=setup.info["model"],
    parents=(setup, start.record),
    parameters=dict(
        judged_split=judged_split, start_weights=start.record.checkpoints["weights_sha256"].iloc[-1], lean=lean
    ),
    trainer=("SFTConfig", sft_config),
    variant=variant,
    engine=given["engine"],
)

# %% [markdown]
# ## Arm A: train

# %%
if run.live:
    splits, outside = records.splits(setup), records.outside(setup)
    clock = run.start_clock()
    with clock.phase("imports"):
        from datasets import Dataset
        from trl import SFTConfig, SFTTrainer

        from lib.lean.arms import LeanSFTTrainer
    if not run.trained:
        with clock.phase("model_load"):
            tokenizer = decode.load_tokenizer(ROOT / given["base"])
            policy = decode.load_policy(ROOT / given["base"], start.record.weights, given["dtype"], trainable=True)
        with clock.phase("trainer_setup"):
            trainer = (LeanSFTTrainer if lean else SFTTrainer)(  # the same arguments, the same gradient
                model=policy,
                args=SFTConfig(**run.machine(given["dtype"]), **sft_config),
                train_dataset=Dataset.from_list(gold_answers(splits["pool"])),
                processing_class=tokenizer,
            )
            run.watch(trainer, {"compute_loss": "forward_grad"})
            evaluate.check_end_token(trainer, tokenizer)
        trainer.train(resume_from_checkpoint=run.resume_from())
        run.mark_trained()
        del trainer, policy
    predictions, checkpoints = evaluate.checkpoints(
        run, dict(run.checkpoints()), splits[judged_split], given["instruction"], outside, **generation
    )
    clock.stop()
    run.finish(
        steps=runs.logged_steps(run.folder),
        tables=dict(
            predictions=predictions, checkpoints=checkpoints, **evaluate.outside(run, run.checkpoints()[-1][0], outside)
        ),
        facts=dict(documents=len(splits["pool"])),
    )
record = run.record

# %% [markdown]
# ## Cost
#
# Where arm A's billed seconds went. Each second is in one row only; a phase that was not measured is not listed.
# Unaccounted is what no timer saw; above `max_unaccounted` the notebook stops. The gaps compare the rows with other
# clocks: the device's events over all steps, the system's clock over the whole attempt.

# %% tags=["hide-input"]
bill.tables(record, f"Arm A, seed {seed}", max_unaccounted)

# %% [markdown]
# ## Diagnostics
#
# The curve starts at the shared start, at zero hours: what the start cost is its own line above. Every point is a
# checkpoint, judged after the run by greedy decoding on the same held-out documents.

# %% tags=["hide-input"]
points = compare.curve(record, start.record).points.assign(arm="sft", seed=seed)
unit, per_hour = cost.axis(record.info["device"]["kind"], points["hours"].max())
points["spent"] = per_hour * points["hours"]
plots.picture(
    plots.cost_curves(points, {"sft": "A continued SFT"}, unit, points["spent"].max() / 3, f"seed {seed}"),
    "Line chart: share of exact held-out records of arm A against billed hours, starting at the shared start.",
    f"Arm A, seed {seed}: exact records on {record.checkpoints['n'].iloc[-1]} held-out documents against billed time.",
)

# %% [markdown]
# Which fields go wrong, by checkpoint (missing / wrong / spurious; step 0 is the shared start):

# %% tags=["hide-input"]
last, counts = record.checkpoints.iloc[-1], errors.by_checkpoint(record, start.record)
plots.table(
    plots.lay_out(counts, layouts.MISTAKES_BY_CHECKPOINT),
    "sft_errors",
    f"Arm A, seed {seed}: fields gone wrong, of {last.n} documents.",
    csv=counts,
)

# %% [markdown]
# ## Recap

# %% tags=["hide-input"]
device = record.info["device"]
print(
    f"Arm A, seed {seed}: from {row.exact} to {last.exact} of {last.n} exact in {cost.show_hours(last.billed_s / 3600)}"
)
print(
    f"({cost.unit(device['kind'])} on {device['name']}; {record.info['evaluation_s']:.1f} s of evaluation not billed)."
)
