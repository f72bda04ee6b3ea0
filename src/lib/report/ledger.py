"""Whether a run's ledger of seconds closes, and what was counted beside it: passes, tokens, FLOPs, energy, memory."""

import re

import pandas as pd

from lib.data import FIELDS
from lib.meter import PASSES
from lib.report import cost

# Dense bfloat16 matrix rate in FLOP/s, from NVIDIA's datasheets of the H100 SXM and the H200 SXM.
PEAK_FLOPS = {"NVIDIA H200": 989.4e12, "NVIDIA H100 80GB HBM3": 989.4e12}


def closure(run) -> dict:
    """How well the seconds of a run add up; a missing value was not measured by the run.

    `unaccounted`: share of the billed seconds under no timer; `worst_step`, `worst_share`: the step with most of it.
    device_gap: sum of the device's column over the steps against the host's, relative. clock_gap: sum of all rows of
    the attempts that ended against the system's clock, relative. timer: share of the billed seconds that the timers
    took (calls x seconds a call, and the writing of rows). process: processor seconds a second of wall-clock.
    """
    phases, info = run.phases, run.info
    billed = phases[phases["billed"].astype(bool)]
    steps = billed[billed["step"].notna()]
    named_s = cost.seconds(billed)[~billed["phase"].isin(cost.REMAINDERS)].sum()
    row = {"unaccounted": 1 - named_s / info["billed_s"]}
    row["worst_step"], row["worst_share"] = cost.worst_step(phases)
    if steps["device_s"].notna().any():
        row["device_gap"] = float(steps["device_s"].sum() / steps["host_s"].sum() - 1)
    ended = [a for a in info["attempts"] if "wall_s" in a]
    if ended:
        wall_s = sum(a["wall_s"] for a in ended)
        row["clock_gap"] = sum(a["timed_s"] for a in ended) / wall_s - 1
        row["process"] = sum(a["process_s"] for a in ended) / wall_s
    if "timer_call_s" in info:
        writing_s = billed.loc[billed["phase"] == "timer", "host_s"].sum()
        row["timer"] = float((billed["calls"].sum() * info["timer_call_s"] + writing_s) / info["billed_s"])
    columns = ("unaccounted", "worst_step", "worst_share", "device_gap", "clock_gap", "timer", "process")
    return {name: row.get(name) for name in columns}


def table(runs) -> pd.DataFrame:
    """`closure` and `work` of runs that trained, one row a run, by its name (`run`)."""
    return pd.DataFrame([{"run": run.name} | closure(run) | work(run) for run in runs])


def files(run) -> pd.DataFrame:
    """Tables of a run's record: `file`, `n` (rows), `columns` as a text; FIELD in place of each field."""
    rows = []
    for path in sorted(run.folder.glob("*.parquet")):
        table = pd.read_parquet(path)
        columns = dict.fromkeys(re.sub("|".join(FIELDS), "FIELD", column) for column in table)
        rows.append({"file": path.name, "n": len(table), "columns": ", ".join(columns)})
    return pd.DataFrame(rows)


def passes(run) -> pd.DataFrame:
    """What went through the model, one row a pass that was counted.

    `kind`, `rows`, `tokens` (real), `positions` (padding included), `padded` (share of positions without a token),
    `seconds` (a pass with gradient: its backward included).
    """
    steps, phases = run.steps, run.phases[run.phases["billed"].astype(bool)]  # a pass may come before the steps
    by_phase = phases.assign(seconds=cost.seconds(phases)).groupby("phase")["seconds"].sum(min_count=1)
    rows = []
    for name in PASSES:
        if f"{name}_tokens" not in steps:
            continue
        row = {"kind": name} | {what: steps[f"{name}_{what}"].sum() for what in ("rows", "tokens", "positions")}
        parts = ["forward_grad", "backward"] if name == "forward_grad" else [name]
        rows.append(row | {"padded": 1 - row["tokens"] / row["positions"], "seconds": by_phase.reindex(parts).sum()})
    return pd.DataFrame(rows, columns=["kind", "rows", "tokens", "positions", "padded", "seconds"])


def flops(shape: dict, counted: pd.DataFrame) -> float:
    """FLOPs that the real tokens of `passes` need: no padding, and no recomputed activations.

    Forward, a token: 2 N for the N parameters that multiply (all but a lookup table), and 2 L W T for causal attention
    over a row's T tokens in L layers of width W. Backward: twice the forward where all weights are trained; once where
    they are frozen below adapters, since only the gradients of activations pass through them (adapters: 4 more a
    parameter). Kaplan et al. 2020 (arXiv:2001.08361), section 2.1; Chowdhery et al. 2022 (arXiv:2204.02311),
    appendix B. T is the mean of the pass, so attention is counted from below.
    """
    multiplying = shape["parameters"] - (0 if shape["tied"] else shape["embedding"])
    full = shape["trainable"] == shape["parameters"]
    total = 0.0
    for row in counted.itertuples():
        length = row.tokens / row.rows
        forward = row.tokens * (2 * multiplying + 2 * shape["layers"] * shape["attention_width"] * length)
        total += forward
        if row.kind == "forward_grad":
            total += 2 * forward if full else forward + 4 * shape["trainable"] * row.tokens
    return total


def work(run) -> dict:
    """What a run's seconds were spent on; a missing value was not measured.

    tokens: through all passes of the trainer. tokens_per_s: tokens of the pass with gradient over the train seconds.
    utilisation: `flops` over the train seconds at the device's PEAK_FLOPS. joules: energy of the billed time;
    joules_error: at most this much of a difference of two readings is the counter's. peak_bytes: PyTorch's.
    """
    row = dict.fromkeys(("tokens", "tokens_per_s", "flops", "utilisation", "joules", "joules_error", "peak_bytes"))
    counted, info = passes(run), run.info
    if not counted.empty:
        row["tokens"] = int(counted["tokens"].sum())
        trained = counted.loc[counted["kind"] == "forward_grad", "tokens"].sum()
        row["tokens_per_s"] = float(trained / info["train_s"])
        if info.get("shape"):
            row["flops"] = flops(info["shape"], counted)
            peak = PEAK_FLOPS.get(info["device"]["name"])
            row["utilisation"] = row["flops"] / info["train_s"] / peak if peak else None
    billed = run.phases[run.phases["billed"].astype(bool)]
    if "energy_j" in billed and billed["energy_j"].notna().any():
        row["joules"] = float(billed["energy_j"].sum())
        interval_s = info.get("energy_interval_s")
        row["joules_error"] = interval_s and row["joules"] / info["billed_s"] * interval_s
    if "peak_memory_bytes" in run.steps:
        row["peak_bytes"] = int(run.steps["peak_memory_bytes"].max())
    return row
