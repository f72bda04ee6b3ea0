"""The benchmark of the two other arms, tried on a CPU with a tiny model: what it writes, not how fast anything is."""

import json

import pytest

pytest.importorskip("trl", reason="training is not installed (extra `train`)")

import lean_harness  # noqa: F401 - freezes what is imported so far
import pandas as pd

from lib.bench import arm_step, seats
from lib.lean.arms import DPO_SAVINGS, SFT_SAVINGS
from lib.report import projection


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    sizes = "--warmup 1 --steps 2 --batches 2 4 --uncompiled".split()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arm_step.LeanSFTTrainer, "use", failing_at("norms", arm_step.LeanSFTTrainer.use))
        arm_step.main(["--case", "tiny", "--out", str(folder), *sizes])
    return pd.read_parquet(folder / "arm_step.parquet"), json.loads((folder / "arm_step.json").read_text())[-1]


def failing_at(saving, use):
    def patched(self, savings):
        if tuple(savings)[-1:] == (saving,):
            raise MemoryError("no room")
        return use(self, savings)

    return patched


def test_a_row_a_timed_step_of_every_variant_but_the_one_that_failed(results):
    table, notes = results
    counts = table.groupby(["arm", "variant"], sort=False)["step"].apply(list).to_dict()
    names = {(arm, name) for arm in arm_step.ARMS for name in arm_step.variants(arm, [2, 4], False)}
    assert counts == dict.fromkeys([k for k in names if k != ("sft", "+norms")], [2, 3])
    assert notes["failed"] == {"sft +norms": "MemoryError: no room"}
    used = {arm: set(notes["variants"][f"{arm} +mode"]["savings_used"]) for arm in arm_step.ARMS}
    assert used == {"sft": set(SFT_SAVINGS), "dpo": set(DPO_SAVINGS)}  # in bfloat16 none is off, and no check failed
    assert notes["variants"]["dpo +reference"]["savings_used"] == ["instruction", "padding", "prompt", "reference"]
    assert notes["variants"]["sft bf16"]["trainer"] == "SFTTrainer" and "trl" in notes["versions"]


def test_the_same_tokens_from_fewer_positions(results):
    table, _ = results
    four = table[(table["batch_documents"] == 4) & (table["step"] == 2)].set_index(["arm", "variant"])
    for arm, group in four.groupby("arm"):
        assert group["tokens"].nunique() == 1
        assert (
            group.loc[(arm, "batch 4"), "positions"]
            > group.loc[(arm, "+padding"), "positions"]
            == group["tokens"].iloc[0]
        )
    dpo = four.loc["dpo"]
    assert dpo.loc["+prompt", "positions"] < 0.6 * dpo.loc["+padding", "positions"]
    assert dpo.loc["+prompt", "reference_positions"] == dpo.loc["+prompt", "positions"]
    assert dpo.loc["+reference", "reference_positions"] == 0 < dpo.loc["+reference", "reference_s"]


def test_gradients_are_stocks_within_its_own_rounding(results):
    _, notes = results
    for arm in arm_step.ARMS:
        errors = notes["facts"][f"{arm}_gradient_error_to_bf16"]
        limit = 2 * errors["bf16 padded otherwise"] + 0.01
        assert errors["bf16"] == 0 < errors["+mode"] < limit and errors["+padding"] < limit


def test_a_fact_that_is_no_number_is_written_as_none():
    facts = {"errors": {"bf16": 0.0, "padded": float("nan")}, "sizes": (1, float("inf"))}
    assert seats.without_nan([facts]) == [{"errors": {"bf16": 0.0, "padded": None}, "sizes": [1, None]}]


def test_the_variants_that_the_projection_looks_for_are_those_of_this_bench():
    wanted = {projection.STOCK, projection.DEFAULT, projection.COMPILED}
    assert all(wanted <= set(arm_step.variants(arm, [16, 32], True)) for arm in arm_step.ARMS)
