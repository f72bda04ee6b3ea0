"""The lean trainer's gradient is stock TRL's, and each of its tricks, done the naive way, is caught here."""

import hashlib
import inspect
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("trl", reason="training is not installed (extra `train`)")

import torch
from lean_harness import GROUP, REWARDS, apart, tiny_model, trained, weights
from peft import LoraConfig, get_peft_model
from trl import GRPOTrainer
from trl.generation.vllm_generation import VLLMGeneration
from trl.trainer.utils import add_fused_lm_head

from lib import clock, grpo
from lib.lean import adapters, attention, engine, flat, micro_batches, norms
from lib.lean.trainer import SAVINGS, LeanGRPOTrainer

LOSSES = ("dapo", "grpo", "dr_grpo", "bnpo", "cispo")


@pytest.fixture(scope="module")
def stock(tmp_path_factory):
    """Gradients of unmodified TRL, trained once for each setting."""
    known = {}

    def run(**settings):
        key = repr(sorted(settings.items()))
        if key not in known:
            known[key] = trained(tmp_path_factory.mktemp("stock"), GRPOTrainer, **settings)
        return known[key]

    return run


@pytest.mark.parametrize("rewards", REWARDS)
@pytest.mark.parametrize("loss_type", LOSSES)
def test_first_gradient_is_stock(tmp_path, stock, loss_type, rewards):
    settings = dict(loss_type=loss_type, rewards=rewards)
    (_, [expected]), (trainer, [found]) = stock(**settings), trained(tmp_path, LeanGRPOTrainer, **settings)
    assert set(SAVINGS) - trainer.savings == {"sync", "rollouts", "casts"}  # what needs an engine or bfloat16
    assert apart(found, expected) < 1e-5
    assert all(g is not None for g in found)
    assert (rewards == "dead") == (not any(g.any() for g in found))


@pytest.mark.parametrize(
    "settings",
    [
        dict(per_device_train_batch_size=4, gradient_accumulation_steps=6),
        dict(loss_type="grpo", steps_per_generation=4, gradient_accumulation_steps=2, num_iterations=2, steps=3),
        dict(loss_type="bnpo", steps_per_generation=4, gradient_accumulation_steps=2, steps=2),
        dict(loss_type="dr_grpo", steps_per_generation=1, gradient_accumulation_steps=2),
        dict(scale_rewards="batch"),
        dict(vllm_importance_sampling_mode="token_truncate"),
        dict(vllm_importance_sampling_mode="sequence_truncate", vllm_importance_sampling_clip_min=0.5),
        dict(vllm_importance_sampling_correction=False),
        dict(importance_sampling_level="sequence", loss_type="grpo"),
        dict(mask_truncated_completions=True),
        dict(lora=False),
        dict(gradient_checkpointing=True),
    ],
    ids=lambda settings: "-".join(f"{k}={v}" for k, v in settings.items()),
)
def test_gradients_of_other_settings_are_stock(tmp_path, stock, settings):
    (_, expected), (_, found) = stock(**settings), trained(tmp_path, LeanGRPOTrainer, **settings)
    assert apart(found[0], expected[0]) < 1e-5
    assert all(apart(a, b) < 1e-3 for a, b in zip(found, expected, strict=True))  # AdamW magnifies rounding by its sign


@pytest.mark.parametrize("saving", SAVINGS)
def test_each_saving_alone_is_stock(tmp_path, stock, saving):
    (_, expected), (_, found) = (
        stock(loss_type="bnpo"),
        trained(tmp_path, LeanGRPOTrainer, loss_type="bnpo", savings={saving}),
    )
    assert apart(found[0], expected[0]) < 1e-5


def test_without_savings_it_is_stock_to_the_bit(tmp_path, stock):
    (_, expected), (_, found) = stock(), trained(tmp_path, LeanGRPOTrainer, savings=())
    assert apart(found[0], expected[0]) == 0


MIXED_STEPS = dict(rewards=["mixed", "dead", "dead", "mixed"], steps=4)


