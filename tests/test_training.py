"""One real training step of each trainer on the shipped tiny model, and the guards around it."""

import math

import pytest

pytest.importorskip("trl", reason="training is not installed (extra `train`)")

import pandas as pd
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

from lib import clock, data, decode, evaluate, grpo, likelihood, rewards, runs, wasted
from lib.lean.trainer import LeanGRPOTrainer
from lib.paths import BASE
from lib.report import cost, preference

MACHINE = dict(use_cpu=True, bf16=False, gradient_checkpointing=False, report_to="none", disable_tqdm=True,
               dataloader_pin_memory=False, logging_steps=1, save_steps=1, learning_rate=1e-3)  # fmt: skip


@pytest.fixture(scope="module")
def documents():
    return data.load("synthetic", n_documents=16, seed=5)


@pytest.fixture
def run(tmp_path):
    return live_run(tmp_path / "run")


def live_run(folder, arm="run", seed=0):
    live = runs.Run("01_sft", "p", f"{arm}-s{seed}", arm, seed, {}, "data", {"name": "tiny", "sha256": ""}, folder)
    live.folder.mkdir()
    live.start_clock()
    return live


def load(lora=False):
    tokenizer, model = decode.load_tokenizer(BASE), decode.load_policy(BASE, None, "float32")
    if lora:
        model = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"))
    return tokenizer, model


def trainable(model):
    return {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}


def assert_all_changed(model, before):
    same = [name for name, p in model.named_parameters() if p.requires_grad and torch.equal(p, before[name])]
    assert not same, f"did not change: {same}"


def closes(run):
    """The rows of each step are there, and sum to no less than what the phases of the step need."""
    table = clock.ledger(run.folder)
    train = table[table["kind"] == "train"].pivot_table(index="step", columns="phase", values="host_s", aggfunc="sum")
    assert train[["data", "forward_grad", "backward", "clip", "optimizer", "checkpoint"]].gt(0).all(axis=None)
    left = train[[name for name in train if name in cost.REMAINDERS]]
    assert left.sum().sum() < 0.1 * train.sum().sum()
    return train


def test_sft_step(run, documents):
    tokenizer, model = load()
    rows = [
        {"prompt": data.messages(d), "completion": [{"role": "assistant", "content": data.answer(d)}]}
        for d in documents
    ]
    trainer = SFTTrainer(
        model=model, args=SFTConfig(output_dir=run.folder, max_steps=2, per_device_train_batch_size=4, **MACHINE),
        train_dataset=Dataset.from_list(rows), processing_class=tokenizer,
    )  # fmt: skip
    run.watch(trainer, {"compute_loss": "forward_grad"})
    evaluate.check_end_token(trainer, tokenizer)
    before = trainable(model)
    trainer.train()
    assert_all_changed(model, before)
    steps = runs.logged_steps(run.folder)
    assert steps["step"].tolist() == [1, 2]
    lengths = [len(row["input_ids"]) for row in trainer.train_dataset]
    assert steps["forward_grad_rows"].tolist() == [4, 4]
    assert steps["forward_grad_tokens"].sum() == steps["num_tokens"].iloc[-1] < sum(lengths)
    assert (steps["forward_grad_positions"] >= steps["forward_grad_tokens"]).all()
    assert [step for step, _ in run.checkpoints()] == [1, 2]
    closes(run)


def pairs(documents):
    wrong = [dict(d, birth_date="1700", death_place=None) for d in documents]
    return [
        {"prompt": data.messages(d), "chosen": [{"role": "assistant", "content": data.answer(d)}],
         "rejected": [{"role": "assistant", "content": data.answer(w)}]}
        for d, w in zip(documents, wrong, strict=True)
    ]  # fmt: skip


