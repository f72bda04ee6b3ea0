"""Runs: what a run is (its identity), whether a record of it exists, and how a live one resumes and is recorded."""

import fcntl
import gzip
import os
import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from lib import clock, decode, meter, provenance
from lib.build import params
from lib.identity import config_defaults, differences, digest, other_settings
from lib.paths import RESULTS, RUNS
from lib.records import TABLES, Record, file_sha256, progress, seal, shown


@dataclass
class Run:
    """One run as a stage notebook sees it: a matching finished `record`, or `live` and to be trained in `folder`."""

    stage: str
    profile: str
    name: str
    arm: str
    seed: int | None
    identity: dict
    data: str  # fingerprint of the documents
    model: dict  # of the base: name, sha256
    folder: Path
    record: Record | None = None
    stop_after: int | None = None  # replay: stop after this many optimizer steps
    remark: str = ""  # what a watcher of the trainer adds to the progress line of a step

    @property
    def live(self) -> bool:
        return self.record is None

    @property
    def trained(self) -> bool:
        """Whether training is over (evaluation may not be)."""
        return (self.folder / "trained" / "clock.json").exists()

    def mark_trained(self) -> None:
        """Training is over, or there was none: what follows is timed and not billed."""
        (self.folder / "trained").mkdir(exist_ok=True)
        self.clock.savepoint(self.folder / "trained" / "clock.json")
        self.clock.billing = False

    def start_clock(self) -> clock.Clock:
        """Drop half-written checkpoints, find the newest savepoint, and return the clock that goes on from there.

        Raises RuntimeError while another process trains this run.
        """
        take(self.folder)
        for path in self.folder.glob("*.jsonl"):
            clock.repair(path)
        for folder in self.folder.glob("checkpoint-*"):
            if not (folder / "clock.json").exists():
                shutil.rmtree(folder)
        if not (self.folder / "attempts.jsonl").exists():  # a resumed run keeps the predictions that it began under
            began = {"predictions_sha256": provenance.predictions_sha256()}
            clock.write_json(self.folder / "began.json", began)
        savepoints = [clock.read_json(p, "rows", "billed_s", "train_s") for p in self.folder.glob("*/clock.json")]
        if self.trained and self.arm != "setup" and not self.checkpoints():
            raise ValueError(f"{shown(self.folder)}: damaged: trained, but has no checkpoint; remove it to train anew")
        kept = max((s["rows"] for s in savepoints), default=0)
        # Only a replay, which records nothing, may run under the slower, synchronised timers.
        synchronise = self.stop_after is not None and bool(os.environ.get("SYNCHRONISE"))
        self.clock = clock.Clock(self.folder, kept, meter.energy_counter(), synchronise)
        self.clock.billing = not self.trained
        self.clock.start()
        return self.clock

    def checkpoints(self) -> list[tuple[int, Path]]:
        """Complete checkpoints as (optimizer step, folder), in order."""
        found = [(int(p.parent.name.split("-")[1]), p.parent) for p in self.folder.glob("checkpoint-*/clock.json")]
        return sorted(found)

    def resume_from(self) -> str | None:
        """Folder of the newest complete checkpoint, for `trainer.train(resume_from_checkpoint=...)`, or None."""
        done = self.checkpoints()
        if done:
            progress(f"{self.name}: resuming from step {done[-1][0]}")
        return str(done[-1][1]) if done else None

    def machine(self, dtype: str) -> dict:
        """Trainer arguments of the machine and of bookkeeping: no part of the run's identity."""
        import torch

        on_gpu = torch.cuda.is_available()
        return {
            "output_dir": str(self.folder), "bf16": dtype == "bfloat16", "use_cpu": not on_gpu,
            "dataloader_pin_memory": on_gpu, "report_to": "none", "disable_tqdm": True,
        }  # fmt: skip

    def watch(self, trainer, phases: dict) -> None:
        """Time the trainer, count its passes, keep its metrics a line a step in `steps.jsonl`, and show progress."""
        from transformers import PrinterCallback, TrainerCallback

        self.clock.watch(trainer, phases)
        meter.watch(trainer, self)
        with self.clock.phase("timer"):
            note = {"timer_call_s": self.clock.call_s()}
            if self.clock.energy:
                note["energy_interval_s"] = meter.energy_interval_s(self.clock.energy)
            clock.write_json(self.folder / "timer.json", note)
        trainer.remove_callback(PrinterCallback)
        run = self

        class Lines(TrainerCallback):
            def on_log(self, args, state, control, logs=None, **kwargs):
                if logs and "loss" in logs:
                    clock.append(run.folder / "steps.jsonl", {"step": state.global_step, **logs})
                    shown = [
                        f"{k} {logs[k]:.4g}" for k in ("loss", "reward", "rewards/accuracies", "grad_norm") if k in logs
                    ]
                    at = f"step {state.global_step}/{state.max_steps}"
                    shown += [f"billed {run.clock.billed_s:.0f} s", *([run.remark] if run.remark else [])]
                    progress(f"{run.name}: {at}  {'  '.join(shown)}")
                    if run.stop_after and state.global_step >= run.stop_after:
                        raise ReplayDone(f"{run.name} stopped after {run.stop_after} steps")

        trainer.add_callback(Lines())

    def stop_at_cap(self, trainer, hours: float) -> None:
        """End training (with a checkpoint) after the optimizer step in which the billed hours reach the cap."""
        from transformers import TrainerCallback

        run = self

        class Cap(TrainerCallback):
            def on_step_end(self, args, state, control, **kwargs):
                if run.clock.billed_s >= hours * 3600:
                    progress(f"{run.name}: cap of {hours} billed hours reached at step {state.global_step}")
                    control.should_save = control.should_training_stop = True

        trainer.add_callback(Cap())

    def finish(
        self,
        *,
        steps: pd.DataFrame | None = None,
        tables: dict | None = None,
        facts: dict | None = None,
        weights: Path | None = None,
        data: str | None = None,
    ) -> Record:
        """Write the record (all files, run.json last, then one rename) and pin it.

        weights: a checkpoint that the record keeps. data: fingerprint, where the run itself made the splits.
        """
        target, temporary = self.folder / "record", self.folder / "record.part"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        tables = dict(tables or {})
        tables["phases"] = clock.ledger(self.folder)
        if steps is not None:
            tables["steps"] = steps
        for name, table in tables.items():
            if name not in TABLES:
                raise ValueError(f"unknown table {name!r}: one of {', '.join(TABLES)}")
            table.to_parquet(temporary / f"{name}.parquet", index=False, compression="zstd")
        if weights is not None:
            keep_weights(weights, temporary / "weights", self.model["name"])
        steps_file = self.folder / "steps.jsonl"
        if steps_file.exists():
            with gzip.GzipFile(temporary / "log.txt.gz", "wb", mtime=0) as file:
                file.write(steps_file.read_bytes())
        began = self.folder / "began.json"  # not there in a run that began before it was written
        by_kind = tables["phases"].groupby("kind")["host_s"].sum()
        info = {
            "run": self.name,
            "arm": self.arm,
            "seed": self.seed,
            "profile": self.profile,
            "status": "finished",
            "id": digest(self.identity),
            "identity": self.identity,
            "parents": self.identity["parents"],
            "data_fingerprint": data or self.data,
            "model": self.model,
            "parameters": self.identity["parameters"]["values"],
            "trainer": self.identity["trainer"]["values"],
            **provenance.describe(self.stage),
            **(clock.read_json(began) if began.exists() else {}),
            "attempts": attempts(self.folder),
            "billed_s": float(by_kind.get("train", 0.0) + by_kind.get("setup", 0.0)),
            "train_s": float(by_kind.get("train", 0.0)),
            **{f"{kind}_s": float(by_kind.get(kind, 0.0)) for kind in ("evaluation", "imports", "resume", "lost")},
            **self._note("timer.json"),
            "shape": self._note("model.json") or None,
            "facts": facts or {},
            "files": {
                str(p.relative_to(temporary)): file_sha256(p) for p in sorted(temporary.rglob("*")) if p.is_file()
            },
        }
        clock.write_json(temporary / "run.json", info | {"sealed": seal(info)})
        shutil.rmtree(target, ignore_errors=True)
        os.replace(temporary, target)
        give(self.folder)
        self.record = Record(target)
        pin(self)
        return self.record

    def _note(self, name: str) -> dict:
        path = self.folder / name
        return clock.read_json(path) if path.exists() else {}


