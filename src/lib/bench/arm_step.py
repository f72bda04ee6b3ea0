"""Seconds of an SFT and of a DPO step, from TRL's defaults to the lean trainers, each saving added in turn.

    python -m lib.bench.arm_step --case published-1.7b --model DIR --data FILE --arms sft dpo --seconds 540

One process, one trainer at a time, without an engine. All variants train on the same documents in the same order, the
chat prompt and the gold answer. Rows go to `arm_step.parquet` after each variant, one a timed step; settings, versions
and gradients to `arm_step.json` beside it. A cut leaves what was measured. A variant that runs out of memory is told.

A row: `tokens` are the real ones of the batch (DPO: of chosen and rejected rows, each with its prompt), `positions`
those that were computed with gradients, `reference_positions` those without, `tokens_per_s` tokens / wall_s, `peak_gib`
the most memory that PyTorch had allocated in the step. `reference_s`, where the reference scored all pairs beforehand:
the seconds of that for one step's pairs; they are not in `wall_s`, and come once, however many epochs follow.
"""

import os
import statistics
import tempfile
from pathlib import Path

import torch
from datasets import Dataset, disable_progress_bars
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

from lib import data
from lib.bench import cases
from lib.bench.seats import Case, Results, Seat, adapter, agreement, free, now, parser, progress, set_adapter
from lib.lean.arms import DPO_SAVINGS, OPTIONAL, SFT_SAVINGS, Lean, LeanDPOTrainer, LeanSFTTrainer

ARMS = {"sft": (SFTTrainer, SFTConfig, LeanSFTTrainer), "dpo": (DPOTrainer, DPOConfig, LeanDPOTrainer)}
ORDER = {
    "sft": ("padding", "instruction", "casts", "lora", "norms", "mode"),
    "dpo": ("padding", "instruction", "prompt", "reference", "casts", "lora", "norms", "mode"),
}
assert set(ORDER["sft"]) == set(SFT_SAVINGS) and set(ORDER["dpo"]) == set(DPO_SAVINGS)


def stock(small: int, large: int) -> dict:
    """TRL's own switches, each added to those before. small, large: documents (DPO: pairs) a batch."""
    return {
        "TRL's default": dict(dtype="float32", checkpointing=True, batch=small),
        "bf16": dict(dtype="bfloat16", checkpointing=True, batch=small),
        "checkpointing off": dict(dtype="bfloat16", checkpointing=False, batch=small),
        f"batch {large}": dict(dtype="bfloat16", checkpointing=False, batch=large),
    }


def variants(arm: str, batches: list[int], compiled: bool) -> dict:
    """{name: settings} in the order in which they are measured; `savings` None is TRL's own trainer."""
    found = {name: settings | dict(savings=None) for name, settings in stock(*batches).items()}
    last, on = [*found.values()][-1], ()
    for saving in (*ORDER[arm], *(["compile"] if compiled else [])):
        on = (*on, saving)
        found[f"+{saving}"] = last | dict(savings=on)
    return found


def documents(tokenizer, case: dict, path: Path | None, n: int) -> list[dict]:
    """n documents whose chat prompt and answer fit the case (at least 512 tokens): real ones of `path`, else synthetic.

    Raises ValueError when there are fewer.
    """
    found = data.load("jsonl", path) if path else data.load("synthetic", n_documents=n, seed=1)
    room, kept = max(case["context_tokens"], 512), []
    for start in range(0, len(found), n):
        some = found[start : start + n]
        chats = [data.messages(d) + [{"role": "assistant", "content": data.answer(d)}] for d in some]
        sizes = map(len, tokenizer.apply_chat_template(chats, **data.CHAT)["input_ids"])
        kept += [d for d, size in zip(some, sizes, strict=True) if size <= room]
        if len(kept) >= n:
            return kept[:n]
    raise ValueError(f"{path}: {len(kept)} documents of at most {room} tokens, expected {n}")


