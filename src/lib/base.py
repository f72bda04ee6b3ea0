"""Makes the tiny base model in src/lib/tiny: a tokenizer and a Qwen3-shaped model of 0.7M parameters.

    python -m lib.base      (`make base`; about 20 CPU minutes on one thread, less on a GPU)

What it is pretrained on is in `lib.exercises`: related tasks, never the record that the study asks for.
"""

import hashlib
import json
import platform
import re
import time
from importlib.metadata import version
from pathlib import Path

from lib import exercises
from lib.exercises import exercise, exercise_writer
from lib.paths import BASE, RUNS
from lib.sentences import CORRECTED, KIN, TRAPS
from lib.synthetic import FACTS, INSTRUCTION

SEED = 0
VOCABULARY = 1024
TOKENS = 12_000_000  # pretraining tokens, padding not counted
BATCH_TOKENS = 4096
MATRIX_LR, EMBEDDING_LR = 0.02, 0.003  # Muon for the matrices, AdamW for embeddings and norms
PROMPT_WEIGHT = 0.1  # loss weight of a prompt token; an answer token weighs 1
WARM_UP_STEPS = 60
EASE_UNTIL = 0.3  # share of training over which the easy start fades out
DECAY_FROM = 0.6  # share of training after which the learning rates fall linearly

# Capitalised words have no space attached, so a name has the same tokens in a text and in a record; lower-case words
# carry the space after them; digits go in pairs, as months and days do; a JSON key with its marks is one piece.
PIECES = r'(?:\{|"?, )"[a-z_]+": |(?:, )?[a-z]+_[a-z]+|\p{N}{1,2}|\p{Lu}\p{L}*|\p{Ll}+ ?|\n+| |[^\s\p{L}\p{N}]+ ?|\s'
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ '<|assistant|>' }}"
    "{% generation %}{{ message['content'] + '<|end|>' }}{% endgeneration %}"
    "{% else %}{{ '<|user|>' + message['content'] }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def make_tokenizer():
    """The BPE tokenizer with its chat template; `<|end|>` ends a turn, `<|pad|>` is another token."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    writer = exercise_writer("tokenizer")
    corpus = [part for _ in range(6000) for part in exercise(writer, 0.3)]
    corpus += [INSTRUCTION] * 2000
    corpus += [f'{mark}"{key}": ' for key in ("name", *FACTS) for mark in ("{", ", ", '", ')] * 2000
    knots = [template for group in (KIN, *CORRECTED.values(), *TRAPS.values()) for template in group]
    corpus += [re.sub(r"\{.*?\}", "", template) for template in knots] * 100  # words that exercises lack
    corpus += [f"{number:02d}" for number in range(100)] * 300
    bpe.train_from_iterator(
        corpus,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=["<|pad|>", "<|user|>", "<|assistant|>", "<|end|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token="<|end|>", pad_token="<|pad|>", padding_side="left", model_max_length=512
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def make_model(tokenizer):
    """An untrained Qwen3 model: hidden 128, 4 layers, 4 heads sharing 2 key-value heads, tied embeddings."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(SEED)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=512,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen3ForCausalLM(config)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model


def batches(tokenizer):
    """Yields (ids_B_T, weights_B_T, tokens so far) until TOKENS: lists of rows of similar length, padding of weight 0.

    The easy start fades out over the first EASE_UNTIL of the tokens.
    """
    writer = exercise_writer(f"exercises-{SEED}")
    done = 0
    while True:
        ease = max(0.0, 1 - done / TOKENS / EASE_UNTIL)
        pairs = [exercise(writer, ease) for _ in range(512)]
        prompts = tokenizer([f"<|user|>{prompt}<|assistant|>" for prompt, _ in pairs])["input_ids"]
        answers = tokenizer([f"{answer}<|end|>" for _, answer in pairs])["input_ids"]
        rows = sorted(zip(prompts, answers, strict=True), key=lambda row: len(row[0]) + len(row[1]))
        groups = [[]]
        for row in rows:
            if (len(groups[-1]) + 1) * (len(row[0]) + len(row[1])) > BATCH_TOKENS:
                groups.append([])
            groups[-1].append(row)
        writer.random.shuffle(groups)
        for group in groups:
            longest = max(len(prompt) + len(answer) for prompt, answer in group)
            ids, weights = [], []
            for prompt, answer in group:
                padding = longest - len(prompt) - len(answer)
                ids.append(prompt + answer + [tokenizer.pad_token_id] * padding)
                weights.append([PROMPT_WEIGHT] * len(prompt) + [1.0] * len(answer) + [0.0] * padding)
                done += len(prompt) + len(answer)
            yield ids, weights, done
            if done >= TOKENS:
                return


