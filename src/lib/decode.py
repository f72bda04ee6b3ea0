"""Models and decoding: load a checkpoint, and complete prompts with it; by transformers, or by one vLLM engine for all.

vLLM runs in a process of its own (`python -m lib.decode JOB`): its memory goes back when it ends, and it cannot disturb
the trainer. Checkpoints are LoRA adapters there and are decoded as adapters, never merged.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

from lib import clock
from lib.data import CHAT
from lib.paths import ROOT
from lib.records import Record, progress

BATCH = 128  # prompts decoded at once by transformers


def settings(setup: Record) -> dict:
    """How every run of a study decodes, from its setup: the keyword arguments of `complete`."""
    p = setup.info["parameters"]
    kept = ("engine", "dtype", "context_tokens", "max_completion_tokens")
    return {name: p[name] for name in kept} | {"base": ROOT / p["base"]}


def require(engine: str) -> None:
    """Raise ValueError or RuntimeError when this machine cannot generate with `engine` (before anything is loaded)."""
    if engine not in ("transformers", "vllm"):
        raise ValueError(f"engine is {engine!r}; expected 'transformers' or 'vllm'")
    if engine == "vllm":
        import importlib.util

        import torch

        if torch.cuda.device_count() > 1:
            raise RuntimeError(
                f"{torch.cuda.device_count()} GPUs are visible; a run is billed on one: set CUDA_VISIBLE_DEVICES to one"
            )
        if not torch.cuda.is_available() or importlib.util.find_spec("vllm") is None:
            raise RuntimeError(
                "engine: got 'vllm', which needs an NVIDIA GPU and the `vllm` extra; use 'transformers' on a CPU"
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
    last_prompts: list = (),
):
    """Yield (key, completions_P_N) for each of `checkpoints` {key: folder, or None for the base model}.

    prompts: P chat prompts (lists of messages). n completions each; temperature 0 is greedy decoding. last_prompts:
    more prompts, for the last of the checkpoints alone; their completions follow.
    """
    require(engine)
    job = {
        "prompts": [*prompts, *last_prompts],
        "for_all": len(prompts),
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
    yield from _in_a_process(job, work)


def _prompt_ids(tokenizer, prompts: list) -> list[list[int]]:
    texts = [tokenizer.apply_chat_template(p, tokenize=False, add_generation_prompt=True, **CHAT) for p in prompts]
    return tokenizer(texts, add_special_tokens=False)["input_ids"]


def _asked(job: dict, key: str) -> int:
    """How many of a job's prompts one of its checkpoints completes: the last one all, the others those for all."""
    return len(job["prompts"]) if key == list(job["checkpoints"])[-1] else job["for_all"]


def _with_transformers(job: dict):
    import torch

    tokenizer = load_tokenizer(job["base"])
    every_id = _prompt_ids(tokenizer, job["prompts"])
    sampling = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
    if job["temperature"]:
        sampling = {"do_sample": True, "temperature": job["temperature"], "top_p": 1.0, "top_k": 0}
    for key, folder in job["checkpoints"].items():
        ids = every_id[: _asked(job, key)]
        order = sorted(range(len(ids)), key=lambda i: len(ids[i]))  # like lengths together: little padding
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


def _in_a_process(job: dict, work: Path):
    """Run the vLLM job in a process of its own and yield each checkpoint's completions as soon as they are there."""
    import gc

    import torch

    gc.collect()
    torch.cuda.empty_cache()  # the engine's process needs room beside this one
    work.mkdir(parents=True, exist_ok=True)
    out = work / f"completions-{uuid.uuid4().hex}.jsonl"  # its own: an orphan of a killed attempt must not write here
    clock.write_json(work / "job.json", job | {"out": str(out)})
    # The rank variables that a colocated engine sets must not reach this one.
    hidden = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    env = {name: value for name, value in os.environ.items() if name not in hidden}
    with open(work / "engine.log", "w") as log:
        command = [sys.executable, "-m", "lib.decode", work / "job.json"]
        process = subprocess.Popen(command, stdout=log, stderr=log, env=env, preexec_fn=_die_with_parent)
    try:
        seen, ended = 0, False
        while not ended:
            ended = process.poll() is not None  # asked before reading: what it wrote last is then read too
            rows = clock.read_lines(out)
            for row in rows[seen:]:
                yield row["key"], row["completions"]
            seen = len(rows)
            time.sleep(0.2)
    finally:
        process.kill()
    if process.returncode:
        tail = "\n".join((work / "engine.log").read_text().splitlines()[-30:])
        raise RuntimeError(f"the vLLM process failed ({process.returncode}); the end of {work / 'engine.log'}:\n{tail}")


def _die_with_parent() -> None:
    """In the child: be killed when the parent dies, however it dies (Linux: prctl, PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


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
    # Graphs of the decoding steps are captured in seconds; compiling would take longer than it saves here.
    llm = LLM(
        model=job["base"],
        dtype=job["dtype"],
        enable_lora=True,
        max_lora_rank=max(8, *ranks),
        max_loras=1,
        max_model_len=job["context_tokens"],
        gpu_memory_utilization=0.15,
        max_num_seqs=1024,
        compilation_config={
            "mode": 0,
            "cudagraph_mode": "FULL_DECODE_ONLY",
            "cudagraph_capture_sizes": [2**k for k in range(11)],  # up to max_num_seqs
        },
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
        detokenize=False,  # done at once below
        seed=job["seed"] if job["temperature"] else None,
    )
    for number, (key, folder) in enumerate(job["checkpoints"].items(), start=1):
        started = time.perf_counter()
        lora = LoRARequest(f"checkpoint-{key}", number, folder) if folder else None
        outputs = llm.generate(prompts[: _asked(job, key)], sampling, lora_request=lora, use_tqdm=False)
        texts = [[tokenizer.decode(c.token_ids, skip_special_tokens=True) for c in o.outputs] for o in outputs]
        clock.append(Path(job["out"]), {"key": key, "completions": texts})
        progress(f"checkpoint {key}: {len(texts)} prompts in {time.perf_counter() - started:.1f} s")


if __name__ == "__main__":
    _with_vllm(json.loads(Path(sys.argv[1]).read_text()))
