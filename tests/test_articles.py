"""The articles follow the records: verdicts flip, numbers move, and no result is typed.

The comparing notebook is executed on made-up records (tests/fake_records.py); what it glues is what the pages print.
"""

import functools
import html
import json
import re
import shutil
import tempfile
from pathlib import Path

import fake_bench
import fake_records
import jupytext
import nbformat
import pytest
import yaml
from fake_records import ARMS, CPU, GRPO_STEP, swapped
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from lib import records
from lib.data import FIELDS
from lib.paths import BOOK, NOTEBOOKS, RESULTS, ROOT, RUNS
from lib.report import plots
from lib.report.predictions import load
from lib.report.study import read

ARTICLES = ("cost_curves", "grpo_bill", "claims")


TRIALS = """arm,seed,parameter,value,split,n,exact,best_exact,billed_s,device,commit,trainer,at_once,id
sft,0,sft_learning_rate,0.001,dev,200,180,181,10.5,Fake CPU,abc,lean,1,1
sft,0,sft_learning_rate,0.002,dev,200,170,171,11.5,Fake CPU,abc,lean,1,2
"""


def execute(runs, stage="04_compare", **parameters):
    """Texts and HTML that a notebook glues, by key, reading the runs in `runs`, and trials in `runs`/results."""
    notebook = jupytext.read(NOTEBOOKS / f"{stage}.py")
    at = next(i for i, cell in enumerate(notebook.cells) if "parameters" in cell.metadata.get("tags", []))
    lines = [f"{name} = {value!r}" for name, value in ({"profile": "fake"} | parameters).items()]
    lines += ["import sys", f"sys.path.insert(0, {str(ROOT / 'src')!r})"]
    lines += ["import pathlib", "import lib.paths", "import lib.records", f"runs = pathlib.Path({str(runs)!r})"]
    lines += ["lib.records.RUNS = runs", "lib.paths.RESULTS = lib.records.RESULTS = runs / 'results'"]
    notebook.cells.insert(at + 1, nbformat.v4.new_code_cell("\n".join(lines)))
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    NotebookClient(notebook, timeout=120).execute()
    glued = {}
    for output in (output for cell in notebook.cells for output in cell.get("outputs", [])):
        if "scrapbook" in output.get("metadata", {}):
            key, data = output["metadata"]["scrapbook"]["name"], output["data"]
            assert key not in glued, f"{key} is glued twice"
            glued[key] = data.get("text/html") or data["application/papermill.record/text/plain"].strip("'\"")
    return glued


def copied_record(runs, name, changed):
    """Copy a run's record to where recorded runs lie, under `name`, with its run.json changed (identity: any other)."""
    folder = runs / "results" / "fake" / name
    shutil.copytree(runs / "fake" / name.removesuffix("-rerun") / "record", folder)
    info = json.loads((folder / "run.json").read_text())
    if "identity" in changed:
        changed = {"identity": info["identity"] | {"data": "another"}}
    (folder / "run.json").write_text(json.dumps(info | changed))


