"""Seconds of a GRPO step from a model's shape and the lengths: terms of work by formula, their rates fitted on a bench.

A step is a sum of terms. What is work follows from the shape and the settings; what a unit costs, `RATES`, is fitted
on the measured cells of some cases (`lib.report.steplaw.FITTED`, fixed before they were measured) and scored on the
others. Arithmetic and reading run at a GPU's datasheet rates, so that another GPU's step can be computed: marked so,
not measured.
"""

from numbers import Number

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from lib import sizing
from lib.bench.cases import CASES
from lib.report import benches
from lib.report.ledger import PEAK_FLOPS
from lib.report.steplaw import FITTED

# Dense bf16 FLOP/s and bytes a second of memory, from the vendors' datasheets.
GPUS = {
    "H200": (PEAK_FLOPS["NVIDIA H200"], 4.8e12),
    "H100": (PEAK_FLOPS["NVIDIA H100 80GB HBM3"], 3.35e12),
    "A100 80GB": (312e12, 2.039e12),
    "L40S": (362e12, 0.864e12),
}
MEASURED_ON = "H200"
RATES = {
    "arithmetic": "seconds a second of arithmetic at the datasheet's rate (the inverse of utilisation)",
    "casts": "seconds a second of memory traffic by the datasheet, of casting an adapter's inputs (stock alone)",
    "layer": "seconds of a layer's forward pass in one micro-batch, however small",
    "decode": "seconds of a layer in one step of decoding, beside reading its weights",
    "stock": "seconds of a step that stock spends beside its passes and the sync",
    "fixed": "seconds of a step beside all these",
    "sync": "seconds of one weight sent to the engine by a call of its own (stock); from timed phases, not fitted",
}
FITTED_RATES = [rate for rate in RATES if rate != "sync"]


def positions(prompts: int, group: int, prompt: float, completion: float, dead: float, lean: bool) -> float:
    """Positions in a pass with gradient: stock takes each rollout with its prompt, padding to the longest apart;
    lean takes a live group's prompt once. dead: share of groups without variance."""
    if lean:
        return prompts * (1 - dead) * (prompt + group * completion)
    return prompts * group * (prompt + completion)


def terms(
    s: sizing.Shape, grad: float, nograd: float, scored: float, context: float, micro_batches: float, decode: float,
    rollouts: float, *, checkpointing: bool, lean: bool, full: bool = False, gpu: str = MEASURED_ON,
) -> dict[str, float]:  # fmt: skip
    """Work of a step by RATES, and `read`: seconds of reading weights and cache while decoding, whose rate is 1.

    grad, nograd: positions in the passes with and without gradient; scored: completion tokens in each of them;
    context: tokens of a row. decode: steps of decoding, the longest completion; rollouts: sequences decoded at once.
    A pass forward is 2 FLOP a parameter of the linear layers and position (Kaplan et al., arXiv:2001.08361), 2 V h a
    scored one, and 2 x 2 x width x context / 2 of attention a layer; backward once that for an adapter, whose base
    needs no gradient of its weights, twice for a full update, and recomputation once more with checkpointing. The head
    (TRL's, in tiles) recomputes its own logits in the backward pass, whatever the setting.
    """
    p, (flops, bytes_a_second) = sizing.parameters(s), GPUS[gpu]
    width = s.heads * s.head_dim
    experts_idle = p["total"] - p["active"]
    inputs = 5 * s.hidden + width + s.intermediate * s.experts_used  # entries cast to float32 and back: 12 bytes moved
    a_position = 2 * (p["linear"] - experts_idle) + 2 * s.layers * width * context
    passes = 1 + (2 if full else 1) + checkpointing  # forward, backward, recomputed
    forwarded = (nograd + passes * grad) * a_position
    forwarded += ((nograd > 0) + 1 + (3 if full else 2)) * 2 * s.vocabulary * s.hidden * scored * (grad > 0)
    each = 11 if s.qk_norm else 12 if s.qkv_bias else 9  # weights of a layer
    cache = sizing.kv_cache(s, 1, 1, 0, 1) * rollouts * context
    launched = micro_batches * ((nograd > 0) + 1 + 2 + checkpointing) * (grad > 0)
    return {
        "arithmetic": forwarded / flops,
        "casts": 0.0 if lean or full else (nograd + passes * grad) * s.layers * inputs * 12 / bytes_a_second,
        "layer": launched * s.layers,
        "decode": decode * s.layers,
        "stock": 0.0 if lean else 1.0,
        "fixed": 1.0,
        "sync": 0.0 if lean else each * s.layers + 2,
        "read": decode * (2 * p["active"] + cache) / bytes_a_second,
    }