def test_weights_after_adamw_steps_some_without_signal(tmp_path, stock):
    (one, _), (two, grads) = stock(**MIXED_STEPS), trained(tmp_path, LeanGRPOTrainer, **MIXED_STEPS)
    moved = (weights(one) - weights(trained(tmp_path, GRPOTrainer, rewards="dead")[0])).abs().max()
    assert (weights(one) - weights(two)).abs().max() < 1e-3 * moved
    assert [any(g.any() for g in step) for step in grads] == [True, False, False, True]
    assert [r["loss"] for r in two.state.log_history if "loss" in r] == pytest.approx(
        [r["loss"] for r in one.state.log_history if "loss" in r], abs=1e-5
    )


def test_random_state_after_training_is_stock(tmp_path):
    states = []
    for kind in (GRPOTrainer, LeanGRPOTrainer):
        trained(tmp_path, kind, steps=2)
        states.append((torch.get_rng_state(), random.getstate()))
    assert torch.equal(states[0][0], states[1][0]) and states[0][1] == states[1][1]


# Each trick done the naive way


def test_naive_skip_of_dead_steps_is_caught(tmp_path, stock):
    """Without gradients AdamW does not move; with zeros its momentum and its decay do."""

    class Naive(LeanGRPOTrainer):
        def compute_loss(self, model, inputs, *args, **kwargs):
            if inputs is None:
                return torch.zeros((), requires_grad=True)
            return super().compute_loss(model, inputs, *args, **kwargs)

    one, two = stock(**MIXED_STEPS)[0], trained(tmp_path, Naive, **MIXED_STEPS)[0]
    assert (weights(one) - weights(two)).abs().max() > 1e-3


@pytest.mark.parametrize("loss_type", ["grpo", "dr_grpo", "bnpo"])
def test_one_micro_batch_for_six_keeps_the_normaliser(tmp_path, stock, monkeypatch, loss_type):
    settings = dict(loss_type=loss_type, per_device_train_batch_size=4, gradient_accumulation_steps=6)
    expected = stock(**settings)[1][0]

    def room(trainer):
        trainer._budget = 10_000

    assert apart(trained(tmp_path, LeanGRPOTrainer, prepare=room, **settings)[1][0], expected) < 1e-5
    monkeypatch.setitem(micro_batches.SCALES, loss_type, "none")  # as if other rows had the same mean
    assert apart(trained(tmp_path, LeanGRPOTrainer, prepare=room, **settings)[1][0], expected) > 0.05


@pytest.fixture
def leaking(monkeypatch):
    """All rows of a micro-batch as one row under a plain causal mask: they read each other."""
    honest = flat.sdpa_attention_forward

    def one_row(module, query, key, value, mask, flat_rows=None, **kwargs):
        return honest(module, query, key, value, None if flat_rows else mask, **kwargs)

    monkeypatch.setitem(flat.AttentionInterface._global_mapping, flat.NAME, one_row)


def test_rows_that_read_each_other_are_caught(tmp_path, stock, monkeypatch, leaking):
    expected = stock()[1][0]
    monkeypatch.setattr(LeanGRPOTrainer, "_check", lambda self, *args: None)
    assert apart(trained(tmp_path, LeanGRPOTrainer)[1][0], expected) > 0.01


def test_the_check_falls_back_and_says_so(tmp_path, stock, leaking, capsys):
    trainer, [found] = trained(tmp_path, LeanGRPOTrainer)
    assert "log-probabilities part from TRL's" in capsys.readouterr().out
    assert not trainer.savings & {"prefix", "lora", "norms"} and "drop" in trainer.savings
    assert apart(found, stock()[1][0]) < 1e-5


def test_a_prompt_that_learns_from_one_rollout_alone_is_caught(tmp_path, stock, monkeypatch):
    honest = attention._backward

    def forgetful(*args):
        of_queries, *of_others = honest(*args)
        return of_queries, *(of_others if args[7] else [0 * x for x in of_others])

    monkeypatch.setattr(attention, "_backward", forgetful)
    assert apart(trained(tmp_path, LeanGRPOTrainer)[1][0], stock()[1][0]) > 0.01