@functools.cache
def study(which):
    """The glued values of one made-up study."""
    variants = {
        "base": {},
        "swapped": {"arms": swapped(ARMS, "sft", "grpo")},
        # twice the generation, at the cost of the final save; and another last accuracy of DPO
        "perturbed": {
            "grpo_step": GRPO_STEP | {"generation": 8.0},
            "arms": ARMS | {"dpo": [*ARMS["dpo"][:-1], (150, 0.50)]},
        },
        # one arm with one seed, no GPU, nothing that GRPO logs, and an A that never gets where C ends
        "small": {
            "device": CPU,
            "seeds": {"sft": [0, 1], "dpo": [0], "grpo": [0]},
            "arms": ARMS | {"sft": [(40, 0.62), (80, 0.61)]},
            "drop_steps": ("grpo-s0", "dpo-s0"),
        },
        # C once more, at its own quality for a tenth of its bill, and from the base model
        "varied": {
            "variants": {
                "grpo-lean": ([(40, 0.70), (90, 0.80)], {"lean": True}, "start-s0"),
                "grpo-from_base": ([(180, 0.30)], {"lean": True}, "setup"),
            },
            "outside": True,
            "info": {
                "setup": {
                    "parameters": {"outside_path": "wikipedia.jsonl"},
                    "facts": {
                        "outside": {"documents": 200, "known": dict.fromkeys(FIELDS, 200) | {"death_date": 133}},
                        "known": {"birth_place": 196},
                        "baseline": {"n": 200, "right": 184, "wrong": 10, "missing": 6, "spurious": 0},
                    },
                }
            },
        },
        # one seed of the two, with nothing that a test can show of DPO, a late C, and an interrupted run
        "one seed": {
            "arms": ARMS | {"dpo": [(60, 0.60), (150, 0.595)], "grpo": [(300, 0.66), (900, 0.80)]},
            "info": {
                "grpo-s0": {
                    "trainer": {"learning_rate": 2e-5, "gradient_checkpointing": False},
                    "attempts": [{"status": "interrupted"}, {"status": "finished"}],
                    "resume_s": 7.0,
                    "lost_s": 45.0,
                }
            },
        },
    }
    with tempfile.TemporaryDirectory() as folder:
        fake_records.write(Path(folder), **variants.get(which, {}))
        if which not in ("small", "one seed"):
            fake_bench.write(Path(folder) / "results")
        if which == "one seed":
            trials = Path(folder) / "results" / "fake" / "trials.csv"
            trials.parent.mkdir(parents=True)
            trials.write_text(TRIALS)
            # A trained once more, and a run of other settings under such a name; the copy of a record is no rerun
            for name, other in (("sft-s0-rerun", {"billed_s": 190.0}), ("grpo-s0-rerun", {"identity": None})):
                copied_record(Path(folder), name, other)
            copied_record(Path(folder), "dpo-s0", {})
            # runs of other seeds and arms are not read: their pins may be stale
            for name in ("sft-s1", "grpo-s1", "sft-lean-s0"):
                (Path(folder) / "fake" / "pins" / f"{name}.json").write_text('{"folder": "nowhere", "id": "old"}')
            return execute(folder, seeds=[0])
        if which == "other rule":
            trials = Path(folder) / "results" / "fake" / "trials.csv"
            trials.parent.mkdir(parents=True, exist_ok=True)
            trials.write_text(TRIALS.replace("CPU", "GPU"))
            counted = dict.fromkeys(("count_start", "count_base_evaluation", "count_resumes", "count_tuning"), True)
            return execute(folder, **counted, price_per_hour=2.0, price_currency="EUR")
        return execute(folder)


def test_swapping_two_arms_flips_headline_and_title_figure():
    base, other = study("base"), study("swapped")
    assert base["headline"] == "At equal spend continued SFT beats GRPO, in 2 of 2 seeds"
    assert other["headline"] == "At equal spend GRPO beats continued SFT, in 2 of 2 seeds"
    assert base["figure_cost_curves"] != other["figure_cost_curves"]
    assert base["findings_cost_curves"] == "of 7, 7 held"
    assert "wrong" in other["findings_cost_curves"]
    # what the two arms have, they exchange
    values = re.compile(r"0\.\d{4}")
    assert values.findall(base["last_sft"])[0] == values.findall(other["last_grpo"])[0] == "0.8700"
    assert base["reach_a"] != other["reach_a"]


