"""How much memory training takes, measured beside what lib.sizing predicts: TRL's trainers on models of random weights.

    python -m lib.bench.memory --out DIR --seconds N [--model DIR] [--tiny]
    python -m lib.bench.memory --predict FILE.csv

One row a configuration in `memory.parquet`, rewritten after each: its fields, `predicted_gib` and `predicted_nvml_gib`
(by the formulas alone, nothing fitted), `measured_gib` (the most that PyTorch's allocator had handed out in `STEPS`
optimizer steps), `reserved_gib` (its pool), `nvml_gib` (in use on the whole device at the fullest end of a step),
`nvml_before_gib` (before this process used the device), `left_over_gib` (still allocated after the configuration
before), `moment` (the predicted one of the peak). `failed` says why a row has no measurement. Settings and versions go
to `memory.json`.

Configurations run in one child process, after a leak or a crash in a next one; those with an engine each in their own.
--model: folder of a tokenizer (default: that of the tiny base model). --tiny: the same on a CPU, measuring nothing.
"""

import argparse
import copy
import gc
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd

from lib import clock, records, sizing, written
from lib.bench import cases
from lib.paths import BASE, BOOK, RESULTS

STEPS = 3  # optimizer states are there from the second on
RANK = 16
CARD_GIB = 139.8  # an H200's memory as NVML gives it; an engine takes a share of it
LEAK_GIB = 0.2
FIELDS = "role model method update weights checkpointing rows prompt completion ragged accumulate engine_share".split()
# Fixed before anything was measured: `fit` rows may fit the constants of lib.sizing, `held_out` rows score them.
# rows: sequences in a micro-batch (two a DPO pair); weights: their type; ragged: every other row has 3/4 of the tokens.
TABLE = """
fit      Qwen3-1.7B sft  lora bfloat16 on  16  448   64 ragged 1 0
fit      Qwen3-1.7B sft  lora bfloat16 off 16  448   64 ragged 1 0
fit      Qwen3-1.7B sft  full bfloat16 on   8  960   64 even   1 0
fit      Qwen3-1.7B sft  full float32  off  8  448   64 ragged 1 0
fit      Qwen3-1.7B dpo  lora bfloat16 off 16  320   64 ragged 1 0
fit      Qwen2.5-7B grpo lora bfloat16 off  8  256  256 ragged 1 0
fit      Qwen2.5-7B sft  full bfloat16 on   4 1984   64 even   1 0
held_out Qwen3-1.7B grpo lora bfloat16 on  16  327   44 ragged 1 0
held_out Qwen3-1.7B grpo lora bfloat16 off 32  327   44 ragged 1 0
held_out Qwen3-1.7B grpo full bfloat16 on  16  512  512 ragged 2 0
held_out Qwen3-1.7B grpo full float32  off  8  512  512 ragged 1 0
held_out Qwen3-1.7B dpo  lora bfloat16 on  16  960   64 ragged 1 0
held_out Qwen3-1.7B dpo  full bfloat16 off  8  448   64 even   1 0
held_out Qwen3-1.7B sft  lora bfloat16 off  4 4032   64 even   1 0
held_out Qwen3-1.7B sft  lora bfloat16 on  64  960   64 even   1 0
held_out Qwen3-1.7B sft  full float32  on  16  960   64 ragged 1 0
held_out Qwen2.5-7B sft  lora bfloat16 off  4  960   64 ragged 1 0
held_out Qwen2.5-7B sft  lora float32  on   8  960   64 even   1 0
held_out Qwen2.5-7B dpo  lora bfloat16 on   8  960   64 ragged 1 0
held_out Qwen2.5-7B grpo lora bfloat16 on  16  327   44 ragged 1 0
held_out Qwen2.5-7B grpo full bfloat16 off  8  327   44 ragged 1 0
held_out Qwen2.5-7B dpo  full bfloat16 on   4  448   64 ragged 1 0
held_out Qwen2.5-7B sft  full float32  on   1  448   64 even   1 0
held_out Qwen2.5-7B dpo  full float32  on   2  448   64 ragged 1 0
held_out Qwen3-1.7B grpo lora bfloat16 on  16  327   44 even   1 0.2
held_out Qwen3-1.7B grpo full bfloat16 on  16  327   44 even   1 0.3
"""
TINY = dict(
    model_type="qwen3", hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=8, vocab_size=1024, tie_word_embeddings=True,
)  # fmt: skip