def test_shared_starts_are_laid_out_once():
    """Three rows of a group, one of another with the same first token, one of a single token; 0 is padding."""
    ids = torch.tensor([[1, 2, 3, 4], [1, 2, 3, 0], [1, 2, 5, 6], [1, 7, 5, 6], [9, 0, 0, 0]])
    mask = (ids != 0).long()
    rows = flat.rows_of(ids, mask, "rows")
    assert ids.flatten()[rows.own].tolist() == [1, 2, 3, 4, 5, 6, 7, 5, 6, 9]
    places = [[0, 1, 2, 3], [0, 1, 2], [0, 1, 4, 5], [0, 6, 7, 8], [9]]
    assert [p[m.bool()].tolist() for p, m in zip(rows.cells.view(5, 4), mask, strict=True)] == places
    assert rows.again.tolist() == [4, 5, 6, 8, 9, 12]  # cells of rows 1 to 3 that another row computes
    assert rows.parts.own.queries.tolist() == [0, 4, 6, 9, 10]  # row 1 has no position of its own
    assert rows.parts.looking.tolist() == [4, 5, 6, 7, 8] and rows.parts.seen.tolist() == [0, 1, 0]
    assert [x.tolist() for x in rows.parts.shared[:2]] == [[0, 2, 5], [0, 2, 3]]
    group = flat.rows_of(torch.tensor([[1, 2, 3], [1, 2, 4], [1, 2, 5]]), torch.ones(3, 3), "rows").parts
    assert group.seen.tolist() == [0, 1] and group.shared.queries.tolist() == [0, 2]  # two rows, one stretch
    assert len(flat.rows_of(ids, mask).own) == 16 and not len(flat.rows_of(ids, mask).again)
    pairs = flat.rows_of(ids[[0, 3, 2, 4]], mask[[0, 3, 2, 4]], "pairs")  # rows 0 and 2, then 1 and 3
    assert len(pairs.own) == 4 + 2 + 3 + 1


def test_units_are_dealt_by_their_positions():
    units = [(5, [0]), (4, [1, 2]), (3, [3]), (3, [4])]
    assert micro_batches.fill(units, 4, 9, None, padded=False) == [[0, 1, 2], [3, 4]]
    assert micro_batches.fill(units, 4, 9, None, padded=True) == [[0], [1, 2, 3], [4]]  # 2 x 4 positions, 3 x 4 > 9
    assert micro_batches.fill(units, 4, 9, 2, padded=True) == [[0], [1, 2], [3, 4]]  # at most 2 rollouts
    assert micro_batches.fill(units, 1, 9, None, padded=False) == [[0, 1, 2, 3, 4]]  # one slot: the budget grows


def test_naive_old_log_probabilities_are_caught(tmp_path, stock):
    """Off-policy the training pass's own would be wrong: the saving must be off, and forcing it must show."""
    settings = dict(steps_per_generation=4, gradient_accumulation_steps=2, num_iterations=2, steps=3, loss_type="grpo")
    expected = stock(**settings)[1]
    assert "old" not in trained(tmp_path, LeanGRPOTrainer, **settings)[0].savings

    def force(trainer):
        trainer.savings |= {"old"}

    found = trained(tmp_path, LeanGRPOTrainer, prepare=force, **settings)[1]
    assert apart(found[2], expected[2]) > 1e-3


def test_correction_left_out_is_caught(tmp_path, stock):
    expected = stock()[1][0]
    uncorrected = trained(tmp_path, LeanGRPOTrainer, vllm_importance_sampling_correction=False)[1][0]
    assert apart(uncorrected, expected) > 0.05


