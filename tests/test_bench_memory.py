"""The memory benchmark's script, tried on a CPU with a tiny model: what it trains and writes; nothing is measured."""

import json

import pandas as pd
import pytest

pytest.importorskip("trl", reason="training is not installed (extra `train`)")

from types import SimpleNamespace

from lib.bench import memory
from lib.paths import BOOK


def test_roles_and_predictions_were_fixed_for_every_configuration():
    every = memory.configurations()
    roles = pd.Series({name: c["role"] for name, c in every.items()})
    assert len(every) == len(memory.TABLE.strip().split("\n"))  # no two of one name
    assert (roles == "fit").sum() <= 8 and (roles == "held_out").sum() >= 8
    predicted = pd.read_csv(BOOK / "memory_predicted.csv").set_index("configuration")
    assert predicted["role"].to_dict() == roles.to_dict() and predicted["predicted_gib"].gt(0).all()


def test_each_method_trains_and_is_told_without_a_measurement(tmp_path):
    every = memory.configurations()
    names = [next(n for n, c in every.items() if c["method"] == m and c["ragged"]) for m in ("sft", "dpo", "grpo")]
    arguments = SimpleNamespace(seconds=300, out=tmp_path, tiny=True, model=None)
    assert memory.child(arguments, names) == 0
    table = pd.read_parquet(tmp_path / "memory.parquet")
    assert table["configuration"].tolist() == names and table["failed"].isna().all()
    assert table[["measured_gib", "reserved_gib", "nvml_gib"]].isna().all(axis=None)
    assert table["predicted_gib"].gt(0).all() and table["wall_s"].gt(0).all()
    notes = json.loads((tmp_path / "memory.json").read_text())[-1]
    assert notes["device"]["kind"] == "cpu" and notes["versions"]["trl"] and notes["arguments"]["tiny"]


def test_a_configuration_that_fails_is_told_and_the_next_one_runs(tmp_path, monkeypatch):
    names = list(memory.configurations())[:2]
    run = memory.Trial.run

    def first_fails(trial):
        if trial.c["checkpointing"]:
            raise MemoryError("no room")
        return run(trial)

    monkeypatch.setattr(memory.Trial, "run", first_fails)
    memory.child(SimpleNamespace(seconds=300, out=tmp_path, tiny=True, model=None), names)
    table = pd.read_parquet(tmp_path / "memory.parquet")
    assert table["failed"].fillna("").tolist() == ["MemoryError: no room", ""]