def test_a_changed_number_moves_what_depends_on_it_and_nothing_else():
    base, other = study("base"), study("perturbed")
    moved = {key for key in base if base[key] != other[key]}
    of_generation = {"bill_generation", "bill_most", "figure_bill", "table_bill"}
    of_generation |= {"table_phases", "example_seconds", "example_share"}
    of_generation |= {"example_file", "table_attempts"}  # another folder
    of_generation |= {"table_bills", "table_ledger", "table_work"}  # shares of the bill, and of the train seconds
    of_dpo = {"last_dpo", "gain_dpo", "dpo_task", "table_final", "table_equal_spend", "table_pairs", "table_errors"}
    of_both = {"table_quantities", "table_claims", "table_predictions"}
    of_dpo |= {"figure_cost_curves", "places_share", "table_rules", "table_variation", "detectable"}
    of_dpo |= {"figure_differences", "table_budgets"}
    of_dpo |= {"table_dpo_fields", "dpo_worse", "dpo_fields_worse", "table_dpo_pairs", "figure_dpo_pairs"}
    of_dpo |= {"figure_mistakes", "ceiling", "table_ceiling", "table_ceiling_examples"}
    assert moved == of_generation | of_dpo | of_both


def test_another_rule_of_the_bill_moves_every_cost_and_no_accuracy():
    base, other = study("base"), study("other rule")
    moved = {key for key in base if base[key] != other[key]}
    costs = {"rule", "price", "last_sft", "last_grpo", "equal_spend", "reach_c", "table_final", "table_equal_spend"}
    costs |= {"table_reach_hold", "table_reach_resampled", "table_rules", "table_budgets", "figure_differences"}
    costs |= {"figure_cost_curves", "table_pairs", "table_variation", "start_cost", "total_cost"}
    assert costs <= moved
    assert not moved & {"gain_sft", "table_errors", "table_bill", "dpo_verdict", "nulls_moved", "published_price"}
    # A at 200 s, 90 s of the start, 3 s of base evaluation, 22 s of trials; EUR 2.00 an hour; C has no trials
    assert "0.8700 for 0.0875 h, EUR 0.17 (seed 0)" in other["last_sft"]
    assert "0.276 h, EUR 0.55" in other["last_grpo"]
    assert base["price"] == "$4.41 an hour (USD, an H100, 2026-10)" and other["price"].startswith("EUR 2.00 an hour")
    assert "0.358 h, $1.58" in other["table_final"]  # the study's own price stays


def test_trials_can_be_billed_only_where_they_were_recorded(tmp_path):
    fake_records.write(tmp_path)
    with pytest.raises(CellExecutionError, match="count_tuning: profile fake has no trials on Fake GPU"):
        execute(tmp_path, count_tuning=True)
    assert "<td>not measured</td>" in study("base")["table_rules"]


def test_whether_a_verdict_hangs_on_the_rule_is_said():
    said = study("base")["rules_verdict"]
    assert said == "Who leads at equal spend is the same under all 4 other rules that could be applied"


def test_a_rerun_of_the_same_identity_is_shown_and_nothing_else_is_one():
    glued = study("one seed")
    assert glued["rerun"] == (
        "continued SFT, seed 0 and its rerun: +0.0 points, for 0.0556 h, $0.24 and 0.0528 h, $0.23"
    )
    assert re.findall(r"<td>(seed[^<]*)</td>", glued["table_variation"]) == ["seed 0 and its rerun"]
    assert glued["variation"] == "not measured: one seed"
    assert study("base")["rerun"].startswith("not measured") and "seeds 0 and 1" in study("base")["table_variation"]


def test_the_price_in_the_notebook_is_the_published_one():
    from lib.build import params

    declared = {name: default for name, (_, default) in params.declared("04_compare").items()}
    published = yaml.safe_load((BOOK / "published.yaml").read_text())["setup"]
    assert declared["price_per_hour"] == published["usd_per_hour"] and declared["price_currency"] == "USD"
    assert declared["price_date"] == published["price_date"]


