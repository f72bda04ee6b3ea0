"""What the benches share: their two result files, a case with its clock, and a trainer in a thread that takes turns."""

import argparse
import gc
import math
import os
import sys
import threading
import time
import traceback
from pathlib import Path

import pandas as pd
import torch
from transformers import PrinterCallback, TrainerCallback

from lib import clock, decode, provenance, records
from lib.bench import cases
from lib.paths import RESULTS


class Results:
    """The two files `name`.parquet and .json, rewritten after every turn; what earlier sessions wrote stays."""

    def __init__(self, folder: Path, name: str, case: str, arguments: dict):
        folder.mkdir(parents=True, exist_ok=True)
        self.table, self.notes = folder / f"{name}.parquet", folder / f"{name}.json"
        self.rows = records.read_table(self.table).to_dict("records") if self.table.exists() else []
        self.sessions = clock.read_json(self.notes) if self.notes.exists() else []
        told = {k: v.name if isinstance(v, Path) else v for k, v in arguments.items()}  # no machine's paths
        self.session = dict(session=clock.now_utc(), case=case, arguments=told, **provenance.describe())
        self.session |= dict(variants={}, failed={}, facts={}, other_gpus_busy=other_gpus_busy())
        self.sessions.append(self.session)

    def write(self, rows=(), **facts) -> None:
        self.rows += [{"session": self.session["session"], "case": self.session["case"], **r} for r in rows]
        self.session["facts"] |= facts
        if self.session["other_gpus_busy"] is not None:  # the most that were: they share the host's processors
            self.session["other_gpus_busy"] = max(self.session["other_gpus_busy"], other_gpus_busy())
        clock.write_json(self.notes, without_nan(self.sessions))  # first: rows without their notes could not be read
        if self.rows:
            part = self.table.with_suffix(".part")
            pd.DataFrame(self.rows).to_parquet(part, index=False, compression="zstd")
            os.replace(part, self.table)


