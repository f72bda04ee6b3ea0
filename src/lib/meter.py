"""What is counted beside time: rows, tokens and positions of every pass, energy, peak memory, the model's shape."""

import time
from pathlib import Path

from lib import clock, provenance

# Phases in which a trainer passes a batch through the model; generation is no pass of the trainer.
PASSES = ("forward_nograd", "forward_reference", "forward_grad")


def watch(trainer, run) -> None:
    """Count every pass of a trainer by the phase it falls into, and write a line a step to `counts.jsonl`.

    A line has, for each pass that took place, `<pass>_rows`, `<pass>_tokens` (real ones) and `<pass>_positions`
    (padding included), and on a GPU `peak_memory_bytes`, the most that PyTorch had allocated during the step.
    """
    import torch

    counts, written = {}, []

    def count(module, args, kwargs):
        where = run.clock.innermost()
        if where not in PASSES:
            return
        ids = kwargs["input_ids"] if kwargs.get("input_ids") is not None else args[0]
        flat = kwargs.get("flat_rows")  # lib.lean.flat: many rows run as one
        found = {
            "rows": ids.shape[0] if flat is None else flat.batch,
            "tokens": real_tokens(kwargs.get("attention_mask"), ids),
            "positions": ids.numel(),
        }
        for what, number in found.items():  # tensors are added up on the device and read once a step
            counts[f"{where}_{what}"] = counts.get(f"{where}_{what}", 0) + number

    def write(step):
        if step in written[-1:]:  # a checkpoint cuts its step in two: all passes were before it
            return
        written.append(step)
        row = {"step": step} | {name: int(number) for name, number in counts.items()}
        if torch.cuda.is_available():
            row["peak_memory_bytes"] = torch.cuda.max_memory_allocated()
            torch.cuda.reset_peak_memory_stats()
        counts.clear()
        clock.append(run.folder / "counts.jsonl", row)

    for model in (trainer.model, getattr(trainer, "ref_model", None)):
        if model is not None:
            model.get_decoder().register_forward_pre_hook(count, with_kwargs=True)  # what the layers get
    run.clock.each_step = write
    clock.write_json(run.folder / "model.json", shape(trainer.model))


def real_tokens(mask, ids):
    """Positions that hold a token: mask is None (all do), B x T of 0 and 1, or B x 1 x T x T (who may see whom: a
    position that sees itself is real; additive masks are 0 where it does)."""
    import torch

    if mask is None:
        return ids.numel()
    if mask.dim() == 4:
        seen = mask.diagonal(dim1=-2, dim2=-1)
        return (seen if seen.dtype == torch.bool else seen == 0).sum()
    return mask.sum()


def shape(model) -> dict:
    """{parameters, trainable, embedding, tied, layers, attention_width}: what a count of FLOPs needs.

    `embedding`: entries of the input embedding. attention_width: heads x width of a head.
    """
    config = model.config
    inputs, outputs = model.get_input_embeddings(), model.get_output_embeddings()
    heads = config.num_attention_heads
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "trainable": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "embedding": inputs.weight.numel(),
        "tied": outputs is not None and outputs.weight is inputs.weight,
        "layers": config.num_hidden_layers,
        "attention_width": heads * (getattr(config, "head_dim", None) or config.hidden_size // heads),
    }


def energy_counter():
    """A function that reads the joules this process's GPU has used since its driver was loaded, by NVML; None without.

    The counter is of the whole device, whoever uses it.
    """
    device = provenance.device()
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(device["uuid"])
        pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except Exception:  # no library, no GPU, or one without the counter: energy is then missing
        return None
    return lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3


def energy_interval_s(read, updates: int = 4, patience_s: float = 1.0) -> float | None:
    """Seconds between two updates of an energy counter, by watching some; None if it did not move for `patience_s`.

    A difference of two readings is wrong by at most what is used in one such interval.
    """
    moved, last, deadline = [], read(), time.perf_counter() + patience_s
    while len(moved) <= updates and time.perf_counter() < deadline:
        value = read()
        if value != last:
            moved.append(time.perf_counter())
            last = value
    return (moved[-1] - moved[0]) / (len(moved) - 1) if len(moved) > 1 else None


def steps(folder: Path):
    """The counts of a run, one row an optimizer step; a step trained twice (an interruption) keeps its last."""
    import pandas as pd

    lines = {line["step"]: line for line in clock.read_lines(folder / "counts.jsonl")}
    return pd.DataFrame(lines.values(), columns=None if lines else ["step"])
