"""Decode documents with checkpoints and judge the completions; by transformers, or by one vLLM engine for all.

vLLM runs in a process of its own (`python -m lib.evaluate JOB`): its memory goes back when it ends, and it cannot
disturb the trainer. Checkpoints are LoRA adapters there and are evaluated as adapters, never merged.
"""

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd

from lib import clock, rewards
from lib.data import CHAT, FIELDS, messages
from lib.records import VERDICTS, progress
from lib.runs import Run

BATCH = 128  # prompts decoded at once by transformers
WEIGHTS = ("adapter_model.safetensors", "model.safetensors")


def require(engine: str) -> None:
    """Raise ValueError or RuntimeError when this machine cannot generate with `engine` (before anything is loaded)."""
    if engine not in ("transformers", "vllm"):
        raise ValueError(f"engine is {engine!r}; expected 'transformers' or 'vllm'")
    if engine == "vllm":
        import importlib.util

        import torch

        if not torch.cuda.is_available() or importlib.util.find_spec("vllm") is None:
            raise RuntimeError(
                "engine='vllm' needs an NVIDIA GPU and the `vllm` extra; use engine='transformers' on a CPU"
            )


def load_policy(base: Path, weights: Path | None, dtype: str, trainable: bool = False):
    """The model of a checkpoint: `base` itself (weights None), base plus LoRA adapter, or full weights.

    dtype: of the base weights, "float32" or "bfloat16" (an adapter stays float32). Placed on the GPU if there is one.
    """
    import torch
    from transformers import AutoModelForCausalLM

    device = "cuda" if torch.cuda.is_available() else "cpu"
    full = weights is not None and not (weights / "adapter_config.json").exists()
    model = AutoModelForCausalLM.from_pretrained(weights if full else base, dtype=getattr(torch, dtype)).to(device)
    if weights is not None and not full:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, weights, is_trainable=trainable)
    return model


