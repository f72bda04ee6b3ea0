"""SIGKILL in the middle of everything: no finished checkpoint is trained again, and the clock is right."""

import functools
import json
import os
import random
import shutil
import subprocess
import sys
import time

import pandas as pd
import psutil
import pytest

from lib import clock

pytest.importorskip("trl", reason="training is not installed (extra `train`)")


@pytest.fixture(scope="module")
def project(tmp_path_factory, copy_project):
    """A copy of the project's code with one small profile, in which a setup and a whole SFT stage were executed."""
    root = tmp_path_factory.mktemp("project")
    copy_project(root, n_pool=32, pair_documents=32, sft_epochs=2.0, grpo_steps=6)
    execute(root, "00_setup").wait()
    assert execute(root, "01_sft").wait() == 0
    return root


def execute(root, stage):
    name = stage if stage == "00_setup" else f"{stage}-s0"
    command = [sys.executable, "-m", "lib.build.execute", stage, "--profile", "small", "--seed", "0"]
    env = {**os.environ, "PYTHONPATH": str(root / "src"), "TRAIN": "always"}
    out = root / "runs" / "small" / "notebooks" / f"{name}.ipynb"
    return subprocess.Popen([*command, "--out", out], cwd=root, env=env, start_new_session=True)


def kill_when(root, stage, condition, rng):
    """Execute a stage and SIGKILL all of its processes at a random moment soon after the condition holds."""
    process = execute(root, stage)
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, "the stage ended before it could be killed"
        assert time.monotonic() < deadline, "the moment to kill never came"
        time.sleep(0.001)
    time.sleep(rng.uniform(0, 0.01))
    for victim in [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]:
        victim.kill()  # the kernel has a session of its own: killing the executor alone would leave it alive
    process.wait()


def whole_checkpoints(folder):
    return {path: path.stat().st_mtime_ns for path in folder.glob("checkpoint-*/clock.json")}


@pytest.mark.parametrize(("stage", "name", "steps"), [("01_sft", "sft-s0", 8), ("03_grpo", "grpo-s0", 6)])
def test_killed_again_and_again(project, stage, name, steps):
    whole = project / "runs" / "small" / name
    if stage != "01_sft":
        assert execute(project, stage).wait() == 0
    uninterrupted = pd.read_parquet(whole / "record" / "steps.parquet")
    shutil.rmtree(whole)

    rng = random.Random(f"{stage}: when to kill")

    def half_written():
        return {p for p in whole.glob("checkpoint-*") if not (p / "clock.json").exists()}

    def logged():
        return len(clock.read_lines(whole / "steps.jsonl"))

    # each with what it looked like before the attempt
    moments = {
        "in a step, before the first checkpoint": lambda before: logged() > before[0],
        "while a checkpoint is written": lambda before: half_written() - before[1],
        "just after a checkpoint": lambda before: len(whole_checkpoints(whole)) > before[2],
        "in a step, after a resume": lambda before: logged() > before[0],
        "while it is evaluated": lambda before: any((whole / "evaluated").glob("*.json")),
        "while the record is written": lambda before: (whole / "record.part").exists(),
    }
    seen = {}
    for condition in moments.values():
        before = logged(), half_written(), len(whole_checkpoints(whole))
        kill_when(project, stage, functools.partial(condition, before), rng)
        assert not (whole / "record" / "run.json").exists()
        assert not (project / "runs" / "small" / "notebooks" / f"{stage}-s0.ipynb").exists()
        for path, written_ns in seen.items():
            assert path.stat().st_mtime_ns == written_ns, f"{path.parent.name} was finished and is trained again"
        seen = whole_checkpoints(whole)
    assert execute(project, stage).wait() == 0

    info = json.loads((whole / "record" / "run.json").read_text())
    table = pd.read_parquet(whole / "record" / "phases.parquet")
    resumed = pd.read_parquet(whole / "record" / "steps.parquet")
    assert resumed["step"].tolist() == list(range(1, steps + 1))
    # on a CPU the arithmetic repeats: an interrupted run is the uninterrupted one
    pd.testing.assert_series_equal(resumed["loss"], uninterrupted["loss"])
    # the sixth kill came after its attempt had ended, while the record was written
    assert [a["status"] for a in info["attempts"]] == ["interrupted"] * 5 + ["finished"] * 2
    # each step is billed exactly once, and what a checkpoint says is what the rows before it sum to
    billed = table[table["billed"]]
    assert billed.groupby("step")["attempt"].nunique().eq(1).all() and billed["step"].nunique() == steps
    points = pd.read_parquet(whole / "record" / "checkpoints.parquet")
    # The clock's word at each checkpoint is exactly the sum of the rows, kept in the end, that were written before it.
    rows = clock.read_rows(whole)
    for point in points.itertuples():
        written = json.loads((whole / f"checkpoint-{point.step}" / "clock.json").read_text())["rows"]
        kept = [r["host_s"] for r in rows[:written] if r["kind"] in ("setup", "train")]
        assert point.billed_s == pytest.approx(sum(kept), abs=1e-9)
    assert points["billed_s"].is_monotonic_increasing and info["billed_s"] >= points["billed_s"].max()
    assert info["lost_s"] > 0 and info["resume_s"] > 0