def test_a_small_study_on_a_cpu_says_what_it_has_not():
    glued = study("small")
    assert glued["unit"] == "CPU-hours"
    assert "$" not in glued["last_grpo"] + glued["total_cost"] + glued["price"]
    assert "continued SFT never" in glued["reach_c"]
    assert glued["table_rules"].count("<td>never</td>") == 5  # under each rule that could be applied
    assert "A never" in glued["table_reach_resampled"]
    assert "(seed 1)" in glued["last_sft"] and "(seed 1)" not in glued["last_grpo"]
    assert "in 1 of 2 seeds; there was nothing to compare in 1" in glued["headline"]
    assert "GRPO had saved nothing by then and enters as the shared start (seed 0)" in glued["headline"]
    assert glued["headline_bill"].endswith("; measured in 1 of 2 seeds")
    assert glued["null_verdict"].endswith("; measured in 1 of 2 seeds")
    assert glued["dpo_verdict"] == "DPO's log-probs were not measured"
    assert "not shown in 1 of 2 seeds, not measured in 1" in glued["table_findings_cost_curves"]
    assert "were not measured" in glued["figure_groups"] + glued["figure_nulls"]
    for key in ("dpo_displaced", "dpo_parted", "wasted", "null_alarm_raised", "divergence"):
        assert glued[key] == "not measured", key
    for key in ("table_dpo_pairs", "figure_dpo_pairs", "table_null_alarm", "figure_reward", "table_divergence"):
        assert "absent" in glued[key], key
    assert "not measured" in glued["figure_dpo"]
    assert glued["zero_variance"].startswith("not measured")


def test_alarms_and_waste_are_told_by_seed():
    glued = study("base")
    assert glued["dpo_displaced"] == "at 3 of 3 checkpoints, first at step 10"
    assert glued["dpo_parted"].startswith("at 1 of 3 checkpoints, first at step 30 (seed 0)")  # -6 points; seed 1: -8
    assert glued["dpo_pushed_down"] == "150% (seed 0), 150% (seed 1)"
    # 20 steps of 10 s, zero-variance groups of 16 as in the steps: 145 s of 900
    assert glued["wasted"] == "0.0403 h, $0.18, 16.1% of the bill"
    assert "importance ratio, mean" not in glued["table_signal"]  # no run logged one
    assert glued["null_alarm_raised"] == "in no field" and glued["divergence"] == "at none of 4 checkpoints"
    assert "not at hand" in glued["table_ceiling_examples"]  # made-up records have no documents


def test_what_a_test_does_not_show_is_not_said():
    glued = study("one seed")
    assert glued["dpo_verdict"].endswith("both log-probs fell, and no change on the task is shown")
    assert glued["headline"].endswith("GRPO had saved nothing by then and enters as the shared start (seed 0)")
    rows = re.findall(r"<td>([^<]*)</td>", glued["table_findings_cost_curves"])
    assert rows[rows.index("DPO ends below the shared start") + 2] == "not shown"
    assert "not shown" in glued["findings_cost_curves"]


def cells(table):
    """The cells of a glued table, a list a row, as shown."""
    rows = re.findall(r"<tr>(.*?)</tr>", table, re.S)  # not the head, which has a style
    return [[html.unescape(cell) for cell in re.findall(r"<td>(.*?)</td>", row, re.S)] for row in rows]


def test_a_verdict_that_turns_turns_its_sentence_and_its_row():
    for which, sentence, how in (("base", "continued SFT beats GRPO", "held"), ("swapped", "GRPO beats", "wrong")):
        row = cells(study(which)["table_claims"])[0]
        assert sentence in row[0] and row[3] == how and row[4] == "<0.0001 (seed 0), <0.0001 (seed 1)"
    rows = {row[1]: row[3] for row in cells(study("small")["table_claims"])}
    assert rows["training costs more than generating"] == "held in 1 of 2 seeds, not measured in 1"
    rows = {row[1]: row[3] for row in cells(study("one seed")["table_claims"])}
    assert rows["B ends above its start"] == "not shown"


# What a sentence that judges has in it; one whose key says that it is a verdict judges whatever it says.
JUDGES = r"\b(beats?|ahead|behind|loses|better|worse|more|less|most|largest|highest|best|sooner|never|change)\b|, p "
ALARMS = r"\b(of \d+ checkpoints|in no field|at step \d+|in \d+ of \d+ runs?)\b"


