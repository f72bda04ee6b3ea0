"""A trial is checked before anything runs, and leaves one row."""

import pandas as pd
import pytest
from fake_records import write

from lib import records, trials
from lib.build import execute, params


@pytest.fixture
def executed(tmp_path, monkeypatch):
    """(stage, parameters, until) of every execution; instead of one, the finished runs of a study are there."""
    done = []
    for module in (trials, records):
        monkeypatch.setattr(module, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(trials, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(
        execute, "execute", lambda stage, parameters, out, until: done.append((stage, parameters, until))
    )
    write(tmp_path / "runs", "laptop-trials", seeds={"sft": [0], "dpo": [0], "grpo": []})
    return done


@pytest.mark.parametrize(
    "stage, parameter, values, expected",
    [
        ("02_dpo", "dpo_learning_rat", ["1e-4"], "did you mean dpo_learning_rate?"),
        ("02_dpo", "sft_learning_rate", ["1e-4"], "notebooks/02_dpo.py has no parameter sft_learning_rate"),
        ("02_dpo", "dpo_learning_rate", ["1e-4", "fast"], "got 'fast', expected float"),
        ("01_sft", "gradient_checkpointing", ["true"], "gradient_checkpointing: got True, expected a number"),
    ],
)
def test_nothing_runs_with_a_wrong_parameter_or_value(executed, stage, parameter, values, expected):
    with pytest.raises(params.ParameterError) as caught:
        trials.main("laptop", 0, stage, parameter, values)
    assert expected in str(caught.value)
    assert executed == [] and not trials.RESULTS.exists()


def test_a_trial_is_judged_on_dev_and_kept_apart(executed, monkeypatch):
    monkeypatch.setenv("TRIALS_AT_ONCE", "3")
    path = trials.main("laptop", 0, "02_dpo", "dpo_learning_rate", ["1e-4"])
    assert [stage for stage, _, _ in executed] == ["00_setup", "01_sft", "02_dpo"]
    assert {values["profile"] for _, values, _ in executed} == {"laptop-trials"}
    assert [values.get("judged_split") for _, values, _ in executed] == [None, "dev", "dev"]
    assert [values.get("dpo_learning_rate") for _, values, _ in executed] == [None, None, 1e-4]
    assert [values.get("max_unaccounted") for _, values, _ in executed] == [None, 1.0, 1.0]
    assert [values.get("lean") for _, values, _ in executed] == [None, None, True]
    (row,) = pd.read_csv(path).to_dict("records")
    assert (row["arm"], row["value"], row["split"], row["n"]) == ("dpo", 1e-4, "dev", 200)
    assert row["at_once"] == 3
    assert (row["exact"], row["best_exact"]) == (108, 122)  # the last of fake_records' curve, and its best
    trials.main("laptop", 0, "02_dpo", "dpo_learning_rate", ["1e-4"])  # the same run again
    assert len(pd.read_csv(path)) == 1


@pytest.mark.parametrize(
    "text, expected",
    [
        ("", "damaged: expected a table, got No columns"),
        ("a,b\n1,2\n", "expected rows with the column 'arm', and a value in each"),
        ("{row}sft,p,d,lean,i,0,1,5,many,5,9.0,1\n", r"exact: got \['many'\], expected numbers"),
    ],
)
def test_a_damaged_table_stops_before_the_first_trial_and_is_kept(executed, text, expected):
    path = trials.RESULTS / "laptop" / "trials.csv"
    path.parent.mkdir(parents=True)
    text = text.format(row="arm,parameter,device,trainer,id,seed,value,n,exact,best_exact,billed_s,at_once\n")
    path.write_text(text)
    with pytest.raises(ValueError, match=f"trials.csv: {expected}"):
        trials.main("laptop", 0, "02_dpo", "dpo_learning_rate", ["1e-4"])
    assert executed == [] and path.read_text() == text


def test_settings_of_the_start_report_the_start(executed):
    path = trials.main("laptop", 0, "01_sft", "start_learning_rate", ["1e-3"])
    trials.main("laptop", 0, "01_sft", "sft_epochs", ["2"])
    rows = pd.read_csv(path)
    assert list(rows["arm"]) == ["start", "sft"] and list(rows["value"]) == [0.001, 2]
    assert [stage for stage, _, _ in executed] == ["00_setup", "01_sft"] * 2
    assert [until for _, _, until in executed] == [None, trials.START_ENDS, None, None]  # arm A in its own trial only
    assert f"# {trials.START_ENDS}\n" in (execute.NOTEBOOKS / "01_sft.py").read_text()
