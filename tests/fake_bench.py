"""A made-up bench of the GRPO step in the schema of the real one, with round numbers: for tests only."""

import json

import pandas as pd

SESSION = "2026-01-01T00:00:00+00:00"
DEAD = (0.0, 0.5, 1.0)
# Seconds by phase of a step without dead groups; lean makes no pass without gradient.
PHASES = {
    "stock": {"generation": 0.4, "weight_sync": 0.4, "tokenise": 0.1, "forward_nograd": 1.0, "forward_grad": 1.0,
              "backward": 1.9, "clip": 0.05, "optimizer": 0.05, "unaccounted": 0.1},
    "stock-best": {"generation": 0.4, "weight_sync": 0.4, "tokenise": 0.1, "forward_nograd": 0.5, "forward_grad": 0.5,
                   "backward": 0.95, "clip": 0.025, "optimizer": 0.025, "unaccounted": 0.1},
    "lean": {"generation": 0.3, "weight_sync": 0.02, "tokenise": 0.0, "forward_grad": 0.1, "backward": 0.18,
             "clip": 0.01, "optimizer": 0.01, "unaccounted": 0.03},
}  # fmt: skip
LIVE_ONLY = ("forward_grad", "backward")  # what lean spends on live groups only
POSITIONS = {"stock": 60_000, "stock-best": 60_000, "lean": 11_000}
WATERFALL = {"none": 5.0, "checkpoint": 4.0, "old": 3.0, "mode": 3.25, "prefix": 1.0}  # seconds with all so far
DOES = {"checkpoint": "no recomputation", "old": "no pass without gradients", "mode": "training mode once"}
RATIOS = {"ratio-8-1": 330, "ratio-2-1": 250, "ratio-1-2": 120, "ratio-1-8": 40}  # prompt tokens of 370
DEVICE = {"kind": "cuda", "name": "NVIDIA H200", "count": 1}


def phases(variant: str, dead: float) -> dict:
    seconds = dict(PHASES[variant])
    if variant == "lean":
        seconds |= {name: seconds[name] * (1 - dead) for name in LIVE_ONLY}
    return seconds


def rows() -> pd.DataFrame:
    """Three steps a cell, the median and the mean of which are the round numbers above."""
    found = []

    def cell(part, case, variant, dead, wall_s, positions, prompt=326, **more):
        for number, shake in enumerate((-0.01, 0.0, 0.01)):
            row = {"step": 10 * (len(found) // 3) + number}  # three on end, then those of others
            row |= {"session": SESSION, "case": case, "part": part, "variant": variant, "dead_share": dead}
            row |= {"dead_groups": int(16 * dead), "wall_s": None if wall_s is None else wall_s + shake}
            row |= {"positions_grad": positions or None, "completion_tokens": 128 * (370 - prompt)}
            row |= {"positions_nograd": positions if variant.startswith("stock") else None, "tokens": 128 * 370}
            found.append(row | more)

    for dead in DEAD:
        for variant in PHASES:
            seconds = phases(variant, dead)
            positions = POSITIONS[variant] * (1 - dead if variant == "lean" else 1)
            cell("wall", "published-1.7b", variant, dead, sum(seconds.values()), positions)
            cell("phases", "published-1.7b", variant, dead, None, positions, timed_s=sum(seconds.values()), **seconds)
    for saving, wall_s in WATERFALL.items():
        cell("waterfall", "published-1.7b", f"+{saving}", 0.0, wall_s, 11_000)
    cell("grid", "published-1.7b", "grid b=64 checkpointing=off", 0.0, 3.0, 60_000)
    for number, (case, prompt) in enumerate(RATIOS.items()):
        for variant, a_position_s in (("stock", 1e-5), ("lean", 2e-5)):
            positions = POSITIONS[variant] + 10_000 * number
            passes = 2 if variant == "stock" else 1
            cell("wall", case, variant, 0.0, 0.8 + a_position_s * passes * positions, positions, prompt)
    return pd.DataFrame(found)


def notes() -> dict:
    switches = {"per_device_train_batch_size": 64, "gradient_checkpointing": False}
    return {
        "session": SESSION, "case": "published-1.7b", "arguments": {"data": None}, "device": DEVICE, "commit": "c" * 40,
        "versions": {"trl": "1.16.0", "vllm": "0.24.0"}, "variants": {"stock": {}, "stock-best": switches, "lean": {}},
        "failed": {"grid b=128 checkpointing=off": "OutOfMemoryError: CUDA out of memory"},
        "facts": {
            "savings": DOES,
            "gradient_cosine_to_stock": {"stock": 1.0, "lean": 0.9996, "stock padded otherwise": 0.9995},
            "gradient_error_to_stock": {"stock": 0.0, "lean": 0.026, "stock padded otherwise": 0.027},
            "engine_gap_nats": {"lean": {"synced": 0.02, "adapter_changed": 0.8, "synced_again": 0.03}},
        },
    }  # fmt: skip


def arm_rows() -> pd.DataFrame:
    """SFT at 3,000 tokens a second, 6,000 in bf16, 24,000 with savings, 48,000 compiled; DPO with a reference."""
    cells = [("sft", "TRL's default", 16, 2.0, None), ("sft", "bf16", 16, 1.0, None), ("sft", "+casts", 32, 0.5, None)]
    cells += [("sft", "+compile", 32, 0.25, None), ("dpo", "bf16", 16, 1.0, None)]
    cells += [("dpo", "+reference", 16, 0.25, 0.25)]
    found = [
        {"session": SESSION, "case": "published-1.7b", "arm": arm, "variant": variant, "batch_documents": batch,
         "tokens": 375 * batch, "wall_s": wall_s, "tokens_per_s": 375 * batch / wall_s, "reference_s": reference_s}
        for arm, variant, batch, wall_s, reference_s in cells
    ]  # fmt: skip
    return pd.DataFrame(found)


def arm_notes() -> dict:
    """Gradients of SFT: a saving that is as far off as stock padded otherwise, of which the second is not measured."""
    facts = {
        "sft_gradient_cosine_to_bf16": {"bf16": 1.0, "bf16 padded otherwise": None, "+casts": 0.9997},
        "sft_gradient_error_to_bf16": {"bf16": 0.0, "bf16 padded otherwise": None, "+casts": 0.023},
    }
    return notes() | {"facts": facts, "failed": {}}


def write(results) -> None:
    """Both files of the bench, and the other benches' tables that pages read, under `results`/bench."""
    folder = results / "bench"
    folder.mkdir(parents=True)
    rows().to_parquet(folder / "grpo_step.parquet", index=False)
    (folder / "grpo_step.json").write_text(json.dumps([notes()]))
    told = {"device": "A processor", "torch": "2", "peft": "0.21", "trl": "1.16.0", "commit": "c" * 40}
    drift = [("stock", 1, 0.01), ("stock", 100, 0.25), ("lean", 1, 0.0), ("lean", 100, 0.0)]
    table = [told | {"trainer": t, "syncs": n, "base_change": r, "lora_delta": 1.0, "ratio": r} for t, n, r in drift]
    pd.DataFrame(table).to_csv(folder / "base_drift.csv", index=False)
    arm_rows().to_parquet(folder / "arm_step.parquet", index=False)
    (folder / "arm_step.json").write_text(json.dumps([arm_notes()]))
