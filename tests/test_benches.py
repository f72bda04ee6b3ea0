"""What pages say of the bench of the step, on a made-up bench (fake_bench) and on numbers that are checked by hand."""

import re

import fake_bench
import numpy as np
import pandas as pd
import pytest
from fake_bench import SESSION

from lib import sizing
from lib.report import bench_layouts, bench_phrases, benches, plots, projection

ROWS, NOTES = fake_bench.rows(), [fake_bench.notes()]
LATER = "2026-02-01T00:00:00+00:00"


def turns(seconds, session=LATER, **more):
    """Whole steps of a session without dead groups: {variant: a list of seconds a turn}, a warm-up step before each."""
    rows, step = [], 0
    for turn in range(max(map(len, seconds.values()))):
        for variant, own in seconds.items():
            for s in own[turn] if turn < len(own) else ():
                row = {"session": session, "case": "published-1.7b", "part": "wall", "variant": variant, "step": step}
                row |= {"dead_share": 0.0, "wall_s": s, "timed_s": None, "completion_tokens": 128 * 44}
                row |= {"tokens": 128 * 370}
                rows.append(row | more)
                step += 1
            step += 1
    return pd.DataFrame(rows)


def pair(table, base, variant, part="wall", dead_share=0.0, case="published-1.7b"):
    own = table[(table["base"] == base) & (table["variant"] == variant) & (table["dead_share"] == dead_share)]
    return own[(own["part"] == part) & (own["case"] == case)].iloc[0]


def test_two_trainers_beside_each_other_by_hand():
    table = benches.pairs(ROWS)
    live = pair(table, "stock", "lean")
    assert (live["base_s"], live["own_s"], live["over"]) == pytest.approx((5.0, 0.65, 5 / 0.65))
    assert live["base_n"] == live["own_n"] == 3 and live["answer"] == 44 and live["over_low"] == live["over_high"]
    assert pair(table, "stock-best", "lean")["over"] == pytest.approx(3 / 0.65)
    assert pair(table, "stock", "lean", "phases")["own_s"] == pytest.approx(0.65)  # of timed_s
    assert table.iloc[0][["case", "part", "base", "variant"]].tolist() == [
        benches.PUBLISHED,
        "wall",
        "stock",
        "stock-best",
    ]


def test_the_spread_is_that_of_turns_and_a_multiple_s_of_turns_that_followed_each_other():
    rows = turns({"stock": [[6.0, 6.2, 9.0], [8.0, 8.0, 8.0]], "lean": [[1.0, 1.0, 1.0], [0.8, 0.8, 0.9], [2.0]]})
    row = pair(benches.pairs(rows), "stock", "lean")
    assert row[["base_s", "base_low", "base_high"]].tolist() == [8.0, 6.2, 8.0]
    assert row[["own_s", "own_low", "own_high"]].tolist() == [1.0, 0.8, 2.0]
    assert row[["over", "over_low", "over_high"]].tolist() == pytest.approx([8.0, 6.2, 10.0])
    assert (row["base_n"], row["own_n"]) == (6, 7)
    told = "8.0x (6.2x to 10x): 8.00 s (6.20 to 8.00) against 1.00 s (0.80 to 2.00), n = 6 / 7, session 2026-02-01"
    assert bench_phrases.beside(row) == f"{told} 00:00:00"


def test_the_newest_session_with_both_counts_and_no_multiple_is_of_two_sessions():
    alone = pd.concat([ROWS, turns({"lean": [[2.0]]})])
    assert pair(benches.pairs(alone), "stock", "lean")["session"] == SESSION
    both = benches.pairs(pd.concat([ROWS, turns({"stock": [[3.0]], "lean": [[2.0]]})]))
    assert pair(both, "stock", "lean")["session"] == LATER and pair(both, "stock", "lean")["over"] == 1.5
    assert pair(both, "stock-best", "lean")["session"] == SESSION  # which LATER did not time
    assert pair(both, "stock", "lean", dead_share=0.5)["session"] == SESSION


def test_steps_on_recorded_rollouts_stand_beside_each_other():
    rows = turns({"stock": [[6.0, 6.2]], "lean": [[0.5, 0.5, 0.9]]}, part="recorded")
    told = bench_phrases.lean(benches.pairs(rows), NOTES)
    assert told["lean_recorded"] == "12x: 6.10 s against 0.50 s, n = 2 / 3, session 2026-02-01 00:00:00"
    assert told["lean_live"] == told["lean_timed"] == "not measured" and "NVIDIA H200" in told["lean_bench"]