def configurations() -> dict[str, dict]:
    """The rows of TABLE by name, in the order in which they are measured."""
    found = {}
    for line in TABLE.split("\n")[1:-1]:
        c = dict(zip(FIELDS, line.split(), strict=True))
        c |= {name: int(c[name]) for name in ("rows", "prompt", "completion", "accumulate")}
        c |= dict(checkpointing=c["checkpointing"] == "on", ragged=c["ragged"] == "ragged")
        c["engine_share"] = float(c["engine_share"]) or None
        parts = [c["model"], c["method"], c["update"], c["weights"], "checkpointed" if c["checkpointing"] else "kept"]
        parts += [f"{c['rows']}x{c['prompt']}+{c['completion']}"]
        parts += [f"engine-{c['engine_share']:g}"] if c["engine_share"] else []
        found["_".join(parts)] = c
    return found


def lengths(c: dict) -> list[tuple[int, int]]:
    """(prompt, completion) tokens of each row; a ragged group or batch has shorter ones, and its longest is the first.

    A DPO pair shares its prompt; so do the rows of a GRPO group (here the whole micro-batch), whose prompts stay even.
    """
    short = [1, 0.75] if c["ragged"] else [1, 1]
    both = c["method"] == "sft"
    return [(int(c["prompt"] * (short[i % 2] if both else 1)), int(c["completion"] * short[i % 2]))
            for i in range(c["rows"])]  # fmt: skip


def predict(c: dict, shape: sizing.Shape, constants: dict = sizing.CONSTANTS) -> dict[str, float]:
    """{predicted_gib, predicted_nvml_gib, moment} of a configuration, by the formulas of lib.sizing."""
    positions, scored, longest = sizing.batch(c["method"], c["rows"], c["prompt"], c["completion"])
    of_rows = lengths(c)
    real = sum(a + b - 1 if c["method"] == "sft" else b for a, b in of_rows)
    trained = sizing.training(
        shape, c["method"], c["update"], positions, min(scored, real), longest, states=c["weights"], rank=RANK,
        checkpointing=c["checkpointing"], masked=c["ragged"], accumulate=c["accumulate"] > 1,
        constants=constants,
    )  # fmt: skip
    engine = (c["engine_share"] or 0) * CARD_GIB * sizing.GIB
    place = "colocated" if engine else "none"
    card = CARD_GIB * sizing.GIB
    used = sizing.in_use(trained, shape, place, share=c["engine_share"], card=card, constants=constants)
    return dict(
        predicted_gib=(trained["allocated"] + engine) / sizing.GIB, predicted_nvml_gib=used / sizing.GIB,
        moment=trained["moment"],
    )  # fmt: skip


