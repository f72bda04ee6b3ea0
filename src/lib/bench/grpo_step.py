"""Seconds of a GRPO step, stock TRL beside the lean trainer, in one process and one engine.

    python -m lib.bench.grpo_step --case published-1.7b --parts wall phases --seconds 480

Each variant is a trainer of its own in a thread of its own; exactly one runs at a time, and they take turns of a few
steps (ABAB), so that a slow minute of the machine hits all. Rows go to `grpo_step.parquet` as they are measured, one a
step; settings, versions and checks to `grpo_step.json` beside it. A cut leaves what was measured.

Parts: `wall` (whole steps, no timers inside), `phases` (a second pass, with timers: a column a phase), `grid` (TRL's
own switches; the fastest is stock-best from then on), `waterfall` (each saving added in turn), `recorded` (all variants
on the same rollouts from the same weights: gradients compared, steps timed without generation), `engine` (whether the
engine's log-probabilities follow the adapter).
"""

import copy
import os
import tempfile
from pathlib import Path

import pandas as pd
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer
from trl.trainer import grpo_trainer

from lib import clock, grpo
from lib.bench import cases
from lib.bench.seats import Case, Results, Seat, adapter, agreement, free, parser, progress, set_adapter
from lib.lean.trainer import OPTIONAL, SAVINGS, LeanGRPOTrainer

PARTS = ("wall", "phases", "grid", "waterfall", "recorded", "engine")
VARIANTS = ("stock", "stock-best", "lean", "lean-compiled")
DEAD = (0, 16, 15, 9, 13)  # groups without variance, as many as a case has
ORDER = (
    "checkpoint", "old", "trim", "casts", "prefix", "pack", "drop", "sync", "tokens", "rollouts", "rows", "mode",
    "lora", "norms",
)  # fmt: skip
assert set(ORDER) == set(SAVINGS)