@pytest.mark.parametrize(
    "settings, off",
    [
        (dict(beta=0.1), {"drop", "prefix", "pack", "trim", "old"}),
        (dict(top_entropy_quantile=0.5), {"drop", "prefix", "pack", "old"}),
        (dict(entropy_coef=0.1), {"drop", "prefix", "pack", "old"}),
        (dict(multi_objective_aggregation="normalize_then_sum"), {"drop"}),
        (dict(loss_type="vespo"), {"drop", "old"}),
        (dict(num_iterations=2), {"old"}),
        (dict(lora_dropout=0.5), {"drop", "prefix", "pack", "trim", "old", "lora"}),
    ],
    ids=lambda value: "-".join(value),
)
def test_what_would_be_inexact_is_off_and_the_gradient_stock(tmp_path, stock, capsys, settings, off):
    expected = stock(**settings)[1]
    trainer, found = trained(tmp_path, LeanGRPOTrainer, **settings)
    assert not trainer.savings & off
    assert "off:" in capsys.readouterr().out
    assert apart(found[0], expected[0]) < 1e-5


def test_an_unknown_saving_is_named(tmp_path):
    with pytest.raises(ValueError, match="savings: got \\['prefxi'\\]; expected some of"):
        trained(tmp_path, LeanGRPOTrainer, savings={"prefxi"})


def test_two_processes_one_of_them_without_signal(tmp_path):
    here = Path(__file__).parent
    environment = os.environ | {"PYTHONPATH": f"{here.parent / 'src'}{os.pathsep}{here}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    done = subprocess.run(
        [*command, str(here / "lean_harness.py"), str(tmp_path)], env=environment, capture_output=True, text=True
    )
    number = r"([-+.e\d]+)"  # the two processes may write into each other's line
    lines = re.findall(rf"RESULT (\d) (\w+) {number} {number} {number}", done.stdout)
    assert len(lines) == 6, done.stdout[-2000:] + done.stderr[-4000:]
    for processes, loss, first, worst, drift in lines:
        assert processes == "2" and float(first) < 1e-5, loss
        assert float(worst) < 1e-3 and float(drift) < 1e-4, loss


# In bfloat16


def scored(kind, dtype, pad=0):
    """Gradient of a weighted sum of completion log-probabilities; kind: rows, or flat with fused LoRA layers."""
    model = tiny_model().to(torch.bfloat16).to(dtype)  # the same weights in both precisions
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    torch.manual_seed(1)
    model = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM"))
    draw = random.Random(0)
    for name, p in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(p, std=0.05)
    ids, mask = [], []
    for _ in range(3):
        prompt = [draw.randrange(61) for _ in range(draw.randint(20, 40))]
        for _ in range(GROUP * 2):
            c = [draw.randrange(61) for _ in range(draw.randint(1, 20))]
            ids.append([61] * (pad + 40 - len(prompt)) + prompt + c + [61] * (20 - len(c)))
            mask.append([0] * (pad + 40 - len(prompt)) + [1] * (len(prompt) + len(c)) + [0] * (20 - len(c)))
    ids, mask = torch.tensor(ids), torch.tensor(mask)
    weight = torch.randn(len(ids), 20, generator=torch.Generator().manual_seed(5)) * mask[:, -20:]
    autocast = torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16)
    if kind == "flat":
        adapters.run(model, fused=True, casts=False)
        norms.run(norms.layers(model), fused=True)
        rows = flat.Flat(model)
        rows.use(True, share="rows")
        logps, _ = flat.completion_logps(model, rows, autocast, ids, mask, 20)
    else:
        labels = ids.masked_fill(mask == 0, -100)
        labels[:, :-20] = -100
        with autocast:
            logps = model(input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True).log_probs[:, -20:]
    (logps.float() * weight).sum().backward()
    return [p.grad.double() for p in model.parameters() if p.requires_grad]


