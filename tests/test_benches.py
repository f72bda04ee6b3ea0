"""What pages say of the bench of the step, on a made-up bench (fake_bench) and on numbers that are checked by hand."""

import fake_bench
import numpy as np
import pandas as pd
import pytest
from fake_bench import SESSION

from lib import sizing
from lib.report import bench_layouts, bench_phrases, benches, plots, projection, steplaw

ROWS, NOTES = fake_bench.rows(), [fake_bench.notes()]
LATER = "2026-02-01T00:00:00+00:00"


def again(variants, seconds, steps, case="published-1.7b"):
    """Rows of a later session: whole steps without dead groups."""
    rows = [
        {"session": LATER, "case": case, "part": "wall", "variant": v, "dead_share": 0.0, "wall_s": seconds,
         "positions_grad": 1000.0}
        for v in variants for _ in range(steps)
    ]  # fmt: skip
    return pd.concat([ROWS, pd.DataFrame(rows)], ignore_index=True)


def cell(table, variant, dead_share=0.0, case="published-1.7b"):
    found = table[(table["variant"] == variant) & (table["dead_share"] == dead_share) & (table["case"] == case)]
    return found.iloc[0]


def test_whole_steps_by_hand():
    table = benches.whole_steps(ROWS)
    lean = cell(table, "lean")
    assert lean["s"] == pytest.approx(0.65) and lean["n"] == 3 and lean["positions"] == 11_000
    assert lean["over_stock"] == pytest.approx(5.0 / 0.65) and lean["over_best"] == pytest.approx(3.0 / 0.65)
    assert table.loc[table["variant"] == "stock", ["over_stock", "over_best"]].isna().all(axis=None)
    assert pd.isna(cell(table, "lean", 1.0)["positions"])  # nothing forwarded: missing, not 0
    assert list(table["variant"][:3]) == ["stock", "stock-best", "lean"]


def test_the_newest_session_with_as_many_steps_counts_and_multiples_stay_inside_a_session():
    assert set(benches.whole_steps(again(["stock", "lean"], 2.0, 2))["session"]) == {SESSION}  # fewer steps
    table = benches.whole_steps(again(["lean"], 2.0, 3))
    lean = cell(table, "lean")  # its newest session has no stock beside it: the one that has gives the multiple
    assert lean["s"] == 2.0 and lean["over_stock"] == pytest.approx(5 / 0.65) and lean["over_stock_session"] == SESSION
    table = benches.whole_steps(again(["lean", "stock"], 2.0, 3))
    assert cell(table, "lean")["over_stock"] == 1.0 and cell(table, "stock-best")["session"] == SESSION
    assert cell(table, "stock-best")["over_stock"] == pytest.approx(5 / 3)  # of its own session's stock
    assert cell(table, "lean", 0.5)["session"] == SESSION


def test_the_parts_of_a_step_add_up_and_a_pass_not_made_is_missing():
    parts = benches.part_seconds(ROWS)
    table = benches.side_by_side(parts)
    assert table.loc["the step, timers on"].tolist() == pytest.approx([5.0, 3.0, 0.65])
    assert pd.isna(table.loc["no-grad forward", "lean"]) and "reference forward" not in table.index
    assert table.loc[benches.REST].tolist() == pytest.approx([0.1, 0.1, 0.03])


def test_the_sessions_that_a_page_reads():
    rows = pd.concat([ROWS, ROWS.iloc[:2].assign(session=LATER)])
    told = [NOTES[0] | {"session": LATER, "commit": None}, NOTES[0], NOTES[0] | {"session": "left no row"}]
    read = benches.sessions({"memory": None, "grpo_step": (rows, told)})
    assert read[["session", "rows"]].values.tolist() == [[SESSION, len(ROWS)], [LATER, 2]]
    first, last = ([cell(row) for cell in bench_layouts.SESSIONS.values()] for row in read.itertuples())
    assert first[3:5] == ["c" * 10, "changed since"] and last[1:4] == ["2026-02-01 00:00", "NVIDIA H200", "unknown"]
    assert benches.sessions({"memory": None}).empty


def test_arithmetic_by_hand():
    shape = sizing.Shape(hidden=5, intermediate=7, layers=2, heads=2, kv_heads=1, head_dim=3, vocabulary=11,
                         tied=True, qk_norm=True, qkv_bias=False)  # fmt: skip
    # parameters of layers: each has queries and output 2 x 5 x 6, keys and values 2 x 5 x 3, three matrices 5 x 7;
    # 10 positions without and 20 with gradient (forward, backward); 4 scored tokens in three passes of the output
    flops = 2 * (390 * (10 + 40) + 55 * 4 * 3)
    assert benches.arithmetic_s(shape, 10, 20, 4, 100.0) == flops / 100
    assert benches.arithmetic_s(shape, 0, 0, 4, 100.0) == 0


