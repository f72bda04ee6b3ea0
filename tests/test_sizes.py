"""The sizing chapter's tables: the note's figures, tiers, and constants found again from made-up measurements."""

import pandas as pd
import pytest

from lib import sizing
from lib.bench import memory
from lib.report import sizes

MODELS = sizing.models()


def test_the_note_s_sum_is_84_gb_and_pytorch_s_is_not():
    note = sizes.note(MODELS).set_index("what")
    parts = ["7B: parameters", "7B: gradients", "7B: AdamW states"]
    assert note.loc[parts, "value"].tolist() == [14, 14, 56] and note.loc["7B: full update", "value"] == 84
    total = sizes.conventions(MODELS["Qwen2.5-7B"]).set_index("states")["gb"]
    assert total["note"] == 84 and total["bfloat16"] == 56 and total["16"] == 112


def test_a_verdict_is_a_number_of_bytes_below_the_card_s():
    s = MODELS["Qwen2.5-7B"]
    assert sizes.verdict(s, "sft", "full", 1, 24)[0] == sizes.OFFLOAD  # 122 GB of state
    assert sizes.verdict(s, "sft", "full", 8, 80)[0] == sizes.FITS  # 15 GB of it on each
    assert sizes.verdict(MODELS["Llama-3.1-70B"], "sft", "full", 8, 80)[0] == sizes.OFFLOAD  # 141 GB on each
    said, used = sizes.verdict(MODELS["Llama-3.1-70B"], "grpo", "full", 1, 80)
    assert said == sizes.NOT and used > 141  # the engine alone holds 141 GB of weights
    assert sizes.verdict(s, "sft", "full", 8, 80, rows=512)[0] == sizes.NOT  # activations are not sharded


def measured(constants, wrong=()):
    every = memory.configurations()
    rows = []
    for name, c in every.items():
        found = memory.predict(c, MODELS[c["model"]], constants)
        factor = 1.25 if name in wrong else 1.0
        rows.append({"configuration": name, "role": c["role"], "measured_gib": found["predicted_gib"] * factor,
                     "nvml_gib": found["predicted_nvml_gib"], "predicted_gib": 0.0, "predicted_nvml_gib": 0.0,
                     "failed": None})  # fmt: skip
    return pd.DataFrame(rows)


def test_constants_are_found_again_from_the_fit_rows_alone():
    true = {"activation": 1.2, "overhead": 0.4, "reserved": 1.1, "context": 0.9}
    held_out = next(n for n, c in memory.configurations().items() if c["role"] == "held_out")
    rows = measured(true, wrong=[held_out])
    found = sizes.fit(rows, MODELS)
    assert found == pytest.approx(true, rel=1e-3)
    compared = sizes.beside(rows, MODELS, found).set_index("configuration")
    assert compared.loc[held_out, "fitted_error"] == pytest.approx(1 / 1.25 - 1, rel=1e-3)
    others = compared.drop(held_out)
    assert others["fitted_error"].abs().max() < 1e-3 and others["nvml_error"].abs().max() < 1e-3
    told = sizes.told(compared.reset_index(), "fitted_error")
    n = (compared["role"] == "held_out").sum()
    assert told.startswith(f"{n - 1} of {n} held-out") and f"-20.0% ({held_out.replace('_', ' ')})" in told


def test_what_was_not_measured_has_no_error_and_fits_nothing():
    rows = measured(sizing.CONSTANTS).assign(
        measured_gib=float("nan"), nvml_gib=float("nan"), failed="OutOfMemoryError"
    )
    assert sizes.fit(rows, MODELS) is None
    compared = sizes.beside(rows, MODELS, None)
    assert compared[["before_error", "fitted_error", "nvml_error"]].isna().all(axis=None)
    assert sizes.told(compared, "before_error") == sizes.told(None, "before_error") == "not measured"