def test_in_bfloat16_no_farther_from_float32_than_stock_padded_otherwise():
    truth = scored("rows", torch.float32)
    assert apart(scored("flat", torch.float32), truth) < 1e-5
    stock = max(apart(scored("rows", torch.bfloat16, pad), truth) for pad in (0, 37))
    assert apart(scored("flat", torch.bfloat16), truth) < 1.1 * stock


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: FlashAttention's kernel runs on one only")
def test_the_kernel_and_plain_tensors_agree(monkeypatch):
    """Both parts of rows of three groups, grouped queries, forward and backward."""
    ids = torch.randint(0, 50, (12, 90), generator=torch.Generator().manual_seed(0))
    for first in (0, 4, 8):
        ids[first : first + 4, :50] = ids[first, :50]
    ids[:, :20] = ids[0, :20]
    mask = (torch.arange(90) < torch.arange(60, 84, 2)[:, None]).long()
    parts = flat.rows_of(ids.cuda(), mask.cuda(), "rows").parts
    torch.manual_seed(0)
    leaves = [torch.randn(parts.own.queries[-1], heads, 64, device="cuda", dtype=torch.bfloat16) for heads in (6, 2, 2)]
    found = []
    for kernel in (True, False):
        monkeypatch.setattr(attention, "_kernel", lambda x, kernel=kernel: kernel)
        ours = [x.clone().requires_grad_() for x in leaves]
        out = attention.Attention.apply(*ours, parts, 0.125)
        (out.float() * torch.linspace(-1, 1, 64, device="cuda")).sum().backward()
        found.append([x.double() for x in (out, *(x.grad for x in ours))])
    assert all(apart([ours], [plain]) < 0.01 for ours, plain in zip(*found, strict=True))


def test_the_kernel_is_called_as_it_asks():
    """PyTorch's own, under a private name: its arguments, in order."""
    given = [a.name for a in torch.ops.aten._flash_attention_forward.default._schema.arguments]
    stretches = ["cum_seq_q", "cum_seq_k", "max_q", "max_k", "dropout_p", "is_causal"]
    assert given[:10] == ["query", "key", "value", *stretches, "return_debug_mask"] and given[10] == "scale"
    given = [a.name for a in torch.ops.aten._flash_attention_backward.default._schema.arguments]
    assert given[:6] == ["grad_out", "query", "key", "value", "out", "logsumexp"]
    assert given[6:15] == [*stretches, "rng_state", "unused", "scale"]


def test_casts_left_out_change_no_bit():
    grads = []
    for casts in (True, False):
        torch.manual_seed(0)
        model = get_peft_model(tiny_model().to(torch.bfloat16), LoraConfig(r=4, target_modules="all-linear"))
        adapters.run(model, fused=False, casts=casts)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(input_ids=torch.arange(60).view(2, 30)).logits.float().square().mean()
        loss.backward()
        grads.append([p.grad for p in model.parameters() if p.grad is not None])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def test_a_normalisation_of_another_form_is_left_alone():
    from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

    gemma = Gemma3RMSNorm(16)  # times 1 + weight
    gemma.variance_epsilon = gemma.eps
    assert len(norms.layers(torch.nn.ModuleList([gemma, Qwen3RMSNorm(16)]))) == 1


def test_a_mode_that_changes_reaches_every_module(tmp_path):
    """Setting the flag of the whole model alone would be the naive way; parameters are listed once in training only."""
    lists = []
    trainer, _ = trained(
        tmp_path, LeanGRPOTrainer, savings={"mode"}, prepare=lambda t: lists.append(t.model.parameters)
    )
    model = trainer.model
    assert [id(p) for p in lists[0]()] == [id(p) for p in model.parameters()] and "parameters" not in vars(model)
    assert "train" in vars(model) and all(module.training for module in model.modules())
    model.eval()
    assert not any(module.training for module in model.modules())
    model.train()
    assert all(module.training for module in model.modules())


# Phases


def test_a_pass_that_is_not_made_has_no_phase(tmp_path):
    """Timers as the notebook sets them: stock has a row for the pass without gradients, lean none (not 0 seconds)."""
    found = {}
    for kind in (GRPOTrainer, LeanGRPOTrainer):
        folder = tmp_path / kind.__name__
        folder.mkdir()
        watch = clock.Clock(folder)

        def timed(trainer, watch=watch):
            trainer.vllm_generation = SimpleNamespace(generate=None, sync_weights=None)
            watch.start()
            watch.watch(trainer, grpo.phases(trainer))

        trained(folder, kind, prepare=timed)
        watch.stop()
        found[kind] = set(clock.ledger(folder)["phase"])
    assert found[GRPOTrainer] - found[LeanGRPOTrainer] == {"forward_nograd"}
    assert {"forward_grad", "backward", "optimizer", "clip", "reward", "score"} <= found[LeanGRPOTrainer]


