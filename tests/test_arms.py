"""The lean trainers of SFT and DPO: the gradient is stock TRL's, and tricks done the naive way are caught here."""

import pytest

pytest.importorskip("trl", reason="training is not installed (extra `train`)")

import os
import random

import torch
from datasets import Dataset
from lean_harness import Gradients, apart, tiny_model, tokenizer
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

from lib import clock, likelihood, runs
from lib.lean import arms, attention, flat, norms
from lib.lean.arms import DPO_SAVINGS, SFT_SAVINGS, LeanDPOTrainer, LeanSFTTrainer

ARMS = {"sft": (SFTTrainer, LeanSFTTrainer, SFT_SAVINGS), "dpo": (DPOTrainer, LeanDPOTrainer, DPO_SAVINGS)}
INSTRUCTION = "t5 t6 t7 t8 t9 t10"
CASES = [(arm, saving) for arm, (_, _, savings) in ARMS.items() for saving in savings]


def words(draw, low, high):
    return " ".join(f"t{draw.randrange(61)}" for _ in range(draw.randint(low, high)))


def documents(arm, n=16):
    """Ragged text under one instruction; a rejected answer goes on from the chosen one, or is its start, or neither."""
    draw, rows = random.Random(2), []
    for i in range(n):
        prompt, answer = f"{INSTRUCTION} {words(draw, 1, 25)}", " " + words(draw, 2, 9)
        other = [answer + " " + words(draw, 1, 5), answer.rsplit(" ", 1)[0], " " + words(draw, 1, 7)][i % 3]
        rows.append(
            {"prompt": prompt, "completion": answer}
            if arm == "sft"
            else {"prompt": prompt, "chosen": answer, "rejected": other}
        )
    return Dataset.from_list(rows)


def with_noise(model):
    """The model, its adapter no longer zero."""
    torch.manual_seed(7)
    for name, p in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(p, std=0.05)
    return model


def trained(folder, arm, kind, steps=1, lora=True, prepare=None, dropout=0.0, given=False, **settings):
    """(trainer, its gradients a step) after `steps` optimizer steps. kind: TRL's trainer or a lean one.

    given: the adapter comes with the model and is not zero, as a shared start is; TRL then keeps a copy as reference.
    """
    extra = {k: settings.pop(k) for k in ("savings",) if k in settings}
    settings = dict(
        per_device_train_batch_size=4, gradient_accumulation_steps=2, learning_rate=1e-2, bf16=False,
        gradient_checkpointing=False,
    ) | settings  # fmt: skip
    grads = Gradients()
    adapter = LoraConfig(r=4, lora_alpha=8, lora_dropout=dropout, target_modules="all-linear", task_type="CAUSAL_LM")
    model, more = tiny_model(), {}
    if not lora and arm == "dpo":
        more = {"ref_model": tiny_model()}
    if given:
        model = with_noise(get_peft_model(model, adapter))
    trainer = kind(
        model=model, processing_class=tokenizer(), train_dataset=documents(arm), callbacks=[grads],
        peft_config=adapter if lora and not given else None,
        args=(SFTConfig if arm == "sft" else DPOConfig)(
            output_dir=str(folder), max_steps=steps, logging_steps=1, save_strategy="no", report_to=[], use_cpu=True,
            disable_tqdm=True, seed=3, dataloader_pin_memory=False, **settings,
        ),
        **more, **extra,
    )  # fmt: skip
    if not given:
        with_noise(trainer.model)
    if prepare:
        prepare(trainer)
    torch.manual_seed(11)
    trainer.train()
    return trainer, grads.seen


@pytest.fixture(scope="module")
def stock(tmp_path_factory):
    """Gradients of unmodified TRL, trained once for each setting."""
    known = {}

    def run(arm, **settings):
        key = repr((arm, sorted(settings.items())))
        if key not in known:
            known[key] = trained(tmp_path_factory.mktemp("stock"), arm, ARMS[arm][0], **settings)
        return known[key]

    return run