@pytest.mark.parametrize("lora", [False, True])
def test_dpo_step_starts_at_its_reference(run, documents, lora):
    tokenizer, model = load(lora)
    if lora:  # an adapter that is not the base model: the reference must be the adapter, not the base
        for name, p in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(p, std=0.1, generator=torch.Generator().manual_seed(0))
    trainer = DPOTrainer(
        model=model, args=DPOConfig(output_dir=run.folder, max_steps=2, per_device_train_batch_size=4, **MACHINE),
        train_dataset=Dataset.from_list(pairs(documents)), processing_class=tokenizer,
    )  # fmt: skip
    run.watch(trainer, likelihood.phases(trainer))
    likelihood.count_completion_tokens(trainer, run)
    found = likelihood.check_dpo_start(trainer)
    assert found == pytest.approx({"loss": math.log(2), "rewards_chosen": 0, "rewards_rejected": 0}, abs=1e-6)
    before = trainable(trainer.model)
    trainer.train()
    assert_all_changed(trainer.model, before)
    steps = likelihood.dpo_steps(run.folder)
    assert (steps["chosen_logp"] / steps["chosen_tokens"] * 4).tolist() == pytest.approx(
        steps["chosen_logp_token"].tolist()
    )
    assert "forward_reference" in closes(run)


def test_dpo_with_an_adapter_resumes_where_it_stopped(tmp_path, documents):
    """The policy after a resume is the checkpoint's, not the shared start's (transformers 5.17 restores only `ref`)."""
    losses = []
    for resume in (False, True):
        tokenizer, model = load(lora=True)
        args = DPOConfig(output_dir=tmp_path, max_steps=2, per_device_train_batch_size=4, **MACHINE)
        trainer = DPOTrainer(
            model=model, args=args, train_dataset=Dataset.from_list(pairs(documents)), processing_class=tokenizer
        )
        checkpoint = str(tmp_path / "checkpoint-1") if resume else None
        if resume:
            likelihood.restore_policy(trainer, checkpoint)
            trainer.callback_handler.on_train_begin(trainer.args, trainer.state, trainer.control)
            saved = load_file(tmp_path / "checkpoint-1" / "adapter_model.safetensors")
            policy = {n.replace(".default", ""): p for n, p in trainable(trainer.model).items()}
            assert all(torch.equal(policy[name], weight) for name, weight in saved.items())
            assert all(policy[name].any() for name in saved)  # lora_B starts at 0: these are not the start's
        trainer.train(resume_from_checkpoint=checkpoint)
        losses.append([row["loss"] for row in trainer.state.log_history if "loss" in row])
    assert losses[1] == losses[0]


def test_dpo_with_another_reference_is_stopped(tmp_path, documents):
    tokenizer, model = load()
    other = decode.load_policy(BASE, None, "float32")
    torch.nn.init.normal_(other.model.layers[0].mlp.up_proj.weight, std=0.2)
    trainer = DPOTrainer(
        model=model, ref_model=other,
        args=DPOConfig(output_dir=tmp_path, max_steps=1, per_device_train_batch_size=4, **MACHINE),
        train_dataset=Dataset.from_list(pairs(documents)), processing_class=tokenizer,
    )  # fmt: skip
    with pytest.raises(RuntimeError, match="wrong reference model"):
        likelihood.check_dpo_start(trainer)


def grpo_trainer(run, documents, seed, worth=None, stop_after_dead_steps=0, kind=GRPOTrainer, **changes):
    """worth: what every completion earns; by default its reward, and something for its length."""
    tokenizer, model = load()

    def reward(completions, gold, text, **_):
        if worth is not None:
            return [worth] * len(completions)
        # a completion's length makes rewards differ, so that there is a gradient on an untrained model too
        judged = [rewards.reward(c[0]["content"], g, t) for c, g, t in zip(completions, gold, text, strict=True)]
        return [r + 0.01 * len(c[0]["content"]) for r, c in zip(judged, completions, strict=True)]

    rows = [
        {"prompt": data.messages(d), "id": d["id"], "text": d["text"], "gold": {f: d[f] for f in data.FIELDS}}
        for d in documents
    ]
    args = GRPOConfig(
        output_dir=run.folder, per_device_train_batch_size=8, num_generations=4, max_completion_length=12, seed=seed,
        **MACHINE, **{"max_steps": 1} | changes,
    )  # fmt: skip
    trainer = kind(
        model=model, reward_funcs=reward, args=args, train_dataset=Dataset.from_list(rows), processing_class=tokenizer
    )
    grpo.observe(trainer, run)
    wasted.watch(trainer, run, stop_after_dead_steps, price_per_hour=3.6)
    run.watch(trainer, grpo.phases(trainer))
    return trainer