# Prompts and weights


def test_prompts_are_tokenised_once(tmp_path):
    asked = []

    def count(trainer):
        tokenizer = trainer.processing_class
        call = type(tokenizer).__call__

        class Counted(type(tokenizer)):
            def __call__(self, text=None, **kwargs):
                asked.extend(text)
                return call(self, text=text, **kwargs)

        tokenizer.__class__ = Counted

    trained(tmp_path, LeanGRPOTrainer, steps=3, prompts=[f"t{i} t1 t2" for i in range(4)], prepare=count)
    assert sorted(asked) == [f"t{i} t1 t2" for i in range(4)]  # 3 steps of 16 rollouts
    asked.clear()
    trained(tmp_path, GRPOTrainer, steps=1, prompts=[f"t{i} t1 t2" for i in range(4)], prepare=count)
    assert len(asked) == 16


def test_rows_are_read_once_a_generation(tmp_path):
    """Six micro-batches of three steps: TRL reads the rows of a generation at each of them."""
    read = {}
    for kind in (GRPOTrainer, LeanGRPOTrainer):
        read[kind] = []

        def count(trainer, seen=read[kind]):
            get, scored = trainer.train_dataset.__getitems__, trainer._generate_and_score_completions
            trainer.train_dataset.__getitems__ = lambda indices: seen.append(("read", tuple(indices))) or get(indices)

            def score(inputs):
                seen.append(("used", tuple(row["prompt"] for row in inputs)))
                return scored(inputs)

            trainer._generate_and_score_completions = score

        trained(tmp_path / kind.__name__, kind, steps=3, prepare=count)
    stock, lean = ([x for what, x in seen if what == "used"] for seen in read.values())
    assert lean == stock and len(set(lean)) == 3  # the same rows, others at each generation
    stock, lean = ([x for what, x in seen if what == "read"] for seen in read.values())
    assert len(stock) >= 6 and lean == list(dict.fromkeys(stock))


def test_equal_neighbours_are_one_request_and_come_back_in_order(monkeypatch):
    asked = []

    class Asked:
        temperature, top_p, top_k, min_p, repetition_penalty, max_completion_length = 1.0, 1.0, 0, None, 1.0, 9
        structured_outputs_regex, generation_kwargs = None, {"logit_bias": {2: 1.0}}

        def generate(self, prompts, images, num_generations, profiler=None):
            return "TRL's own way"

    def answer(prompt, sample):
        """Two tokens; of the second the engine gives no log-probability."""
        flat_logps = SimpleNamespace(logprobs=[-float(sample), float("nan")], start_indices=[0, 1])
        return SimpleNamespace(token_ids=(prompt[0], sample), logprobs=flat_logps)

    def generate(prompts, sampling, use_tqdm):
        asked.append(([p["prompt_token_ids"] for p in prompts], [s["n"] for s in sampling]))
        assert sampling[0]["logprobs"] == 0 and sampling[0]["flat_logprobs"] and not sampling[0]["detokenize"]
        assert sampling[0]["logit_bias"] == {2: 1.0} and sampling[0]["max_tokens"] == 9
        return [
            SimpleNamespace(outputs=[answer(p["prompt_token_ids"], k) for k in range(s["n"])])
            for p, s in zip(prompts, sampling, strict=True)
        ]

    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(SamplingParams=dict))
    own = Asked()
    own.llm = SimpleNamespace(generate=generate)
    prompts = [[7], [7], [8], [7]]
    found = engine.generate(own, prompts, None, 1)
    assert asked == [([[7], [8], [7]], [2, 1, 1])]
    assert found[0] == prompts and found[1] == [[7, 0], [7, 1], [8, 0], [7, 0]]
    assert found[2] == [[[-0.0], [None]], [[-1.0], [None]], [[-0.0], [None]], [[-0.0], [None]]] and found[3] is None
    own.generation_kwargs = {"stop": ["x"]}
    assert engine.generate(own, prompts, None, 1) == "TRL's own way"