class ReplayDone(Exception):
    """A replay has run its steps; not a failure."""


_taken = {}  # folder of a run -> open file that holds its lock


def take(folder: Path, patience_s: float = 30.0) -> None:
    """Lock a run's folder (by a file beside it) for this process, until `give` or the end of the process.

    Waits a little: the kernel of a killed notebook lives on for a moment. Raises RuntimeError when that is not enough.
    """
    if folder in _taken:
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    file = open(folder.with_name(folder.name + ".lock"), "w")
    deadline = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _taken[folder] = file
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                file.close()
                who = f"{shown(folder)} is being trained by another process"
                raise RuntimeError(f"{who}; wait for it or end it") from None
            time.sleep(0.1)


def give(folder: Path) -> None:
    """Give the lock of `take` back."""
    if folder in _taken:
        _taken.pop(folder).close()


def keep_weights(checkpoint: Path, folder: Path, base: str) -> None:
    """Copy a checkpoint's weights and configuration, nothing else; an adapter names `base`, not this machine's path."""
    folder.mkdir()
    for name in ("model.safetensors", "config.json", "generation_config.json", "adapter_model.safetensors"):
        if (checkpoint / name).exists():
            shutil.copy(checkpoint / name, folder / name)
    if (checkpoint / "adapter_config.json").exists():
        adapter = clock.read_json(checkpoint / "adapter_config.json")
        clock.write_json(folder / "adapter_config.json", adapter | {"base_model_name_or_path": base})


