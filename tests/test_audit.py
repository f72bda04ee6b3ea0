"""Every kind of tampering with a record is found, and only finished, pinned runs become records."""

import json
import re
from types import SimpleNamespace

import pandas as pd
import pytest
from fake_records import FIELDS, write
from fake_records import _likelihood as fake_likelihood

from lib import audit, evaluate, records
from lib.identity import digest


@pytest.fixture
def study(tmp_path, monkeypatch):
    """Folder of a profile's recorded runs, as `make record` leaves them: the setup, the start and arm A of one seed."""
    live, results = tmp_path / "runs", tmp_path / "results"
    for module in (audit, records):
        monkeypatch.setattr(module, "RUNS", live)
    monkeypatch.setattr(audit, "RESULTS", results)
    write(live, "p", seeds={"sft": [0], "dpo": [], "grpo": []})
    for name in ("setup", "start-s0", "sft-s0"):
        complete(live / "p" / name / "record")
        repin(live, name)
    audit.record("p", [0])
    return results / "p"


def complete(folder):
    """Give a fake run what it lacks: weights, the sums of its phases, an identity and its sha256, its parents' ids."""
    if folder.parent.name.startswith("start"):
        (folder / "weights").mkdir()
        (folder / "weights" / "model.safetensors").write_bytes(b"weights")
        weights_sha256 = evaluate.weights_sha256(folder / "weights")
        rewrite(folder, "checkpoints", lambda table: table.assign(weights_sha256=weights_sha256))
    by_kind = pd.read_parquet(folder / "phases.parquet").groupby("kind")["host_s"].sum().to_dict()
    seconds = {f"{kind}_s": by_kind.get(kind, 0.0) for kind in ("train", "evaluation", "resume", "lost")}
    seconds["billed_s"] = by_kind.get("setup", 0.0) + seconds["train_s"]
    info = json.loads((folder / "run.json").read_text())
    live = folder.parents[1]
    parents = {name: json.loads((live / name / "record" / "run.json").read_text())["id"] for name in info["parents"]}
    identity = {"arm": info["arm"], "seed": info["seed"], "parents": parents}
    identity |= {"parameters": {"values": info["parameters"]}, "trainer": {"values": info["trainer"]}}
    seal(folder, **seconds, identity=identity, id=digest(identity), parents=parents)


def seal(folder, **changed):
    """Write run.json anew, with these values changed and the files' hashes as they are: a careful forger's work."""
    info = json.loads((folder / "run.json").read_text()) | changed
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "run.json"]
    info["files"] = {str(path.relative_to(folder)): records.file_sha256(path) for path in files}
    (folder / "run.json").write_text(json.dumps(info))


def repin(live, name, profile="p"):
    path = live / profile / "pins" / f"{name}.json"
    info = json.loads((live / profile / name / "record" / "run.json").read_text())
    path.write_text(json.dumps(json.loads(path.read_text()) | {"id": info["id"]}))


def rewrite(folder, table, change):
    path = folder / f"{table}.parquet"
    change(pd.read_parquet(path)).to_parquet(path, index=False)


def first(table, **values):
    """The table with other values in its first row."""
    for column, value in values.items():
        table.loc[table.index[0], column] = value
    return table


def test_untouched_records_verify(study, capsys):
    assert audit.verify() == 0
    assert "3 recorded runs, 0 do not verify" in capsys.readouterr().out


TABLES = {
    "a count": ("checkpoints", lambda t: first(t, exact=t["exact"][0] + 1), "exact is 141, predictions give 140"),
    "a verdict": ("predictions", lambda t: first(t, name_verdict="wrong"), "exact is not what the five verdicts give"),
    "an exact": ("predictions", lambda t: first(t, exact=not t["exact"][0]), "exact is not what the five verdicts"),
    "a validity": ("predictions", lambda t: first(t, valid=False), "an invalid answer with a judged field, in 1 rows"),
    "an answer": ("predictions", lambda t: first(t[t["birth_place_verdict"] == "missing"].head(1), birth_place="Rome"),
                  "a missing field with a value"),
    "a null": ("predictions", lambda t: first(t[t["birth_date_verdict"] == "wrong"].head(1), birth_date=None),
               "a wrong or spurious field without a value"),
    "an unknown verdict": ("predictions", lambda t: first(t, name_verdict="fine"), "a verdict that is none"),
    "a row": ("predictions", lambda t: t.iloc[1:], "n is 200, predictions give 199"),
    "phases": ("phases", lambda t: first(t, host_s=t["host_s"][0] - 1), "billed_s is 200.0, phases give 199.0"),
    "a kind": ("phases", lambda t: first(t, kind="lost"), "lost_s is 0.0, phases give"),
    "a time": ("checkpoints", lambda t: t.assign(billed_s=t["billed_s"] + 1), "a checkpoint was billed 201.0 s"),
}  # fmt: skip


