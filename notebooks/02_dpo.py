# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # DPO: arm B, with its log-probabilities watched
#
# **Question.** What do preference pairs buy: gold records against the model's own worst samples? And does the
# preference measure move with the task?
#
# **Departures from the published study** {cite}`fan2026curves`: model, text and sizes are the profile's. The pairs are
# built as there: chosen is gold, rejected the worst wrong one of a few samples. Sampling them is billed to this arm.
# With `lean`, the trainer leaves out work that cannot change TRL's gradient (`lib.lean`); sampling is as it was.

# %% tags=["parameters"]
profile: str = "laptop"  # which profile these parameters belong to
judged_split: str = "heldout"  # documents that judge the checkpoints (dev when settings are being chosen)
max_unaccounted: float = 0.02  # largest part of a bill that may be under no timer (share); no part of any run
seed: int = 0  # seed of sampling and data order
variant: str = ""  # name of this run beside the arm's own, such as lean ("": the own one); no part of any run
gradient_checkpointing: bool = False  # recompute activations in the backward pass (TRL's default is true)
pair_documents: int = 400  # pool documents that are sampled for pairs
samples_per_document: int = 4  # samples a document
pair_temperature: float = 1.0  # sampling temperature
pairs_from: str = "gold"  # gold | unlabelled: gold against the worst wrong sample, or the best sample against the worst
dpo_beta: float = 0.1  # strength of the pull to the reference
dpo_learning_rate: float = 3e-5  # of arm B
dpo_epochs: float = 2.0  # passes over the pairs
dpo_batch_pairs: int = 16  # pairs an optimizer step
dpo_save_steps: int = 5  # optimizer steps between checkpoints
lean: bool = False  # the lean trainer: the same gradient as TRL's, for less time

# %%
import json
import math

import pandas as pd

from lib import clock as clocks
from lib import data, decode, evaluate, likelihood, records, rewards, runs
from lib.paths import ROOT
from lib.report import bill, compare, cost, diagnose, errors, layouts, plots, preference

setup, start = records.pinned(profile, "setup"), records.pinned(profile, f"start-s{seed}")
given = setup.info["parameters"]
generation = decode.settings(setup)  # how every checkpoint is decoded

# %% tags=["checks", "hide-input"]
if judged_split not in ("heldout", "dev"):
    raise ValueError(f"judged_split: got {judged_split!r}, expected heldout, or dev while settings are chosen")
if pairs_from not in ("gold", "unlabelled"):
    raise ValueError(f"pairs_from: got {pairs_from!r}, expected gold or unlabelled")
if pair_documents > given["n_pool"]:
    raise ValueError(f"pair_documents: got {pair_documents}, expected at most n_pool, {given['n_pool']}")

# %% [markdown]
# ## Config

# %%
config = dict(
    num_train_epochs=dpo_epochs,
    per_device_train_batch_size=dpo_batch_pairs,
    learning_rate=dpo_learning_rate,
    beta=dpo_beta,
    max_length=given["context_tokens"],  # documents were filtered to fit: nothing is cut
    gradient_checkpointing=gradient_checkpointing and not lean,  # what lean keeps of a batch is small enough
    logging_steps=1,
    save_steps=dpo_save_steps,  # every checkpoint is evaluated
    seed=seed,
)
run = runs.open_run(
    "02_dpo",
    profile,
    "dpo",
    seed,
    data=setup.info["data_fingerprint"],
    model=setup.info["model"],
    parents=(setup, start),
    parameters=dict(
        pair_documents=pair_documents,
        samples_per_document=samples_per_document,
        pair_temperature=pair_temperature,
        pairs_from=pairs_from,
        judged_split=judged_split,
        start_weights=start.checkpoints["weights_sha256"].iloc[-1],
        reward=rewards.formula(labels=pairs_from == "gold"),  # it decides which sample is the worst
        lean=lean,
    ),
    trainer=("DPOConfig", config),
    variant=variant,
    engine=given["engine"],
)