def rows(arm: str, found: list[dict]) -> Dataset:
    """What the trainer gets. DPO's rejected answer is the gold one with another birth date and place of death."""

    def said(answer):
        return [{"role": "assistant", "content": answer}]

    def row(d):
        shared = dict(prompt=data.messages(d), chat_template_kwargs=data.CHAT)
        if arm == "sft":
            return shared | dict(completion=said(data.answer(d)))
        wrong = d | dict(birth_date="1700-01-01", death_place=None if d["death_place"] else d["birth_place"])
        return shared | dict(chosen=said(data.answer(d)), rejected=said(data.answer(wrong)))

    return Dataset.from_list([row(d) for d in found])


class Bench(Case):
    """The case, its documents and what all variants are compared with."""

    def __init__(self, arguments, results: Results, work: Path):
        super().__init__(arguments, results, work)
        self.steps = arguments.warmup + arguments.steps
        n = max(arguments.batches) * self.steps
        self.documents = documents(self.tokenizer, self.case, arguments.data, n)
        self.weights, self.gradients = {}, {}

    def trainer(self, arm: str, dtype: str, checkpointing: bool, batch: int, savings):
        stock, config, lean = ARMS[arm]
        args = config(
            output_dir=str(self.work / "trainer"), max_steps=100_000, save_strategy="no", report_to=[],
            disable_tqdm=True, use_cpu=not torch.cuda.is_available(), bf16=True, max_length=None,
            learning_rate=self.case["learning_rate"], per_device_train_batch_size=batch,
            gradient_checkpointing=checkpointing, train_sampling_strategy="sequential",
            model_init_kwargs=None if dtype == "float32" else {"dtype": dtype},  # by name TRL loads float32
        )  # fmt: skip
        return (stock if savings is None else lean)(
            model=str(self.model), args=args, processing_class=self.tokenizer,
            train_dataset=rows(arm, self.documents[: batch * self.steps]),
            peft_config=cases.lora(self.case["lora_rank"]),
            **({} if savings is None else dict(savings=savings)),
        )  # fmt: skip

    def measure(self, arm: str, name: str, settings: dict) -> None:
        """One variant: its gradient, its warm-up, its timed steps; a failure is written down and not raised."""
        seat = Seat(name)
        try:
            seat.add(self.trainer(arm, **settings))
            told = settings | dict(trainer=type(seat.trainer).__name__)
            reference_s = self.reference(seat)
            self.compare(arm, name, seat.trainer)
            seat.steps(self.arguments.warmup)
            timed = seat.steps(self.arguments.steps)
            told |= dict(savings_used=sorted(getattr(seat.trainer, "savings", ())))
            self.results.session["variants"][f"{arm} {name}"] = told
            self.write(arm, settings["batch"], tokens(arm, seat.trainer.train_dataset), timed, reference_s)
        except Exception as error:  # noqa: BLE001 - told
            self.failed(f"{arm} {name}", error)
        if hasattr(seat, "trainer"):
            seat.close()
        del seat
        torch.compiler.reset()  # compiled code holds on to its model
        free()

    def reference(self, seat: Seat) -> float | None:
        """Seconds to have all pairs scored beforehand, for the pairs of one step; None where that is not done."""
        score = getattr(seat.trainer, "score_reference", None)
        if score is None or "reference" not in seat.trainer.savings:
            return None
        start = now()
        score()
        return (now() - start) / self.steps

    def write(self, arm: str, batch: int, sizes: list[int], timed: list[dict], reference_s: float | None) -> None:
        table = []
        for row in timed:
            first = (row["step"] - 1) * batch
            count = sum(sizes[first : first + batch])
            table.append(
                dict(
                    arm=arm, variant=row["variant"], step=row["step"], batch_documents=batch, tokens=count,
                    positions=row["positions_grad"], reference_positions=row.get("positions_nograd", 0),
                    wall_s=row["wall_s"], tokens_per_s=count / row["wall_s"], peak_gib=row["peak_gib"],
                    reference_s=reference_s,
                )
            )  # fmt: skip
        self.results.write(table)
        seconds = statistics.median(r["wall_s"] for r in table)
        rate = statistics.median(r["tokens_per_s"] for r in table)
        progress(f"{arm} {table[0]['variant']}: {seconds:.3f} s a step, {rate:.0f} tokens/s, {self.left():.0f} s left")

    def compare(self, arm: str, name: str, trainer) -> None:
        """Gradient on one batch, the same for all variants of an arm and from the same weights, beside stock bf16's."""
        if arm not in self.weights:
            draw = torch.Generator().manual_seed(0)
            self.weights[arm] = [p.detach().cpu() for p in adapter(trainer)]
            self.weights[arm] = [w + 0.01 * torch.randn(w.shape, generator=draw) for w in self.weights[arm]]
        set_adapter(trainer, self.weights[arm])
        found, n = self.gradients.setdefault(arm, {}), min(8, *self.arguments.batches)  # there is no checkpointing yet
        found[name] = gradient(trainer, n)
        if name == "bf16":
            found["bf16 padded otherwise"] = gradient(trainer, n, padding=64)
        if "bf16" in found:
            cosine, error = agreement(found, "bf16")
            facts = {f"{arm}_gradient_cosine_to_bf16": cosine, f"{arm}_gradient_error_to_bf16": error}
            self.results.session["facts"] |= facts