def load_tokenizer(base: Path):
    """Tokenizer of the base model; pads on the left, and its pad token differs from its end-of-turn token.

    Raises ValueError when they are the same: the end token would then be masked out of the loss and never be learnt.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base, padding_side="left")
    if tokenizer.pad_token_id is None or tokenizer.pad_token_id == tokenizer.eos_token_id:
        others = [
            t
            for t in ("<|endoftext|>", *tokenizer.all_special_tokens)
            if t in tokenizer.get_vocab() and t != tokenizer.eos_token
        ]
        tokenizer.pad_token = others[0] if others else tokenizer.eos_token
    if tokenizer.pad_token_id == tokenizer.eos_token_id:
        raise ValueError(f"{base}: the pad token is the end-of-turn token {tokenizer.eos_token!r}; they must differ")
    return tokenizer


def complete(
    prompts: list,
    checkpoints: dict,
    *,
    engine: str,
    base: Path,
    dtype: str,
    max_completion_tokens: int,
    context_tokens: int,
    work: Path,
    n: int = 1,
    temperature: float = 0.0,
    seed: int = 0,
):
    """Yield (key, completions_P_N) for each of `checkpoints` {key: folder, or None for the base model}.

    prompts: P chat prompts (lists of messages). n completions each; temperature 0 is greedy decoding.
    """
    require(engine)
    job = {
        "prompts": prompts,
        "checkpoints": {str(k): str(v) if v else None for k, v in checkpoints.items()},
        "base": str(base),
        "dtype": dtype,
        "max_completion_tokens": max_completion_tokens,
        "context_tokens": context_tokens,
        "n": n,
        "temperature": temperature,
        "seed": seed,
    }
    if engine == "transformers":
        yield from _with_transformers(job)
        return
    import gc

    import torch

    gc.collect()
    torch.cuda.empty_cache()  # the engine's process needs room beside this one
    work.mkdir(parents=True, exist_ok=True)
    job["out"] = str(work / "completions.jsonl")
    Path(job["out"]).unlink(missing_ok=True)
    clock.write_json(work / "job.json", job)
    # A clean environment: the rank variables that a colocated engine sets must not reach this one.
    env = {
        k: v
        for k, v in os.environ.items()
        if k not in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    }
    with open(work / "engine.log", "w") as log:
        done = subprocess.run(
            [sys.executable, "-m", "lib.evaluate", work / "job.json"], stdout=log, stderr=log, env=env
        )
    if done.returncode:
        tail = "\n".join((work / "engine.log").read_text().splitlines()[-30:])
        raise RuntimeError(
            f"the vLLM process failed (exit {done.returncode}); the end of {work / 'engine.log'}:\n{tail}"
        )
    for row in clock.read_lines(Path(job["out"])):
        yield row["key"], row["completions"]


def _prompt_ids(tokenizer, prompts: list) -> list[list[int]]:
    texts = [tokenizer.apply_chat_template(p, tokenize=False, add_generation_prompt=True, **CHAT) for p in prompts]
    return tokenizer(texts, add_special_tokens=False)["input_ids"]


def _with_transformers(job: dict):
    import torch

    tokenizer = load_tokenizer(job["base"])
    ids = _prompt_ids(tokenizer, job["prompts"])
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))  # like lengths together: little padding
    sampling = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
    if job["temperature"]:
        sampling = {"do_sample": True, "temperature": job["temperature"], "top_p": 1.0, "top_k": 0}
    for key, folder in job["checkpoints"].items():
        model = load_policy(Path(job["base"]), Path(folder) if folder else None, job["dtype"]).eval()
        torch.manual_seed(job["seed"])
        completions = [None] * len(ids)
        size = max(1, BATCH // job["n"])
        for start in range(0, len(order), size):
            batch = order[start : start + size]
            inputs = tokenizer.pad({"input_ids": [ids[i] for i in batch]}, return_tensors="pt").to(model.device)
            with torch.inference_mode():
                output = model.generate(
                    **inputs,
                    max_new_tokens=job["max_completion_tokens"],
                    num_return_sequences=job["n"],
                    pad_token_id=tokenizer.pad_token_id,
                    eos_token_id=tokenizer.eos_token_id,
                    **sampling,
                )
            texts = tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
            for row, i in enumerate(batch):
                completions[i] = texts[row * job["n"] : (row + 1) * job["n"]]
        yield key, completions


def _with_vllm(job: dict) -> None:
    """The body of the vLLM process: one engine, every checkpoint as a LoRA adapter, one output line a checkpoint."""
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    ranks = [1]
    for folder in filter(None, job["checkpoints"].values()):
        config = Path(folder) / "adapter_config.json"
        if not config.exists():
            raise ValueError(f"{folder}: engine='vllm' evaluates LoRA checkpoints and found no adapter_config.json")
        ranks.append(json.loads(config.read_text())["r"])
    tokenizer = load_tokenizer(job["base"])
    started = time.perf_counter()
    # Eager: compiling graphs takes longer than decoding a few thousand documents without them.
    llm = LLM(
        model=job["base"],
        dtype=job["dtype"],
        enable_lora=True,
        max_lora_rank=max(8, *ranks),
        max_loras=1,
        max_model_len=job["context_tokens"],
        gpu_memory_utilization=0.15,
        max_num_seqs=512,
        enforce_eager=True,
        seed=job["seed"],
        disable_log_stats=True,
    )
    progress(f"vLLM engine ready after {time.perf_counter() - started:.0f} s")
    prompts = [{"prompt_token_ids": ids} for ids in _prompt_ids(tokenizer, job["prompts"])]
    sampling = SamplingParams(
        n=job["n"],
        temperature=job["temperature"],
        max_tokens=job["max_completion_tokens"],
        stop_token_ids=[tokenizer.eos_token_id],
        seed=job["seed"] if job["temperature"] else None,
    )
    for number, (key, folder) in enumerate(job["checkpoints"].items(), start=1):
        started = time.perf_counter()
        lora = LoRARequest(f"checkpoint-{key}", number, folder) if folder else None
        outputs = llm.generate(prompts, sampling, lora_request=lora, use_tqdm=False)
        texts = [[tokenizer.decode(c.token_ids, skip_special_tokens=True) for c in o.outputs] for o in outputs]
        clock.append(Path(job["out"]), {"key": key, "completions": texts})
        progress(f"checkpoint {key}: {len(texts)} prompts in {time.perf_counter() - started:.1f} s")


def checkpoints(run: Run, checkpoints: dict, documents: list[dict], instruction: str, **generation):
    """Greedy decoding of every checkpoint {step: folder}: the tables (predictions, checkpoints) of the record.

    Done checkpoints are kept in `evaluated/`, so that an interrupted evaluation goes on where it stopped. The time is
    booked as `evaluation`, which is not billed.
    """
    done = run.folder / "evaluated"
    done.mkdir(exist_ok=True)
    prompts = [messages(d, instruction) for d in documents]
    todo = {step: folder for step, folder in checkpoints.items() if not (done / f"{step}.json").exists()}
    with run.clock.phase("evaluation"):
        if todo:
            for key, completions in complete(prompts, todo, work=run.folder / "evaluation", **generation):
                clock.write_json(done / f"{key}.json", [c[0] for c in completions])
                progress(f"{run.name}: evaluated checkpoint {key}")
    predictions, rows = [], []
    for step, folder in checkpoints.items():
        completions = json.loads((done / f"{step}.json").read_text())
        table = judge(completions, documents)
        table.insert(0, "step", step)
        predictions.append(table)
        note = folder / "clock.json" if folder else None
        times = json.loads(note.read_text()) if note and note.exists() else {"billed_s": 0.0, "train_s": 0.0}
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
    save_file(tensors, path, metadata={"format": "pt"})


if __name__ == "__main__":
    _with_vllm(json.loads(Path(sys.argv[1]).read_text()))