# %% [markdown]
# ## Pairs
#
# A few samples a document from the shared start. Rejected is the wrong sample with the lowest reward, the first of
# them where several are equal; a document whose samples are all right gives no pair. With `pairs_from` unlabelled,
# chosen is the best sample and rejected the worst, by the reward that sees no label; samples that are all equal give no
# pair. Sampled pairs are kept, so an interrupted run does not pay for them twice.


# %%
def make_pairs(documents, samples_P_N):
    """The pairs {id, prompt, chosen, rejected} of documents and their samples."""
    pairs = []
    for document, samples in zip(documents, samples_P_N, strict=True):
        if pairs_from == "unlabelled":
            worst, best = rewards.extremes(samples, document["text"])
            if worst != best:
                prompt = data.messages(document, given["instruction"])
                pairs.append(dict(id=document["id"], prompt=prompt, chosen=best, rejected=worst))
            continue
        wrong = [s for s in samples if not rewards.verdicts(s, document)["exact"]]
        if wrong:
            rejected = min(wrong, key=lambda s: rewards.reward(s, document, document["text"]))
            prompt = data.messages(document, given["instruction"])
            pairs.append(dict(id=document["id"], prompt=prompt, chosen=data.answer(document), rejected=rejected))
    return pairs


def sample(documents, work):
    """A few samples a document from the shared start."""
    ((_, samples_P_N),) = decode.complete(
        [data.messages(d, given["instruction"]) for d in documents],
        {"start": start.weights},
        n=samples_per_document,
        temperature=pair_temperature,
        seed=seed,
        work=run.folder / work,
        **generation,
    )
    return samples_P_N


# %%
if run.live:
    splits, outside = records.splits(setup), records.outside(setup)
    clock = run.start_clock()
    with clock.phase("imports"):
        from datasets import Dataset
        from trl import DPOConfig, DPOTrainer

        from lib.lean.arms import LeanDPOTrainer
    pool = splits["pool"][:pair_documents]
    pairs_file = run.folder / "pairs" / "pairs.json"
    if not (run.folder / "pairs" / "clock.json").exists():
        pairs_file.parent.mkdir(exist_ok=True)
        with clock.phase("pair_sampling"):
            samples_P_N = sample(pool, "pair_sampling")
        clocks.write_json(pairs_file, make_pairs(pool, samples_P_N))
        clock.savepoint(run.folder / "pairs" / "clock.json")
    pairs = json.loads(pairs_file.read_text())
    if not pairs:
        raise ValueError(
            f"no pairs: all samples of the {len(pool)} documents are equally good, and DPO has nothing to learn from"
        )

# %% [markdown]
# ## Train
#
# Before the first step the policy is its own reference, so the loss must be ln 2 and both rewards 0; another value
# means another reference, and stops the run.

# %%
if run.live and not run.trained:
    with clock.phase("model_load"):
        tokenizer = decode.load_tokenizer(ROOT / given["base"])
        policy = decode.load_policy(ROOT / given["base"], start.weights, given["dtype"], trainable=True)
    with clock.phase("evaluation"):
        some = pairs[:64]
        copy = decode.load_policy(ROOT / given["base"], start.weights, given["dtype"])  # merging leaves rounding behind
        merge_gap = likelihood.merge_gap(copy, tokenizer, [p["prompt"] for p in some], [p["chosen"] for p in some])
        del copy
    with clock.phase("trainer_setup"):
        trainer = (LeanDPOTrainer if lean else DPOTrainer)(  # the same arguments, the same gradient
            model=policy,  # an adapter as policy: TRL keeps a frozen copy of it as the reference
            args=DPOConfig(**run.machine(given["dtype"]), **config),
            train_dataset=Dataset.from_list(
                [
                    dict(
                        prompt=p["prompt"],
                        chosen=[{"role": "assistant", "content": p["chosen"]}],
                        rejected=[{"role": "assistant", "content": p["rejected"]}],
                        chat_template_kwargs=data.CHAT,
                    )
                    for p in pairs
                ]
            ),
            processing_class=tokenizer,
        )
        run.watch(trainer, likelihood.phases(trainer))
        likelihood.count_completion_tokens(trainer, run)
        if lean:
            trainer.score_reference()  # each pair once, before the first step; TRL scores it in every epoch
    with clock.phase("evaluation"):
        step_zero = likelihood.check_dpo_start(trainer)
        clocks.write_json(run.folder / "step_zero.json", dict(**step_zero, merge_gap_nats=merge_gap))
    checkpoint = run.resume_from()
    if checkpoint:
        likelihood.restore_policy(trainer, checkpoint)
    trainer.train(resume_from_checkpoint=checkpoint)
    run.mark_trained()
    del trainer, policy