@pytest.mark.parametrize("arm, saving", CASES)
def test_each_saving_alone_is_stock(tmp_path, stock, arm, saving):
    savings = {saving, "padding"} if saving in ("instruction", "prompt") else {saving}
    trainer, found = trained(tmp_path, arm, ARMS[arm][1], savings=savings)
    assert trainer.savings == savings - {"casts"}  # which needs bfloat16
    assert 0 <= apart(found[0], stock(arm)[1][0]) < 1e-5


@pytest.mark.parametrize(
    "settings",
    [dict(steps=3), dict(lora=False, steps=2), dict(gradient_checkpointing=True), dict(per_device_train_batch_size=1)],
    ids=lambda settings: "-".join(settings),
)
@pytest.mark.parametrize("arm", ARMS)
def test_all_savings_together_are_stock(tmp_path, stock, arm, settings):
    (_, expected), (trainer, found) = stock(arm, **settings), trained(tmp_path, arm, ARMS[arm][1], **settings)
    assert "padding" in trainer.savings
    assert apart(found[0], expected[0]) < 1e-5
    assert all(apart(a, b) < 1e-3 for a, b in zip(found, expected, strict=True))  # AdamW magnifies rounding by its sign


def test_an_adapter_is_its_own_reference_in_every_epoch(tmp_path, stock):
    """Two steps an epoch, five steps: the reference stays the adapter as it was given, not the base nor the policy."""
    settings = dict(given=True, steps=5)
    expected = stock("dpo", **settings)[1]
    trainer, found = trained(tmp_path, "dpo", LeanDPOTrainer, **settings)
    assert trainer.precompute_ref_logps
    assert apart(found[0], expected[0]) < 1e-5 and apart(found[4], expected[4]) < 1e-3

    def late(trainer):  # scored as the policy is after its first steps: another reference
        with torch.no_grad():
            for name, p in trainer.model.named_parameters():
                if ".ref." in name:
                    p.mul_(1.05)

    moved = trained(tmp_path, "dpo", LeanDPOTrainer, prepare=late, **settings)[1]
    assert apart(moved[4], expected[4]) > 1e-2


def positions(trainer):
    """Counts what the layers get from now on: a list of positions, one a pass with gradients."""
    seen = []

    def count(module, args, kwargs):
        if torch.is_grad_enabled():
            seen.append(kwargs["input_ids"].numel())

    trainer.model.get_decoder().register_forward_pre_hook(count, with_kwargs=True)
    trainer._check = lambda inputs: None
    return seen


def test_only_real_positions_are_computed_and_a_shared_start_once(tmp_path):
    """Counted by hand: no padding, the six words of the instruction once a batch, and once what a pair begins with."""

    def passed(arm, savings):
        kept = []
        settings = dict(per_device_train_batch_size=16, gradient_accumulation_steps=1, savings=savings)
        trained(tmp_path, arm, ARMS[arm][1], prepare=lambda trainer: kept.append(positions(trainer)), **settings)
        return kept[0]

    rows = [row["input_ids"] for row in trained(tmp_path, "sft", SFTTrainer)[0].train_dataset]
    alone = sum(map(len, rows))
    assert passed("sft", {"padding"}) == [alone] < [16 * max(map(len, rows))]
    assert passed("sft", {"padding", "instruction"}) == [alone - 15 * 6]
    pairs = trained(tmp_path, "dpo", DPOTrainer)[0].train_dataset
    pairs = [(p["prompt_ids"] + p["chosen_ids"], p["prompt_ids"] + p["rejected_ids"]) for p in pairs]
    alone = sum(len(c) + len(r) for c, r in pairs)
    shared = sum(len(os.path.commonprefix([c, r])) for c, r in pairs)
    assert passed("dpo", {"padding"}) == [alone]
    assert passed("dpo", {"padding", "prompt"}) == [alone - shared - 15 * 6]  # pairs begin with it too
    assert passed("dpo", {"padding", "instruction"}) == [alone - 31 * 6]
    assert passed("dpo", {"padding", "instruction", "prompt"}) == [alone - shared - 15 * 6]


