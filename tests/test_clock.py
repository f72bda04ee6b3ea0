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


@pytest.mark.parametrize("kind", ["evaluation", "imports"])
def test_what_is_no_training_is_timed_and_not_billed(tmp_path, ticking, kind):
    cost = clock.Clock(tmp_path)
    cost.start()
    with cost.phase(kind):
        ticking(7)
    table = clock.ledger(tmp_path).set_index("phase")
    assert table.loc[kind, ["host_s", "kind", "billed"]].tolist() == [7, kind, False] and cost.billed_s == 0


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


def test_a_second_resume_does_not_bill_what_the_first_one_lost(tmp_path, ticking):
    """Two kills: 1 s kept, 10 s lost, 2 s kept, 20 s lost, 4 s kept."""
    rows, lost = 0, {0: 10, 1: 20}
    for attempt, kept in enumerate((1, 2, 4)):
        cost = clock.Clock(tmp_path, rows)
        cost.start()
        cost.training = True
        ticking(kept)
        (tmp_path / f"checkpoint-{attempt + 1}").mkdir()
        path = tmp_path / f"checkpoint-{attempt + 1}" / "clock.json"
        cost.savepoint(path, step=attempt + 1)
        rows = json.loads(path.read_text())["rows"]
        if attempt in lost:
            ticking(lost[attempt])
            cost.cut(attempt + 2)
    assert [json.loads((tmp_path / f"checkpoint-{n}" / "clock.json").read_text())["billed_s"] for n in (1, 2, 3)] == [
        1,
        3,
        7,
    ]
    assert clock.ledger(tmp_path).groupby("kind")["host_s"].sum().to_dict() == {"train": 7, "lost": 30}
    assert clock.last_step(tmp_path) == 3


def test_what_happens_inside_an_evaluation_is_evaluation(tmp_path, ticking):
    cost = clock.Clock(tmp_path)
    cost.start()
    with cost.phase("evaluation"):
        with cost.phase("forward_grad"):
            ticking(3)
        ticking(1)
    assert clock.ledger(tmp_path)[["phase", "host_s"]].values.tolist()[0] == ["evaluation", 4]
    cost.billing = False  # the last weights are on disk
    ticking(2)
    cost.cut(None)
    assert cost.billed_s == 0 and clock.ledger(tmp_path)["host_s"].sum() == 6


def test_a_line_that_a_kill_cut_short_is_dropped_before_the_next_append(tmp_path):
    path = tmp_path / "steps.jsonl"
    path.write_text('{"step": 1}\n{"step": 2, "lo')
    clock.repair(path)
    clock.append(path, {"step": 2})
    assert clock.read_lines(path) == [{"step": 1}, {"step": 2}]


def test_energy_stands_on_the_remainder_and_the_cut_books_itself(tmp_path, ticking, monkeypatch):
    joules = iter([50.0, 60.0, 85.0])
    cost = clock.Clock(tmp_path, energy=lambda: next(joules))
    cost.start()
    cost.training, cost.each_step = True, lambda step: ticking(0.5)  # writing takes half a second
    with cost.phase("backward"):
        ticking(2)
    cost.cut(1)
    ticking(1)
    cost.cut(2)
    table = clock.ledger(tmp_path).set_index(["step", "phase"])
    assert table.loc[(1, "unaccounted"), "energy_j"] == 10 and table.loc[(2, "unaccounted"), "energy_j"] == 25
    assert table.loc[(1, "backward"), ["energy_j"]].isna().all()  # no counter tells phases apart
    assert table.loc[(2, "timer"), "host_s"] == 0.5 and table.loc[(2, "unaccounted"), "host_s"] == 1
    assert table["host_s"].sum() == 3.5


def test_an_attempt_that_ends_notes_what_other_clocks_say(tmp_path):
    cost = clock.Clock(tmp_path)
    cost.start()
    with cost.phase("model_load"):
        time.sleep(0.05)
    cost.stop()
    end = clock.read_lines(tmp_path / "attempts.jsonl")[-1]
    assert 0.05 < end["timed_s"] == pytest.approx(end["wall_s"], abs=0.02) and end["process_s"] < end["wall_s"]


def test_json_has_no_nan(tmp_path):
    path = tmp_path / "facts.json"
    clock.write_json(path, {"cosine": 1.0})
    with pytest.raises(ValueError, match="not JSON compliant"):
        clock.write_json(path, {"cosine": float("nan")})
    assert clock.read_json(path) == {"cosine": 1.0}