# %% [markdown]
# ## Evaluate
#
# Not billed. Beside the greedy answers: log-probabilities of fixed pairs under the start and under every checkpoint,
# of some training pairs, and of pairs sampled in the same way from documents that no arm trains on.

# %%
if run.live:
    judged = {0: start.weights} | dict(run.checkpoints())  # the start too, for its greedy answers
    documents = splits[judged_split]
    predictions, checkpoints = evaluate.checkpoints(run, judged, documents, given["instruction"], outside, **generation)
    watched_file = run.folder / "watched_pairs.json"
    if not watched_file.exists():
        with clock.phase("evaluation"):
            watched = documents[: likelihood.HELDOUT_DOCUMENTS]
            heldout_pairs = make_pairs(watched, sample(watched, "watched_sampling"))
        clocks.write_json(watched_file, {"train": pairs[: likelihood.TRAIN_PAIRS], judged_split: heldout_pairs})
    pair_sets = json.loads(watched_file.read_text())
    greedy = {step: evaluate.answers(run, step, documents) for step in judged}
    logps = likelihood.checkpoints(run, judged, pair_sets, greedy, ROOT / given["base"], given["dtype"])
    clock.stop()
    run.finish(
        steps=likelihood.dpo_steps(run.folder),
        tables=dict(
            predictions=predictions[predictions["step"] > 0],  # the start's are in its own record
            checkpoints=checkpoints[checkpoints["step"] > 0],
            likelihood=logps,
            **evaluate.outside(run, run.checkpoints()[-1][0], outside),
        ),
        facts=dict(
            sampled_documents=len(pool),
            samples=len(pool) * samples_per_document,
            pairs=len(pairs),
            prompts_all_right=len(pool) - len(pairs),
            step_zero=json.loads((run.folder / "step_zero.json").read_text()),
        ),
    )
record = run.record

# %% tags=["hide-input"]
facts, zero = record.info["facts"], record.info["facts"]["step_zero"]
print(
    f"{facts['samples']} samples of {facts['sampled_documents']} documents gave {facts['pairs']} pairs;\n"
    f"{facts['prompts_all_right']} documents gave none."
)
print(
    f"Step 0: loss {zero['loss']:.6f} (ln 2 is {math.log(2):.6f}), "
    f"rewards {zero['rewards_chosen']:.6f} and {zero['rewards_rejected']:.6f}."
)
if zero["merge_gap_nats"] is None:
    print("Full fine-tuning: there is no adapter whose merging could change the scores.")
else:
    print(
        "Merging the start's adapter into the base changes a gold record's log-prob\n"
        f"by {zero['merge_gap_nats']:.3f} nats on average."
    )

# %% [markdown]
# ## Cost
#
# Where arm B's billed seconds went, each second in one row only. Unaccounted is what no timer saw; above
# `max_unaccounted` the notebook stops. The gaps compare the rows with other clocks: the device's events over all steps,
# the system's clock over the whole attempt.

# %% tags=["hide-input"]
bill.tables(record, f"Arm B, seed {seed}", max_unaccounted)