@pytest.mark.parametrize("kind", [GRPOTrainer, LeanGRPOTrainer])
def test_grpo_step_and_its_rollouts(run, documents, kind):
    trainer = grpo_trainer(run, documents, 0, kind=kind)
    before = trainable(trainer.model)
    trainer.train()
    assert_all_changed(trainer.model, before)
    train = closes(run)
    assert {"generation", "generate_rest", "tokenise", "detokenise", "reward", "zero_grad"} <= set(train)
    assert "weight_sync" not in train  # no engine: missing, not 0
    table = grpo.rollouts(run.folder)
    assert len(table) == 8 and table["group"].nunique() == 2
    logged = runs.logged_steps(run.folder)
    assert table["reward"].mean() == pytest.approx(logged["reward"].item(), abs=1e-5)
    assert logged[["wasted_s", "dead_steps"]].iloc[0].tolist() == [0, 0]  # every group differs
    per_group = table.groupby("group")["advantage"].sum()
    assert per_group.tolist() == pytest.approx([0, 0], abs=1e-4)


def test_grpo_without_signal_is_shown_as_it_happens_and_stopped_by_the_rule(run, documents, tmp_path, monkeypatch):
    monkeypatch.setenv("PROGRESS_FILE", str(tmp_path / "progress"))
    grpo_trainer(run, documents, seed=0, worth=0.3, stop_after_dead_steps=2, max_steps=4).train()
    logged = runs.logged_steps(run.folder)
    assert logged["dead_steps"].tolist() == [1, 2] and (logged["grad_norm"] == 0).all()
    assert [step for step, _ in run.checkpoints()] == [1, 2]
    spent = clock.ledger(run.folder).query("kind == 'train'").groupby("step")["host_s"].sum()
    assert (logged["wasted_s"].to_numpy() < spent.to_numpy()).all()
    assert (logged["wasted_s"].to_numpy() > 0.5 * spent.to_numpy()).all()  # the rest: checkpoint, log, data
    lines = (tmp_path / "progress").read_text()
    assert lines.count("no signal 100% of groups, wasted so far") == 2 and "$" not in lines  # a CPU has no price
    assert "no signal in 2 steps in a row" in lines


def test_the_seed_reaches_the_sampler_and_runs_that_rolled_out_alike_are_refused(tmp_path, documents):
    """The same prompts in the same order from the same weights: only the seed differs, and so must the rollouts."""
    found = []
    for seed in (0, 1):
        run = live_run(tmp_path / str(seed), "grpo", seed)
        grpo_trainer(run, documents, seed, shuffle_dataset=False).train()
        found.append((run, grpo.rollouts(run.folder)))
    (first, one), (second, two) = found
    assert one["id"].tolist() == two["id"].tolist()
    assert not one["completion_tokens"].equals(two["completion_tokens"])
    second.rollouts = one  # as the record of another seed would show it
    with pytest.raises(RuntimeError, match="same first rollouts"):
        grpo.check_seeds_differ(first, [second])
    second.rollouts = one.assign(id=one["id"] + "x")
    grpo.check_seeds_differ(first, [second])


def test_a_prompt_is_hard_when_a_sample_of_it_is_wrong(documents):
    one, other, third = documents[:3]
    samples_P_N = [[data.answer(one)] * 2, [data.answer(other), "no JSON"], [data.answer(one)] * 2]
    assert grpo.hard([one, other, third], samples_P_N) == [other, third]


