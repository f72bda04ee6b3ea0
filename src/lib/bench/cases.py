"""What the GRPO benchmark runs on: a model of the published shape with random weights, its tokenizer, its prompts."""

import argparse
import json
import math
import random
import shutil
from pathlib import Path

from lib import data, decode
from lib.paths import BASE

# Shapes; `eos_bias` is added to the end token's logit by the engine, so that random weights end their answers at ragged
# lengths: a chance of about 1 in 80 a token, 44 tokens on average under the cap.
CASES = {
    "published-1.7b": dict(
        shape=dict(
            vocab_size=151_936, hidden_size=2048, intermediate_size=6144, num_hidden_layers=28, num_attention_heads=16,
            num_key_value_heads=8, head_dim=128, max_position_embeddings=4096, rope_theta=1e6, tie_word_embeddings=True,
        ),
        prompts=16, group=8, rows=16, prompt_tokens=(280, 372), completion_tokens=64, context_tokens=512,
        eos_bias=7.55, lora_rank=16, learning_rate=2e-5, engine="vllm",
    ),
    "smollm2": dict(
        shape=None, prompts=16, group=8, rows=32, prompt_tokens=(280, 420), completion_tokens=160, context_tokens=896,
        eos_bias=None, lora_rank=16, learning_rate=2e-5, engine="vllm",
    ),
    "tiny": dict(  # no measurement: to try the script on a CPU
        shape=dict(
            vocab_size=1024, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, head_dim=8, max_position_embeddings=512, tie_word_embeddings=True,
        ),
        prompts=4, group=4, rows=8, prompt_tokens=(20, 40), completion_tokens=12, context_tokens=64,
        eos_bias=None, lora_rank=4, learning_rate=2e-5, engine="transformers",
    ),
}  # fmt: skip
# Prompt-to-completion ratios at the published shape, about 370 tokens a row: the same rows, divided otherwise.
for ratio, (prompt, mean) in {"8-1": (329, 41), "2-1": (247, 123), "1-2": (123, 247), "1-8": (41, 329)}.items():
    CASES[f"ratio-{ratio}"] = CASES["published-1.7b"] | dict(
        prompt_tokens=(int(prompt * 0.86), int(prompt * 1.14)), completion_tokens=int(mean * 1.45), context_tokens=1024,
        eos_bias=math.log(0.55 / mean * 151_936),
    )  # fmt: skip


def at_least(low: int):
    """For argparse: a whole number of `low` or more."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < low:
            raise argparse.ArgumentTypeError(f"got {text!r}, expected a whole number of {low} or more")
        return int(text)

    return read


def seconds(text: str) -> float:
    """For argparse: a number of seconds above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected seconds above 0")
    return value


def parsed(parser: argparse.ArgumentParser, argv=None) -> argparse.Namespace:
    """The arguments of a bench that has --case, --model and --data; ends with a usage error where one cannot be."""
    arguments = parser.parse_args(argv)
    for name in ("model", "data"):
        path = getattr(arguments, name)
        if path is not None and not path.exists():
            parser.error(f"--{name}: {path} is not there")
    if CASES[arguments.case]["shape"] is None and arguments.model is None:
        parser.error(f"--model: case {arguments.case} needs the folder of its model")
    for case in [arguments.case, *getattr(arguments, "then", [])]:
        if case.startswith("ratio-") and arguments.data:
            parser.error(f"--data: case {case} has prompts of a length of its own; leave --data out")
    return arguments


def make_model(name: str, given: Path | None, folder: Path) -> Path:
    """Folder of the case's model: `given` where the case has no shape of its own, else one with random weights.

    The random model gets the tokenizer of `given` (or of the tiny base model) with its vocabulary filled up to the
    model's, so that every token that can be drawn can be decoded. Raises ValueError without a model to take.
    """
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    shape = CASES[name]["shape"]
    if shape is None:
        if given is None:
            raise ValueError(f"--model: case {name} needs the folder of its model")
        return given
    if (folder / "config.json").exists():
        return folder  # an earlier case of the same shape made it
    source = given or BASE
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = decode.load_tokenizer(source)
    config = Qwen3Config(
        **shape, pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id, bos_token_id=None
    )
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = Qwen3ForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(folder)
    del model
    torch.cuda.empty_cache()  # the engine takes its share of what is free; does nothing without a GPU
    for path in source.iterdir():
        if path.is_file() and path.suffix != ".safetensors" and not path.name.endswith("config.json"):
            shutil.copy(path, folder / path.name)
    shutil.copy(source / "tokenizer_config.json", folder / "tokenizer_config.json")
    content = json.loads((source / "tokenizer.json").read_text())
    known = set(content["model"]["vocab"].values()) | {t["id"] for t in content["added_tokens"]}
    content["model"]["vocab"] |= {f"filler{i}": i for i in range(shape["vocab_size"]) if i not in known}
    (folder / "tokenizer.json").write_text(json.dumps(content, ensure_ascii=False))
    return folder


def lora(rank: int):
    """The adapter of all benches: on every linear layer, scaled by 2."""
    from peft import LoraConfig

    return LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")


def chat_prompts(tokenizer, case: dict, n: int, path: Path | None) -> list[list[dict]]:
    """n chat prompts: real ones from the documents of `path`, else synthetic text of the case's ragged token counts."""
    if path is not None:
        room = case["context_tokens"] - case["completion_tokens"]
        chats = [data.messages(d) for d in data.load("jsonl", path, n)]
        sizes = [len(x) for x in tokenizer.apply_chat_template(chats, add_generation_prompt=True)["input_ids"]]
        return [chat for chat, size in zip(chats, sizes, strict=True) if size <= room]
    draw = random.Random(0)
    text = " ".join(d["text"] for d in data.load("synthetic", n_documents=400, seed=1))
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    rows = []
    for _ in range(n):
        size, start = draw.randint(*case["prompt_tokens"]), draw.randrange(len(ids) - 1000)
        rows.append([{"role": "user", "content": tokenizer.decode(ids[start : start + size])}])
    return rows