@pytest.mark.parametrize("what", TABLES)
def test_a_changed_table_is_found_by_its_hash_and_by_what_it_says(study, capsys, what):
    table, change, expected = TABLES[what]
    folder = study / "sft-s0"
    rewrite(folder, table, change)
    assert audit.verify() == 1
    assert f"{table}.parquet is not the file that run.json names (sha256)" in capsys.readouterr().out
    seal(folder)
    assert audit.verify() == 1
    assert expected in capsys.readouterr().out


def test_invalid_answers_have_no_values(study):
    folder = study / "sft-s0"
    invalid = dict.fromkeys([f"{field}_verdict" for field in FIELDS], "invalid")
    rewrite(folder, "predictions", lambda table: first(table, valid=False, **invalid))
    seal(folder)
    assert any("an invalid answer with a value, in 1 rows" in line for line in audit.problems(records.load(folder)))


@pytest.mark.parametrize("name", ["predictions.parquet", "run.json"])
def test_a_missing_file(study, capsys, name):
    (study / "sft-s0" / name).unlink()
    assert audit.verify() == 1
    assert f"{name} is missing" in capsys.readouterr().out


def test_an_extra_file(study, capsys):
    (study / "sft-s0" / "notes.txt").write_text("x")
    assert audit.verify() == 1
    assert "notes.txt is not named in run.json" in capsys.readouterr().out


def test_a_wrong_parent_id(study, capsys):
    info = json.loads((study / "sft-s0" / "run.json").read_text())
    seal(study / "sft-s0", parents=info["parents"] | {"start-s0": "0" * 64})
    assert audit.verify() == 1
    assert "parent start-s0 with id 000000000000 is not recorded beside it" in capsys.readouterr().out


def test_another_identity(study, capsys):
    info = json.loads((study / "sft-s0" / "run.json").read_text())
    seal(study / "sft-s0", identity=info["identity"] | {"seed": 1})
    assert audit.verify() == 1
    assert "id is not the sha256 of identity" in capsys.readouterr().out


def test_run_json_is_sealed_where_nothing_else_vouches_for_it(study, capsys):
    folder = study / "sft-s0"
    assert audit.verify() == 0 and "older than the seal" in capsys.readouterr().out  # said, and no failure
    info = json.loads((folder / "run.json").read_text())
    info["sealed"] = records.seal(info)
    (folder / "run.json").write_text(json.dumps(info))
    assert audit.problems(records.load(folder)) == []
    for changed in ({"device": info["device"] | {"name": "H200"}}, {"facts": {"pool": 1}}, {"commit": "x"}, {"new": 1}):
        (folder / "run.json").write_text(json.dumps(info | changed))
        assert audit.problems(records.load(folder)) == ["run.json is not as it was written (its sha256, sealed)"]


def test_a_record_in_the_place_of_another(study, capsys):
    seal(study / "sft-s0", profile="q")
    (study / "sft-s0").rename(study / "sft-s1")
    assert audit.verify() == 1
    out = capsys.readouterr().out
    assert "profile is 'q', expected 'p' here" in out and "run is 'sft-s0', expected 'sft-s1' here" in out


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"run": 1', "[" * 100_000, "null"])
def test_a_damaged_run_json_is_one_failure_among_the_others(study, capsys, text):
    (study / "start-s0" / "run.json").write_text(text)
    assert audit.verify() == 2  # the start, and arm A, whose parent it is
    assert capsys.readouterr().out.count("start-s0/run.json: damaged: expected") == 2


