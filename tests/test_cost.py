"""Bills: hours, dollars and shares, on ledgers small enough to add up by hand."""

from types import SimpleNamespace

import pandas as pd
import pytest

from lib.report import cost


def ledger(*rows, billed=True):
    """Rows (step, phase, host seconds, device seconds)."""
    table = pd.DataFrame(rows, columns=["step", "phase", "host_s", "device_s"]).assign(billed=billed)
    return table.astype({"step": "Int64", "host_s": float, "device_s": float})


def shares(phases, billed_s, max_unaccounted=1.0):
    return cost.share_table(phases, billed_s, max_unaccounted, "grpo-s0").set_index("part")


def test_hours_and_units():
    assert cost.device_hours(1800, 2) == 1.0
    assert [cost.unit(kind) for kind in ("cuda", "cpu")] == ["GPU-hours", "CPU-hours"]
    with pytest.raises(ValueError, match="device kind 'tpu'"):
        cost.unit("tpu")


def test_a_price_only_on_a_gpu_and_in_its_currency():
    assert cost.price(2.399, "cuda", 4.41) == pytest.approx(10.58, abs=0.005)  # as published
    assert cost.price(2.399, "cpu", 4.41) is None
    assert cost.price(None, "cuda", 4.41) is None
    assert [cost.show_price(*amount) for amount in ((1234.5,), (2, "EUR"), (None,))] == ["$1,234.50", "EUR 2.00", "-"]


def test_hours_as_shown():
    assert cost.show_hours(2.399) == "2.4 h"
    assert [cost.show_hours(s / 3600) for s in (0, 12, 676.4)] == ["0 s", "12 s", "676 s"]
    # in the unit of an axis, whatever the size
    assert cost.show_hours(0.133, per_hour=1) == "0.133 h" and cost.show_hours(1.0, per_hour=3600) == "3,600 s"
    assert cost.axis("cpu", 0.02) == ("CPU-seconds", 3600)
    assert cost.axis("cuda", 2.4) == ("GPU-hours", 1)
    assert cost.show_hours(None) == cost.show_hours(float("nan")) == "never"


def test_every_phase_belongs_to_one_part():
    phases = [phase for group in cost.PARTS.values() for phase in group]
    assert len(phases) == len(set(phases))


def test_shares_by_hand():
    phases = ledger(
        (None, "model_load", 10, None), (None, "final_save", 5, None),
        (1, "generation", 20, None), (2, "generation", 30, None), (1, "backward", 25, None),
        (1, "unaccounted", 4, None),
    )  # fmt: skip
    table = shares(phases, 100.0)
    assert table.loc["generation", ["seconds", "share"]].tolist() == [50, 0.5]
    assert table.loc["load, start, checkpoints", "share"] == 0.15
    assert table.loc[cost.UNACCOUNTED, "seconds"] == 10  # 4 s in steps under no timer, 6 s outside any row
    assert table["share"].sum() == pytest.approx(1)
    by_phase = cost.by_phase(phases).set_index("phase")
    assert by_phase.loc["generation"].tolist() == ["generation", 2, 50]
    assert by_phase["part"].tolist()[2:] == ["load, start, checkpoints"] * 2 + [cost.UNACCOUNTED]


def test_a_phase_that_was_not_measured_is_missing_not_zero():
    phases = ledger((1, "generation", 90, None), (1, "weight_sync", None, None))
    table = shares(phases, 100.0)
    for part in ("weight sync to the engine", "backward"):  # its row has no time; it has no row
        assert table.loc[part, ["seconds", "share"]].isna().all()
    assert shares(ledger((1, "reward", 0, None)), 100.0).loc["reward function", "seconds"] == 0  # measured as 0


def test_unbilled_rows_and_unknown_phases():
    billed = ledger((1, "backward", 60, None), (1, "brand_new", 30, None))
    table = shares(pd.concat([billed, ledger((1, "generation", 99, None), billed=False)]), 100.0)
    assert pd.isna(table.loc["generation", "seconds"])
    assert table.loc["brand_new", "seconds"] == 30
    assert table.loc[cost.UNACCOUNTED, "seconds"] == 10


def test_device_clock_decides_where_it_ran():
    phases = ledger((None, "model_load", 10, None), (1, "backward", 5, 60), (1, "optimizer", 85, 30))
    table = shares(phases, 100.0)
    assert table.loc[["backward", "optimizer"], "seconds"].tolist() == [60, 30]
    assert table.loc[["backward", "optimizer"], "host_s"].tolist() == [5, 85]
    assert table.loc["load, start, checkpoints", "seconds"] == 10