def pretrain(model, tokenizer, device, at_eighth):
    """Trains in place for TOKENS tokens; calls `at_eighth(tokens)` at each eighth of the way, the last one too."""
    import torch
    from torch.nn.functional import cross_entropy

    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    optimizers = [
        torch.optim.Muon(matrices, lr=MATRIX_LR, weight_decay=0.05, momentum=0.95),
        torch.optim.AdamW(others, lr=EMBEDDING_LR, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    shown, eighths, start = 0.0, 0, time.perf_counter()
    model.to(device).train()
    for step, (ids, weights, done) in enumerate(batches(tokenizer), start=1):
        share = done / TOKENS
        pace = min(1.0, step / WARM_UP_STEPS, max(0.02, (1 - share) / (1 - DECAY_FROM)))
        for optimizer, rate in zip(optimizers, (MATRIX_LR, EMBEDDING_LR), strict=True):
            optimizer.param_groups[0]["lr"] = rate * pace
        ids_B_T, weights_B_T = torch.tensor(ids, device=device), torch.tensor(weights, device=device)
        logits_B_T_V = model(input_ids=ids_B_T[:, :-1]).logits
        targets, weight = ids_B_T[:, 1:].flatten(), weights_B_T[:, 1:].flatten()
        losses = cross_entropy(logits_B_T_V.flatten(0, 1), targets, reduction="none")
        loss = (losses * weight).sum() / weight.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        if time.perf_counter() - shown > 15 or share >= 1:
            shown = time.perf_counter()
            right = (logits_B_T_V.flatten(0, 1).argmax(-1) == targets)[weight == 1.0].float().mean()
            print(
                f"{shown - start:6.0f} s  step {step:5d}  {done / 1e6:5.2f}M tokens  loss {loss.item():.3f}  "
                f"answer tokens right {right.item():.3f}",
                flush=True,
            )
        if int(share * 8) > eighths:
            eighths = int(share * 8)
            at_eighth(done)


def save(model, tokenizer, folder, facts):
    """Writes model, tokenizer, made.json and README.md."""
    folder.mkdir(parents=True, exist_ok=True)
    model.config.architectures = ["Qwen3ForCausalLM"]
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "made.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(
        "# Tiny base model\n\n"
        "A Qwen3-shaped language model, pretrained from scratch by `make base` (`src/lib/base.py`) on invented text.\n"
        "`made.json` says with which seed, tokens, versions and source. It is a study object, of no other use.\n"
        "Licence: that of the repository it ships with.\n",
        encoding="utf-8",
    )


def source_sha256():
    """sha256 (hex) over this file and the exercises' one."""
    return hashlib.sha256(b"".join(Path(file).read_bytes() for file in (__file__, exercises.__file__))).hexdigest()


def main():
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    start, cpu_start, source = time.perf_counter(), time.process_time(), source_sha256()
    tokenizer = make_tokenizer()
    model = make_model(tokenizer)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters on {device}", flush=True)

    def keep(tokens):
        facts = {
            "tokens": tokens,
            "seed": SEED,
            "wall_s": round(time.perf_counter() - start),
            "cpu_s": round(time.process_time() - cpu_start),
            "threads": torch.get_num_threads(),
            "device": torch.cuda.get_device_name() if device == "cuda" else f"cpu ({platform.machine()})",
            "versions": {
                "python": platform.python_version(),
                **{name: version(name) for name in ("torch", "transformers", "tokenizers")},
            },
            "exercises_sha256": exercises.fingerprint(SEED),
            "source_sha256": source,
            "licence": "that of the repository",
        }
        # unfinished work stays in runs/: the shipped model is replaced by a finished one only
        save(model, tokenizer, BASE if tokens >= TOKENS else RUNS / "base", facts)

    pretrain(model, tokenizer, device, keep)
    print(f"saved in {BASE}", flush=True)


if __name__ == "__main__":
    main()
