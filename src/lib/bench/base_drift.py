"""What a weight sync leaves in the frozen base: TRL's, which merges the adapter in and out again, and the lean one.

    python -m lib.bench.base_drift

Trains an adapter on the tiny base model in bfloat16, on a CPU, with a sync after each step as in GRPO with vLLM; the
engine takes the tensors and drops them. Both trainers take the same steps. Writes book/results/bench/base_drift.csv,
one row a trainer and number of syncs: `device`, `torch`, `peft`, `trl`, `commit`, `trainer`, `syncs`, `base_change` and
`lora_delta` (Frobenius norms over all adapted layers: of the base's change since the start, and of s B A), `ratio`.
"""

import sys
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import torch

from lib import clock, data, decode, provenance, records
from lib.bench import cases
from lib.lean import adapters, engine
from lib.paths import BASE, RESULTS

AFTER = (1, 10, 100)
RANK, LEARNING_RATE, BATCH = 16, 2e-5, 8  # rank and learning rate of the published GRPO arm


def adapted_model():
    """The tiny base in bfloat16 below a fresh adapter, float32 as PEFT makes it."""
    from peft import get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.bfloat16)
    return get_peft_model(model, cases.lora(RANK))


def sync_of(trainer: str, model):
    """The weight sync of a trainer ("stock" or "lean") as a function: the real code, before an engine that keeps none.

    A lean sync sends everything the first time, and then what training can have changed.
    """
    from trl.generation.vllm_generation import VLLMGeneration

    loaded = SimpleNamespace(load_weights=lambda weights: [None for _ in weights])
    runner = SimpleNamespace(model_runner=SimpleNamespace(model=loaded))
    executor = SimpleNamespace(model_executor=SimpleNamespace(driver_worker=runner))
    generation = object.__new__(VLLMGeneration)
    generation.llm = SimpleNamespace(llm_engine=executor, reset_prefix_cache=lambda: None)
    generation.model, generation.mode, generation.enable_sleep_mode = model, "colocate", False
    generation.accelerator = None
    generation._dist = SimpleNamespace(is_fsdp=False, gather_params=lambda _: torch.no_grad())
    if trainer == "stock":
        return lambda first: VLLMGeneration.sync_weights(generation)
    sent = adapters.weights(model)
    return lambda first: engine.load_weights(generation, sent, everything=first)


def norms(model, before: dict) -> tuple[float, float]:
    """(norm of the change of the adapted layers' base weights, norm of their adapters' s B A), over all layers."""
    change = delta = 0.0
    with torch.no_grad():
        for name, layer in adapters.layers(model).items():
            change += (layer.base_layer.weight.double() - before[name]).square().sum().item()
            delta += layer.get_delta_weight("default").double().square().sum().item()
    return change**0.5, delta**0.5


def measure(trainer: str, after=AFTER) -> list[dict]:
    """Rows of one trainer: `syncs`, `base_change`, `lora_delta`, `ratio`, after each number of steps in `after`."""
    model, tokenizer = adapted_model(), decode.load_tokenizer(BASE)
    before = {name: layer.base_layer.weight.detach().double() for name, layer in adapters.layers(model).items()}
    sync = sync_of(trainer, model)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=LEARNING_RATE)
    texts = [d["text"] for d in data.load("synthetic", n_documents=BATCH * max(after), seed=1)]
    rows = []
    for step in range(1, max(after) + 1):
        batch = tokenizer(texts[BATCH * (step - 1) : BATCH * step], return_tensors="pt", padding=True)
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(**batch, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        sync(step == 1)
        if step in after:
            change, delta = norms(model, before)
            rows.append({"syncs": step, "base_change": change, "lora_delta": delta, "ratio": change / delta})
    return rows


def main(target: Path = RESULTS / "bench" / "base_drift.csv", after=AFTER) -> None:
    versions = provenance.versions()
    told = {"device": provenance.processor()} | {name: versions[name] for name in ("torch", "peft", "trl")}
    told |= {"commit": provenance.commit()}
    table = pd.DataFrame(
        [told | {"trainer": trainer} | row for trainer in ("stock", "lean") for row in measure(trainer, after)]
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(target.name + ".part")
    table.to_csv(temporary, index=False)
    temporary.replace(target)
    print(table[["trainer", "syncs", "base_change", "lora_delta", "ratio"]].to_string(index=False))
    print(clock.now_utc(), records.shown(target))


if __name__ == "__main__":
    if sys.argv[1:]:
        sys.exit(f"got {' '.join(sys.argv[1:])!r}, expected no arguments")
    main()