def gradient(trainer, n: int, padding: int = 0):
    """Gradient of the loss of the first n documents, as a vector on the CPU. padding: columns added on the right."""
    model = trainer.model.train()
    batch = trainer.data_collator([trainer.train_dataset[i] for i in range(n)])
    fill = {
        "input_ids": trainer.processing_class.pad_token_id,
        "labels": -100,
        "attention_mask": 0,
        "completion_mask": 0,
    }
    padded = {k: torch.nn.functional.pad(v, (0, padding), value=fill[k]) for k, v in batch.items() if k in fill}
    batch = trainer._prepare_inputs(batch | padded)
    if isinstance(trainer, Lean):
        with trainer.modules_in_use():
            loss_of(trainer, model, batch).backward()
    else:
        loss_of(trainer, model, batch).backward()
    found = torch.cat([p.grad.flatten().double().cpu() for p in adapter(trainer)])
    model.zero_grad()
    trainer._metrics["train"].clear()
    return found


def loss_of(trainer, model, batch):
    with trainer.accelerator.autocast():
        return trainer.compute_loss(model, batch)


def tokens(arm: str, dataset: Dataset) -> list[int]:
    """Real tokens of each document, of both rows of a pair."""
    if arm == "sft":
        return [len(ids) for ids in dataset["input_ids"]]
    sides = zip(dataset["prompt_ids"], dataset["chosen_ids"], dataset["rejected_ids"], strict=True)
    return [2 * len(prompt) + len(chosen) + len(rejected) for prompt, chosen, rejected in sides]


def main(argv=None) -> None:
    asked = parser(__doc__, least_warmup=1)
    asked.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    asked.add_argument(
        "--batches", nargs=2, type=cases.at_least(1), default=[16, 32], metavar=("SMALL", "LARGE"),
        help="documents a batch",
    )  # fmt: skip
    asked.add_argument("--uncompiled", action="store_true", help="leave the last variant out (a minute or more)")
    arguments = cases.parsed(asked, argv)
    disable_progress_bars()
    with tempfile.TemporaryDirectory() as work:
        results = Results(arguments.out, "arm_step", arguments.case, vars(arguments))
        results.session["facts"]["savings"] = DPO_SAVINGS | OPTIONAL  # in words; SFT's are among them
        bench = Bench(arguments, results, Path(work))
        for arm in arguments.arms:
            for name, settings in variants(arm, arguments.batches, not arguments.uncompiled).items():
                if bench.left() > 0:
                    bench.measure(arm, name, settings)
                else:
                    bench.results.session["failed"][f"{arm} {name}"] = "not started: no time left"
        bench.results.write()


if __name__ == "__main__":
    main()
    os._exit(0)  # everything is written
