"""Seconds of a GRPO step from a model's shape and the lengths: terms of work by formula, their rates fitted on a bench.

A step is a sum of terms. What is work follows from the shape and the settings; what a unit costs, `RATES`, is fitted
part by part on timed steps of some cases (FITTED, fixed before any but the published one was measured), and scored on
whole steps and on the other cases. Arithmetic and reading run at a GPU's datasheet rates, so that another GPU's step
can be computed: marked so, not measured.
"""

from numbers import Number

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from lib import sizing
from lib.bench.cases import CASES
from lib.report import benches
from lib.report.ledger import PEAK_FLOPS

LONGEST = 1.45  # the longest completion over the mean, as in the bench
FITTED = (benches.PUBLISHED, "ratio-8-1", "ratio-1-2")  # the other cases are held out
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
    "requests": "seconds of a step of decoding more where each rollout is a request of its own, made to text (stock)",
    "sync": "seconds of one weight sent to the engine by a call of its own (stock)",
    "stock": "seconds of a step that stock spends beside all these more than lean",
    "fixed": "seconds of a step beside all these",
}
# Part of a step -> the rates that it is made of. Each is timed, and fitted, for itself.
PARTS = {
    "training": ("arithmetic", "casts", "layer"),
    "generation": ("decode", "requests"),
    "sync": ("sync",),
    "fixed": ("stock", "fixed"),
}


def positions(prompts: int, group: int, prompt: float, completion: float, dead: float, lean: bool) -> float:
    """Positions in a pass with gradient. Stock takes each rollout with its prompt, padded to the longest completion (to
    the longest prompt, too: left out here); lean takes a live group's prompt once. dead: share of
    zero-variance groups."""
    if lean:
        return prompts * (1 - dead) * (prompt + group * completion)
    return prompts * group * (prompt + LONGEST * completion)


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
        "requests": 0.0 if lean else decode,
        "stock": 0.0 if lean else 1.0,
        "fixed": 1.0,
        "sync": 0.0 if lean else each * s.layers + 2,
        "read": decode * (2 * p["active"] + cache) / bytes_a_second,
    }


def seconds(work: dict[str, float], rates: dict[str, float]) -> dict[str, float]:
    """Seconds by part of PARTS, reading in `generation`, and all of them, `step`."""
    parts = {part: sum(work[term] * rates[term] for term in own) for part, own in PARTS.items()}
    parts["generation"] = parts["generation"] + work["read"]
    return parts | {"step": sum(parts.values())}


def cells(rows: pd.DataFrame, sessions: list[dict], models: dict[str, sizing.Shape]) -> pd.DataFrame:
    """Measured cells of the bench with their work: one row a cell with timers inside, then one a cell of whole steps.

    `case`, `model`, `dead_share`, `variant`, `session`, `n`, `prompt` and `answer` (mean tokens), `prompts`, `group`,
    `rows` (of a micro-batch), `timed` (whether with timers), `fit` (timed, and of FITTED), `seconds` (mean with timers,
    else median), with timers a column `<part>_s` a part of PARTS, and a column a term of `terms`. Cases of no known
    shape and compiled layers are left out.
    """
    settings = {(n["session"], v): told for n in sessions for v, told in n["variants"].items()}
    timed = benches.phases(rows).set_index(benches.CELL)
    found = []
    for part in ("phases", "wall"):
        for (case, dead, variant), own in benches.newest(rows, part).groupby(benches.CELL):
            session = own["session"].iloc[0]
            known, told = CASES.get(case), settings.get((session, variant))
            s = models["SmolLM2-135M"] if case == "smollm2" else benches.shape_of(case) if known else None
            if s is None or case == "tiny" or told is None or variant == "lean-compiled":
                continue
            row = dict(case=case, dead_share=dead, variant=variant, session=session, n=len(own), timed=part == "phases")
            row |= {name: known[name] for name in ("prompts", "group")}
            row |= {
                "fit": row["timed"] and case in FITTED,
                "model": next((name for name, shape in models.items() if shape == s), case),
                "prompt": (own["tokens"] - own["completion_tokens"]).mean() / benches.rollouts(case),
                "answer": own["completion_tokens"].mean() / benches.rollouts(case),
                "rows": told["per_device_train_batch_size"],
            }
            if row["timed"]:
                at = timed.loc[(case, dead, variant)]
                row |= {"seconds": at["step"], "training_s": at["passes"], "generation_s": at["generation"]}
                # Lean sends all weights in one call: that is part of what is fixed.
                row["sync_s"] = at["weight sync to the engine"] if told["trainer"] == "GRPOTrainer" else 0.0
                row["fixed_s"] = at["step"] - sum(row[f"{name}_s"] for name in PARTS if name != "fixed")
            else:
                row["seconds"] = own["wall_s"].median()
            found.append(row | work_of(s, known, own, dead, told))
    return pd.DataFrame(found)