def seconds(work: dict[str, float], rates: dict[str, float]) -> dict[str, float]:
    """Seconds by part: `training` (arithmetic, casts, layers), `generation` (decoding, reading), `sync`, `fixed`
    (stock's own included), and all of them, `step`."""
    parts = {
        "training": sum(work[term] * rates[term] for term in ("arithmetic", "casts", "layer")),
        "generation": work["decode"] * rates["decode"] + work["read"],
        "sync": work["sync"] * rates["sync"],
        "fixed": work["fixed"] * rates["fixed"] + work["stock"] * rates["stock"],
    }
    return parts | {"step": sum(parts.values())}


def cells(rows: pd.DataFrame, sessions: list[dict], models: dict[str, sizing.Shape]) -> pd.DataFrame:
    """Measured cells of the bench with their work: `case`, `dead_share`, `variant`, `seconds` (median of whole steps),
    `held` (not of FITTED), and a column a term of `terms`. Cases of no known shape are left out."""
    settings = {(n["session"], v): told for n in sessions for v, told in n["variants"].items()}
    shapes = {"smollm2": models["SmolLM2-135M"]}
    found = []
    for (case, dead, variant), own in benches.newest(rows, "wall").groupby(benches.CELL):
        known = CASES.get(case)
        told = settings.get((own["session"].iloc[0], variant))
        if known is None or told is None or variant == "lean-compiled":
            continue
        s = benches.shape_of(case) if known["shape"] else shapes.get(case)
        if s is None or case == "tiny":
            continue
        lean, size = told["trainer"] != "GRPOTrainer", known["prompts"] * known["group"]
        median = own[["wall_s", "completion_tokens", "positions_grad", "positions_nograd"]].median()
        grad, nograd = (0.0 if pd.isna(median[k]) else median[k] for k in ("positions_grad", "positions_nograd"))
        cap, scored = known["completion_tokens"], median["completion_tokens"] * (1 - dead if lean else 1)
        context = (sum(known["prompt_tokens"]) + cap) / 2
        micro_batches = 1 if lean else size / told["per_device_train_batch_size"]
        checkpointing = told["gradient_checkpointing"] and not lean
        work = terms(s, grad, nograd, scored, context, micro_batches, cap, size, checkpointing=checkpointing, lean=lean)
        held = case not in FITTED
        found.append(dict(case=case, dead_share=dead, variant=variant, seconds=median["wall_s"], held=held) | work)
    return pd.DataFrame(found)


def sync_rate(rows: pd.DataFrame) -> float:
    """RATES's `sync` from the bench's timed phases of stock at the published case; 0 where none were timed, and the
    sync is then part of `stock`."""
    parts = benches.part_seconds(rows)
    own = parts[(parts["case"] == benches.PUBLISHED) & (parts["variant"] == "stock")]
    seconds = own.loc[own["part"] == "weight sync to the engine", "seconds"].mean()
    return 0.0 if pd.isna(seconds) else float(seconds) / (11 * benches.shape_of(benches.PUBLISHED).layers + 2)


def fit(own: pd.DataFrame, sync: float = 0.0) -> dict[str, float] | None:
    """RATES by least squares of relative errors, none below 0, on the cells that are not held out. sync: its rate.

    None where fewer than two cases of FITTED were measured: with one, decoding cannot be told from what is fixed.
    """
    own = own[~own["held"]] if len(own) else own
    if own.empty or own["case"].nunique() < 2:
        return None
    known_s = own["read"] + own["sync"] * sync
    work = own[FITTED_RATES].to_numpy(float) / own[["seconds"]].to_numpy(float)
    scale = np.abs(work).max(axis=0)
    scale[scale == 0] = 1.0
    best, _ = nnls(work / scale, 1 - (known_s / own["seconds"]).to_numpy(float))
    return dict(zip(FITTED_RATES, map(float, best / scale), strict=True)) | {"sync": sync}