def test_unaccounted_time_above_the_bound_and_a_bill_below_its_parts_are_errors():
    phases = ledger((1, "backward", 70, None), (2, "backward", 10, None), (2, "unaccounted", 30, None))
    with pytest.raises(
        ValueError, match=r"grpo-s0: 20.0% .* at most 2.0% \(max_unaccounted\); the worst step is 2, .* 75"
    ):
        shares(phases, 100.0, max_unaccounted=0.02)
    with pytest.raises(ValueError, match="phases sum to 80.000 s, more than the 70.000 s billed"):
        shares(phases, 70.0)
    with pytest.raises(ValueError, match="billed_s is 0"):
        shares(phases, 0)


def test_what_is_left_of_an_enclosing_span_is_under_no_timer():
    table = shares(ledger((1, "backward", 70, None), (1, "score", 10, None), (1, "tokenise", 20, None)), 100.0)
    assert table.loc[cost.UNACCOUNTED, "seconds"] == 10 and "score" not in table.index
    assert table.loc["rest of generate", "seconds"] == 20


def test_tokens():
    steps = pd.DataFrame({"prompt_tokens": [300, 320], "completion_tokens": [40, 60]})
    assert cost.tokens(steps) == {"trainer": 720, "generated": 100}
    assert cost.tokens(steps.assign(prompt_tokens=[300, None])) == {"trainer": None, "generated": None}
    assert cost.tokens(pd.DataFrame({"step": [1]})) == {"trainer": None, "generated": None}


def test_avoidable_by_hand():
    steps = pd.DataFrame({"step": [1, 2], "groups": [4, 4], "zero_variance_groups": [1, 4]})
    phases = ledger(
        (1, "forward_nograd", 10, None), (1, "forward_grad", 8, None), (1, "backward", 12, None),
        (2, "forward_grad", 8, None), (2, "backward", 12, None),
    )  # fmt: skip
    assert cost.avoidable(phases, steps, 100.0) == pytest.approx({"nograd": 0.10, "constant": (20 / 4 + 20) / 100})
    without = phases[phases["phase"] == "backward"]
    assert cost.avoidable(without, steps, 100.0) == {"nograd": None, "constant": None}


def test_attempts_show_what_is_not_billed():
    info = {
        "device": {"name": "A GPU", "count": 2},
        "billed_s": 9.0,
        "evaluation_s": 1.0,
        "resume_s": 2.0,
        "lost_s": 3.0,
    }
    info["attempts"] = [{"status": "interrupted"}, {"status": "finished"}]
    row = cost.attempts([SimpleNamespace(name="grpo-s0", info=info)]).iloc[0]
    assert row[["run", "device", "attempts", "interrupted"]].tolist() == ["grpo-s0", "2 x A GPU", 2, 1]
    assert row[["billed_s", "resume_s", "lost_s"]].tolist() == [9.0, 2.0, 3.0]


RULE = {"pair_sampling": True, "start": False, "base_evaluation": False, "resumes": False, "tuning": False}
TRIALS = pd.DataFrame({"arm": ["dpo", "dpo", "grpo", "start"], "billed_s": [300.0, 600.0, 9000.0, 90.0]})


def billed_run():
    """A DPO run with checkpoints at 200 s and 300 s, 100 s of pair sampling, and two interruptions."""
    rows = [
        # attempt, step, phase, host_s, kind
        (0, None, "pair_sampling", 100, "setup"), (0, 1, "backward", 100, "train"),
        (0, 2, "backward", 40, "lost"), (1, None, "model_load", 10, "resume"),
        (1, 2, "backward", 100, "train"),
        (1, 3, "backward", 7, "lost"), (2, None, "model_load", 5, "resume"), (2, 3, "backward", 60, "train"),
    ]  # fmt: skip
    phases = pd.DataFrame(rows, columns=["attempt", "step", "phase", "host_s", "kind"]).astype({"step": "Int64"})
    phases["billed"] = phases["kind"].isin(["setup", "train"])
    checkpoints = pd.DataFrame({"step": [2, 1], "billed_s": [300.0, 200.0]})
    info = {"billed_s": 360.0, "evaluation_s": 50.0, "device": {"count": 1}}
    return SimpleNamespace(arm="dpo", info=info, phases=phases, checkpoints=checkpoints)