class Trial:
    """One configuration: its model and trainer, made, run for STEPS and measured."""

    def __init__(self, c: dict, config: dict, tokenizer, work: Path, given: Path | None):
        import torch

        self.c, self.tokenizer, self.work, self.given = c, tokenizer, work, given
        self.torch, self.gpu = torch, torch.cuda.is_available()
        self.config, self.draw = config, random.Random(0)

    def model(self):
        """A model of random weights, made on the device."""
        from transformers import AutoConfig, AutoModelForCausalLM

        fields = {k: v for k, v in self.config.items() if k != "model_type"}
        ids = dict(pad_token_id=self.tokenizer.pad_token_id, eos_token_id=self.tokenizer.eos_token_id)
        config = AutoConfig.for_model(self.config["model_type"], **fields, **ids, bos_token_id=None)
        self.torch.manual_seed(0)
        with self.torch.device("cuda" if self.gpu else "cpu"):
            return AutoModelForCausalLM.from_config(config, dtype=getattr(self.torch, self.c["weights"]))

    def ids(self, n: int) -> list[int]:
        return [self.draw.randrange(10, 1000) for _ in range(n)]

    def trainer(self):
        """TRL's trainer for the method, fed with rows of the configuration's lengths, whatever its data set holds."""
        from datasets import Dataset
        from transformers import AutoModelForCausalLM
        from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

        c, of_rows = self.c, lengths(self.c)
        settings = dict(
            output_dir=str(self.work / "out"), max_steps=STEPS, save_strategy="no", report_to=[], disable_tqdm=True,
            logging_steps=1, use_cpu=not self.gpu, bf16=True, gradient_checkpointing=c["checkpointing"],
            gradient_accumulation_steps=c["accumulate"], learning_rate=1e-6,
        )  # fmt: skip
        rows = c["rows"] // 2 if c["method"] == "dpo" else c["rows"]
        settings["per_device_train_batch_size"] = rows
        n = rows * c["accumulate"] * STEPS
        if c["engine_share"]:
            folder = cases.make_model("published-1.7b", self.given, self.work / "model")
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(self.torch, c["weights"]))
            settings |= dict(
                use_vllm=True, vllm_mode="colocate", vllm_gpu_memory_utilization=c["engine_share"],
                vllm_max_model_length=512, generation_kwargs={"ignore_eos": True},
            )  # fmt: skip
        else:
            model = self.model()
        more = dict(model=model, processing_class=self.tokenizer)
        if c["update"] == "lora":
            more["peft_config"] = cases.lora(RANK)
        if c["method"] == "sft":
            batch = [dict(input_ids=ids, labels=ids) for ids in (self.ids(a + b) for a, b in of_rows)]
            args = SFTConfig(max_length=None, **settings)
            trainer = SFTTrainer(args=args, train_dataset=Dataset.from_list(batch[:1] * n), **more)
        elif c["method"] == "dpo":
            pairs = zip(of_rows[::2], of_rows[1::2], strict=True)
            batch = [
                dict(prompt_ids=self.ids(p), chosen_ids=self.ids(a), rejected_ids=self.ids(b))
                for (p, a), (_, b) in pairs
            ]
            if c["update"] == "full":
                more["ref_model"] = copy.deepcopy(model)
            data = Dataset.from_list([dict(prompt="a", chosen="b", rejected="c")] * n)
            trainer = DPOTrainer(args=DPOConfig(max_length=None, **settings), train_dataset=data, **more)
        else:
            group = dict(num_generations=c["rows"], max_completion_length=c["completion"], beta=0.0)
            data = Dataset.from_list([dict(prompt="a")] * n)
            trainer = GRPOTrainer(
                args=GRPOConfig(**group, **settings), train_dataset=data, **more,
                reward_funcs=lambda completions, **_: [float(i % 3) for i in range(len(completions))],
            )  # fmt: skip
            prompt = self.ids(c["prompt"])
            trainer._tokenize_prompts = lambda prompts: ([prompt] * len(prompts), None, {})
            if not c["engine_share"]:
                completions = [self.ids(b) for _, b in of_rows] * c["accumulate"]
                trainer._generate_single_turn = lambda *_, **__: (completions, None)
        if c["method"] != "grpo":
            collate = trainer.data_collator
            trainer.data_collator = lambda _: collate(batch)
        return trainer

    def run(self) -> dict[str, float | None]:
        """Train for STEPS. Raises what the trainer raises, an out-of-memory error among it."""
        from transformers import PrinterCallback, TrainerCallback

        torch, used, positions = self.torch, [], []

        class Watch(TrainerCallback):
            def on_step_end(self, args, state, control, **kwargs):
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
                    used.append(torch.cuda.device_memory_used())

        trainer = self.trainer()
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(Watch())
        trainer.model.get_decoder().register_forward_pre_hook(
            lambda module, args, kwargs: positions.append(kwargs["input_ids"].numel()), with_kwargs=True
        )
        if self.gpu:
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        trainer.train()
        expected = self.c["rows"] * (self.c["prompt"] + self.c["completion"])
        if max(positions) != expected:
            raise ValueError(f"forwarded {max(positions)} positions in a pass, expected {expected}")
        if not self.gpu:
            return dict(measured_gib=None, reserved_gib=None, nvml_gib=None)
        return dict(
            measured_gib=torch.cuda.max_memory_allocated() / sizing.GIB,
            reserved_gib=torch.cuda.max_memory_reserved() / sizing.GIB, nvml_gib=max(used) / sizing.GIB,
        )  # fmt: skip