# %% [markdown]
# ## Diagnostics: likelihood displacement
#
# Left and middle: log-probability of the chosen and of the rejected completion, summed as TRL logs it and for each
# token. Right: share of pairs whose chosen completion gained more than the rejected one. If chosen falls while the
# preference accuracy rises, the measure improves although the gold record gets less likely
# {cite}`razin2024unintentional`.

# %% tags=["hide-input"]
lines = diagnose.full_batches(record.steps).assign(seed=seed)  # the last batch of an epoch may hold a single pair
plots.picture(
    plots.dpo_training(lines),
    "Three line charts by optimizer step: summed log-probability of chosen and rejected, the same per token, and "
    "preference accuracy.",
    f"Arm B, seed {seed}: log-probabilities on the training batch of each step.",
)

# %% tags=["hide-input"]
tenth = max(1, len(lines) // 10)
measures = {
    "chosen_logp": "log-prob of the chosen answer",
    "rejected_logp": "log-prob of the rejected answer",
    "chosen_logp_token": "chosen, per token",
    "rejected_logp_token": "rejected, per token",
    "margin": "margin of the rewards",
    "accuracy": "preference accuracy",
}
ends = pd.DataFrame(
    {"first tenth": lines.head(tenth)[[*measures]].mean(), "last": lines.tail(tenth)[[*measures]].mean()}
)
plots.table(
    ends.rename(index=measures).map("{:.3f}".format).rename_axis("measure").reset_index(),
    "dpo_ends",
    "Means over the first and the last tenth of the steps, full batches alone (log-probs in nats).",
    csv=ends.rename_axis("measure").reset_index(),
)

# %% [markdown]
# A training batch is new at every step, and has been trained on. So: the same pairs at every checkpoint, judged after
# the run, training pairs and held-out ones. A margin can grow because the chosen answer gains, or because the rejected
# one falls: *from rejected falling* is that share, above 100% where the chosen answer fell too. The two alarms are in
# `lib.report.preference`; the greedy answer's log-prob says how sure a checkpoint is of what it answers itself.

# %% tags=["hide-input"]
if record.has("likelihood"):
    moved = preference.with_alarms(record.likelihood, compare.curve(record, start), judged_split).assign(seed=seed)
    found = plots.picture(
        plots.dpo_pairs(moved),
        "Three line charts by checkpoint: change of log-prob of chosen and rejected answers; share of pairs preferred "
        "and of exact records; log-prob of the greedy answer.",
        f"Arm B, seed {seed}: fixed pairs at every checkpoint, against the shared start.",
    )
else:
    moved, found = None, plots.absent("This record is from before fixed pairs were judged at every checkpoint.")
found

# %% tags=["hide-input"]
if moved is not None:
    found = plots.table(
        plots.lay_out(moved[moved["step"] > 0], layouts.DPO_PAIRS),
        "dpo_pairs",
        "Every checkpoint against the shared start, in nats. Exact: share of all judged documents.",
        csv=moved,
    )
found

# %% [markdown]
# Which fields go wrong, by checkpoint (missing / wrong / spurious; step 0 is the shared start):

# %% tags=["hide-input"]
counts = errors.by_checkpoint(record, start)
plots.table(
    plots.lay_out(counts, layouts.MISTAKES_BY_CHECKPOINT),
    "dpo_errors",
    f"Arm B, seed {seed}: fields gone wrong, of {counts['n'].iloc[-1]} documents.",
    csv=counts,
)

# %% [markdown]
# ## Recap

# %% tags=["hide-input"]
first, last = start.checkpoints.iloc[-1], record.checkpoints.iloc[-1]
device = record.info["device"]
print(
    f"Arm B, seed {seed}: from {first.exact} to {last.exact} of {last.n} exact "
    f"in {cost.show_hours(last.billed_s / 3600)}"
)
print(f"({cost.unit(device['kind'])} on {device['name']}, pair sampling included).")
