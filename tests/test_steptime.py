"""The model of a step's seconds: its work by hand, its rates found again, and where generation takes over."""

import pandas as pd
import pytest

from lib import sizing
from lib.report import steptime

SMALL = sizing.read(dict(
    model_type="qwen3", hidden_size=4, intermediate_size=6, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=1, head_dim=2, vocab_size=5, tie_word_embeddings=True,
))  # fmt: skip
MODELS = sizing.models()
RATES = {"arithmetic": 3.0, "casts": 2.0, "layer": 2e-3, "decode": 1.5e-4, "requests": 2e-3,
         "sync": 1e-3, "stock": 0.3, "fixed": 0.2}  # fmt: skip


def test_work_of_a_step_by_hand():
    flops, bytes_a_second = steptime.GPUS["H200"]
    job = dict(micro_batches=2, decode=3, rollouts=6, checkpointing=True, lean=False)
    work = steptime.terms(SMALL, grad=10, nograd=10, scored=4, context=8, **job)
    # a position: 2 x 120 weights of linear layers, and 2 x 4 x 8 of attention, ten of them in four passes (without
    # gradient, with, recomputed, backward); the head, 2 x 5 x 4 a token: three times forward, once backward
    assert work["arithmetic"] * flops == pytest.approx(4 * 10 * (240 + 64) + 4 * 4 * 2 * 5 * 4)
    # ten positions in four passes, inputs of 5 x 4 + 4 + 6 entries, read and written as 2 and 4 bytes and back
    assert work["casts"] * bytes_a_second == pytest.approx(4 * 10 * 30 * 12)
    assert (
        work["layer"] == 2 * (1 + 1 + 2 + 1)
        and work["decode"] == work["requests"] == 3
        and work["sync"] == 13
        and work["stock"] == 1
    )
    # each of three decoding steps reads 156 weights of 2 bytes, and 8 bytes a token of six rows of eight
    assert work["read"] * bytes_a_second == pytest.approx(3 * (312 + 6 * 8 * 8))


def test_dead_groups_cost_stock_as_much_and_lean_nothing():
    qwen = MODELS["Qwen3-1.7B"]
    stock = [steptime.step(qwen, RATES, 327, 44, dead=dead)["step"] for dead in (0.0, 1.0)]
    lean = [steptime.step(qwen, RATES, 327, 44, dead=dead, lean=True) for dead in (0.0, 0.5, 1.0)]
    assert stock[0] == stock[1]
    assert lean[0]["training"] > lean[1]["training"] > lean[2]["training"] == 0
    assert lean[0]["generation"] == lean[2]["generation"]


def measured(cases, wrong=1.0):
    """Cells of stock and lean with seconds that the rates make: timed ones of each case, and, times `wrong`, whole
    steps. cases: name -> (prompt, completion)."""
    rows = []
    for case, (prompt, completion) in cases.items():
        for lean in (False, True):
            for dead in (0.0, 0.5, 1.0) if lean else (0.0,):
                grad = steptime.positions(16, 8, prompt, completion, dead, lean)
                scored = 128 * completion * (1 - dead)
                job = dict(checkpointing=not lean, lean=lean)
                batches = 1 if lean else 8
                work = steptime.terms(MODELS["Qwen3-1.7B"], grad, 0 if lean else grad, scored, prompt + completion,
                                      batches, 1.45 * completion, 128, **job)  # fmt: skip
                seconds = steptime.seconds(work, RATES)
                row = dict(case=case, dead_share=dead, variant="lean" if lean else "stock", answer=completion) | work
                parts = {f"{part}_s": seconds[part] for part in steptime.PARTS}
                fit = case in steptime.FITTED
                rows.append(row | parts | dict(timed=True, fit=fit, seconds=seconds["step"]))
                rows.append(row | dict(timed=False, fit=False, seconds=seconds["step"] * wrong))
    return pd.DataFrame(rows)


def test_rates_are_found_again_and_scored_on_whole_steps_and_other_cases():
    cells = measured({"published-1.7b": (330, 40), "ratio-1-2": (250, 500), "ratio-1-8": (40, 330)}, wrong=1.25)
    rates = steptime.fit(cells)
    assert rates == pytest.approx(RATES, rel=1e-6)
    scored = steptime.scored(cells, rates)
    assert scored.loc[~scored["timed"], "error"].tolist() == pytest.approx([-0.2] * 12)
    fitted, whole, held = steptime.told(scored).split("; ")
    assert fitted.startswith("timed steps that it was fitted on, with answers of 40 to 500 tokens: off by 0.0% in")
    assert whole.startswith("whole steps of the same shapes: off by 20.0% in the median of 8, by -20.0% at worst")
    assert held.startswith("shapes held out: off by 10.0% in the median of 8")  # four timed, four whole
    assert steptime.told(scored[scored["fit"]]).endswith("shapes held out: not measured")


@pytest.mark.parametrize(
    "cells",
    [
        measured({"published-1.7b": (330, 40), "ratio-1-8": (40, 330)}),  # one shape to fit
        measured({"published-1.7b": (330, 40), "ratio-1-2": (250, 500)}).query("variant == 'lean'"),  # one trainer
        pd.DataFrame(),
    ],
)
def test_cells_that_do_not_tell_the_rates_apart_fit_nothing(cells):
    assert steptime.fit(cells) is None
    assert steptime.told(None).startswith("not fitted")


def test_generation_takes_half_from_the_crossing_on():
    qwen = MODELS["Qwen3-1.7B"]
    for how in (dict(lean=False), dict(lean=True), dict(lean=True, dead=0.9)):
        parts = steptime.step(qwen, RATES, 327, steptime.crossing(qwen, RATES, 327, **how), **how)
        assert parts["generation"] == pytest.approx(parts["step"] / 2)
    assert steptime.crossing(qwen, RATES | {"arithmetic": 1e3}, 327) is None  # training grows faster, for ever