def test_every_sentence_that_judges_has_a_row_that_repeats_it():
    pages = "".join((BOOK / f"{page}.md").read_text() for page in (*ARTICLES, "intro", "method", "limits"))
    asked = set(re.findall(r"\{glue:text\}`stages/04_compare\.ipynb::(\w+):s`", pages))
    asked = {key for key in asked if not key.startswith(("published_", "predictions_", "findings_"))}
    for which in ("base", "swapped", "small", "one seed", "varied"):
        glued = study(which)
        named = {key for key in asked if key.startswith("headline") or key.endswith("_verdict")}
        judging = named | {key for key in asked if re.search(f"{JUDGES}|{ALARMS}", glued[key])}
        sentences = {row[0] for row in cells(glued["table_claims"])}
        assert {key for key in judging if glued[key] not in sentences} == set(), which


def test_predictions_are_scored_in_each_seed(tmp_path):
    """By hand: A wins in both seeds (0.9: Brier 0.01) and ends at 0.87 and 0.85, so above 0.86 in one (0.25)."""
    rows = {"sft_over_grpo": (">=", 1, 0.9), "exact_last_sft": (">", 0.86, 0.5), "lean_over_grpo": ("<", 1, 0.3)}
    entries = {
        f"on_{quantity}": {
            "statement": f"Of {quantity}", "quantity": quantity, "comparison": comparison, "threshold": threshold,
            "probability": probability, "seen": "nothing",
        }
        for quantity, (comparison, threshold, probability) in rows.items()
    }  # fmt: skip
    own = tmp_path / "own.yaml"
    own.write_text(yaml.safe_dump({"profile": "other", "predictions": entries}, sort_keys=False))
    fake_records.write(
        tmp_path,
        info={
            "sft-s0": {"predictions_sha256": records.file_sha256(own)},
            "sft-s1": {"predictions_sha256": "0" * 64},
            "dpo-s1": {"predictions_sha256": None},
        },
    )
    glued = execute(tmp_path, predictions=str(own))
    assert [(row[4], row[5]) for row in cells(glued["table_predictions"])] == [
        ("held", "0.010"),
        ("held in 1 of 2 seeds", "0.250"),
        ("not decidable", "-"),
    ]
    counts, brier, coin = glued["predictions_score"].split(". ")
    assert counts == "of 3, 1 held, 1 held in 1 of 2 seeds, 1 not decidable" and coin.endswith(": none")
    assert "lower is better: 0.130 over the 2 that can be decided; 0.170 would be" in brier
    assert glued["predictions_profile"] == "other"
    assert glued["predictions_standing"] == (
        "unchanged since 1 of 9 runs began, not the one that 1 of 9 runs began under, "
        "not known to be older than 7 of 9 runs, which did not note it"
    )


def test_the_projects_predictions_ask_of_runs_without_a_precursor_too():
    table = cells(study("base")["table_quantities"])
    _, predictions = load(BOOK / "predictions.yaml", [name for name, *_ in table])
    not_run = {name for name, *values in table if set(values) == {"-"}}
    assert len(predictions) >= 10
    assert sum(prediction["quantity"] in not_run for prediction in predictions.values()) >= 5