class FakeEngine:
    """What `load_weights` and `reset_prefix_cache` of vLLM are given."""

    def __init__(self):
        self.loads, self.resets = [], 0
        self.llm_engine = self.model_executor = self.driver_worker = self.model_runner = self.model = self

    def load_weights(self, weights):
        self.loads.append([(name, tensor.clone()) for name, tensor in weights])

    def reset_prefix_cache(self):
        self.resets += 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_engine_gets_what_a_merge_would_give_and_the_base_stays(dtype):
    torch.manual_seed(0)
    model = tiny_model().to(dtype)
    model = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM"))
    for name, p in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(p, std=0.05)
    before = {name: p.clone() for name, p in model.named_parameters()}
    vllm = FakeEngine()
    generation = object.__new__(VLLMGeneration)
    generation.llm, generation.model, generation.mode, generation.enable_sleep_mode = vllm, model, "colocate", False
    sent = adapters.weights(model)
    engine.load_weights(generation, sent, everything=True)
    engine.load_weights(generation, sent, everything=False)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert len(vllm.loads) == vllm.resets == 2

    class Local:
        is_fsdp = False

        def gather_params(self, _):
            return torch.no_grad()

    generation._dist, generation.accelerator = Local(), None
    VLLMGeneration.sync_weights(generation)  # TRL's: a merge, a call a tensor
    merged = dict(pair for load in vllm.loads[2:] for pair in load)
    assert len(vllm.loads[2:]) == len(merged) and vllm.resets == 3
    assert dict(vllm.loads[0]).keys() == merged.keys()
    adapted = dict(vllm.loads[1])
    assert len(adapted) == 2 * 7 and all("proj" in name for name in adapted)
    for name, tensor in merged.items():
        assert torch.equal(dict(vllm.loads[0])[name], tensor), name
        assert torch.equal(adapted.get(name, tensor), tensor)
    if dtype == torch.bfloat16:  # what the merge leaves behind in the frozen weights
        assert any(not torch.equal(p, before[name]) for name, p in model.named_parameters() if "base_layer" in name)


# TRL's private methods

SIGNATURES = {
    "_tokenize_prompts": ["prompts"],
    "_generate": ["prompts"],
    "_generate_single_turn": ["prompt_ids", "images", "multimodal_fields", "num_generations", "has_tool_images"],
    "_generate_and_score_completions": ["inputs"],
    "_calculate_rewards": ["inputs", "prompts", "completions", "completion_ids_list"],
    "_prepare_inputs": ["generation_batch"],
    "compute_loss": ["model", "inputs", "return_outputs", "num_items_in_batch"],
    "_compute_loss": ["model", "inputs"],
    "training_step": ["model", "inputs", "num_items_in_batch"],
}
# sha256 of the source, first 12 digits: what these do inside is part of the proof above.
SOURCES = {
    GRPOTrainer._compute_loss: "80295546bbdb",
    GRPOTrainer._generate: "2a27fdf8f5e6",
    GRPOTrainer._generate_and_score_completions: "1fa48922792d",
    GRPOTrainer._get_per_token_logps_and_entropies: "ea73c3909275",
    GRPOTrainer._prepare_inputs: "f824e7fb0714",
    VLLMGeneration.generate: "2d2ac2be5b13",
    VLLMGeneration.sync_weights: "63d669fb3230",
}


@pytest.mark.parametrize("method", SIGNATURES)
def test_signatures_of_trl_are_those_that_are_timed_or_overridden(method):
    assert list(inspect.signature(getattr(GRPOTrainer, method)).parameters) == ["self", *SIGNATURES[method]]


@pytest.mark.parametrize("method", SOURCES, ids=lambda method: method.__qualname__)
def test_sources_of_trl_are_those_that_were_read(method):
    assert hashlib.sha256(inspect.getsource(method).encode()).hexdigest()[:12] == SOURCES[method]
