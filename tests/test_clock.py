"""The cost clock: exclusive times that close, savepoints, lost work, resumed loads."""

import json
import time

import pytest

from lib import clock


@pytest.fixture
def ticking(monkeypatch):
    """A clock that moves only when told to: returns the function that moves it."""
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def tick(seconds):
        now[0] += seconds

    return tick


def test_nested_phases_are_exclusive_and_close(tmp_path, ticking):
    cost = clock.Clock(tmp_path)
    cost.start()
    cost.training = True  # as between on_train_begin and on_train_end
    ticking(1)  # under no timer
    with cost.phase("generate_rest"):
        ticking(2)
        with cost.phase("generation"):
            ticking(5)
        ticking(1)
    cost.cut(1)
    rows = clock.ledger(tmp_path).set_index("phase")["host_s"]
    assert rows.to_dict() == {"generate_rest": 3, "generation": 5, "unaccounted": 1}
    assert cost.billed_s == cost.train_s == rows.sum() == 9


def test_a_phase_that_was_not_measured_is_missing(tmp_path, ticking):
    cost = clock.Clock(tmp_path)
    cost.start()
    with cost.phase("model_load"):
        ticking(2)
    table = clock.ledger(tmp_path)
    assert "reward" not in set(table["phase"])
    assert table["device_s"].isna().all()  # no GPU was timed: missing, not 0


def test_evaluation_is_timed_and_not_billed(tmp_path, ticking):
    cost = clock.Clock(tmp_path)
    cost.start()
    with cost.phase("evaluation"):
        ticking(7)
    table = clock.ledger(tmp_path).set_index("phase")
    assert table.loc["evaluation", "host_s"] == 7 and not table.loc["evaluation", "billed"]
    assert cost.billed_s == 0


def test_a_resumed_run_bills_its_first_part_once_and_lost_work_not_at_all(tmp_path, ticking):
    first = clock.Clock(tmp_path)
    first.start()
    with first.phase("model_load"):
        ticking(10)
    first.training = True
    ticking(3)
    first.cut(1)
    (tmp_path / "checkpoint-1").mkdir()
    first.savepoint(tmp_path / "checkpoint-1" / "clock.json", step=1)
    ticking(4)
    first.cut(2)  # step 2 is done, and then the process is killed: its work is lost
    with open(tmp_path / "phases.jsonl", "a") as file:
        file.write('{"attempt": 0, "step": 3, "pha')  # killed while writing

    rows = json.loads((tmp_path / "checkpoint-1" / "clock.json").read_text())["rows"]
    ticking(1000)  # the time between the attempts is nobody's
    second = clock.Clock(tmp_path, rows)
    second.start()
    assert second.billed_s == 13
    with second.phase("model_load"):
        ticking(12)
    second.training = True
    ticking(5)
    second.cut(2)
    table = clock.ledger(tmp_path)
    by_kind = table.groupby("kind")["host_s"].sum()
    assert by_kind["lost"] == 4 and by_kind["resume"] == 12
    assert by_kind["setup"] == 10 and by_kind["train"] == 3 + 5
    assert second.billed_s == 18 == table.loc[table["billed"], "host_s"].sum()
    assert table.loc[table["billed"] & (table["step"] == 2), "attempt"].tolist() == [1]