def scored(own: pd.DataFrame, rates: dict[str, float]) -> pd.DataFrame:
    """`cells` with `predicted` seconds and their `error`, a share of the measured ones."""
    said = [seconds({k: row[k] for k in (*RATES, "read")}, rates)["step"] for row in own.to_dict("records")]
    return own.assign(predicted=said, error=said / own["seconds"] - 1)


def step(
    s: sizing.Shape, rates: dict[str, float], prompt: float, completion: float, *, prompts: int = 16, group: int = 8,
    rows: int = 16, dead: float = 0.0, lean: bool = False, full: bool = False, gpu: str = MEASURED_ON,
) -> dict[str, float]:  # fmt: skip
    """Seconds of a step by part (`seconds`) from mean lengths in tokens. rows: rollouts in a micro-batch of stock.

    lean: all savings on, nothing recomputed; else TRL's trainer, with a pass without gradient and with checkpointing.
    The longest completion is 1.45 times the mean, as in the bench. A micro-batch of more rollouts than a step has is
    the whole step. Raises ValueError for a GPU that is not in GPUS or numbers out of range.
    """
    if gpu not in GPUS:
        raise ValueError(f"gpu: got {gpu!r}; expected one of {list(GPUS)}")
    sizing.above_zero(prompt=prompt, prompts=prompts, group=group, rows=rows)
    for name, value, high in (("completion", completion, float("inf")), ("dead", dead, 1)):
        if isinstance(value, Number) and not 0 <= value <= high:
            raise ValueError(f"{name}: got {value!r}; expected 0 or up" + (", at most 1" if high == 1 else ""))
    grad = positions(prompts, group, prompt, completion, dead, lean)
    nograd = 0.0 if lean else grad
    scored_tokens = prompts * group * completion * (1 - dead if lean else 1)
    micro_batches = 1 if lean else np.maximum(1.0, prompts * group / rows)
    work = terms(
        s, grad, nograd, scored_tokens, prompt + completion, micro_batches, 1.45 * completion, prompts * group,
        checkpointing=not lean, lean=lean, full=full, gpu=gpu,
    )  # fmt: skip
    return seconds(work, rates)


def half(s: sizing.Shape, rates: dict[str, float], prompt: float, **job):
    """(discriminant, root): the mean completion in tokens at which generating takes half of a step.

    Generation less half a step is a polynomial of second degree in the completion (keys and values are read, and
    attention is done, over what was written so far); its coefficients follow from three values. None where the
    discriminant or the root is below 0: half is never reached.
    """
    far = 4096.0
    at = []
    for tokens in (0.0, far, 2 * far):
        parts = step(s, rates, prompt, tokens, **job)
        at.append(parts["generation"] - parts["step"] / 2)
    square = (at[2] - 2 * at[1] + at[0]) / 2
    linear = at[1] - at[0] - square
    discriminant = linear * linear - 4 * square * at[0]
    return discriminant, far * 2 * at[0] / (-linear - np.sqrt(np.maximum(discriminant, 0.0)))


def crossing(s: sizing.Shape, rates: dict[str, float], prompt: float, **job) -> float | None:
    """`half`'s root, None where half is never reached."""
    discriminant, root = half(s, rates, prompt, **job)
    return float(root) if discriminant >= 0 and root >= 0 else None


def told(own: pd.DataFrame | None) -> str:
    """How well held-out cells were predicted, as a phrase; own: of `scored`, or None where nothing could be fitted."""
    if own is None:
        return "not fitted: fewer than two of the cases that were to be fitted are measured"
    held = own[own["held"]]
    if held.empty:
        return "fitted, and not scored: no case that was held out is measured"
    off = held["error"].abs()
    worst = held.loc[off.idxmax()]
    where = f"{worst['case']}, {worst['variant']}, {worst['dead_share']:.0%} of the groups dead"
    return f"median error {off.median():.1%} over {len(held)} held-out cells, worst {worst['error']:+.1%} ({where})"