def child(arguments, names: list[str]) -> int:
    """Measure some configurations in this process; 0 at the end, 3 after one that left memory behind."""
    before = nvml_used_gib()
    import torch

    from lib import decode
    from lib.bench.seats import Results, failure, progress

    end = time.monotonic() + arguments.seconds
    told = dict(configurations=names, steps=STEPS, rank=RANK, tiny=arguments.tiny)
    results = Results(arguments.out, "memory", "memory", told)
    tokenizer = decode.load_tokenizer(arguments.model or BASE)
    listed = written.read(BOOK / "models.yaml", {...: {"config": dict}})
    for name in names:
        if time.monotonic() > end:
            progress(f"time is over before {name}")
            break
        c = configurations()[name]
        config = listed[c["model"]]["config"]
        left_over = allocated_gib(torch)
        row = {"configuration": name} | c | predict(c, sizing.read(config))
        if arguments.tiny:
            config, c = TINY, c | dict(rows=8, prompt=16, completion=8, model="tiny")
            row |= c | predict(c, sizing.read(config))
        row |= dict(measured_gib=None, reserved_gib=None, nvml_gib=None, nvml_before_gib=before)
        row |= dict(left_over_gib=left_over, wall_s=None, failed="started and did not end")
        results.rows = [r for r in results.rows if r["configuration"] != name]
        results.write([row])  # a crash leaves this
        started = time.monotonic()
        row = results.rows[-1]
        with tempfile.TemporaryDirectory() as work:
            try:
                trial = Trial(c, config, tokenizer, Path(work), arguments.model)
                row |= trial.run() | dict(failed=None)
            except Exception as error:  # noqa: BLE001 - one that does not fit is a finding, not the others' end
                row["failed"] = failure(error)
            trial = None
        row["wall_s"] = time.monotonic() - started
        results.write()
        progress(f"{name}: predicted {row['predicted_gib']:.2f}, measured {row['measured_gib']}, "
                 f"NVML {row['nvml_gib']}, {row['failed'] or 'ok'}, {row['wall_s']:.0f} s")  # fmt: skip
        if allocated_gib(torch) > LEAK_GIB:
            progress(f"{allocated_gib(torch):.2f} GiB stayed allocated: a new process goes on")
            return 3
    return 0


def allocated_gib(torch) -> float:
    """What PyTorch still has allocated once what can be freed is freed."""
    gc.collect()
    if not torch.cuda.is_available():
        return 0.0
    torch._C._cuda_clearCublasWorkspaces()  # kept between products, tens of MiB
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated() / sizing.GIB


def nvml_used_gib() -> float | None:
    """What is in use on the first device by NVML, without touching it; None without the library or a device."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used / sizing.GIB
    except Exception:  # noqa: BLE001 - no library or no device: missing
        return None


def main(argv=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS / "bench")
    parser.add_argument("--seconds", type=cases.seconds, default=600, help="start nothing new after so many seconds")
    parser.add_argument("--model", type=Path, help="folder of a tokenizer")
    parser.add_argument("--tiny", action="store_true", help="a tiny shape, on a CPU")
    parser.add_argument("--predict", type=Path, metavar="CSV", help="write predictions alone")
    parser.add_argument("--only", nargs="+", help="measure these in this process", choices=configurations())
    arguments = parser.parse_args(argv)
    if arguments.model and not arguments.model.exists():
        parser.error(f"--model: {arguments.model} is not there")
    if arguments.predict:
        shapes = sizing.models()
        rows = [
            {"configuration": n, "role": c["role"]} | predict(c, shapes[c["model"]])
            for n, c in configurations().items()
        ]
        pd.DataFrame(rows).round(4).to_csv(arguments.predict, index=False)
        return
    if arguments.only:
        code = child(arguments, arguments.only)
        sys.stdout.flush()
        os._exit(code)  # everything is written; an engine's own shutdown may hang
    end, since = time.monotonic() + arguments.seconds, clock.now_utc()
    every = configurations()
    left = [name for name, c in every.items() if not (arguments.tiny and c["engine_share"])]
    while left and time.monotonic() < end:
        engine = every[left[0]]["engine_share"]
        names = left[:1] if engine else [n for n in left if not every[n]["engine_share"]]
        command = [sys.executable, "-m", "lib.bench.memory", "--out", arguments.out, "--only", *names]
        command += ["--seconds", str(max(0.1, end - time.monotonic()))] + (["--tiny"] if arguments.tiny else [])
        command += ["--model", arguments.model] if arguments.model else []
        code = subprocess.run(command, check=False).returncode
        table = arguments.out / "memory.parquet"
        rows = records.read_table(table).to_dict("records") if table.exists() else []
        done = {r["configuration"] for r in rows if r["session"] >= since}
        if code and not done & set(names):
            raise RuntimeError(f"the process for {names[0]} ended with {code} before it wrote a row")
        left = [n for n in left if n not in done]


if __name__ == "__main__":
    main()