def open_run(
    stage: str,
    profile: str,
    arm: str,
    seed: int | None = None,
    *,
    data: str,
    model: dict,
    parents: tuple[Record, ...] = (),
    parameters: dict,
    trainer: tuple[str, dict] | None = None,
    variant: str = "",
    engine: str = "transformers",
) -> Run:
    """The run that these settings name: a finished record that matches them, or a live run to train.

    stage: the notebook, whose parameters cell declares the defaults of `parameters`; a name that it does not declare is
    a constant of the code (such as the reward's formula). data: fingerprint of the documents. model: name and sha256 of
    the base weights. parents: records that this run starts from. trainer: name of TRL's config class and the fields
    that the notebook sets on it. variant: what a run beside the arm's own is called, `grpo-lean-s0` beside `grpo-s0`;
    a name alone, and no part of the identity. engine: what decodes; a live run needs a machine that has it.
    The environment variable TRAIN says where to look: auto (recorded, then this copy's own, then train), always (this
    copy's own, else train), never (recorded, this copy's own, else RuntimeError).
    Raises RuntimeError when no record matches and training is not possible here, naming what differs, and ValueError
    for a variant that cannot be a name.
    """
    mode = os.environ.get("TRAIN", "auto")
    if mode not in ("auto", "always", "never"):
        raise RuntimeError(f"TRAIN is {mode!r}; expected auto, always or never")
    if not re.fullmatch(r"([a-z][a-z0-9_]*)?", variant):
        raise ValueError(f"variant: got {variant!r}, expected small letters, digits and _, a letter first")
    name = "-".join([arm, *([variant] if variant else []), *([] if seed is None else [f"s{seed}"])])
    declared = {key: default for key, (_, default) in params.declared(stage).items()}
    defaults = {key: declared.get(key, value) for key, value in parameters.items()}
    config_class, config = trainer or (None, {})
    identity = {
        "arm": arm,
        "seed": seed,
        "data": data,
        "model": model["sha256"],
        "parents": {p.name: p.info["id"] for p in parents},
        "parameters": {"values": parameters, "defaults": defaults},
        "trainer": {"class": config_class, "values": config, "defaults": {}},
    }
    scratch = RUNS / profile / name
    run = Run(stage, profile, name, arm, seed, identity, data, model, scratch)
    if os.environ.get("REPLAY"):
        replayed, folder, steps = os.environ["REPLAY"].split(":")
        if replayed == name:
            then = Record(RESULTS / profile / name).info["identity"]
            changed = {k: v for k, v in other_settings(then, identity).items() if k != "start_weights"}
            if changed:  # the same losses would say nothing
                told = "; ".join(f"{key}: recorded {have!r}, now {want!r}" for key, (have, want) in changed.items())
                raise RuntimeError(f"run {name} of profile {profile} was recorded under other parameters: {told}")
            decode.require(engine)
            run.folder, run.stop_after = Path(folder), int(steps)
            run.folder.mkdir(parents=True, exist_ok=True)
            return run
    places = [*([] if mode == "always" else [RESULTS / profile / name]), scratch / "record"]
    reasons = _match(run, places)
    if run.record:
        return run
    problem = f"run {name} of profile {profile}: no finished record matches these parameters.\n  " + "\n  ".join(
        reasons
    )
    if mode == "never":
        raise RuntimeError(problem + "\nTRAIN=never forbids training it; ask for a recorded run, or use TRAIN=auto.")
    try:
        import trl  # noqa: F401

        decode.require(engine)
    except ImportError as error:
        needed, extra = ("an NVIDIA GPU and ", "vllm") if engine == "vllm" else ("", "train")
        way_out = f"Training it needs {needed}more than is installed ({error}): say `make book EXTRA={extra}`"
        raise RuntimeError(f"{problem}\n{way_out}, or ask for a recorded run.") from None
    except RuntimeError as error:
        raise RuntimeError(f"{problem}\nTraining it is not possible here: {error}") from None
    take(scratch)
    _match(run, places)
    if run.record:  # another process finished it meanwhile
        give(scratch)
        return run
    (RUNS / profile / "pins" / f"{name}.json").unlink(missing_ok=True)  # nothing may go on from what is made anew
    note = scratch / "identity.json"
    if note.exists() and differences(identity, clock.read_json(note, *identity)):
        old = RUNS / profile / "superseded" / f"{name}-{clock.now_utc().replace(':', '')}"
        old.parent.mkdir(exist_ok=True)
        os.replace(scratch, old)  # other settings: its checkpoints must not be resumed, and must not be lost either
        progress(f"{name}: a run under other parameters was moved to {shown(old)}")
    scratch.mkdir(parents=True, exist_ok=True)
    if config_class:
        identity["trainer"]["defaults"] = config_defaults(config_class)
    clock.write_json(note, identity)
    return run


