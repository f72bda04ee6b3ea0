"""The sizing chapter, executed: without any bench, and with benches made up so that formulas and rates are exact."""

import json
from types import SimpleNamespace

import fake_records
import pandas as pd
import pytest
from test_articles import cells, execute
from test_steptime import MODELS, RATES

from lib.bench import memory
from lib.bench.cases import CASES
from lib.report import steptime

CONSTANTS = {"activation": 1.2, "overhead": 0.4, "reserved": 1.1, "context": 0.9}
SESSION = "2026-01-01T00:00:00+00:00"
DEVICE = {"kind": "cuda", "name": "NVIDIA H200", "count": 1}


def write_memory(bench):
    """Every configuration measured as CONSTANTS say, but one, which did not fit."""
    rows = []
    for number, (name, c) in enumerate(memory.configurations().items()):
        said = memory.predict(c, MODELS[c["model"]], CONSTANTS)
        failed = number == 23
        row = {"session": SESSION, "configuration": name} | c | memory.predict(c, MODELS[c["model"]])
        row |= {"measured_gib": None if failed else said["predicted_gib"]}
        row |= {"nvml_gib": None if failed else said["predicted_nvml_gib"]}
        rows.append(row | {"failed": "OutOfMemoryError: CUDA out of memory" if failed else None})
    pd.DataFrame(rows).to_parquet(bench / "memory.parquet", index=False)
    (bench / "memory.json").write_text(json.dumps([{"session": SESSION, "device": DEVICE}]))


def write_steps(bench):
    """Two cases that are fitted and two that are held out, with timers inside and whole, in seconds that RATES make."""
    stock = dict(trainer="GRPOTrainer", per_device_train_batch_size=16, gradient_checkpointing=True)
    settings = {"stock": stock, "lean": stock | {"trainer": "LeanGRPOTrainer"}}
    rows = []
    for case in ("published-1.7b", "ratio-8-1", "ratio-1-8", "smollm2"):
        known = CASES[case]
        size, completion = known["prompts"] * known["group"], known["completion_tokens"] / 1.45
        prompt = sum(known["prompt_tokens"]) / 2
        shape = MODELS["SmolLM2-135M" if case == "smollm2" else "Qwen3-1.7B"]
        for variant, dead in (("stock", 0.0), ("lean", 0.0), ("lean", 0.5), ("lean", 1.0)):
            grad = steptime.positions(known["prompts"], known["group"], prompt, completion, dead, variant == "lean")
            row = dict(
                session=SESSION, case=case, variant=variant, dead_share=dead, step=1, positions_grad=grad or None
            )
            row |= dict(completion_tokens=size * completion, tokens=size * (prompt + completion))
            row |= dict(positions_nograd=grad if variant == "stock" else None)
            work = steptime.work_of(
                shape, known, pd.DataFrame([row]).astype(float, errors="ignore"), dead, settings[variant]
            )
            parts = steptime.seconds(work, RATES)
            phases = dict(backward=parts["training"], generation=parts["generation"], weight_sync=parts["sync"])
            rows.append(row | dict(part="phases", timed_s=parts["step"]) | phases)
            rows.append(row | dict(part="wall", wall_s=parts["step"]))
    notes = [{
        "session": SESSION, "case": "published-1.7b", "arguments": {"data": None}, "device": DEVICE, "commit": "c",
        "failed": {}, "facts": {}, "versions": {}, "variants": settings,
    }]  # fmt: skip
    pd.DataFrame(rows).to_parquet(bench / "grpo_step.parquet", index=False)
    (bench / "grpo_step.json").write_text(json.dumps(notes))


@pytest.fixture(scope="module")
def chapters(tmp_path_factory):
    """What the chapter glues without and with benches."""
    found = []
    for benches in (False, True):
        folder = tmp_path_factory.mktemp("study")
        fake_records.write(folder)
        bench = folder / "results" / "bench"
        bench.mkdir(parents=True)
        if benches:
            write_memory(bench)
            write_steps(bench)
        found.append(execute(folder, "05_sizing", **({"dollars": [0.1]} if benches else {})))
    return SimpleNamespace(bare=found[0], full=found[1])


def test_without_benches_nothing_is_claimed(chapters):
    bare = chapters.bare
    assert bare["memory_in_use"] == "not measured"
    assert bare["steptime"].startswith("not fitted")
    for key in ("table_memory", "table_steptime", "table_crossing"):
        assert "absent" in bare[key], key
    assert "84.0" in bare["table_note"] and len(cells(bare["table_tiers"])) == (len(MODELS) - 1) * 2 * 4


def test_exact_benches_are_predicted_exactly(chapters):
    full = chapters.full
    held = sum(c["role"] == "held_out" for c in memory.configurations().values()) - 1  # one did not fit
    assert full["memory_in_use"].startswith(f"{held} of {held} held-out configurations within 10%, median 0.0%")
    rows = cells(full["table_memory"])
    assert [(row[3], row[4]) for row in rows if not row[3][0].isdigit()] == [("out of memory", "-")]
    assert full["memory_fits"].startswith(f"{held + 8} of {held + 8} verdicts were right on a card of 139.8 GiB; 1 did")
    assert full["steptime"].count("off by 0.0% in the median") == 3 and "not measured" not in full["steptime"]
    assert all(row[-2] in ("+0.0%", "-0.0%") for row in cells(full["table_steptime"]))


def test_other_gpus_are_marked_and_the_published_share_stands_beside(chapters):
    theirs, *rows = cells(chapters.full["table_crossing"])
    assert theirs == [
        "H100 80 GB",
        "published",
        "stock",
        "7.37",
        "0.33",
        "0.07",
        "6.78",
        "5.3%",
        "-",
    ]  # 8,847 s / 1,200
    assert {row[1] for row in rows if row[0] == "H200"} == {"fitted"}
    assert {row[1] for row in rows if row[0] != "H200"} == {"datasheet"}
    assert chapters.full["published_both"] == "5.3%"  # (393 + 79) of 8,847 s


def test_a_budget_in_dollars_buys_hours_at_the_price(chapters):
    row = cells(chapters.full["table_plan"])[0]
    assert row[:2] == ["0.0227 h", "$0.10"]  # at $4.41 an hour
    # two checkpoints of A by then, in both seeds: 0.78 and 0.76; the others are at their start
    assert row[2].startswith("0.770 (") and row[4].endswith(", start") and row[-1] == "continued SFT is ahead"