def test_the_published_shape_is_that_of_its_name():
    assert benches.shape_of(benches.PUBLISHED) == sizing.models()["Qwen3-1.7B"]


def test_the_floor_and_what_fills_the_gap_make_the_step():
    table = benches.floor(ROWS, NOTES)
    for variant in table:
        own = table[variant].drop(["floor", "the step, timers on"])
        assert own.sum() == pytest.approx(table[variant]["the step, timers on"])
    lean = table["lean"]
    assert lean["floor"] == lean["generation"] + lean["arithmetic of the positions"] < lean["the step, timers on"]
    unknown = [NOTES[0] | {"device": {"name": "a new GPU"}}]
    assert bench_phrases.floor(benches.floor(ROWS, unknown)) == {"lean_floor": "not measured"}


def test_the_savings_add_up_to_the_way_from_first_to_last():
    table = benches.waterfall(ROWS, NOTES)
    assert table["saving"].tolist() == ["none", "checkpoint", "old", "mode", "prefix"]
    assert table["saved_s"].iloc[1:].tolist() == pytest.approx([1, 1, -0.25, 2.25])
    assert table["saved_s"].sum() == pytest.approx(table["s"].iloc[0] - table["s"].iloc[-1]) == pytest.approx(4)
    assert table["does"].isna().tolist() == [True, False, False, False, True]  # the notes know three of them
    old = [NOTES[0] | {"facts": {}}]
    assert benches.waterfall(ROWS, old)["does"].isna().all()


def test_a_saving_that_the_session_did_not_reach_is_named():
    assert benches.not_reached(benches.waterfall(ROWS, NOTES), NOTES) == []
    more = [NOTES[0] | {"facts": {"savings": NOTES[0]["facts"]["savings"] | {"norms": "", "compile": ""}}}]
    chain = benches.waterfall(ROWS, more)
    assert benches.not_reached(chain, more) == ["norms"]
    told = bench_phrases.waterfall(chain, pd.DataFrame(), ["norms"])["waterfall_ends"]
    assert "s with the 4 reached (not norms)" in told


def test_the_waterfall_is_of_one_session():
    cut = pd.DataFrame([{"session": LATER, "case": "published-1.7b", "part": "waterfall", "variant": "+none",
                         "dead_share": 0.0, "wall_s": 9.0}] * 9)  # fmt: skip
    assert set(benches.waterfall(pd.concat([ROWS, cut]), NOTES)["session"]) == {SESSION}  # cut after its first
    whole = ROWS[ROWS["part"] == "waterfall"].assign(session=LATER)
    assert set(benches.waterfall(pd.concat([ROWS, whole]), NOTES)["session"]) == {LATER}


def test_bars_of_the_waterfall_hang_together():
    bars = plots.waterfall(benches.waterfall(ROWS, NOTES)).axes[0].patches
    ends = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in bars]
    expected = [(0, 5), (4, 5), (3, 4), (3, 3.25), (1, 3.25), (0, 1)]
    assert np.allclose(ends, expected)
    assert [bar.get_hatch() for bar in bars] == [None, None, None, "////", None, None]


def test_a_cell_of_the_grid_that_failed_says_why():
    table = benches.grid(ROWS, NOTES)
    assert table["cell"].tolist() == ["stock", "b=64 checkpointing=off", "b=128 checkpointing=off"]
    assert table["failed"].iloc[2] == "OutOfMemoryError" and table["s"].iloc[:2].tolist() == pytest.approx([5.0, 3.0])


# ------------------------------------------------------------------------------------------------------------- the law


def shapes(seconds):
    """Cells of `steplaw.points`: stock at shapes of so many prompt tokens, with seconds by case."""
    work = {"published-1.7b": 3e6, "ratio-8-1": 4e6, "ratio-1-2": 1e6, "ratio-2-1": 2e6, "ratio-1-8": 5e6}
    return pd.DataFrame(
        [
            {"case": case, "dead_share": 0.0, "variant": "stock", "step": s, "trainer": np.nan,
             "positions": np.nan, "prompt_work": work[case]}
            for case, s in seconds.items()
        ]
    )  # fmt: skip


EXACT = {"published-1.7b": 7.0, "ratio-8-1": 9.0, "ratio-1-2": 3.0}  # 1 s + 2 s a million


def test_a_law_is_fitted_on_some_shapes_and_scored_on_the_others():
    summary, rows = steplaw.laws(shapes(EXACT | {"ratio-2-1": 4.0, "ratio-1-8": 8.8}))  # the law says 5 and 11
    (law,) = summary.itertuples()
    assert (law.intercept, law.rate) == pytest.approx((1.0, 2.0)) and (law.fitted, law.held) == (3, 2)
    assert law.worst_error == law.median_error == pytest.approx(0.25)
    assert rows.loc[~rows["held"], "error"].abs().max() == pytest.approx(0)
    assert bench_phrases.laws(summary)["law_prompts_step"] == (
        "25.0% in the median and 25.0% at the worst of 2 held out"
    )