def _match(run: Run, places: list[Path]) -> list[str]:
    """Give `run` the first record in `places` that has its identity, and pin it; returns why the others are not it."""
    reasons = []
    for folder in places:
        if not (folder / "run.json").exists():
            others = ", ".join(sorted(p.parent.name for p in folder.parent.glob(f"{run.arm}-s*/run.json")))
            reasons.append(f"{shown(folder)}: no record" + (f" (there are: {others})" if others else ""))
            continue
        record = Record(folder)
        unlike = differences(run.identity, record.info["identity"])
        if not unlike:
            run.record = record
            pin(run)
            break
        reasons.append(f"{shown(folder)}: " + "; ".join(unlike))
    return reasons


def pin(run: Run) -> None:
    """Note which record the executed notebook used, so that later stages and the book use the same one."""
    folder = RUNS / run.profile / "pins"
    folder.mkdir(parents=True, exist_ok=True)
    clock.write_json(folder / f"{run.name}.json", {"folder": shown(run.record.folder), "id": run.record.info["id"]})


def attempts(folder: Path) -> list[dict]:
    """[{attempt, start_utc, end_utc, status}] of a run; an attempt without an end was interrupted."""
    found: dict[int, dict] = {}
    for line in clock.read_lines(folder / "attempts.jsonl"):
        found.setdefault(line["attempt"], {}).update(line)
    for attempt in found.values():
        attempt["status"] = "finished" if "end_utc" in attempt else "interrupted"
        attempt.pop("kept_rows", None)
    return list(found.values())


def logged_steps(folder: Path) -> pd.DataFrame:
    """What the trainer logged and what was counted, one row an optimizer step; one trained twice keeps its last row.

    Steps behind the last checkpoint, which a lost attempt may have logged, are no part of the run.
    """
    table = pd.DataFrame(clock.read_lines(folder / "steps.jsonl"))
    if "step" not in table:
        raise ValueError(
            f"{shown(folder)}/steps.jsonl: damaged: got {len(table)} lines, expected one an optimizer step"
        )
    last = clock.last_step(folder)
    table = table[table["step"] <= (last if last is not None else table["step"].max())]
    table = table.drop_duplicates("step", keep="last").sort_values("step")
    return table.merge(meter.steps(folder), on="step", how="left").reset_index(drop=True)
