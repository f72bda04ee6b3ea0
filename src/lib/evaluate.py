"""Judge checkpoints: greedy completions of the held-out documents, one verdict a field, and their counts."""

import hashlib
import os
from pathlib import Path

import pandas as pd

from lib import clock, decode, rewards
from lib.data import FIELDS, messages
from lib.records import VERDICTS, progress
from lib.runs import Run

WEIGHTS = ("adapter_model.safetensors", "model.safetensors")


def checkpoints(run: Run, checkpoints: dict, documents: list[dict], instruction: str, outside=(), **generation):
    """Greedy decoding of every checkpoint {step: folder}: the tables (predictions, checkpoints) of the record.

    outside: documents of another text, for the last checkpoint alone; the function `outside` judges these answers.
    Done checkpoints are kept in `evaluated/`, so that an interrupted evaluation goes on where it stopped. The time is
    booked as `evaluation`, which is not billed.
    """
    done = run.folder / "evaluated"
    done.mkdir(exist_ok=True)
    prompts, others = ([messages(d, instruction) for d in some] for some in (documents, outside))
    todo = {step: folder for step, folder in checkpoints.items() if not (done / f"{step}.json").exists()}
    with run.clock.phase("evaluation"):
        if todo:
            generation |= {"last_prompts": others if list(checkpoints)[-1] in todo else []}
            for key, completions in decode.complete(prompts, todo, work=run.folder / "evaluation", **generation):
                texts = [c[0] for c in completions]
                if texts[len(documents) :]:  # before the checkpoint's own file, which says that it is done
                    clock.write_json(done / "outside.json", texts[len(documents) :])
                clock.write_json(done / f"{key}.json", texts[: len(documents)])
                progress(f"{run.name}: evaluated checkpoint {key}")
    predictions, rows = [], []
    for step, folder in checkpoints.items():
        table = judge(_completions(done / f"{step}.json", documents), documents)
        table.insert(0, "step", step)
        predictions.append(table)
        note = folder / "clock.json" if folder else None
        times = clock.read_json(note) if note and note.exists() else {"billed_s": 0.0, "train_s": 0.0}
        rows.append(
            {
                "step": step,
                "billed_s": times["billed_s"],
                "train_s": times["train_s"],
                **count(table),
                "weights_sha256": weights_sha256(folder) if folder else None,
            }
        )
    return pd.concat(predictions, ignore_index=True), pd.DataFrame(rows)


def _completions(path: Path, documents: list[dict]) -> list[str]:
    completions = clock.read_json(path)
    if not isinstance(completions, list) or len(completions) != len(documents):
        raise ValueError(f"{path}: damaged: expected {len(documents)} completions; remove it")
    return completions


def outside(run: Run, step: int, documents: list[dict]) -> dict[str, pd.DataFrame]:
    """The record's table {"predictions_outside": ...} of the last checkpoint, at `step`; {} without such documents."""
    if not documents:
        return {}
    table = judge(_completions(run.folder / "evaluated" / "outside.json", documents), documents)
    table.insert(0, "step", step)
    return {"predictions_outside": table}


def answers(run: Run, step: int, documents: list[dict]) -> dict[str, str]:
    """{document id: greedy completion} of a checkpoint that `checkpoints` evaluated on these documents."""
    completions = clock.read_json(run.folder / "evaluated" / f"{step}.json")
    return dict(zip((d["id"] for d in documents), completions, strict=True))


def judge(completions: list[str], documents: list[dict]) -> pd.DataFrame:
    """One row a document: id, valid, exact, each field's value and verdict."""
    rows = []
    for completion, document in zip(completions, documents, strict=True):
        result = rewards.verdicts(completion, document)
        row = {"id": document["id"], "valid": result["valid"], "exact": result["exact"]}
        for field in FIELDS:
            row[field], row[f"{field}_verdict"] = result["values"][field], result["verdicts"][field]
        rows.append(row)
    return pd.DataFrame(rows)


def count(predictions: pd.DataFrame) -> dict:
    """{n, exact, valid, <field>_<verdict>} counts of one checkpoint's predictions."""
    counts = {"n": len(predictions), "exact": int(predictions["exact"].sum()), "valid": int(predictions["valid"].sum())}
    for field in FIELDS:
        for verdict in VERDICTS:
            counts[f"{field}_{verdict}"] = int((predictions[f"{field}_verdict"] == verdict).sum())
    return counts


def weights_sha256(folder: Path) -> str:
    """sha256 of a checkpoint's weights file."""
    path = next((folder / name for name in WEIGHTS if (folder / name).exists()), None)
    if path is None:
        raise FileNotFoundError(f"{folder}: no {' or '.join(WEIGHTS)}")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def check_end_token(trainer, tokenizer) -> None:
    """Raise ValueError when an SFT document has no end-of-turn token among its labels: generation would never stop."""
    import torch

    with torch.random.fork_rng():
        labels_B_T = next(iter(trainer.get_train_dataloader()))["labels"]
    if not (labels_B_T == tokenizer.eos_token_id).any(dim=-1).all():
        raise ValueError(
            f"the end-of-turn token {tokenizer.eos_token!r} is not trained in every document: no answer would end"
        )


def round_adapter(folder: Path) -> None:
    """Store a LoRA adapter in bfloat16 (half the bytes), so that the shared start in the record is the one in use."""
    import torch
    from safetensors.torch import load_file, save_file

    path = folder / "adapter_model.safetensors"
    tensors = {name: tensor.to(torch.bfloat16) for name, tensor in load_file(path).items()}
    temporary = path.with_name(path.name + ".part")
    save_file(tensors, temporary, metadata={"format": "pt"})
    os.replace(temporary, path)