def test_what_lean_gains_at_other_lengths_is_told_from_short_answers_to_long():
    told = bench_phrases.lean(benches.pairs(ROWS), NOTES)["lean_longer"]
    assert re.sub(r"[0-9.]+x", "x", told) == "; ".join(
        f"x at {prompt} + {370 - prompt} tokens" for prompt in (330, 250, 120, 40)
    )


def test_the_parts_of_a_step_add_up_and_a_pass_not_made_is_missing():
    table = benches.side_by_side(benches.phases(ROWS))
    assert table.columns[:4].tolist() == ["stock", "stock-best", "lean", "stock, 50% zero-variance"]
    assert table.loc[benches.STEP][:3].tolist() == pytest.approx([5.0, 3.0, 0.65])
    assert pd.isna(table.loc["no-grad forward", "lean"]) and "reference forward" not in table.index
    assert table.loc[benches.REST][:3].tolist() == pytest.approx([0.1, 0.1, 0.03])
    assert set(table.loc[benches.STEPS]) == {3}


def test_work_is_counted_over_passes():
    cells = benches.phases(ROWS).set_index(["variant", "dead_share"])
    stock, lean, dead = cells.loc[("stock", 0.0)], cells.loc[("lean", 0.0)], cells.loc[("lean", 1.0)]
    assert (stock["positions"], lean["positions"], dead["positions"]) == (120_000, 11_000, 0)
    assert stock["passes"] == pytest.approx(3.9) and stock["rate"] == pytest.approx(3.9 / 0.12)
    assert pd.isna(dead["rate"]) and (stock["prompt"], stock["answer"]) == (326, 44)


def test_growth_from_one_shape_to_another():
    timed = benches.phases(ROWS)
    assert bench_phrases.shapes(timed) == {"shapes": "not measured"}
    first = timed[(timed["variant"] == "lean") & (timed["dead_share"] == 0)]
    longer = first.assign(case="ratio-1-2", prompt=326 * 1.5, answer=88.0, positions=22_000, passes=0.42)
    told = bench_phrases.shapes(pd.concat([timed, longer]))["shapes"]
    assert told == "lean, 44 to 88 tokens: prompts 1.5x, positions 2.0x, passes 1.5x, generation 1.0x"


def test_the_sessions_that_a_page_reads_the_newest_first():
    rows = pd.concat([ROWS, ROWS.iloc[:2].assign(session=LATER)])
    told = [NOTES[0] | {"session": LATER, "commit": None}, NOTES[0], NOTES[0] | {"session": "left no row"}]
    read = benches.sessions({"memory": None, "grpo_step": (rows, told)})
    assert read[["session", "rows"]].values.tolist() == [[LATER, 2], [SESSION, len(ROWS)]]
    assert read["parts"].tolist() == ["wall", "wall, phases, waterfall, grid"]
    last, first = ([cell(row) for cell in bench_layouts.SESSIONS.values()] for row in read.itertuples())
    assert first[5] == "c" * 10 and [last[1], *last[4:6]] == ["2026-02-01 00:00:00", "NVIDIA H200", "unknown"]
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
    timed = benches.phases(ROWS)
    table = benches.floor(timed, NOTES)
    for variant in table:
        own = table[variant].drop(["floor", benches.STEP, benches.STEPS])
        assert own.sum() == pytest.approx(table[variant][benches.STEP])
    lean = table["lean"]
    assert lean["floor"] == lean["generation"] + lean["arithmetic of the positions"] < lean[benches.STEP]
    assert bench_phrases.floor(table)["lean_gap"].startswith("passes beyond their arithmetic")
    unknown = [NOTES[0] | {"device": {"name": "a new GPU"}}]
    assert set(bench_phrases.floor(benches.floor(timed, unknown)).values()) == {"not measured"}


def test_the_savings_add_up_to_the_way_from_first_to_last():
    table = benches.waterfall(ROWS, NOTES)
    assert table["saving"].tolist() == ["none", "checkpoint", "old", "mode", "prefix"]
    assert table["saved_s"].iloc[1:].tolist() == pytest.approx([1, 1, -0.25, 2.25])
    assert table["saved_s"].sum() == pytest.approx(table["s"].iloc[0] - table["s"].iloc[-1]) == pytest.approx(4)
    assert table["does"].isna().tolist() == [True, False, False, False, True]  # the notes know three of them
    old = [NOTES[0] | {"facts": {}}]
    assert benches.waterfall(ROWS, old)["does"].isna().all()