def test_variants_stand_beside_their_arm_and_what_did_not_run_is_said():
    base, varied = study("base"), study("varied")
    assert base["variants"] == "none" and "No variant" in base["table_variants"]
    assert varied["variants"] == (
        "Below its arm's end: C from the base model. No difference to its arm's end is shown: C lean"
    )
    rows = {row[0]: row[1:] for row in cells(varied["table_variants"])}
    lean, base_model = rows["C lean, seed 0"], rows["C from the base model, seed 0"]
    assert lean[0] == "0.6000 to 0.8000" and lean[4:6] == ["10%", "-"]
    assert re.fullmatch(r"\+0\.0 \(-\d\.\d to \+\d\.\d\), p\s1", lean[2])  # its arm's end lies in the interval
    assert base_model[0] == "0.2000 to 0.3000" and base_model[4:6] == ["20%", "200%"]
    assert base_model[1].startswith("+10.0, p") and base_model[2].startswith("-50.0 (")
    assert "C from the base model" in base["not_run"] and "C from the base model" not in varied["not_run"]
    assert "C from A's last checkpoint" in varied["not_run"]
    values = {row[0]: row[1:] for row in cells(varied["table_quantities"])}
    assert values["bill_ratio_lean"] == ["0.1", "-"] and values["exact_last_from_base"] == ["0.3", "-"]
    assert values["lean_over_grpo"] == ["0", "-"] and values["from_base_over_grpo"] == ["-1", "-"]
    assert values["exact_last_group_4"] == ["-", "-"]


def test_lean_runs_in_the_arms_places():
    """C's last is 0.80, which A held at 120 s and C at 900 s: 7.5 times; its lean run at 90 s, sooner than A."""
    base, varied = study("base"), study("varied")
    assert base["multiple_by_trainer"] == "none" and "No lean run" in base["table_by_trainer"]
    assert varied["multiple_by_trainer"] == "as run 7.5x (seed 0); C lean 0.75x (seed 0)"
    assert (base["lean_bills"], varied["lean_bills"]) == ("not measured", "C lean 10% (seed 0)")
    rows = {row[0]: row[1:] for row in cells(varied["table_by_trainer"])}
    assert list(rows) == ["as run", "C lean"]  # no other arm has a lean run


def test_a_text_from_elsewhere_and_a_regular_expression():
    base, varied = study("base"), study("varied")
    assert base["outside"] == base["baseline"] == "not measured" and "No text from elsewhere" in base["table_outside"]
    assert (varied["baseline"], varied["birth_place_nulls"]) == ("184 of 200", "4 of 200")
    places = {row[0]: row[1:] for row in cells(varied["table_birth_places"])}
    assert places["a regular expression"] == ["184 of 200", "10", "6", "0"] and "A continued SFT, seed 1" in places
    rows = {row[0]: [cell.replace("\u00a0", " ") for cell in row[1:]] for row in cells(varied["table_outside"])}
    sft = rows["A continued SFT, seed 0"]
    assert sft[:2] == ["174 of 200", "0"] and "C lean, seed 0" not in rows
    apart = {row[0]: row[1] for row in cells(varied["table_outside_variants"])}
    assert apart == {"C from the base model, seed 0": "60 of 200", "C lean, seed 0": "160 of 200"}
    assert sft[5] == "133 of 133; 0 of 67"  # dates of death; a third of the made-up people is alive
    assert varied["outside"].startswith(
        "base model 40 of 200; shared start 120 of 200 (seed 0), 120 of 200 (seed 1); A "
    )
    assert "lean" not in varied["outside"] and "wikipedia.jsonl" in varied["table_outside"]
    pairs = {row[0] for row in cells(varied["table_outside_tests"])}
    assert len(pairs) == 8 and "GRPO and continued SFT, seed 1" in pairs
    values = {row[0]: row[1:] for row in cells(varied["table_quantities"])}
    assert values["exact_wikipedia_sft"] == ["0.87", "0.85"] and values["sft_over_start_on_wikipedia"] == ["1", "1"]
    assert values["difference_sft_over_start_on_wikipedia"] == ["0.27", "0.25"]
    assert {row[0]: row[1:] for row in cells(base["table_quantities"])}["exact_wikipedia_sft"] == ["-", "-"]


def test_other_seeds_and_arms_are_not_read_and_not_counted():
    assert study("one seed")["runs"] == "5"
    assert "sft-s1" not in study("one seed")["table_attempts"]
    assert study("base")["runs"] == "9"


