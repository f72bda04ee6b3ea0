"""The cost clock: which seconds of a training process are billed, by optimizer step and phase.

Every second between `start` and `stop` falls into exactly one row: the innermost open phase, or `unaccounted`.
Times are exclusive (a parent's row excludes its children), so the rows of a step sum to its wall-clock.
Rows are appended to `phases.jsonl` as they happen and survive a kill; a *savepoint* marks how many of them belong to
the state that was saved, so that a resumed run bills its first part once and its lost work not at all.
"""

import contextlib
import json
import os
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd

# Phases that are timed but not billed: judging, and imports (billing begins before the model is loaded).
NOT_BILLED = {"evaluation", "imports"}


def now_utc() -> str:
    """UTC time as ISO 8601 with seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def append(path: Path, row: dict) -> None:
    """Append one JSON line and force it to disk."""
    with open(path, "a") as file:
        file.write(json.dumps(row) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read_lines(path: Path) -> list[dict]:
    """Rows of a .jsonl file; a last line cut by a kill is dropped; a missing file is an empty list.

    Raises ValueError with file and line for another line that is no JSON object: it was not a kill that damaged it.
    """
    if not path.exists():
        return []
    content = path.read_bytes()
    complete = content[: content.rfind(b"\n") + 1]  # what follows the last newline was cut by a kill
    return [_object(line, f"{path}, line {n}") for n, line in enumerate(complete.split(b"\n"), start=1) if line]


def read_json(path: Path, *keys: str):
    """The content of a JSON file, an object with these keys where any are given; else ValueError with the file."""
    return _object(path.read_bytes(), str(path), keys)


def _object(text: bytes, place: str, keys: tuple[str, ...] | None = None):
    """JSON from text; for keys None any object will do, for () any value. Raises ValueError that begins with place."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{place}: damaged: expected JSON, got {error}") from None
    if keys != () and not isinstance(value, dict):
        raise ValueError(f"{place}: damaged: expected a JSON object, got {repr(value)[:60]}")
    if missing := [key for key in keys or () if key not in value]:
        raise ValueError(f"{place}: damaged: expected {', '.join(keys)}; {', '.join(missing)} is missing")
    return value


def repair(path: Path) -> None:
    """Drop a last line that a kill cut short, so that the next append starts a line of its own."""
    temporary = path.with_name(path.name + ".part")
    temporary.write_text("".join(json.dumps(row) + "\n" for row in read_lines(path)))
    os.replace(temporary, path)


def write_json(path: Path, value) -> None:
    """Write JSON so that the file is either the old or the new one, never half of it.

    Raises ValueError for a NaN or an infinity, which JSON does not have.
    """
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    os.replace(temporary, path)