def test_a_law_is_not_fitted_on_fewer_than_three_shapes_or_without_one_held_out():
    for seconds in ({"published-1.7b": 7.0, "ratio-2-1": 4.0}, EXACT, {"ratio-2-1": 4.0, "ratio-1-8": 8.8, "x": 1}):
        summary, rows = steplaw.laws(shapes({k: v for k, v in seconds.items() if k != "x"}))
        assert summary.empty and rows.empty
        assert set(bench_phrases.laws(summary).values()) == {"not measured"}


def test_work_is_counted_over_passes_and_stock_counts_once():
    cells = steplaw.points(ROWS, NOTES).set_index(["case", "variant", "dead_share"])
    assert cells.loc[("published-1.7b", "stock", 0.0), "positions"] == 120_000  # two passes
    assert cells.loc[("published-1.7b", "lean", 1.0), "positions"] == 0  # nothing was forwarded
    assert cells.loc[("ratio-1-8", "stock", 0.0), "prompt_work"] == 3 * 128 * 40
    assert ("published-1.7b", "stock", 0.5) not in cells.index
    assert cells.loc[("published-1.7b", "lean", 0.5), "trainer"] == pytest.approx(0.16)
    assert pd.isna(cells.loc[("ratio-1-8", "lean", 0.0), "trainer"])  # no phases were timed there


def test_prompt_tokens_that_were_not_counted_are_those_asked_for_or_missing():
    rows = ROWS.drop(columns="tokens")
    at = ("ratio-8-1", "stock")
    asked = steplaw.points(rows, NOTES).set_index(["case", "variant"])["prompt_work"].loc[at]
    assert asked == 3 * 128 * (282 + 375) / 2
    other = [NOTES[0] | {"arguments": {"data": "documents.jsonl.gz"}}]
    assert steplaw.points(rows, other)["prompt_work"].isna().all()


# ------------------------------------------------------------------------------------------------------ the projection

# Published: 1,000 s, of which 100 of generating, 600 of passes and update, 200 of others, 100 under no timer.
STUDY = {
    "bill": {
        "billed_s": 1000,
        "rows": [
            {"part": "generation", "seconds": 60}, {"part": "weight sync to the engine", "seconds": 20},
            {"part": "rest of generate", "seconds": 20}, {"part": "no-grad forward", "seconds": 200},
            {"part": "grad forward", "seconds": 200}, {"part": "backward + clipping + optimizer", "seconds": 200},
            {"part": "reward function", "seconds": 200},
        ],
    },
    "groups": {"rows": [{"seed": 0, "zero_first": 0.5, "zero_middle": 0.5, "zero_last": 0.5}]},
    "reach_and_hold": {
        "rows": [
            {"seed": 0, "sft_hours": 0.1, "grpo_hours": 2.0, "multiple": 20},
            {"seed": 0, "sft_hours": 0.2, "grpo_hours": None},
        ]
    },
}  # fmt: skip
PARTS = benches.part_seconds(ROWS)


def test_the_projected_bill_by_hand():
    table = projection.bill(PARTS, STUDY).set_index("part")
    assert table.loc["sum", ["published", "stock"]].tolist() == pytest.approx([1000, 1000])
    # of stock's seconds lean has: generation 3/4, sync 1/20, rest 0, no-grad 0, grad 1/10, update 0.2 of 2
    live = table["lean, no dead group"]
    assert live[:6].tolist() == pytest.approx([45, 1, 0, 0, 20, 20])
    assert live["reward function"] == 200 and live[projection.KEPT] == 100 and live["sum"] == pytest.approx(386)
    # half of the groups dead: grad forward 0.05 of 1 s; backward 0.09 s, clipping and optimizer 0.02 s of 2 s
    dead = table["lean, the study's dead groups"]
    assert dead["grad forward"] == pytest.approx(10)
    assert dead["backward + clipping + optimizer"] == pytest.approx(200 * 0.11 / 2)
    assert table["TRL's own switches"]["sum"] == pytest.approx(1000 - 300)


def test_multiples_follow_the_bill_and_a_gets_its_own_savings():
    rates = projection.arm_rates(fake_bench.arm_rows())  # four times the tokens a second
    table = projection.multiples(PARTS, STUDY, rates).set_index("way")
    assert table.loc["stock", ["multiple", "own_multiple"]].tolist() == pytest.approx([20, 80])
    assert table.loc["lean, no dead group", "multiple"] == pytest.approx(20 * 0.386)
    none = projection.arm_rates(None)
    assert projection.multiples(PARTS, STUDY, none)["own_multiple"].isna().all()