def test_settings_tried_and_interrupted_runs_are_told():
    glued = study("one seed")
    assert "sft_learning_rate = 0.001" in glued["table_trials"] and "billed 22 s" in glued["table_trials"]
    assert glued["table_trials"].count("<td>yes</td>") == 1
    assert "continued SFT was chosen as best among 2 values tried on dev" in glued["tuning"]
    assert "GRPO was left untuned, at the published value" in glued["tuning"]
    row = re.search(r"<td>grpo.s0</td>(.*?)</tr>", glued["table_attempts"], re.S).group(1)
    assert re.findall(r"<td>([^<]*)</td>", row) == ["Fake GPU", "2", "1", "900.0", "3.0", "7.0", "45.0"]
    assert "No trial" in study("base")["table_trials"]


def test_the_bill_says_whether_activations_were_recomputed():
    assert "backward holds a second forward" in study("base")["checkpointing"]
    assert "was off" in study("one seed")["checkpointing"]


def test_a_run_judged_on_another_split_is_one_error(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "RUNS", tmp_path)
    fake_records.write(tmp_path, info={"dpo-s1": {"parameters": {"judged_split": "dev"}}})
    with pytest.raises(ValueError, match="only runs judged on heldout .* judged were dpo-s1 on dev"):
        read("fake", [])


REAL = sorted(path.parent for path in (*RESULTS.glob("*/*/run.json"), *RUNS.glob("*/*/record/run.json")))


@pytest.mark.skipif(not REAL, reason="no record of a real run here")
def test_made_up_records_have_the_schema_of_real_ones(tmp_path):
    """Every key and column that the made-up records have, of the same kind, so that a test cannot pass on a fiction."""
    fake_records.write(tmp_path)
    since = {"zero_variance_all_right", "zero_variance_all_wrong", "zero_variance_between", "judged_split"}
    since |= {"wasted_s", "dead_steps"}  # older records lack them
    for folder in REAL:
        real = records.load(folder)
        if not (tmp_path / "fake" / real.name).exists():
            continue
        fake = records.load(tmp_path / "fake" / real.name / "record")
        assert set(fake.info) <= set(real.info), folder
        for group in ("parameters", "trainer", "device"):
            assert set(fake.info[group]) - since <= set(real.info[group]), (folder, group)
        assert set(fake.info["attempts"][-1]) <= set(real.info["attempts"][-1])
        assert set(fake.phases["kind"]) <= {"setup", "train", "evaluation", "resume", "lost"}
        for name in ("checkpoints", "predictions", "phases", "steps", "likelihood"):
            if not fake.has(name) or name == "likelihood" and not real.has(name):
                continue
            ours, theirs = getattr(fake, name), getattr(real, name)
            assert set(ours) - since <= set(theirs), (folder, name)
            kinds = {c: (ours[c].dtype.kind, theirs[c].dtype.kind) for c in set(ours) & set(theirs)}
            # counts may be written as 1.0, and a column without values has no kind of its own
            alike = {c for c, (a, b) in kinds.items() if a == b or {a, b} <= {"i", "f"} or "O" in (a, b)}
            assert alike == set(kinds), (folder, name, {c: kinds[c] for c in set(kinds) - alike})


def test_every_table_has_its_csv_and_every_figure_its_alt_text():
    for key, value in study("base").items():
        if key.startswith("table_") and "absent" not in value:
            assert re.search(r'download="\w+\.csv" href="data:text/csv', value), key
        if key.startswith("figure_"):
            assert re.search(r'<img alt="[^"]{40,}"', value), key


def test_the_published_figures_stand_beside_ours():
    tables = study("base")
    for key, texts in {
        "table_equal_spend": ("83 / 54", "117 / 66", "131 / 75", "0.8905", "ended"),
        "table_reach_hold": ("$0.59", "$10.58", "18x", "5.1x", "never", "28x"),
        "table_bill": ("4,360", "49.3%", "1,861"),
        "table_dpo": ("-1.69 to -3.73", "0.58 to 0.69"),
        "table_nulls": ("131 of 136", "13 of 1158"),
    }.items():
        for text in texts:
            assert text in tables[key], f"{text} is not in {key}"