def test_a_single_padded_row_has_a_layout():
    rows = flat.rows_of(torch.tensor([[5, 6, 0]]), torch.tensor([[1, 1, 0]]), "rows")
    assert rows.own.tolist() == [0, 1] and rows.cells.tolist()[:2] == [0, 1] and not len(rows.again)


def test_a_watched_run_counts_what_the_layers_get(tmp_path):
    """As the notebook does it: the reference before the first step, all rows, and positions as they are computed."""
    run = runs.Run("02_dpo", "p", "dpo-s0", "dpo", 0, {}, "data", {"name": "tiny", "sha256": ""}, tmp_path / "run")
    run.folder.mkdir()
    run.start_clock()

    def prepare(trainer):
        run.watch(trainer, likelihood.phases(trainer))
        trainer._check = lambda inputs: None
        with run.clock.phase("trainer_setup"):
            trainer.score_reference()

    settings = dict(per_device_train_batch_size=8, gradient_accumulation_steps=1, steps=2, prepare=prepare)
    trained(run.folder, "dpo", LeanDPOTrainer, savings={"padding", "reference"}, **settings)
    steps, ledger = runs.logged_steps(run.folder), clock.ledger(run.folder)
    assert steps["forward_grad_rows"].tolist() == [16, 16] and steps["forward_reference_rows"].sum() == 32
    assert steps["forward_grad_positions"].sum() == steps["num_tokens"].iloc[-1]  # TRL's count of real tokens
    assert steps["forward_reference_positions"].sum() == steps["num_tokens"].iloc[-1]
    assert ledger[ledger["phase"] == "forward_reference"]["kind"].tolist() == ["setup"]


def stock_again(trainer):
    """As the trainer's model should be when nobody trains it."""
    assert not any(
        "forward" in vars(m) or "_cast_input_dtype" in vars(m) for m in trainer.model.get_decoder().modules()
    )
    assert all(m.config is trainer.model.get_decoder().config for m in trainer._flat[0].configs)
    assert trainer.model.config._attn_implementation == "sdpa"
    hooks = trainer.model.get_decoder()
    return not hooks._forward_hooks and not hooks._forward_pre_hooks


@pytest.mark.parametrize("arm", ARMS)
def test_the_model_goes_back_as_it_was(tmp_path, arm):
    assert stock_again(trained(tmp_path, arm, ARMS[arm][1])[0])

    def fails(*_):
        raise RuntimeError("in the middle")

    kept = []

    def prepare(trainer):
        kept.append(trainer)
        trainer._check = fails

    with pytest.raises(RuntimeError, match="in the middle"):
        trained(tmp_path, arm, ARMS[arm][1], prepare=prepare)
    assert stock_again(kept[0])


# Each trick done the naive way


@pytest.mark.parametrize("arm", ARMS)
def test_rows_that_see_each_other_are_caught(tmp_path, stock, monkeypatch, capsys, arm):
    """One row under a plain causal mask: the gradient is another one, and the run-time check notices."""
    honest = flat.sdpa_attention_forward

    def leaking(module, query, key, value, mask, flat_rows=None, **kwargs):
        return honest(module, query, key, value, None if flat_rows else mask, **kwargs)

    monkeypatch.setitem(flat.AttentionInterface._global_mapping, flat.NAME, leaking)
    expected = stock(arm)[1][0]
    trainer, [found] = trained(tmp_path, arm, ARMS[arm][1])
    assert "log-probabilities part from TRL's" in capsys.readouterr().out
    assert not trainer.savings & arms.FORWARD and apart(found, expected) < 1e-5
    monkeypatch.setattr(arms.Lean, "_check", lambda self, inputs: None)
    assert apart(trained(tmp_path, arm, ARMS[arm][1])[1][0], expected) > 0.01