class Clock:
    """Times one run over all its attempts.

    folder: the run's scratch folder. kept_rows: how many rows of `phases.jsonl` belong to the state this attempt
    resumes from (0 for a fresh one); rows behind them are lost work. energy: a function that reads a counter of joules.
    synchronise: wait for the device at both ends of every phase, so that the host's column can be compared with the
    device's; it slows the run down, so it is for calibration and never for a record.
    """

    def __init__(self, folder: Path, kept_rows: int = 0, energy=None, synchronise: bool = False):
        self.path = folder / "phases.jsonl"
        self.attempts_path = folder / "attempts.jsonl"
        rows = read_rows(folder)
        self.attempt = len(read_lines(self.attempts_path))
        self.kept_rows = kept_rows
        self.billed_s = sum(r["host_s"] for r in rows[:kept_rows] if r["kind"] in ("setup", "train"))
        self.train_s = sum(r["host_s"] for r in rows[:kept_rows] if r["kind"] == "train")
        if kept_rows > len(rows):
            raise ValueError(f"{self.path}: damaged: got {len(rows)} rows, a savepoint counts {kept_rows}")
        self._n_rows = len(rows)
        self._done = {r["phase"] for r in rows[:kept_rows] if r["kind"] == "setup"}
        self.billing = True  # False once the last weights are on disk: what follows is evaluation
        self._stack, self._open, self._events, self._last, self._cuda = [], {}, [], None, None
        self.training = False
        self.energy, self.synchronise, self.timed_s = energy, synchronise, 0.0
        self.each_step = lambda step: None  # called when the rows of a step are written

    def start(self) -> None:
        """Begin timing: call before the model is loaded."""
        append(self.attempts_path, {"attempt": self.attempt, "start_utc": now_utc(), "kept_rows": self.kept_rows})
        self._last, self._started = time.perf_counter(), (time.time(), time.process_time())
        self._joules = self.energy() if self.energy else None

    def use_cuda_events(self, torch) -> None:
        """Measure device seconds too, by CUDA events read once a step (no synchronisation inside it)."""
        self._cuda = torch.cuda if torch.cuda.is_available() else None
        if self._cuda:
            self._mark = self._event()

    def _event(self):
        event = self._cuda.Event(enable_timing=True)
        event.record()
        return event

    def innermost(self) -> str | None:
        """Name of the innermost open phase."""
        return self._stack[-1]["name"] if self._stack else None

    @contextlib.contextmanager
    def phase(self, name: str):
        """Time a block under `name`; nested phases are subtracted from the enclosing one (events too, on CUDA)."""
        if self._stack and self._stack[-1]["name"] in NOT_BILLED:
            name = self._stack[-1]["name"]  # a forward pass inside an evaluation is evaluation
        if self.synchronise and self._cuda:
            self._cuda.synchronize()
        begin = self._event() if self._cuda else None
        started, frame = time.perf_counter(), {"inner": 0.0, "name": name}
        self._stack.append(frame)
        try:
            yield
        finally:
            if self.synchronise and self._cuda:
                self._cuda.synchronize()
            spent = time.perf_counter() - started
            self._stack.pop()
            host, calls = self._open.get(name, (0.0, 0))
            self._open[name] = (host + spent - frame["inner"], calls + 1)
            parent = self._stack[-1] if self._stack else None
            if parent:
                parent["inner"] += spent
            if begin:
                self._events.append((name, parent["name"] if parent else None, begin, self._event()))
        if not self._stack and not self.training:
            self.cut(None)

    def cut(self, step: int | None, rest: str = "unaccounted") -> None:
        """Write the rows of everything since the last cut; the remainder is booked as `rest`. No phase may be open.

        The energy since the last cut stands on the row of `rest`: counters are too slow to tell phases apart. What the
        cut itself takes is booked as `timer`, in the rows of the next one.
        """
        now = time.perf_counter()
        wall, self._last = now - self._last, now
        device = {}
        if self._cuda:
            end = self._event()
            end.synchronize()
            device[rest] = self._mark.elapsed_time(end) / 1e3
            for name, parent, begin, finish in self._events:
                seconds = begin.elapsed_time(finish) / 1e3
                device[name] = device.get(name, 0.0) + seconds
                enclosing = parent or rest
                device[enclosing] = device.get(enclosing, 0.0) - seconds
            self._mark, self._events = end, []
        joules = None
        if self.energy:
            before, self._joules = self._joules, self.energy()
            joules = self._joules - before
        rows, self._open = dict(self._open), {}
        host, calls = rows.get(rest, (0.0, 0))
        rows[rest] = (host + wall - sum(host for host, _ in rows.values()), calls)
        lines = []
        for name, (host, calls) in rows.items():
            kind = self._kind(name, step)
            row = {
                "attempt": self.attempt,
                "step": step,
                "phase": name,
                "host_s": host,
                "device_s": None if step is None else device.get(name),  # events begin within the set-up
                "energy_j": joules if name == rest else None,
                "calls": calls,
                "kind": kind,
            }
            lines.append(json.dumps(row) + "\n")
            self.timed_s += host
            if kind in ("setup", "train"):
                self.billed_s += host
            if kind == "train":
                self.train_s += host
        with open(self.path, "a") as file:
            file.write("".join(lines))
        self._n_rows += len(lines)
        if step is not None:
            self.each_step(step)
        spent = time.perf_counter() - now
        if spent:
            host, calls = self._open.get("timer", (0.0, 0))
            self._open["timer"] = (host + spent, calls + 1)
            if self._cuda:
                self._events.append(("timer", None, self._mark, self._event()))

    def _kind(self, name: str, step: int | None) -> str:
        if name in NOT_BILLED:
            return name
        if not self.billing:
            return "evaluation"
        if step is not None:
            return "train"
        # A phase that an earlier attempt already billed is the price of the interruption, not of the method.
        return "resume" if name in self._done else "setup"

    def savepoint(self, path: Path, step: int | None = None) -> None:
        """Mark durable state (a checkpoint, sampled pairs): written last, so that it vouches for the rest."""
        self.cut(step)
        with open(self.path, "a") as file:
            os.fsync(file.fileno())
        write_json(path, {"billed_s": self.billed_s, "train_s": self.train_s, "rows": self._n_rows, "step": step})

    def stop(self) -> None:
        """End this attempt: what follows is not timed.

        Notes what two other clocks say of it: `wall_s` of the system's clock, for all rows of the attempt (`timed_s`),
        and `process_s`, the processor seconds of all its threads.
        """
        self.cut(None)
        wall, process = self._started
        row = {"attempt": self.attempt, "end_utc": now_utc(), "timed_s": self.timed_s}
        append(self.attempts_path, row | {"wall_s": time.time() - wall, "process_s": time.process_time() - process})

    def call_s(self, calls: int = 1000) -> float:
        """Seconds that one timed call costs here, by the mean of `calls` empty ones."""
        with tempfile.TemporaryDirectory() as folder:
            probe = Clock(Path(folder))
            probe._cuda, probe.training = self._cuda, True
            started = time.perf_counter()
            for _ in range(calls):
                with probe.phase("empty"):
                    pass
            return (time.perf_counter() - started) / calls

    def watch(self, trainer, phases: dict) -> None:
        """Time a trainer by wrapping bound methods on this one instance; the trainer class stays untouched.

        phases: {"method" or "attribute.method": phase name}. Step boundaries, optimizer and checkpoints are added here.
        """
        import torch
        from transformers import TrainerCallback

        self.use_cuda_events(torch)
        clock = self

        def wrap(target, attribute, name):
            method = getattr(target, attribute)

            def timed(*args, **kwargs):
                label = name() if callable(name) else name
                with clock.phase(label):
                    return method(*args, **kwargs)

            setattr(target, attribute, timed)

        common = {
            "get_batch_samples": "data",
            "_prepare_inputs": "data",
            "_clip_grad_norm": "clip",
            "_get_grad_norm": "clip",
            "floating_point_ops": "bookkeeping",
            "model.train": "bookkeeping",  # sets a flag on every module, each micro-batch
            "model.zero_grad": "zero_grad",
            "log": "log",
            "training_step": "training_step",  # what is left of it names no work: cost.REMAINDERS
        }
        for dotted, name in (common | phases).items():
            *owners, attribute = dotted.split(".")
            target = trainer
            for owner in owners:
                target = getattr(target, owner)
            wrap(target, attribute, name)
        wrap(trainer.accelerator, "backward", "backward")

        train = trainer.train

        def timed_train(*args, **kwargs):
            clock.cut(None)
            clock.training = True  # from here to on_train_begin all is trainer_setup: no phase cuts it up
            return train(*args, **kwargs)

        trainer.train = timed_train
        save, finish_step = trainer._save_checkpoint, trainer._maybe_log_save_evaluate

        def timed_save(*args, **kwargs):
            with clock.phase("checkpoint"):
                save(*args, **kwargs)
            step = trainer.state.global_step
            folder = Path(trainer.args.output_dir) / f"checkpoint-{step}"
            clock.savepoint(folder / "clock.json", step=step)

        def timed_finish(*args, **kwargs):
            finish_step(*args, **kwargs)
            clock.cut(trainer.state.global_step)

        trainer._save_checkpoint, trainer._maybe_log_save_evaluate = timed_save, timed_finish

        class Boundaries(TrainerCallback):
            def on_train_begin(self, args, state, control, **kwargs):
                clock.cut(None, rest="trainer_setup")  # optimizer, scheduler, data loader; a resumed state too

            def on_pre_optimizer_step(self, args, state, control, **kwargs):
                self.span = clock.phase("optimizer")
                self.span.__enter__()

            def on_optimizer_step(self, args, state, control, **kwargs):
                self.span.__exit__(None, None, None)

            def on_train_end(self, args, state, control, **kwargs):
                clock.training = False
                clock.cut(None)

        trainer.add_callback(Boundaries())


