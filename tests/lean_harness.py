"""A tiny Qwen3 and rollouts that need no engine, for the tests of the lean trainer; runs under torchrun too."""

import gc
import itertools
import random

import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from lib.lean.trainer import SAVINGS, LeanGRPOTrainer

gc.freeze()  # the Trainer collects garbage at each start: libraries need not be searched every time
VOCABULARY, GROUP = 64, 4
REWARDS = {
    "mixed": lambda group: [1.0] * GROUP if group % 2 else [0.0, 1.0, 0.5, 1.0],
    "none": lambda group: [0.0, 1.0, 0.5, 0.25 * group],  # no dead group
    "dead": lambda group: [1.0] * GROUP,
}


def tokenizer():
    words = {f"t{i}": i for i in range(VOCABULARY - 3)} | {"<pad>": 61, "<eos>": 62, "<unk>": 63}
    backend = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
    )


def tiny_model(**changes):
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=256, pad_token_id=61, eos_token_id=62,
        bos_token_id=None, initializer_range=0.2, tie_word_embeddings=True, **changes,
    )  # fmt: skip
    return Qwen3ForCausalLM(config)


class Rollouts:
    """Ragged rollouts and their log-probabilities, the same for every trainer; as an engine would give them."""

    def _generate_single_turn(self, prompt_ids, images, multimodal_fields, num_generations, has_tool_images=False):
        draw = random.Random(1000 * self._step + self.accelerator.process_index)
        ids = [[draw.randrange(VOCABULARY - 3) for _ in range(draw.randint(1, 9))] for _ in prompt_ids]
        ids = [c + [62] * (draw.random() < 0.8) for c in ids]
        return ids, [[-4 - 2 * draw.random() for _ in c] for c in ids]


class Gradients(TrainerCallback):
    def __init__(self):
        self.seen = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        grads = [p.grad for _, p in sorted(model.named_parameters()) if p.requires_grad]
        self.seen.append([g if g is None else g.detach().double().clone() for g in grads])


def trained(
    folder,
    kind,
    rewards="mixed",
    steps=1,
    savings=SAVINGS,
    lora=True,
    prompts=None,
    model=None,
    prepare=None,
    **settings,
):
    """(trainer, its gradients a step) after `steps` optimizer steps. kind: LeanGRPOTrainer, GRPOTrainer or a subclass.

    rewards: a key of REWARDS, or a list of them, one a generation, or a function of (process, generation).
    """
    draw = random.Random(5)
    prompts = prompts or [
        " ".join(f"t{draw.randrange(61)}" for _ in range(draw.choice([1, 1, 4, 9, 17]))) for _ in range(48)
    ]
    made = itertools.count()

    def reward(completions, **_):
        key = rewards
        if callable(rewards):
            key = rewards(trainer.accelerator.process_index, next(made))
        elif isinstance(rewards, list):
            key = rewards[next(made) % len(rewards)]
        return [r for g in range(len(completions) // GROUP) for r in REWARDS[key](g)]

    dropout = settings.pop("lora_dropout", 0.0)
    settings = dict(
        per_device_train_batch_size=8, gradient_accumulation_steps=2, num_generations=GROUP, max_completion_length=12,
        learning_rate=1e-2, weight_decay=0.1, bf16=False, beta=0.0, gradient_checkpointing=False,
    ) | settings  # fmt: skip
    args = GRPOConfig(
        output_dir=str(folder), max_steps=steps, logging_steps=1, save_strategy="no", report_to=[], use_cpu=True,
        disable_tqdm=True, seed=3, dataloader_pin_memory=False, **settings,
    )  # fmt: skip
    grads = Gradients()
    extra = dict(savings=savings) if issubclass(kind, LeanGRPOTrainer) else {}
    trainer = type("Tested", (Rollouts, kind), {})(
        model=model or tiny_model(), reward_funcs=reward, args=args, processing_class=tokenizer(), callbacks=[grads],
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        peft_config=LoraConfig(
            r=4, lora_alpha=8, lora_dropout=dropout, target_modules="all-linear", task_type="CAUSAL_LM"
        ) if lora else None,
        **extra,
    )  # fmt: skip
    torch.manual_seed(7)
    for name, p in trainer.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(p, std=0.05)
    trainer.use_vllm = True  # for the loss: rollouts have an engine's log-probabilities
    if prepare:
        prepare(trainer)
    torch.manual_seed(11)
    trainer.train()
    return trainer, grads.seen


def apart(ours, stocks):
    """Relative distance of two gradients (lists of tensors); 0 where both are exactly zero."""
    difference = sum((a - b).square().sum() for a, b in zip(ours, stocks, strict=True)).sqrt()
    size = sum(b.square().sum() for b in stocks).sqrt()
    return float(difference / size) if size > 0 else float(difference)


def weights(trainer):
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters() if p.requires_grad])


if __name__ == "__main__":  # torchrun: process 1 has no live group, then none has, then both have some
    import sys

    torch.set_num_threads(1)
    plan = lambda process, generation: ["dead" if process else "mixed", "dead", "mixed"][generation % 3]  # noqa: E731
    for loss in ("dapo", "grpo", "bnpo"):
        runs = [
            trained(f"{sys.argv[1]}/{loss}{kind.__name__}", kind, plan, steps=3, loss_type=loss, save_only_model=True)
            for kind in (GRPOTrainer, LeanGRPOTrainer)
        ]
        (stock, expected), (lean, found) = runs
        errors = [apart(a, b) for a, b in zip(found, expected, strict=True)]
        drift = float((weights(lean) - weights(stock)).abs().max())
        print(
            f"\nRESULT {lean.accelerator.num_processes} {loss} {errors[0]:.1e} {max(errors):.1e} {drift:.1e}",
            flush=True,
        )