def test_groups_are_constant_by_their_rewards_not_by_a_float_deviation():
    rows = []
    for group, rewards_G in enumerate([[0.3] * 8, [0.3] * 7 + [0.4]]):
        for rollout, value in enumerate(rewards_G):
            row = {"step": 1, "group": group, "rollout": rollout, "reward": value, "valid": True}
            row |= {"prompt_tokens": 3, "completion_tokens": 2, "advantage": (rollout == 7) * group}
            for f in data.FIELDS:
                row |= {f: None, f"{f}_verdict": "right", f"{f}_gold_null": True}
            rows.append(row)
    counts = grpo.step_counts(pd.DataFrame(rows)).iloc[0]
    assert counts["zero_variance_groups"] == 1 and counts["groups"] == 2
    assert counts["null_name"] == counts["null_expected_name"] == 16
    assert counts["live_rows"] == 1


def test_checkpoint_evaluation_counts_its_verdicts(run, documents):
    generation = dict(engine="transformers", base=BASE, dtype="float32", context_tokens=512, max_completion_tokens=8)
    predictions, table = evaluate.checkpoints(run, {0: None}, documents, data.INSTRUCTION, **generation)
    assert len(predictions) == table["n"].item() == len(documents)
    assert table["exact"].item() == predictions["exact"].sum() == 0  # eight tokens hold no record
    assert (predictions[[f"{f}_verdict" for f in data.FIELDS]] == "invalid").all(axis=None)


def test_fixed_pairs_are_judged_at_the_start_and_every_checkpoint(run, documents):
    """A tiny DPO run's table `likelihood`: as completion_logps says, kept when interrupted, booked as evaluation."""
    tokenizer, model = load()
    prompts, answers = [data.messages(d) for d in documents], [data.answer(d) for d in documents]
    made = [
        {"id": d["id"], "prompt": p, "chosen": a, "rejected": a.replace("null", '"x"')}
        for d, p, a in zip(documents, prompts, answers, strict=True)
    ]
    sets = {"train": made[:3], "heldout": made[3:5]}
    trainer = DPOTrainer(
        model=model, args=DPOConfig(output_dir=run.folder, max_steps=2, per_device_train_batch_size=4, **MACHINE),
        train_dataset=Dataset.from_list(pairs(documents)), processing_class=tokenizer,
    )  # fmt: skip
    run.watch(trainer, likelihood.phases(trainer))
    trainer.train()
    judged = {0: BASE} | dict(run.checkpoints())
    greedy = {step: {made[3]["id"]: "{}"} for step in judged}
    table = likelihood.checkpoints(run, judged, sets, greedy, BASE, "float32")
    assert len(table) == 3 * 5 and table["step"].unique().tolist() == [0, 1, 2]
    assert table.groupby("set")["greedy_logp"].count().to_dict() == {"train": 0, "heldout": 3}
    first = table[(table["step"] == 0) & (table["set"] == "train")]
    sums, lengths = likelihood.completion_logps(load()[1], tokenizer, prompts[:3], answers[:3])
    assert first["chosen_logp"].tolist() == pytest.approx(sums, abs=1e-3)
    assert first["chosen_tokens"].tolist() == lengths
    moved = preference.by_checkpoint(table)
    assert (moved.loc[moved["step"] > 0, ["chosen", "rejected"]] != 0).all(axis=None)
    (run.folder / "likelihood" / "2.json").unlink()  # as an interruption would leave it
    pd.testing.assert_frame_equal(likelihood.checkpoints(run, judged, sets, greedy, BASE, "float32"), table)
    assert "evaluation" in set(clock.ledger(run.folder)["phase"])


def test_completion_logps_are_what_the_model_says(documents):
    tokenizer, model = load()
    prompts, answers = [data.messages(d) for d in documents[:3]], [data.answer(d) for d in documents[:3]]
    sums, lengths = likelihood.completion_logps(model, tokenizer, prompts, answers, batch=2)
    head = tokenizer.apply_chat_template(prompts[0], tokenize=True, add_generation_prompt=True, return_dict=False)
    tail = tokenizer(answers[0], add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([head + tail])).logits[0].log_softmax(-1)
    by_hand = sum(logits[len(head) - 1 + i, token].item() for i, token in enumerate(tail))
    assert lengths[0] == len(tail) and sums[0] == pytest.approx(by_hand, abs=1e-3)