def test_a_missing_run_is_one_error_that_names_it(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "RUNS", tmp_path)
    fake_records.write(tmp_path, skip=("dpo-s1",))
    with pytest.raises(FileNotFoundError, match="run dpo-s1 of profile fake"):
        read("fake", [0, 1])


# ------------------------------------------------------------------------------------------------- the pages' text


def prose(text):
    """What an article's author typed as prose: without directives, roles, code, link targets and addresses."""
    text = re.sub(r"^(```|:::).*?^\1\s*$", "", text, flags=re.S | re.M)
    text = re.sub(r"\{[\w:-]+\}`[^`]*`", "", text)
    text = re.sub(r"`[^`]*`", "", text)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    return re.sub(r"https?://\S+", "", text)


def typed_numbers(text):
    """Numbers in typed prose. Allowed: years 1900 to 2099, and digits inside a name (H100, v2)."""
    return re.findall(r"(?<![\w.])(?!(?:19|20)\d\d\b)\d+(?:[.,]\d+)*", prose(text))


JUDGING = (
    r"\b(beats?|leads?|wins?|won|loses|ahead of|behind|outperform\w*|(better|worse|cheaper|faster) than|"
    r"stall\w*|falling|rising|costs nothing)\b"
)


@pytest.mark.parametrize("article", ARTICLES)
def test_no_result_is_typed(article):
    text = (BOOK / f"{article}.md").read_text()
    assert typed_numbers(text) == []
    assert re.search(JUDGING, prose(text)) is None


def test_the_scan_sees_what_it_should():
    assert typed_numbers("A gets 0.89 for $0.59, 18x less, or 4.4%.") == ["0.89", "0.59", "18", "4.4"]
    assert typed_numbers("In 2026 on an H100, `x = 3`, [v2](https://a.b/7), {cite}`fan2026`.") == []


@pytest.mark.parametrize("article", ARTICLES)
def test_the_pages_ask_only_for_what_the_notebook_gives(article):
    text, glued = (BOOK / f"{article}.md").read_text(), study("base")
    roles = re.findall(r"\{glue:text\}`([^`]*)`", text)
    # without a format code MyST-NB takes the file name for the key
    assert all(re.fullmatch(r"stages/04_compare\.ipynb::\w+:s", role) for role in roles)
    directives = re.findall(r"^```\{glue\} (\w+)\n:doc: stages/04_compare\.ipynb\n```$", text, flags=re.M)
    asked = {role.split(":")[2] for role in roles} | set(directives)
    assert len(directives) == text.count("{glue} ")
    assert asked <= set(glued), sorted(asked - set(glued))


def test_what_was_not_measured_is_listed_once():
    """Parts that need a measurement are closed again, each has its line in the list, and the style that hides."""
    text, style = (BOOK / "cost_curves.md").read_text(), (BOOK / "_static" / "book.css").read_text()
    parts = re.findall(r'^<div class="if-measured">\n(.*?)^</div>$', text, flags=re.S | re.M)
    assert len(parts) == text.count("<div") == text.count("</div>") and "div.if-measured:has(p.absent" in style
    absent = yaml.safe_load((BOOK / "captions.yaml").read_text())["absent"]
    assert all(set(re.findall(r"\{glue\} (\w+)", part)) <= set(absent) for part in parts)
    full, small = (study(which)["not_measured_cost_curves"] for which in ("varied", "small"))
    assert "No variant of an arm" in small and small.count("Fixed pairs were not judged") == 1
    assert "No variant of an arm" not in full and plots.listed("Not measured:", []).data == ""


def test_published_figures_name_their_source():
    published = yaml.safe_load((BOOK / "published.yaml").read_text())
    assert published["repository"].endswith("iambigmomma/post-training-cost-curves-v2")
    for section, content in published.items():
        assert section == "repository" or "article" in content["source"], section