def read_rows(folder: Path) -> list[dict]:
    """The rows of `phases.jsonl`; those that a later attempt did not go on from have the kind "lost"."""
    rows = read_lines(folder / "phases.jsonl")
    for attempt in read_lines(folder / "attempts.jsonl"):
        if "kept_rows" not in attempt:
            continue  # the end of an attempt
        for row in rows[attempt["kept_rows"] :]:
            if row["attempt"] < attempt["attempt"]:
                row["kind"] = "lost"
    return rows


def last_step(folder: Path) -> int | None:
    """Optimizer step of the newest complete checkpoint in a run's folder; None without one."""
    return max((read_json(p, "step")["step"] for p in folder.glob("checkpoint-*/clock.json")), default=None)


def ledger(folder: Path) -> pd.DataFrame:
    """All rows of a run: attempt, step, phase, host_s, device_s, energy_j, calls, billed, kind; lost work marked.

    A row is lost when a later attempt resumed from a state that did not hold it.
    """
    table = pd.DataFrame(read_rows(folder))
    table["step"] = table["step"].astype("Int64")
    keys = ["attempt", "step", "phase", "kind"]
    table = table.groupby(keys, dropna=False, sort=False).agg(
        host_s=("host_s", "sum"),
        device_s=("device_s", lambda s: s.sum(min_count=1)),
        energy_j=("energy_j", lambda s: s.sum(min_count=1)),
        calls=("calls", "sum"),
    )
    table = table.reset_index().astype({"device_s": "float64", "energy_j": "float64"})
    table["billed"] = table["kind"].isin(["setup", "train"])
    return table[["attempt", "step", "phase", "host_s", "device_s", "energy_j", "calls", "billed", "kind"]]