class Bench(Case):
    """The case, its engine and the seats made so far."""

    def __init__(self, arguments, results: Results, work: Path, engine=None):
        super().__init__(arguments, results, work)
        prompts = cases.chat_prompts(self.tokenizer, self.case, 2000, arguments.data)
        if len(prompts) < self.case["prompts"]:
            raise ValueError(
                f"{arguments.data}: {len(prompts)} documents fit the context, expected {self.case['prompts']}"
            )
        self.dataset = Dataset.from_list([{"prompt": p} for p in prompts])
        self.engine, self.seats = engine, {}

    def seat(self, variant: str, kind=GRPOTrainer, rows=None, checkpointing=True, **more) -> Seat:
        """The seat of a variant, made at the first call. rows: rollouts in a micro-batch."""
        if variant in self.seats:
            return self.seats[variant]
        case, vllm = self.case, self.case["engine"] == "vllm"
        rows = rows or case["rows"]
        settings = dict(
            per_device_train_batch_size=rows, gradient_accumulation_steps=case["prompts"] * case["group"] // rows,
            num_generations=case["group"], max_completion_length=case["completion_tokens"], bf16=True,
            learning_rate=case["learning_rate"], gradient_checkpointing=checkpointing, loss_type="dapo", beta=0.0,
        )  # fmt: skip
        if case["eos_bias"] and vllm:
            settings["generation_kwargs"] = {"logit_bias": {self.tokenizer.eos_token_id: case["eos_bias"]}}
        if vllm:
            settings |= dict(
                use_vllm=True, vllm_mode="colocate", vllm_gpu_memory_utilization=self.arguments.engine_share,
                vllm_max_model_length=case["context_tokens"],
            )  # fmt: skip
        args = GRPOConfig(
            output_dir=str(self.work / variant), max_steps=100_000, save_strategy="no", report_to=[], disable_tqdm=True,
            logging_steps=10, use_cpu=not torch.cuda.is_available(), **settings,
        )  # fmt: skip
        if self.engine is not None:  # all trainers share the first one's
            grpo_trainer.VLLMGeneration = self._share
        seat = Seat(variant)
        seat.add(
            kind(
                model=AutoModelForCausalLM.from_pretrained(self.model, dtype=torch.bfloat16), reward_funcs=seat.reward,
                args=args, train_dataset=self.dataset, processing_class=self.tokenizer,
                peft_config=cases.lora(case["lora_rank"]), **more,
            )
        )  # fmt: skip
        if vllm and self.engine is None:
            self.engine = seat.trainer.vllm_generation
        told = settings | dict(trainer=kind.__name__, dtype="bfloat16", lora_rank=case["lora_rank"])
        if kind is LeanGRPOTrainer:
            told["savings"] = sorted(seat.trainer.savings)
        self.results.session["variants"][variant] = told
        self.seats[variant] = seat
        progress(f"{variant}: ready, {self.left():.0f} s left")
        return seat

    def _share(self, model, accelerator, max_completion_length, generation_kwargs, **_):
        shared = copy.copy(self.engine)
        for name in ("sync_weights", "generate"):  # what a lean trainer put there
            shared.__dict__.pop(name, None)
        shared.model, shared.accelerator = model, accelerator
        shared.max_completion_length, shared.generation_kwargs = max_completion_length, generation_kwargs or {}
        return shared

    def measured(self, parts) -> None:
        """Run the parts, each while there is time."""
        run = dict(
            wall=lambda: turns(self, "wall"), phases=lambda: turns(self, "phases"), grid=lambda: grid(self),
            waterfall=lambda: waterfall(self), recorded=lambda: recorded(self), engine=lambda: engine_follows(self),
        )  # fmt: skip
        for part in parts:
            if self.left() > 0:
                run[part]()
        for variant in list(self.seats):
            self.drop(variant)
        self.results.write(savings=SAVINGS | OPTIONAL)  # in words, for pages that are made without torch

    def drop(self, variant: str) -> None:
        """Give a seat's memory back (the first vLLM seat keeps the engine)."""
        self.seats.pop(variant).close()
        free()

    def measure(self, seat: Seat, dead: int, n: int, warmup: int, part: str, label: str | None = None) -> bool:
        """Run warm-up and n timed steps and write their rows; False when a budget or a memory error ends the seat."""
        if self.left() <= 0:
            return False
        seat.dead, label = dead, label or seat.variant
        try:
            if warmup:
                seat.steps(warmup)
            rows = seat.steps(n)
        except Exception as error:  # noqa: BLE001 - told
            self.failed(label, error)
            return False
        timed = self.phases(seat, rows) if part == "phases" else rows
        self.results.write([{**r, "variant": label, "dead_groups": dead, "part": part} for r in timed])
        seconds = pd.Series([r["wall_s"] for r in rows])
        progress(f"{part} {label} dead {dead}: {seconds.median():.3f} s a step, {self.left():.0f} s left")
        return True

    def phases(self, seat: Seat, rows: list[dict]) -> list[dict]:
        """Rows with a column a phase (device seconds on a GPU, else host's) and no wall_s: timers ran inside."""
        table = pd.DataFrame(clock.read_rows(seat.clock.path.parent))
        kept = table[table["step"].isin([r["step"] for r in rows])]
        seconds = kept["device_s"].astype(float) if torch.cuda.is_available() else kept["host_s"]
        wide = kept.assign(seconds=seconds).pivot_table(index="step", columns="phase", values="seconds", aggfunc="sum")
        found = {step: values.dropna().to_dict() for step, values in wide.iterrows()}
        return [{**r, "timed_s": r["wall_s"], "wall_s": None, **found[r["step"]]} for r in rows]

    def watch(self, seat: Seat) -> None:
        if seat.clock is None:
            seat.clock = clock.Clock(Path(tempfile.mkdtemp(dir=self.work)))
            seat.clock.start()
            seat.clock.watch(seat.trainer, grpo.phases(seat.trainer))
            seat.clock.training = True


def compared(bench: Bench) -> list[Seat]:
    """The seats that are compared: stock, stock-best once the grid has found it, lean, lean with compiled layers."""
    seats = [bench.seat("stock")]
    best = best_of_grid(bench.results)
    if best is not None:
        rows, checkpointing = best
        seats.append(bench.seat("stock-best", rows=rows, checkpointing=checkpointing))
    seats.append(bench.seat("lean", LeanGRPOTrainer))
    if "lean-compiled" in bench.arguments.variants:
        seats.append(bench.seat("lean-compiled", LeanGRPOTrainer, savings={*SAVINGS, *OPTIONAL}))
    return [s for s in seats if s.variant in bench.arguments.variants]


def turns(bench: Bench, part: str) -> None:
    """Whole steps of all variants in turn, until every cell has its steps or the time is over."""
    arguments = bench.arguments
    seats = compared(bench)
    if part == "phases":
        for seat in seats:
            if seat.thread is None:
                seat.steps(1)
            bench.watch(seat)
    have: dict = {}
    wanted = {
        (dead, s.variant): arguments.slow_steps if dead and s.variant.startswith("stock") else arguments.steps
        for dead in arguments.dead
        for s in seats
    }
    if part == "phases":
        wanted = {key: min(n, arguments.phase_steps) for key, n in wanted.items()}
    while any(have.get(key, 0) < n for key, n in wanted.items()):
        for dead in arguments.dead:
            for seat in seats:
                key = (dead, seat.variant)
                n = min(arguments.turn, wanted[key] - have.get(key, 0))
                if n > 0:
                    warmup = arguments.warmup if key not in have else 1
                    if not bench.measure(seat, dead, n, warmup, part):
                        if bench.left() <= 0:
                            return
                        n = wanted[key]
                    have[key] = have.get(key, 0) + n


