"""Which record is which run: identity, where it is looked for, and what happens when nothing matches."""

import json
import subprocess
import sys

import pytest

from lib import clock, grpo, records, runs
from lib.records import Record


def identity(**changes):
    base = {
        "arm": "dpo", "seed": 0, "data": "d", "model": "m", "parents": {"start-s0": "p"},
        "parameters": {"values": {"pairs": 4}, "defaults": {"pairs": 4}},
        "trainer": {"class": "DPOConfig", "values": {"beta": 0.1}, "defaults": {"beta": 0.1, "label_smoothing": 0.0}},
    }  # fmt: skip
    return base | changes


def parameters(values, defaults):
    return {"values": values, "defaults": defaults}


@pytest.mark.parametrize(
    ("wanted", "named"),
    [
        (identity(), None),
        (identity(seed=1), "seed"),
        (identity(data="other"), "data"),
        (identity(model="other"), "model"),
        (identity(parents={"start-s0": "q"}), "parents"),
        (identity(parameters=parameters({"pairs": 8}, {"pairs": 4})), "pairs"),
        # a default that changed later is another run
        (identity(parameters=parameters({"pairs": 8}, {"pairs": 8})), "pairs"),
        # a parameter added later, at its default, orphans no record; at another value it does
        (identity(parameters=parameters({"pairs": 4, "new": 1}, {"pairs": 4, "new": 1})), None),
        (identity(parameters=parameters({"pairs": 4, "new": 2}, {"pairs": 4, "new": 1})), "new"),
        # a trainer argument written out at TRL's default is no change, at another value it is
        (identity(trainer=parameters({"beta": 0.1, "label_smoothing": 0.0}, {})), None),
        (identity(trainer=parameters({"beta": 0.1, "label_smoothing": 0.1}, {})), "label_smoothing"),
    ],
)
def test_what_makes_a_run_another_one(wanted, named):
    lines = runs.differences(wanted, identity())
    assert [line.split(":")[0] for line in lines] == ([named] if named else [])


@pytest.fixture
def places(tmp_path, monkeypatch):
    for module in (runs, records):
        for name in ("RUNS", "RESULTS"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, tmp_path / name.lower())
    monkeypatch.setattr(records, "ROOT", tmp_path)
    monkeypatch.setattr(runs.params, "declared", lambda stage: {"pairs": ("int", 4)})
    monkeypatch.delenv("TRAIN", raising=False)
    return tmp_path


def open_dpo(pairs=4):
    return runs.open_run(
        "02_dpo", "p", "dpo", 0, data="d", model={"name": "m", "sha256": "m"}, parameters={"pairs": pairs}
    )


def put_record(folder, pairs=4):
    folder.mkdir(parents=True)
    found = identity(parents={}, parameters=parameters({"pairs": pairs}, {"pairs": 4}), trainer=parameters({}, {}))
    info = {"run": "dpo-s0", "arm": "dpo", "seed": 0, "id": runs.digest(found), "identity": found}
    (folder / "run.json").write_text(json.dumps(info))
    return folder


def test_a_matching_record_is_used_and_pinned(places):
    folder = put_record(places / "results" / "p" / "dpo-s0")
    run = open_dpo()
    assert not run.live and run.record.folder == folder
    assert records.pinned("p", "dpo-s0").folder == folder
    with pytest.raises(ValueError, match="dpo-s0/run.json: billed_s is missing"):
        run.record.info["billed_s"]


def test_an_old_record_is_never_shown_under_new_parameters(places, monkeypatch):
    put_record(places / "results" / "p" / "dpo-s0", pairs=4)
    monkeypatch.setenv("TRAIN", "never")
    with pytest.raises(RuntimeError, match="pairs: recorded 4, wanted 8"):
        open_dpo(pairs=8)


@pytest.mark.parametrize(
    "installed, expected", [(True, "not possible here: no GPU"), (False, "NVIDIA GPU .*EXTRA=vllm")]
)
def test_where_nothing_can_train_the_records_there_are_are_named(places, monkeypatch, installed, expected):
    def require(engine):
        raise RuntimeError(f"no GPU for {engine}")

    put_record(places / "results" / "p" / "dpo-s0")
    monkeypatch.setattr(runs.decode, "require", require)
    if not installed:
        monkeypatch.setitem(sys.modules, "trl", None)
    settings = {"data": "d", "model": {"name": "m", "sha256": "m"}, "parameters": {"pairs": 4}, "engine": "vllm"}
    with pytest.raises(RuntimeError, match=rf"(?s)no finished record .*there are: dpo-s0.*{expected}"):
        runs.open_run("02_dpo", "p", "dpo", 3, **settings)
    assert not (places / "runs").exists()


def test_train_always_ignores_recorded_runs_and_keeps_its_own(places, monkeypatch):
    put_record(places / "results" / "p" / "dpo-s0")
    monkeypatch.setenv("TRAIN", "always")
    assert open_dpo().live
    put_record(places / "runs" / "p" / "dpo-s0" / "record")
    assert open_dpo().record.folder == places / "runs" / "p" / "dpo-s0" / "record"


def test_half_a_run_under_other_parameters_is_neither_resumed_nor_lost(places):
    first = open_dpo(pairs=4)
    (first.folder / "checkpoint-1").mkdir()
    second = open_dpo(pairs=8)
    assert second.live and not list(second.folder.glob("checkpoint-*"))
    assert [p.parent.name.split("-2")[0] for p in (places / "runs" / "p" / "superseded").glob("*/checkpoint-1")] == [
        "dpo-s0"
    ]