def work_of(s: sizing.Shape, case: dict, own: pd.DataFrame, dead: float, told: dict) -> dict[str, float]:
    """`terms` of a measured cell: of its rows' means, its case and its variant's settings."""
    lean, size = told["trainer"] != "GRPOTrainer", case["prompts"] * case["group"]
    mean = own[["completion_tokens", "tokens", "positions_grad", "positions_nograd"]].mean().fillna(0.0)
    context = mean["tokens"] / size or (sum(case["prompt_tokens"]) + case["completion_tokens"]) / 2  # or as asked for
    return terms(
        s, mean["positions_grad"], mean["positions_nograd"], mean["completion_tokens"] * (1 - dead if lean else 1),
        context, 1 if lean else size / told["per_device_train_batch_size"], case["completion_tokens"], size,
        checkpointing=told["gradient_checkpointing"] and not lean, lean=lean,
    )  # fmt: skip


def measured(own: pd.DataFrame) -> dict[str, list[str] | tuple[int, int]]:
    """What `cells` cover: their `models`, and the lowest and the highest of each size that a step is computed from."""
    sizes = {"prompt": "prompt", "completion": "answer", "prompts": "prompts", "group": "group", "rows": "rows"}
    ends = {name: (round(own[column].min()), round(own[column].max())) for name, column in sizes.items()}
    return {"models": sorted(own["model"].unique())} | ends


def fit(own: pd.DataFrame) -> dict[str, float] | None:
    """RATES by least squares of relative errors, none below 0, part by part on the cells of `cells` that are to be fit.

    None where these do not tell all rates apart: that takes both trainers at two shapes.
    """
    own = own[own["fit"]] if len(own) else own
    if own.empty or own["case"].nunique() < 2:
        return None
    rates = {}
    for part, names in PARTS.items():
        here = own[(own[list(names)] > 0).any(axis=1)]
        measured = here[f"{part}_s"].to_numpy(float)
        work = here[list(names)].to_numpy(float) / measured[:, None]
        scale = work.max(axis=0, initial=0)
        if not scale.all() or np.linalg.matrix_rank(work / scale, tol=1e-3) < len(names):
            return None
        known = here["read"].to_numpy(float) if part == "generation" else 0.0
        best, _ = nnls(work / scale, 1 - known / measured)
        rates |= dict(zip(names, map(float, best / scale), strict=True))
    return {rate: rates[rate] for rate in RATES}


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
    The longest completion is LONGEST times the mean. A micro-batch of more rollouts than a step has is
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
        s, grad, nograd, scored_tokens, prompt + completion, micro_batches, LONGEST * completion, prompts * group,
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
    """How far the model is off where it was fitted, on whole steps, and on cases that were held out, as a phrase; own:
    of `scored`, or None where nothing could be fitted."""
    if own is None:
        return "not fitted: that takes timed phases of both trainers at two shapes"
    held, fitted = ~own["case"].isin(FITTED), own[own["fit"]]
    low, high = fitted["answer"].min(), fitted["answer"].max()
    groups = {
        f"timed steps that it was fitted on, with answers of {low:.0f} to {high:.0f} tokens": fitted,
        "whole steps of the same shapes": own[~own["timed"] & ~held],
        "shapes held out": own[held],
    }
    found = []
    for name, rows in groups.items():
        if rows.empty:
            found.append(f"{name}: not measured")
            continue
        worst = rows.loc[rows["error"].abs().idxmax()]
        where = f"{worst['case']}, {worst['variant']}, {worst['dead_share']:.0%} zero-variance groups"
        off = f"off by {rows['error'].abs().median():.1%} in the median of {len(rows)}"
        found.append(f"{name}: {off}, by {worst['error']:+.1%} at worst ({where})")
    return "; ".join(found)