@pytest.mark.parametrize(
    "changed, expected",
    [
        ({"billed_s": "437"}, "billed_s: got '437', expected a number"),
        ({"billed_s": None}, "billed_s: got None, expected a number"),
        ({"billed_s": -1}, "billed_s: got -1, expected seconds, a number of 0 or more"),
        ({"train_s": float("nan")}, "train_s: got nan, expected seconds, a number of 0 or more"),
        ({"device": "H200"}, "device: got 'H200', expected lines `name: value`"),
        ({"device": {"kind": "cuda"}}, "device: got {'kind': 'cuda'}, expected the key name"),
    ],
)
def test_a_field_of_another_kind_is_named_and_so_is_the_run(study, capsys, changed, expected):
    seal(study / "sft-s0", **changed)
    assert audit.verify() == 1
    told = capsys.readouterr().out
    assert f"sft-s0/run.json: {expected}" in told
    assert re.search(r"3 recorded runs, 1 do not verify: \S*/p/sft-s0$", told)


def test_a_replay_names_the_runs_there_are(study):
    for name in ("nonsense", "setup", "../p/sft-s0"):
        with pytest.raises(ValueError, match=r"RUN: got .*, expected a recorded run that trained: sft-s0, start-s0"):
            audit.replay("p", name, 1)


@pytest.mark.parametrize("changed", [{"arm": "dpo"}, {"seed": 1}, {"parameters": {"lora_rank": 8}}])
def test_a_changed_setting(study, changed):
    seal(study / "sft-s0", **changed)
    (key,) = changed
    assert audit.problems(records.load(study / "sft-s0")) == [f"{key} is not that of identity"]


def test_other_weights_than_the_judged_ones(study, capsys):
    (study / "start-s0" / "weights" / "model.safetensors").write_bytes(b"others")
    seal(study / "start-s0")
    assert audit.verify() == 1
    assert "weights are not those of the last checkpoint" in capsys.readouterr().out


def test_no_records(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(audit, "RESULTS", tmp_path)
    assert audit.verify() == 0
    assert "nothing to verify" in capsys.readouterr().out
    (tmp_path / "p" / "setup").mkdir(parents=True)  # a record whose files are gone is not no record
    assert audit.verify() == 1


def test_only_runs_of_the_seeds_are_recorded(study):
    write(audit.RUNS, "q", seeds={"sft": [0, 1], "dpo": [], "grpo": []})
    with pytest.raises(FileNotFoundError, match="no live finished run of seeds 7 of profile none"):
        audit.record("none", [7])
    for name in ("setup", "start-s0", "start-s1", "sft-s0", "sft-s1"):
        complete(audit.RUNS / "q" / name / "record")
        repin(audit.RUNS, name, "q")
    assert audit.record("q", [1]) == ["setup", "sft-s1", "start-s1"]
    assert sorted(path.name for path in (audit.RESULTS / "q").iterdir()) == ["setup", "sft-s1", "start-s1"]


@pytest.mark.parametrize(
    "changed, expected",
    [
        ({"status": "interrupted"}, "status is 'interrupted', expected 'finished'"),
        ({"profile": "p-trials"}, "profile is 'p-trials', expected 'p'"),
        ({"parents": {"setup": "0"}}, "it began from another setup than the pinned one"),
        ({"billed_s": 1.0}, "billed_s is 1.0, phases give 200.0"),
    ],
)
def test_other_runs_are_not_recorded(study, changed, expected):
    seal(audit.RUNS / "p" / "sft-s0" / "record", **changed)
    before = (study / "setup" / "run.json").stat().st_mtime_ns
    with pytest.raises(ValueError, match="sft-s0/record is not recorded") as caught:
        audit.record("p", [0])
    assert expected in str(caught.value)
    assert (study / "setup" / "run.json").stat().st_mtime_ns == before


def test_a_likelihood_table_has_the_same_pairs_at_the_start_and_every_checkpoint():
    table, checkpoints = fake_likelihood(2), pd.DataFrame({"step": [10, 20]})

    def found(likelihood):
        return audit._likelihood_problems(SimpleNamespace(likelihood=likelihood, checkpoints=checkpoints))

    assert found(table) == []
    assert "expected [0, 10, 20]" in found(table[table["step"] < 20])[0]
    assert "not the same pairs" in found(table.drop(index=table.index[-1]))[0]
    assert "a chosen log-prob above 0" in found(table.assign(chosen_logp=0.1))[0]
    assert "a greedy log-prob above 0, or without tokens" in found(table.assign(greedy_tokens=None))[0]