@pytest.mark.parametrize("arm", ARMS)
def test_a_shared_start_that_learns_from_one_row_alone_is_caught(tmp_path, stock, monkeypatch, arm):
    honest = attention._backward

    def forgetful(*args):
        of_queries, *of_others = honest(*args)
        return of_queries, *(of_others if args[7] else [0 * x for x in of_others])

    monkeypatch.setattr(attention, "_backward", forgetful)
    assert apart(trained(tmp_path, arm, ARMS[arm][1])[1][0], stock(arm)[1][0]) > 0.01


@pytest.mark.parametrize(
    "arm, settings, off",
    [
        ("sft", dict(dropout=0.5), {"padding", "lora", "norms"}),
        ("sft", dict(packing=True, max_length=64), {"padding"}),
        ("dpo", dict(precompute_ref_log_probs=True), {"reference"}),
        ("dpo", dict(savings={"prompt", "instruction", "norms"}), {"prompt", "instruction"}),
        ("sft", dict(lora=False), {"casts", "lora"}),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_what_does_not_apply_is_off_and_said(tmp_path, stock, capsys, arm, settings, off):
    trainer, found = trained(tmp_path, arm, ARMS[arm][1], **settings)
    assert not trainer.savings & off and trainer.savings
    assert "lean: " in capsys.readouterr().out
    expected = stock(arm, **{k: v for k, v in settings.items() if k != "savings"})[1]
    assert apart(found[0], expected[0]) < 1e-5


def test_an_unknown_saving_is_named(tmp_path):
    with pytest.raises(ValueError, match="savings: got \\['paddign'\\]; expected some of"):
        trained(tmp_path, "sft", LeanSFTTrainer, savings={"paddign"})


# In bfloat16


def gradients(kind, dtype, pairs, pad=0, make=tiny_model):
    """Gradient of a weighted sum of hidden states of ragged rows; kind: stock, or lean."""
    model = make().to(torch.bfloat16).to(dtype)  # the same weights in both precisions
    if kind == "lean":
        flat.Flat(model).use(True, "pairs" if pairs else "rows")
        norms.run(norms.layers(model), fused=True)
    draw = torch.Generator().manual_seed(1)
    ids, mask = torch.randint(0, 61, (8, 40), generator=draw), torch.zeros(8, 40, dtype=torch.long)
    ids[4:, :20] = ids[:4, :20]
    ids[:, :9] = ids[0, :9]
    for row, length in enumerate([40, 31, 12, 25, 24, 37, 18, 22]):
        mask[row, :length] = 1
    weight = torch.randn(8, 40, 32, generator=draw) * mask[:, :, None]
    ids, mask = (torch.nn.functional.pad(x, (pad, 0)) for x in (ids, mask))
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        hidden = model.get_decoder()(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
    (hidden[:, pad:].float() * weight).sum().backward()
    return [p.grad.double() for p in model.parameters()]


@pytest.mark.parametrize("pairs", [False, True])
def test_in_bfloat16_no_farther_from_float32_than_stock_padded_otherwise(pairs):
    truth = gradients("stock", torch.float32, pairs)
    assert apart(gradients("lean", torch.float32, pairs), truth) < 1e-5
    stock = max(apart(gradients("stock", torch.bfloat16, pairs, pad), truth) for pad in (0, 37))
    assert apart(gradients("lean", torch.bfloat16, pairs), truth) < 1.1 * stock


def tiny_llama():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, pad_token_id=61, initializer_range=0.2,
        tie_word_embeddings=True,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def test_another_architecture_runs_flat_too():
    """SmolLM2's."""
    truth = gradients("stock", torch.float32, True, make=tiny_llama)
    assert apart(gradients("lean", torch.float32, True, make=tiny_llama), truth) < 1e-5