def without_nan(value):
    """The same, with None in the place of every number that is none: not measured, and no reason to lose the rest."""
    if isinstance(value, dict):
        return {key: without_nan(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Case:
    """A case of `lib.bench.cases` with its model and tokenizer, the results, and the seconds that are left."""

    def __init__(self, arguments, results: Results, work: Path):
        self.arguments, self.results, self.work = arguments, results, work
        self.case = cases.CASES[arguments.case]
        self.end = time.monotonic() + arguments.seconds
        self.model = cases.make_model(arguments.case, arguments.model, work / "model")
        self.tokenizer = decode.load_tokenizer(self.model)

    def left(self) -> float:
        return self.end - time.monotonic()

    def failed(self, name: str, error: Exception) -> None:
        """Write down that a variant ended: a finding, and not the others' end."""
        self.results.session["failed"][name] = failure(error)
        self.results.write()
        progress(f"{name} failed:\n{''.join(traceback.format_exception(error)[-4:])}")


class Seat(TrainerCallback):
    """A trainer in a thread that runs when it is given a turn; also the reward function that sets the dead groups."""

    def __init__(self, variant: str):
        self.variant, self.dead, self.rows, self.gradient = variant, 0, [], None
        self.clock = self.error = None
        self.capture = self.closing = False
        self.turn, self.done = threading.Semaphore(0), threading.Semaphore(0)
        self.thread = None
        self.count, self.tokens_before = {}, 0

    def reward(self, completions, completion_ids, **_):
        size = self.trainer.num_generations
        groups = len(completions) // size
        rewards = [[1.0] * size if g < self.dead else [(i * 7 + g) % 3 / 2 for i in range(size)] for g in range(groups)]
        self.count["dead_share"] = sum(min(r) == max(r) for r in rewards) / groups
        self.count["completion_tokens"] = sum(map(len, completion_ids))
        return [r for group in rewards for r in group]

    def add(self, trainer) -> None:
        self.trainer = trainer
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(self)

        def count(module, args, kwargs):
            if kwargs.get("use_cache") is False:  # a training forward, not generation
                kind = "positions_grad" if torch.is_grad_enabled() else "positions_nograd"
                self.count[kind] = self.count.get(kind, 0) + kwargs["input_ids"].numel()

        trainer.model.get_decoder().register_forward_pre_hook(count, with_kwargs=True)

    def steps(self, n: int) -> list[dict]:
        """Run n optimizer steps and return their rows. Raises what the trainer raised."""
        self.rows, self.left = [], n
        if self.thread is None:
            self.thread = threading.Thread(target=self._train, daemon=True)
            self.thread.start()
        else:
            self.turn.release()
        self.done.acquire()
        if self.error is not None:
            raise self.error
        return self.rows

    def close(self) -> None:
        """End the training loop; the memory of the trainer goes back with the last reference to it."""
        if self.thread is not None and self.error is None:
            self.closing = True
            self.turn.release()
            self.thread.join()
        self.trainer = self.error = None  # an error holds on to the tensors of its frames

    def _train(self) -> None:
        self.since = now()
        try:
            self.trainer.train()
        except Exception as error:  # noqa: BLE001 - handed to whoever gave the turn
            self.error = error
        self.done.release()

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        if self.capture:
            self.gradient = torch.cat([p.grad.flatten().double() for p in adapter(self.trainer)])

    def on_step_end(self, args, state, control, **kwargs):
        end = now()
        peak = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else None
        self.rows.append(
            {"variant": self.variant, "step": state.global_step, "wall_s": end - self.since, "peak_gib": peak}
            | {"tokens": state.num_input_tokens_seen - self.tokens_before}  # TRL's count: prompts and completions
            | self.count
        )
        self.tokens_before = state.num_input_tokens_seen
        self.left -= 1
        if self.left == 0:
            if self.clock:
                self.clock.cut(state.global_step)
            self.done.release()
            self.turn.acquire()
            control.should_training_stop = self.closing
            if self.clock:
                self.clock.cut(None, rest="not its turn")
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        self.count.clear()
        self.since = now()


def other_gpus_busy() -> int | None:
    """GPUs of this host in whose memory something is, other than the one used here; None without a GPU."""
    if not torch.cuda.is_available():
        return None
    import pynvml

    pynvml.nvmlInit()
    here = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
    handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    others = [h for h in handles if here not in pynvml.nvmlDeviceGetUUID(h)]
    return sum(pynvml.nvmlDeviceGetMemoryInfo(h).used > 2 * 2**30 for h in others)


def now() -> float:
    """Seconds, once the device has done what it was asked; only called between steps."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def adapter(trainer) -> list:
    return [p for p in trainer.model.parameters() if p.requires_grad]


def set_adapter(trainer, weights: list) -> None:
    """Give a trainer's adapter these weights, in the order of `adapter`."""
    with torch.no_grad():
        for p, value in zip(adapter(trainer), weights, strict=True):
            p.copy_(value)


def agreement(gradients: dict, base: str) -> tuple[dict, dict]:
    """(cosine, relative error by norm) of each gradient, a vector, to that named `base`."""
    own = gradients[base]
    cosines = {name: torch.cosine_similarity(g, own, dim=0).item() for name, g in gradients.items()}
    return cosines, {name: ((g - own).norm() / own.norm()).item() for name, g in gradients.items()}


def failure(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:300]}"


def free() -> None:
    """Give back the memory that nothing holds on to."""
    gc.collect()
    torch.cuda.empty_cache()  # does nothing without a GPU


def parser(description: str, least_warmup: int = 0) -> argparse.ArgumentParser:
    """The arguments that the benches of steps share."""
    found = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--case", choices=cases.CASES, default="published-1.7b")
    found.add_argument("--model", type=Path, help="folder of a model: its weights (smollm2) or its tokenizer alone")
    found.add_argument("--data", type=Path, help="documents (.jsonl.gz); synthetic ones without")
    found.add_argument("--out", type=Path, default=RESULTS / "bench")
    found.add_argument("--seconds", type=cases.seconds, default=600, help="start nothing new after so many seconds")
    found.add_argument(
        "--warmup", type=cases.at_least(least_warmup), default=5, help="steps before the first timed one"
    )
    found.add_argument("--steps", type=cases.at_least(1), default=20, help="timed steps of a variant (or cell)")
    return found


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