def test_a_checkpoint_that_a_kill_cut_short_is_dropped(places):
    run = open_dpo()
    for step, whole in ((1, True), (2, False)):
        (run.folder / f"checkpoint-{step}").mkdir()
        (run.folder / f"checkpoint-{step}" / "model.safetensors").write_text("weights")
        if whole:
            (run.folder / f"checkpoint-{step}" / "clock.json").write_text('{"rows": 0, "billed_s": 0, "train_s": 0}')
    run.start_clock()
    assert [step for step, _ in run.checkpoints()] == [1]
    assert not (run.folder / "checkpoint-2").exists()


def test_a_record_needs_its_last_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="run.json is missing"):
        Record(tmp_path)


def test_a_record_tells_the_predictions_that_its_run_began_under(places, monkeypatch):
    """The file as it was at the first start: a resumed run keeps that hash, and its identity does not know it."""
    monkeypatch.setattr(runs.provenance, "BOOK", places)
    file = places / "predictions.yaml"
    file.write_text("first")
    first = records.file_sha256(file)
    open_dpo().start_clock()
    file.write_text("second")
    run = open_dpo()
    run.start_clock()
    run.mark_trained()
    run.clock.stop()
    record = run.finish()
    assert record.info["attempts"][0]["status"] == "interrupted"
    assert record.info["predictions_sha256"] == first != records.file_sha256(file)
    file.unlink()
    assert open_dpo().record.folder == record.folder  # the same run, whatever the file is now
    assert runs.provenance.predictions_sha256() is None


def test_a_run_begun_before_predictions_were_noted_does_not_take_todays(places):
    run = open_dpo()
    (run.folder / "attempts.jsonl").write_text('{"attempt": 0, "start_utc": "2026-01-01T00:00:00+00:00"}\n')
    run.start_clock()
    run.mark_trained()
    run.clock.stop()
    assert "predictions_sha256" not in run.finish().info


LOCKED = """import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.readline()"""


@pytest.fixture
def another_process(places):
    """A process that trains dpo-s0; it ends when its standard input is closed."""
    (places / "runs" / "p").mkdir(parents=True)
    command = [sys.executable, "-c", LOCKED, places / "runs" / "p" / "dpo-s0.lock"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "locked\n"
    yield process
    process.communicate()


def test_a_run_that_another_process_trains_is_left_alone(places, another_process, monkeypatch):
    """Not moved away under other parameters either: whoever trains it would lose its work."""
    folder = places / "runs" / "p" / "dpo-s0"
    (folder / "checkpoint-1").mkdir(parents=True)
    clock.write_json(folder / "identity.json", identity())
    monkeypatch.setattr(runs.time, "monotonic", iter(range(0, 1000, 20)).__next__)  # patience of two tries
    with pytest.raises(RuntimeError, match="runs/p/dpo-s0 is being trained by another process; wait for it or end it"):
        open_dpo(pairs=8)
    assert (folder / "checkpoint-1").exists()


def test_a_run_that_another_process_finishes_meanwhile_is_not_made_again(places, another_process, monkeypatch):
    def sleep(seconds):
        put_record(places / "runs" / "p" / "dpo-s0" / "record")
        another_process.communicate()

    monkeypatch.setattr(runs.time, "sleep", sleep)
    assert not open_dpo().live
    assert open_dpo(pairs=8).live  # and the lock was given back


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("checkpoint-1/clock.json", '{"rows": 1', "clock.json: damaged: expected JSON, got"),
        ("checkpoint-1/clock.json", "{}", "expected rows, billed_s, train_s; rows, billed_s, train_s is missing"),
        ("steps.jsonl", '{"step": 1}\nrubbish\n{"step": 3}\n', "steps.jsonl, line 2: damaged: expected JSON, got"),
        ("steps.jsonl", "[1]\n", r"steps.jsonl, line 1: damaged: expected a JSON object, got \[1\]"),
        ("phases.jsonl", "", "phases.jsonl: damaged: got 0 rows, a savepoint counts 2"),
        ("trained/clock.json", '{"rows": 2, "billed_s": 1, "train_s": 1}', "damaged: trained, but has no checkpoint"),
    ],
)
def test_a_damaged_run_is_named_and_not_resumed(places, name, text, expected):
    folder = open_dpo().folder
    if name != "trained/clock.json":
        (folder / "checkpoint-1").mkdir()
        clock.write_json(folder / "checkpoint-1" / "clock.json", {"rows": 2, "billed_s": 1, "train_s": 1})
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    with pytest.raises(ValueError, match=expected):
        open_dpo().start_clock()


def test_a_pin_to_nowhere(places):
    folder = put_record(places / "results" / "p" / "dpo-s0")
    open_dpo()
    (folder / "run.json").unlink()
    with pytest.raises(FileNotFoundError, match="results/p/dpo-s0, which .*dpo-s0.json names, is gone"):
        records.pinned("p", "dpo-s0")


def test_tables_of_a_damaged_run(tmp_path):
    for table, name in ((runs.logged_steps, "steps.jsonl"), (grpo.rollouts, "rollouts.jsonl")):
        (tmp_path / name).write_text("")
        with pytest.raises(ValueError, match=f"{name}: damaged: got"):
            table(tmp_path)


def test_a_replay_under_other_parameters_is_none(places, monkeypatch):
    """Its losses may well be within the tolerance, and would say nothing of the recorded run."""
    put_record(places / "results" / "p" / "dpo-s0")
    monkeypatch.setenv("REPLAY", f"dpo-s0:{places / 'scratch'}:3")
    assert open_dpo(pairs=4).stop_after == 3
    with pytest.raises(RuntimeError, match="recorded under other parameters: pairs: recorded 4, now 8"):
        open_dpo(pairs=8)
