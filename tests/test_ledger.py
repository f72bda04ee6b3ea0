"""Closure, passes and FLOPs on records small enough to add up by hand."""

from types import SimpleNamespace

import pandas as pd
import pytest

from lib.report import ledger


def record(phases, steps=None, **info):
    table = pd.DataFrame(phases, columns=["step", "phase", "host_s", "device_s", "calls"]).assign(billed=True)
    table = table.astype({"step": "Int64", "host_s": float, "device_s": float})
    info = {"billed_s": 100.0, "train_s": 90.0, "attempts": [], "device": {"name": "NVIDIA H200"}} | info
    return SimpleNamespace(name="sft-s0", phases=table, steps=pd.DataFrame(steps or {"step": [1, 2]}), info=info)


STEPS = [
    (None, "model_load", 10, None, 1),
    (1, "forward_grad", 10, 30, 1), (1, "backward", 30, 11, 1), (1, "unaccounted", 4, 4, 0),
    (2, "backward", 45, 44, 1), (2, "unaccounted", 1, 1, 0),
]  # fmt: skip


def test_closure_by_hand():
    attempts = [{"wall_s": 100.0, "timed_s": 99.9, "process_s": 50.0}, {"status": "interrupted"}]
    found = ledger.closure(record(STEPS, attempts=attempts, timer_call_s=0.25))
    assert found["unaccounted"] == pytest.approx(1 - (10 + 30 + 11 + 44) / 100)  # in steps the device's column counts
    assert (found["worst_step"], found["worst_share"]) == (1, pytest.approx(4 / 45))
    assert found["device_gap"] == pytest.approx(0) and found["clock_gap"] == pytest.approx(-1e-3)
    assert found["process"] == 0.5 and found["timer"] == pytest.approx(4 * 0.25 / 100)


def test_what_was_not_measured_is_missing():
    cpu = [row[:3] + (None, row[4]) for row in STEPS]
    found = ledger.closure(record(cpu))
    assert found["device_gap"] is found["clock_gap"] is found["timer"] is None
    assert all(value is None for value in ledger.work(record(cpu)).values())
    assert ledger.passes(record(cpu)).empty


def test_passes_flops_and_utilisation_by_hand():
    counts = {"step": [1, 2], "forward_grad_rows": [2, 2], "forward_grad_tokens": [6, 10]}
    counts |= {"forward_grad_positions": [8, 12]}
    shape = {"parameters": 1000, "trainable": 1000, "embedding": 100, "tied": False, "layers": 2, "attention_width": 3}
    run = record(STEPS, counts, shape=shape)
    (row,) = ledger.passes(run).itertuples()
    assert (row.rows, row.tokens, row.positions, row.seconds) == (4, 16, 20, 30 + 11 + 44)
    assert row.padded == pytest.approx(0.2)
    forward = 16 * (2 * 900 + 2 * 2 * 3 * 4)  # rows of 4 tokens
    work = ledger.work(run)
    assert work["flops"] == 3 * forward and work["tokens_per_s"] == 16 / 90
    assert work["utilisation"] == pytest.approx(3 * forward / 90 / 989.4e12)
    adapters = record(STEPS, counts, shape=shape | {"trainable": 10})
    assert ledger.work(adapters)["flops"] == 2 * forward + 4 * 10 * 16
    assert (
        ledger.work(record(STEPS, counts, shape=shape | {"tied": True}))["flops"] > 3 * forward
    )  # the table is a head


def test_energy_with_the_error_of_its_counter():
    run = record(STEPS, energy_interval_s=0.1)
    run.phases["energy_j"] = [1000.0, None, None, 3000.0, None, 5000.0]
    assert ledger.work(run)["joules"] == 9000 and ledger.work(run)["joules_error"] == pytest.approx(9.0)


def test_real_tokens_of_each_kind_of_mask():
    torch = pytest.importorskip("torch", reason="training is not installed (extra `train`)")
    from lib import meter

    ids = torch.zeros(2, 3, dtype=torch.long)
    assert meter.real_tokens(None, ids) == 6
    assert meter.real_tokens(torch.tensor([[1, 1, 0], [1, 1, 1]]), ids) == 5
    seen = torch.eye(3, dtype=torch.bool).repeat(2, 1, 1, 1)
    seen[0, 0, 2, 2] = False
    assert meter.real_tokens(seen, ids) == 5
    assert meter.real_tokens(torch.where(seen, 0.0, float("-inf")), ids) == 5