def seconds_under(**switches):
    start = SimpleNamespace(info={"billed_s": 1000.0, "device": {"count": 1}}, phases=billed_run().phases)
    setup = SimpleNamespace(info={"evaluation_s": 30.0, "device": {"count": 2}})
    hours = cost.hours_under(RULE | switches, billed_run(), start, setup, TRIALS)
    return [round(3600 * h, 6) for h in hours]


def test_the_bill_under_each_rule_by_hand():
    assert seconds_under() == [0, 200, 300, 360]  # the start, the two checkpoints in order, the end
    assert seconds_under(pair_sampling=False) == [0, 100, 200, 260]
    assert seconds_under(start=True) == [1000, 1200, 1300, 1360]
    assert seconds_under(base_evaluation=True) == [60, 260, 360, 420]  # 30 s on two devices
    assert seconds_under(tuning=True) == [0, 1100, 1200, 1260]  # 900 s of its own trials, before its first step
    # step 1 was saved before the first interruption, step 2 after it, the end after both
    assert seconds_under(resumes=True) == [0, 200, 350, 422]


def test_a_start_on_the_bill_brings_its_trials_and_interruptions():
    assert seconds_under(start=True, tuning=True) == [1090, 2190, 2290, 2350]
    assert seconds_under(start=True, resumes=True)[0] == 1062


def test_rules_are_checked_and_told():
    with pytest.raises(ValueError, match="tuning is to be on the bill, and no trial"):
        cost.hours_under(RULE | {"tuning": True}, billed_run(), None, None, None)
    with pytest.raises(ValueError, match="rule of the bill: got .*'rent'"):
        cost.hours_under(RULE | {"rent": True}, billed_run(), None, None, None)
    others = cost.other_rules(RULE)
    assert list(others)[:3] == ["as set", "without the sampling of preference pairs", "with the shared start"]
    assert others["with the shared start"] == RULE | {"start": True}
    assert cost.rule_text(RULE).startswith("on the bill beside training: the sampling of preference pairs; not on it: ")


def run_with(arm, learning_rate, **parameters):
    return SimpleNamespace(arm=arm, info={"parameters": parameters, "trainer": {"learning_rate": learning_rate}})


RUNS = {"sft": run_with("sft", 1e-3), "dpo": run_with("dpo", 1e-5, pair_documents=400)}
ARM_NAMES, STUDY = {"sft": "continued SFT", "dpo": "DPO"}, {"sft": 2e-4, "dpo": 1e-5}


def trials(*rows):
    table = pd.DataFrame(rows, columns=["arm", "parameter", "value", "exact"]).assign(split="dev", n=200)
    return cost.tried(table, RUNS)


def test_trials_know_the_best_and_the_used_value():
    table = trials(
        ("sft", "sft_learning_rate", 5e-4, 7), ("sft", "sft_learning_rate", 1e-3, 9),
        ("dpo", "pair_documents", 400.0, 3), ("dpo", "pair_documents", 800.0, 4),
    )  # fmt: skip
    assert table["used"].tolist() == [False, True, True, False]
    assert table["best"].tolist() == [False, True, False, True]


def test_tuning_is_said_as_it_was():
    sft = ("sft", "sft_learning_rate", 1e-3, 9), ("sft", "sft_learning_rate", 2e-3, 8)
    dpo = ("dpo", "dpo_learning_rate", 1e-5, 9), ("dpo", "dpo_learning_rate", 2e-5, 8)
    worse = ("dpo", "dpo_learning_rate", 1e-5, 7), ("dpo", "dpo_learning_rate", 2e-5, 8)
    elsewhere = ("dpo", "dpo_learning_rate", 3e-5, 7), ("dpo", "dpo_learning_rate", 2e-5, 8)

    def said(*rows):
        return cost.tuning(trials(*rows) if rows else None, RUNS, STUDY, ARM_NAMES)

    assert said(*sft, *dpo) == "each learning rate was chosen as best among 2 values tried on dev"
    assert said(*sft).endswith("of DPO was left untuned, at the published value")
    assert said(*sft, *worse).endswith("tried on dev, 1 of 200 documents behind the best of them")
    assert said(*sft, *elsewhere).endswith("of DPO was none of 2 values tried on dev")
    assert said().startswith("the learning rate of continued SFT was left untuned; ")
    published = {"sft": RUNS["sft"], "dpo": RUNS["dpo"]}
    assert cost.tuning(None, published, STUDY | {"sft": 1e-3}, ARM_NAMES) == (
        "each learning rate was left untuned, at the published value"
    )