def test_rates_of_the_other_arms_by_hand():
    rates = projection.arm_rates(fake_bench.arm_rows())
    assert rates.loc[rates["arm"] == "sft", "over"].tolist() == [0.5, 1, 4, 8]
    assert projection.fastest(rates, "sft").variant == "+casts"  # compiled layers apart
    assert projection.fastest(rates, "dpo").over == 2  # 0.25 s, and as much for the reference beforehand
    cut = fake_bench.arm_rows().iloc[:1].assign(session=LATER)
    assert len(projection.arm_rates(pd.concat([fake_bench.arm_rows(), cut]))) == 6
    assert projection.fastest(projection.arm_rates(None), "sft") is None


def test_gradients_of_the_other_arms_and_one_that_was_not_measured():
    old = fake_bench.arm_notes() | {"session": "2025", "facts": {"sft_gradient_error_to_bf16": {"+casts": 9, "old": 8}}}
    table = projection.arm_gradients([fake_bench.arm_notes(), old]).set_index("variant")
    assert table["error"].to_dict() == pytest.approx(
        {"+casts": 0.023, "old": 8, "bf16": 0, "bf16 padded otherwise": float("nan")}, nan_ok=True
    )
    told = [
        tuple(cell(row) for cell in bench_layouts.ARM_GRADIENTS.values()) for row in table.reset_index().itertuples()
    ]
    assert told[-1] == ("A continued SFT", "bf16 padded otherwise", "not measured", "not measured")
    assert projection.arm_gradients([]).empty


def test_dead_groups_over_a_run_by_hand():
    flat = projection.dead_over_run({"zero_first": 0.5, "zero_middle": 0.5, "zero_last": 0.5})
    assert set(flat) == {0.5}
    rising = projection.dead_over_run({"zero_first": 0.0, "zero_middle": 0.45, "zero_last": 0.9}, steps=10)
    assert rising == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9])


def test_nothing_is_projected_beyond_what_was_measured():
    live = PARTS[PARTS["dead_share"] == 0]
    assert "lean, the study's dead groups" not in projection.bill(live, STUDY)
    assert projection.bill(live[live["variant"] == "lean"], STUDY).empty
    study = STUDY | {"groups": {"rows": [{"seed": 0} | dict.fromkeys(("zero_first", "zero_middle", "zero_last"), 0.9)]}}
    below = PARTS[PARTS["dead_share"] < 0.9]
    assert "lean, the study's dead groups" not in projection.bill(below, study)


def test_steps_on_recorded_rollouts_stand_beside_each_other():
    rows = [
        {
            "session": SESSION,
            "case": benches.PUBLISHED,
            "part": "recorded",
            "variant": v,
            "dead_share": 0.0,
            "wall_s": s,
        }
        for v, s in [("stock", 6.0), ("stock", 6.2), ("lean", 0.5), ("lean", 0.5), ("lean", 0.9)]
    ]
    told = bench_phrases.recorded(pd.DataFrame(rows))["lean_recorded"]
    assert told == "12x (6.10 s against 0.50 s, n = 2)"
    assert bench_phrases.recorded(pd.DataFrame(rows[:2]))["lean_recorded"] == "not measured"


@pytest.mark.parametrize(
    "damage, expected",
    [
        (lambda folder, rows: rows.assign(wall_s=0.0), "wall_s: expected seconds above 0"),
        (lambda folder, rows: rows.drop(columns="positions_nograd"), "expected the column 'positions_nograd'"),
        (lambda folder, rows: rows.assign(completion_tokens="x"), "completion_tokens: got .*, expected numbers"),
        (lambda folder, rows: rows.assign(session=LATER), "expected notes of session 2026-02-01"),
        (lambda folder, rows: (folder / "grpo_step.json").unlink(), "is not there"),
        (lambda folder, rows: (folder / "grpo_step.json").write_text("{}"), "expected a list of sessions, got '{}'"),
        (lambda folder, rows: (folder / "grpo_step.json").write_text('[{"session": "a"}]'), "session a: case, .*miss"),
    ],
)
def test_a_damaged_bench_is_one_error_with_its_file(damage, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(benches, "RESULTS", tmp_path)
    fake_bench.write(tmp_path)
    assert len(benches.grpo_step()[0]) == len(ROWS)
    damaged = damage(tmp_path / "bench", ROWS)
    if isinstance(damaged, pd.DataFrame):
        damaged.to_parquet(tmp_path / "bench" / "grpo_step.parquet")
    with pytest.raises(ValueError, match=f"grpo_step.*{expected}"):
        benches.grpo_step()


def test_a_session_of_other_code_says_so():
    now = bench_phrases.where(NOTES[0] | {"source_sha256": bench_phrases.provenance.source_sha256()})
    assert bench_phrases.where(NOTES[0] | {"source_sha256": "0"}) == f"{now}, by other code than this copy's"
