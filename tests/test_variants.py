"""Variants: named and checked before anything runs, and compared with their arms by hand-made numbers."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from fake_records import ARMS, write
from test_compare import make_curve

from lib import data, records, rewards, runs, variants
from lib.build import params
from lib.paths import ROOT
from lib.report import compare, study
from lib.report import variants as beside


@pytest.fixture
def folder(tmp_path, monkeypatch, write_notebook):
    """Notebooks, profiles and variants of a small project, for `params.effective`."""
    write_notebook("03_grpo", 'variant: str = ""  # name\nlean: bool = False  # yes or no\nsize: int = 8  # rollouts')
    write_notebook("01_sft", "rate: float = 0.1  # per second")
    for name, text in {"profiles/p": "size: 4\n", "variants/grpo-lean": "lean: true\n"}.items():
        path = tmp_path / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


def effective(folder, variant):
    places = {name: folder / name for name in ("notebooks", "profiles", "variants")}
    return params.effective("03_grpo", "p", variant=variant, **places)


def test_a_variant_goes_before_the_profile_and_names_the_run(folder):
    (folder / "variants" / "grpo-big.yaml").write_text("size: 16\n")
    assert effective(folder, "grpo-lean") == {"size": 4, "lean": True, "variant": "lean"}
    assert effective(folder, "grpo-big") == {"size": 16, "variant": "big"}


@pytest.mark.parametrize(
    "variant, text, expected",
    [
        ("grpo-laen", None, "did you mean grpo-lean"),
        ("grpo-own", "leen: true", "notebooks/03_grpo.py has no parameter leen; did you mean lean?"),
        ("grpo-own", "rate: 0.2", "notebooks/03_grpo.py has no parameter rate"),  # another notebook has
        ("grpo-own", "size: 0", "size .of notebooks/03_grpo.py.: got 0, expected a number above 0"),
        ("grpo-own", "seeds: [1]", "notebooks/03_grpo.py has no parameter seeds"),
    ],
)
def test_a_mistyped_variant_or_parameter_is_one_error(folder, variant, text, expected):
    if text:
        (folder / "variants" / f"{variant}.yaml").write_text(text)
    with pytest.raises(params.ParameterError, match=expected):
        effective(folder, variant)


def test_every_variant_of_the_project_can_be_run():
    for path in params.VARIANTS.glob("*.yaml"):
        values = variants.parameters("h200", 0, path.stem)
        assert values["variant"] and set(params.variant_values(path.stem)) <= set(values), path.stem


@pytest.mark.parametrize(
    "variant, text, expected",
    [
        ("sft-few", "start_documents: 40", "start_documents would change the shared start.*expected own_start: true"),
        ("sft-few", "lora_rank: 4\nlean: true", "lora_rank would change the shared start"),
        ("grpo-few", "judged_split: dev", "got judged_split, which no variant sets"),
        ("grpo-few", "seed: 3", "got seed, which no variant sets"),
        (
            "grpo-few",
            "hard_samples: 4\nlabels: false",
            "grpo-few.yaml: got hard_samples 4 and labels False, expected lab",
        ),
        ("grpo-sft_lean", "lean: true", "'sft_lean' is what a table calls something else"),  # the variant sft-lean
        ("grpo-dpo", "lean: true", "'dpo' is what a table calls something else"),
        ("sft-rerun", "lean: true", "'rerun' is what a table calls something else"),
        ("grpo-own", "group_size: 4", "grpo-own.yaml: got group_size 4, as profile smoke has it"),
        ("grpo-own", "", "grpo-own.yaml: got nothing, as profile smoke has it"),
        ("grpo-own", "profile: h200\nlean: true", "grpo-own.yaml: profile: got 'h200', .* and PROFILE=smoke"),
        ("grpo-own", "correction: false", "grpo-own.yaml: correction: got False with engine transformers"),
        ("grpo-own", "group_size: 1", "grpo-own.yaml: group_size: got 1, expected 2 or more"),
        (
            "grpo-own",
            "group_size: 7",
            "grpo-own.yaml: micro_batch_rollouts: got 8, expected a multiple of group_size 7",
        ),
        ("grpo-own", "start_from: nowhere", "grpo-own.yaml: start_from: got 'nowhere', expected base, or another run"),
        ("grpo-own", "start_from: start-few", "grpo-own.yaml: start_from: got 'start-few', but no variant sft-few"),
        ("grpo-own", "start_from: start-lean", "'start-lean', but no variant sft-lean with own_start: true makes it"),
        ("dpo-own", "pair_documents: 65", "dpo-own.yaml: pair_documents: got 65, expected at most n_pool, 64"),
        ("dpo-own", "pairs_from: silver", "dpo-own.yaml: pairs_from: got 'silver', expected gold or unlabelled"),
        ("sft-own", "own_start: true\nstart_documents: 97", "start_documents: got 97, expected at most n_start, 96"),
        ("sft-own", "sft_warmup_share: 1", "sft-own.yaml: sft_warmup_share: got 1, expected a share below 1"),
    ],
)
def test_a_variant_that_would_change_what_is_not_its_own_is_refused(variant, text, expected, tmp_path):
    (tmp_path / "sft-lean.yaml").write_text("lean: true")  # begins from the shared start: makes no start-lean
    (tmp_path / f"{variant}.yaml").write_text(text)
    with pytest.raises(params.ParameterError, match=expected):
        variants.parameters("smoke", 0, variant, tmp_path)


def test_a_variant_with_a_start_of_its_own_may_change_it():
    assert variants.parameters("h200", 0, "sft-weak")["start_documents"] == 320


def test_a_variant_has_a_name_that_a_folder_can_have():
    settings = {"data": "d", "model": {"sha256": "m"}, "parameters": {}}
    with pytest.raises(ValueError, match="variant: got '../x', expected small letters"):
        runs.open_run("03_grpo", "p", "grpo", 0, variant="../x", **settings)


def test_a_run_without_kept_weights_gives_its_last_checkpoint_or_none(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "RUNS", tmp_path)
    write(tmp_path, skip=("start-s1", "sft-s1", "dpo-s1", "grpo-s1"))
    run = records.load(tmp_path / "fake" / "sft-s0" / "record")
    checkpoint = tmp_path / "fake" / "sft-s0" / f"checkpoint-{run.checkpoints['step'].iloc[-1]}"
    with pytest.raises(FileNotFoundError, match="sft-s0 kept no weights"):
        _ = run.weights
    checkpoint.mkdir()
    (checkpoint / "model.safetensors").write_bytes(b"weights")
    with pytest.raises(FileNotFoundError, match="does not hold them"):  # those of another training
        _ = run.weights
    run.checkpoints.loc[run.checkpoints.index[-1], "weights_sha256"] = records.file_sha256(
        checkpoint / "model.safetensors"
    )
    assert run.weights == checkpoint


def test_a_run_that_was_removed_stops_no_other_one(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "RUNS", tmp_path)
    write(tmp_path, variants={"grpo-lean": ([(50, 0.62)], {"lean": True}, "start-s0")})
    before = {run.name for run in records.pinned_runs("fake")}
    assert "grpo-lean-s0" in before
    shutil.rmtree(tmp_path / "fake" / "grpo-lean-s0")
    assert {run.name for run in records.pinned_runs("fake")} == before - {"grpo-lean-s0"}


LEAN, ELSEWHERE = [(50, 0.62), (90, 0.80)], [(100, 0.30)]


@pytest.fixture
def used(tmp_path, monkeypatch):
    """A study with two variants: the setup, starts and arms of `study.read`, and the variants that count."""
    monkeypatch.setattr(records, "RUNS", tmp_path)
    monkeypatch.setattr(records, "RESULTS", tmp_path / "results")
    made = {"grpo-lean": (LEAN, {"lean": True}, "start-s0"), "grpo-from_base": (ELSEWHERE, {}, "setup")}
    made["sft-small"] = (ELSEWHERE, {}, "another-s0")  # began from a run that is none of the study's
    write(tmp_path, variants=made)
    _, setup, starts, arms = study.read("fake", [])
    return setup, starts, arms, study.variants("fake", [setup, *starts.values(), *arms.values()])


def test_a_variant_is_compared_with_its_arm_and_with_what_it_began_from(used):
    setup, starts, arms, found = used
    assert [run.name for run in found] == ["grpo-from_base-s0", "grpo-lean-s0"]
    assert [run.variant for run in found] == ["from_base", "lean"] and arms["grpo", 0].variant == ""
    own = {(beside.called(run.arm, run.variant), 0): run for run in found}
    known = {run.name: run for run in (setup, *starts.values())}
    begun = {key: beside.begun_from(run, known) for key, run in own.items()}
    ends = {key: compare.curve(run, begun[key]) for key, run in own.items()}
    curves = {key: compare.curve(run, starts[run.seed]) for key, run in arms.items()}
    table = beside.table(own, ends, begun, arms, curves).set_index("name")
    assert table["differs"].to_dict() == {"from_base": "from the base model", "lean": "lean True"}
    lean, base = table.loc["lean"], table.loc["from_base"]
    assert (lean["start"], lean["last"], lean["arm_last"], base["start"]) == (0.60, 0.80, ARMS["grpo"][-1][1], 0.20)
    assert lean["bill_ratio"] == pytest.approx(90 / 900)
    assert lean["start_better"] - lean["start_worse"] == round(0.2 * 200)
    # Four tests, one family: Holm multiplies the smallest p by four, the next by three, and never lets one fall back.
    family = table[["start_p", "arm_p", "start_p_holm", "arm_p_holm"]].to_numpy().reshape(2, 2, 2).swapaxes(1, 2)
    p, adjusted = np.array(sorted(family.reshape(-1, 2).tolist())).T
    assert adjusted == pytest.approx(np.minimum(1, np.maximum.accumulate(p * [4, 3, 2, 1])))
    assert (lean["zero_first"], lean["zero_last"]) == (8 / 16, 15 / 16)  # of fake_records' steps


def test_variants_that_belong_together_are_compared_at_the_most_that_both_have_spent():
    left = make_curve("grpo", [0, 2, 4], ["0000", "1000", "1111"])
    right = make_curve("sft", [0, 1, 3], ["0000", "1110", "0110"])
    table = beside.between({("weak_start", 0): left, ("sft_weak", 0): right, ("unlabelled", 0): left}, [0, 1])
    assert table[["left", "right", "seed", "budget_hours"]].to_numpy().tolist() == [["weak_start", "sft_weak", 0, 3]]
    assert table[["left_accuracy", "right_accuracy", "left_better", "right_better"]].loc[0].tolist() == [
        0.25,
        0.5,
        1,
        2,
    ]
    assert beside.between({("unlabelled", 0): left}, [0]).empty


def test_arms_with_lean_runs_take_their_places():
    """C holds its last half at 4 h, A at 1 h; lean C at 2 h, lean A at 0.5 h: multiples of 4, 2 and 4."""
    curves = {
        ("grpo", 0): make_curve("grpo", [0, 2, 4], ["0000", "0100", "0110"]),
        ("sft", 0): make_curve("sft", [0, 1, 3], ["0000", "1100", "1111"]),
    }
    ends = {
        ("lean", 0): make_curve("grpo", [0, 1, 2], ["0000", "0100", "0110"]),
        ("sft_lean", 0): make_curve("sft", [0, 0.5, 1], ["0000", "1100", "1111"]),
    }
    table = beside.by_trainer(curves, ends, [0, 1], 0.05)
    assert table[["rule", "seed", "multiple"]].to_numpy().tolist() == [
        ["as run", 0, 4], ["C lean", 0, 2], ["A, C lean", 0, 4]
    ]  # fmt: skip
    assert beside.by_trainer(curves, {}, [0], 0.05).empty


def test_predictions_get_their_quantities_from_variants(used):
    setup, starts, arms, found = used
    (lean,) = [run for run in found if run.variant == "lean"]
    curves = {("grpo", 0): compare.curve(arms["grpo", 0], starts[0])}
    ends = {("lean", 0): compare.curve(lean, starts[0])}
    table = beside.table({("lean", 0): lean}, ends, {("lean", 0): starts[0]}, arms, curves)
    quantities = beside.quantities(table)
    assert quantities["exact_last_lean"] == {0: 0.80} and quantities["bill_ratio_lean"] == {0: pytest.approx(0.1)}
    assert set(beside.all_tests(table)) == {"lean_over_start", "lean_over_grpo"}
    from lib.report.predictions import planned

    assert set(quantities) | set(beside.all_tests(table)) <= set(planned())


OWN = "start_from: sft\nhard_samples: 2\nlean: true\n"


def test_the_notebook_rewards_with_labels_or_without(capsys):
    """The cell itself, on an answer that is right, beside two gold records: its own, and another."""
    cells = (ROOT / "notebooks" / "03_grpo.py").read_text().split("\n# %%")
    (cell,) = [cell.partition("\n")[2] for cell in cells if "\ndef reward(" in cell]
    document = data.load("synthetic", n_documents=1, seed=9)[0]
    answer, asked = data.answer(document), [document, document | {"name": "Another", "birth_date": "1700-01-01"}]
    for labels, expected in ((True, [1.0, rewards.reward(answer, asked[1], document["text"])]), (False, [1.0, 1.0])):
        known = {"rewards": rewards, "labels": labels}
        exec(cell, known)
        assert capsys.readouterr().out.strip() == rewards.formula(labels)
        assert known["reward"]([[{"content": answer}]] * 2, asked, [document["text"]] * 2) == expected
    assert rewards.reward(answer, asked[1], document["text"]) < 1


def test_a_variant_is_trained_recorded_and_found_again(tmp_path, monkeypatch, copy_project):
    """C from A's last checkpoint, on hard prompts, lean: through papermill, on the tiny model."""
    pytest.importorskip("trl", reason="training is not installed (extra `train`)")
    copy_project(tmp_path, max_unaccounted=0.5, n_pool=16, pair_documents=16, grpo_steps=2, outside_path="other.jsonl")
    (tmp_path / "notebooks" / "variants" / "grpo-own.yaml").write_text(OWN)
    others = [
        document | {"id": f"other-{document['id']}"} for document in data.load("synthetic", n_documents=3, seed=9)
    ]
    (tmp_path / "other.jsonl").write_text("".join(json.dumps(document) + "\n" for document in others))

    def python(*arguments, train="auto"):
        env = {**os.environ, "PYTHONPATH": str(tmp_path / "src"), "TRAIN": train}
        done = subprocess.run([sys.executable, "-m", *arguments], cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    out = tmp_path / "runs" / "small" / "notebooks"
    python("lib.build.execute", "00_setup", "--profile", "small", "--out", out / "00_setup.ipynb")
    python("lib.build.execute", "01_sft", "--profile", "small", "--seed", "0", "--out", out / "01_sft-s0.ipynb")
    python("lib.variants", "small", "0", "grpo-own")
    assert "grpo-own-s0" in python("lib.audit", "record", "small", "0")
    assert "4 recorded runs, 0 do not verify" in python("lib.audit", "verify")
    shutil.rmtree(tmp_path / "runs" / "small" / "grpo-own-s0")
    python("lib.variants", "small", "0", "grpo-own", train="never")  # from the record

    monkeypatch.setattr(records, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(records, "RESULTS", tmp_path / "book" / "results")
    setup, start, arm = (records.load(records.RESULTS / "small" / name) for name in ("setup", "start-s0", "sft-s0"))
    (run,) = study.variants("small", [setup, start, arm])
    assert (run.name, run.arm, run.variant) == ("grpo-own-s0", "grpo", "own")
    assert run.info["parents"] == {"setup": setup.info["id"], "sft-s0": arm.info["id"]}
    assert "pair_sampling" in set(run.phases.loc[run.phases["kind"] == "setup", "phase"])  # billed
    pool = set(setup.splits.loc[setup.splits["split"] == "pool", "id"])
    assert set(run.rollouts["id"]) <= pool and 2 <= run.info["facts"]["prompts"] <= len(pool)
    assert (run.info["parameters"]["hard_samples"], run.info["parameters"]["reward"]) == (2, rewards.formula())
    assert pd.Index(run.predictions_outside["id"]).equals(pd.Index([document["id"] for document in others]))