def best_of_grid(results: Results):
    """(rows, checkpointing) of the fastest cell of the grid, from any session of this case; None before one ran."""
    rows = [r for r in results.rows if r["part"] == "grid" and r["case"] == results.session["case"]]
    if not rows:
        return None
    medians = pd.DataFrame(rows).groupby("variant")["wall_s"].median()
    _, rows, checkpointing = medians.idxmin().split()
    return int(rows.removeprefix("b=")), checkpointing == "checkpointing=on"


def grid(bench: Bench) -> None:
    """TRL's own switches: micro-batch and accumulation, checkpointing. A cell that runs out of memory is told."""
    total = bench.case["prompts"] * bench.case["group"]
    for rows in sorted({total // 8, total // 4, total // 2, total}):
        for checkpointing in (False, True):
            if rows == bench.case["rows"] and checkpointing:
                continue  # that is stock
            name = f"grid b={rows} checkpointing={'on' if checkpointing else 'off'}"
            if bench.left() <= 0:
                return
            seat = bench.seat(name, rows=rows, checkpointing=checkpointing)
            bench.measure(seat, 0, 3, 2, "grid")
            if seat.trainer.use_vllm is False or seat.trainer.vllm_generation is not bench.engine:
                bench.drop(name)


def waterfall(bench: Bench) -> None:
    """Each saving added in turn to the lean trainer without any; a fresh seat, since timers may watch the other."""
    seat = bench.seat("waterfall", LeanGRPOTrainer, savings=())
    on: tuple = ()
    for dead in bench.arguments.dead[:1]:
        for name in ("none", *ORDER, *(OPTIONAL if bench.arguments.compiled else ())):
            on = on if name == "none" else (*on, name)
            seat.trainer.use(on)
            if not bench.measure(seat, dead, bench.arguments.turn, 2, "waterfall", f"+{name}"):
                return


def recorded(bench: Bench) -> None:
    """The same rollouts, the same weights: one gradient of each variant, then timed steps without generation."""
    seats = {s.variant: s for s in compared(bench)}
    first = next(iter(seats.values()))
    for seat in seats.values():
        seat.dead = 0
        if seat.thread is None:
            seat.steps(1)
    record = record_of(first)
    torch.manual_seed(0)
    # Moved, so that the adapter takes part; little, so that the ratio of engine and trainer stays far from its bound: a
    # rounding that carries an answer past it would take that answer's whole gradient away.
    weights = [p.detach().clone() + 0.001 * torch.randn_like(p) for p in adapter(first.trainer)]
    gradients = {}
    for name, seat, padding in [
        *((name, seat, None) for name, seat in seats.items()),
        ("stock padded otherwise", seats.get("stock"), 64),
    ]:
        if seat is None or bench.left() <= 0:
            continue
        trainer = seat.trainer
        set_adapter(trainer, weights)
        stock_padding, trainer.pad_to_multiple_of = trainer.pad_to_multiple_of, padding or trainer.pad_to_multiple_of
        replay(trainer, record)
        seat.capture = True
        seat.steps(1)
        seat.capture = False
        gradients[name] = seat.gradient
        trainer.pad_to_multiple_of = stock_padding
        if padding is None:
            bench.measure(seat, 0, bench.arguments.recorded_steps, 2, "recorded")
        for attribute in ("get_batch_samples", "_generate_single_turn"):
            trainer.__dict__.pop(attribute)
    if "stock" in gradients:
        cosines, errors = agreement(gradients, "stock")
        tokens = [len(c) for c in record[1][0]]
        bench.results.write(
            gradient_cosine_to_stock=cosines, gradient_error_to_stock=errors, recorded_completion_tokens=tokens,
            gradient_norm={n: g.norm().item() for n, g in gradients.items()},
        )  # fmt: skip
        progress(f"gradient cosine to stock: {cosines}")


def record_of(seat: Seat) -> tuple:
    """(dataset rows, (completion ids, log-probabilities)) of one more step of this seat."""
    trainer, kept = seat.trainer, {}
    score, generate = trainer._generate_and_score_completions, trainer._generate_single_turn

    def keep_inputs(inputs):
        kept["inputs"] = inputs
        return score(inputs)

    def keep_rollouts(*args, **kwargs):
        kept["rollouts"] = generate(*args, **kwargs)
        return kept["rollouts"]

    trainer._generate_and_score_completions, trainer._generate_single_turn = keep_inputs, keep_rollouts
    seat.steps(1)
    del trainer._generate_and_score_completions, trainer._generate_single_turn
    return kept["inputs"], kept["rollouts"]


def replay(trainer, record: tuple) -> None:
    inputs, rollouts = record
    trainer.get_batch_samples = lambda iterator, n, device: ([inputs] * n, None)
    trainer._generate_single_turn = lambda *args, **kwargs: rollouts


def engine_follows(bench: Bench) -> None:
    """Mean absolute gap of engine and trainer on a prompt: before the adapter changes, after, and after a sync."""
    from vllm import SamplingParams

    gaps = {}
    for seat in compared(bench):
        trainer = seat.trainer
        if seat.thread is None:
            seat.steps(1)
        ids = trainer._tokenize_prompts(bench.dataset[:1]["prompt"])[0][0]
        llm = trainer.vllm_generation.llm

        def gap(trainer=trainer, ids=ids, llm=llm):
            asked = SamplingParams(max_tokens=1, temperature=1.0, prompt_logprobs=0, detokenize=False)
            found = llm.generate([{"prompt_token_ids": ids}], asked, use_tqdm=False)[0].prompt_logprobs[1:]
            engines = torch.tensor([at[t].logprob for t, at in zip(ids[1:], found, strict=True)])
            with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
                logits = trainer.model(input_ids=torch.tensor([ids], device="cuda")).logits[0, :-1].float()
            own = logits.log_softmax(-1).cpu()[range(len(ids) - 1), ids[1:]]
            return (engines - own).abs().mean().item()

        trainer.vllm_generation.sync_weights()
        before = gap()
        with torch.no_grad():
            for p in adapter(trainer):
                p.add_(0.02 * torch.randn_like(p))
        stale = gap()
        trainer.vllm_generation.sync_weights()
        gaps[seat.variant] = dict(synced=before, adapter_changed=stale, synced_again=gap())
    bench.results.write(engine_gap_nats=gaps)
    progress(f"engine against trainer, nats a token: {gaps}")


def main(argv=None) -> None:
    positive, asked = cases.at_least(1), parser(__doc__)
    asked.add_argument("--then", nargs="+", choices=cases.CASES, default=[], help="more cases of its shape and context")
    asked.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    asked.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS[:3])
    asked.add_argument(
        "--dead", nargs="+", type=cases.at_least(0), help="groups without variance (default: 0 16 15 9 13)"
    )
    asked.add_argument("--compiled", action="store_true", help="end the waterfall with compiled layers (a minute more)")
    asked.add_argument("--slow-steps", type=positive, default=20, help="those of a stock variant with dead groups")
    asked.add_argument("--phase-steps", type=positive, default=5, help="steps a cell with timers inside")
    asked.add_argument("--recorded-steps", type=positive, default=20, help="steps on recorded rollouts")
    asked.add_argument("--turn", type=positive, default=5, help="steps a turn")
    asked.add_argument("--engine-share", type=float, default=0.2, help="share of GPU memory for the engine")
    arguments = cases.parsed(asked, argv)
    first, names, asked_dead = cases.CASES[arguments.case], [arguments.case, *arguments.then], arguments.dead
    for name in names:
        other = [k for k in ("shape", "context_tokens", "engine") if cases.CASES[name][k] != first[k]]
        if other:
            asked.error(f"--then: case {name} has another {other[0]} than {arguments.case}")
        if max(asked_dead or [0]) > (groups := cases.CASES[name]["prompts"]):
            asked.error(f"--dead: got {max(asked_dead)}, expected at most the {groups} groups of case {name}")
    with tempfile.TemporaryDirectory() as work:
        engine = None
        for arguments.case in names:
            groups = cases.CASES[arguments.case]["prompts"]
            arguments.dead = asked_dead or [dead for dead in DEAD if dead <= groups]
            results = Results(arguments.out, "grpo_step", arguments.case, vars(arguments))
            bench = Bench(arguments, results, Path(work), engine)
            bench.measured(arguments.parts)
            engine = bench.engine


if __name__ == "__main__":
    main()
    os._exit(0)  # everything is written; an engine's own shutdown may hang
