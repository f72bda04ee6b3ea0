"""The benchmark's script, tried on a CPU with a tiny model: what it writes, not how fast anything is."""

import json
from itertools import combinations

import pytest

pytest.importorskip("trl", reason="training is not installed (extra `train`)")

import fake_bench
import lean_harness  # noqa: F401 - freezes what is imported so far
import pandas as pd

from lib import decode
from lib.bench import cases as bench_cases
from lib.bench import grpo_step as bench_grpo
from lib.report import benches


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    parts = "--parts grid wall phases recorded waterfall".split()
    sizes = "--steps 2 --slow-steps 1 --warmup 1 --turn 1 --phase-steps 1 --recorded-steps 1".split()
    bench_grpo.main(["--case", "tiny", "--out", str(folder), "--dead", "0", "4", *parts, *sizes])
    return pd.read_parquet(folder / "grpo_step.parquet"), json.loads((folder / "grpo_step.json").read_text())[-1]


def test_one_row_a_step_of_every_cell(results):
    table, notes = results
    wall = table[table["part"] == "wall"]
    cells = wall.groupby(["variant", "dead_groups"]).size().to_dict()
    slow = {("stock", 4): 1, ("stock-best", 4): 1}  # 2 steps a cell, 1 where asked
    assert cells == {(v, d): slow.get((v, d), 2) for v in ("stock", "stock-best", "lean") for d in (0, 4)}
    assert wall["wall_s"].gt(0).all() and (wall["dead_share"] == wall["dead_groups"] / 4).all()
    assert set(table["case"]) == {"tiny"} and notes["commit"] and notes["device"]["name"]
    assert notes["variants"]["stock"]["trainer"] == "GRPOTrainer" and "trl" in notes["versions"]


def test_positions_are_what_each_trainer_forwards(results):
    table, _ = results
    wall = table[table["part"] == "wall"].set_index(["variant", "dead_groups"])["positions_grad"]
    assert wall["lean", 0].max() < 0.6 * wall["stock", 0].min()
    assert wall["lean", 4].isna().all()  # nothing forwarded: not counted, not 0


def test_tokens_are_those_of_all_rollouts_and_their_prompts(results):
    table, _ = results
    prompts = (table["tokens"] - table["completion_tokens"]) / 16  # 4 prompts of 20 to 40 tokens and a template
    assert prompts.between(20, 60).all() and table["completion_tokens"].between(16, 16 * 12).all()


def test_phases_are_columns_and_carry_no_wall_time(results):
    table, _ = results
    phases = table[table["part"] == "phases"]
    assert len(phases) == 6 and phases["wall_s"].isna().all()
    columns = ["generation", "backward", "optimizer", "data", "unaccounted"]
    assert phases[columns].gt(0).all(axis=None)
    names = [c for c in table.columns[table.columns.get_loc("timed_s") + 1 :]]
    assert phases[names].sum(axis=1).to_numpy() == pytest.approx(phases["timed_s"].to_numpy(), rel=0.1, abs=0.02)
    assert table.loc[table["part"] != "phases", columns].isna().all(axis=None)


def test_gradients_on_recorded_rollouts_agree(results):
    _, notes = results
    errors = notes["facts"]["gradient_error_to_stock"]
    assert errors["stock"] == 0 < errors["lean"] < 2 * errors["stock padded otherwise"] + 0.01


def test_the_waterfall_adds_each_saving_once(results):
    table, _ = results
    assert table.loc[table["part"] == "waterfall", "variant"].tolist() == [
        "+none",
        *(f"+{s}" for s in bench_grpo.ORDER),
    ]


def test_the_notes_say_what_each_saving_does(results):
    _, notes = results
    assert set(notes["facts"]["savings"]) > set(bench_grpo.ORDER)


def test_pages_read_these_rows_and_the_made_up_ones_have_their_columns(results):
    table, notes = results
    steps = benches.pairs(table)
    for part in ("wall", "phases"):
        own = steps.loc[steps["part"] == part, ["base", "variant"]]
        assert own.apply(tuple, axis=1).tolist() == [*combinations(("stock", "stock-best", "lean"), 2)] * 2
    timed = benches.phases(table.assign(positions_nograd=float("nan")))
    assert len(timed) == 6
    assert (timed[benches.REST] < 0.5 * timed["step"]).all()
    assert len(benches.agreement([notes])) == 4
    absent = {"weight_sync", "forward_nograd", "positions_nograd"}  # no engine, so no correction
    assert set(fake_bench.rows()) - absent <= set(table)
    assert set(fake_bench.notes()) <= set(notes)


def test_every_token_of_the_published_shape_can_be_decoded(tmp_path, monkeypatch):
    small = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1)
    case = bench_cases.CASES["published-1.7b"]
    monkeypatch.setitem(case, "shape", case["shape"] | small | dict(head_dim=8))
    tokenizer = decode.load_tokenizer(bench_cases.make_model("published-1.7b", None, tmp_path / "model"))
    assert all(tokenizer.decode([i]) for i in (1500, 70_000, 151_935))
    rows = bench_cases.chat_prompts(tokenizer, case, 50, None)
    sizes = [len(tokenizer.apply_chat_template(r, add_generation_prompt=True)["input_ids"]) for r in rows]
    assert min(sizes) >= 250 and max(sizes) <= 400 and len(set(sizes)) > 20


def test_a_case_without_its_model_is_refused(tmp_path):
    with pytest.raises(ValueError, match="--model: case smollm2 needs the folder of its model"):
        bench_cases.make_model("smollm2", None, tmp_path)


def test_documents_do_not_take_the_place_of_a_case_s_prompts(capsys):
    """A case that varies the prompt would otherwise measure another ratio than its name says."""
    with pytest.raises(SystemExit):
        bench_grpo.main(["--case", "ratio-1-2", "--data", __file__])
    assert "--data: case ratio-1-2 has prompts of a length of its own" in capsys.readouterr().err