def test_a_saving_is_resolved_where_the_quartiles_lie_apart():
    rows = ROWS[ROWS["part"] == "waterfall"]
    assert benches.waterfall(rows, NOTES)["resolved"].tolist() == [False, True, True, True, True]
    near = rows["variant"].isin(["+checkpoint"])  # as long as without it, but for less than the quartiles' span
    rows = rows.assign(wall_s=rows["wall_s"].where(~near, rows["wall_s"] + 0.995))
    assert benches.waterfall(rows, NOTES)["resolved"].tolist()[1] is False


def test_a_saving_that_the_session_did_not_reach_is_named():
    assert benches.not_reached(benches.waterfall(ROWS, NOTES), NOTES) == []
    more = [NOTES[0] | {"facts": {"savings": NOTES[0]["facts"]["savings"] | {"norms": "", "compile": ""}}}]
    chain = benches.waterfall(ROWS, more)
    assert benches.not_reached(chain, more) == ["norms"]
    told = bench_phrases.waterfall(chain, ["norms"])["waterfall_ends"]
    assert "s with 4 of 5 (the time was over before norms; n = 3 each" in told
    labels = [label.get_text() for label in plots.waterfall(chain, ["norms"]).axes[0].get_yticklabels()]
    assert labels[-2:] == ["with these", "+ norms"]


def test_the_waterfall_is_of_the_newest_session():
    whole = ROWS[ROWS["part"] == "waterfall"].assign(session=LATER)
    assert set(benches.waterfall(pd.concat([ROWS, whole]), NOTES)["session"]) == {LATER}


def test_bars_of_the_waterfall_hang_together():
    bars = plots.waterfall(benches.waterfall(ROWS, NOTES), []).axes[0].patches
    ends = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in bars]
    expected = [(0, 5), (4, 5), (3, 4), (3, 3.25), (1, 3.25), (0, 1)]
    assert np.allclose(ends, expected)
    assert [bar.get_hatch() for bar in bars] == [None, None, None, "////", None, None]


def test_a_cell_of_the_grid_that_failed_says_why():
    table = benches.grid(ROWS, NOTES)
    assert table["cell"].tolist() == ["stock", "b=64 checkpointing=off", "b=128 checkpointing=off"]
    assert table["failed"].iloc[2] == "OutOfMemoryError" and table["s"].iloc[:2].tolist() == pytest.approx([5.0, 3.0])
    assert set(table["session"]) == {SESSION}


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
PHASES = benches.phases(ROWS)


def test_the_projected_bill_by_hand():
    table = projection.bill(PHASES, STUDY).set_index("part")
    assert table.loc["sum", ["published", "stock"]].tolist() == pytest.approx([1000, 1000])
    # of stock's seconds lean has: generation 3/4, sync 1/20, rest 0, no-grad 0, grad 1/10, update 0.2 of 2
    live = table["lean, no zero-variance group"]
    assert live[:6].tolist() == pytest.approx([45, 1, 0, 0, 20, 20])
    assert live["reward function"] == 200 and live[projection.KEPT] == 100 and live["sum"] == pytest.approx(386)
    # half of the groups dead: grad forward 0.05 of 1 s; backward 0.09 s, clipping and optimizer 0.02 s of 2 s
    dead = table["lean, the study's zero-variance groups"]
    assert dead["grad forward"] == pytest.approx(10)
    assert dead["backward + clipping + optimizer"] == pytest.approx(200 * 0.11 / 2)
    assert table["TRL's own switches"]["sum"] == pytest.approx(1000 - 300)


def test_multiples_follow_the_bill_and_a_gets_its_own_savings():
    rates = projection.arm_rates(fake_bench.arm_rows())  # four times the tokens a second
    table = projection.multiples(PHASES, STUDY, rates).set_index("way")
    assert table.loc["stock", ["multiple", "own_multiple"]].tolist() == pytest.approx([20, 80])
    assert table.loc["lean, no zero-variance group", "multiple"] == pytest.approx(20 * 0.386)
    none = projection.arm_rates(None)
    assert projection.multiples(PHASES, STUDY, none)["own_multiple"].isna().all()


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
    live = PHASES[PHASES["dead_share"] == 0]
    assert "lean, the study's zero-variance groups" not in projection.bill(live, STUDY)
    assert projection.bill(live[live["variant"] == "lean"], STUDY).empty
    study = STUDY | {"groups": {"rows": [{"seed": 0} | dict.fromkeys(("zero_first", "zero_middle", "zero_last"), 0.9)]}}
    below = PHASES[PHASES["dead_share"] < 0.9]
    assert "lean, the study's zero-variance groups" not in projection.bill(below, study)


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
