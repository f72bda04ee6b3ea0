"""Log-probabilities of completions and the DPO checks that rest on them."""

import math

from lib.data import CHAT


def completion_logps(
    model, tokenizer, prompts: list, completions: list[str], batch: int = 16
) -> tuple[list[float], list[int]]:
    """Summed log-probability of each completion given its chat prompt, and its number of tokens (end token included).

    Returns two lists of length N. sum_t log pi(y_t | x, y_<t), as in Rafailov et al. 2023 (arXiv:2305.18290), eq. 7.
    """
    import torch

    device, sums, lengths = model.device, [], []
    heads = [tokenizer.apply_chat_template(p, tokenize=False, add_generation_prompt=True, **CHAT) for p in prompts]
    heads = tokenizer(heads, add_special_tokens=False)["input_ids"]
    tails = [ids + [tokenizer.eos_token_id] for ids in tokenizer(completions, add_special_tokens=False)["input_ids"]]
    was_training = model.training
    model.eval()
    for start in range(0, len(heads), batch):
        pairs = list(zip(heads[start : start + batch], tails[start : start + batch], strict=True))
        width = max(len(h) + len(t) for h, t in pairs)
        ids_B_T = torch.full((len(pairs), width), tokenizer.pad_token_id)
        mask_B_T = torch.zeros_like(ids_B_T)
        target_B_T = torch.zeros_like(ids_B_T, dtype=torch.bool)
        for row, (head, tail) in enumerate(pairs):
            ids_B_T[row, : len(head) + len(tail)] = torch.tensor(head + tail)
            mask_B_T[row, : len(head) + len(tail)] = 1
            target_B_T[row, len(head) : len(head) + len(tail)] = True
        ids_B_T, mask_B_T, target_B_T = ids_B_T.to(device), mask_B_T.to(device), target_B_T.to(device)
        with torch.inference_mode():
            logits = model(input_ids=ids_B_T, attention_mask=mask_B_T).logits[:, :-1].float()
        logps_B_T = logits.log_softmax(-1).gather(-1, ids_B_T[:, 1:, None]).squeeze(-1) * target_B_T[:, 1:]
        sums += logps_B_T.sum(-1).tolist()
        lengths += target_B_T.sum(-1).tolist()
    model.train(was_training)
    return sums, lengths


def check_dpo_start(trainer) -> dict:
    """Before the first step the policy is the reference: loss ln 2, both rewards 0. Returns what was found.

    Raises RuntimeError otherwise: the reference is then another model than the shared start (for instance the base
    without its adapter), and every figure of the run would mean something else. In bfloat16 the two passes may differ
    by rounding, hence the tolerance of 1e-2 in the loss and 5e-2 in a reward (beta times a sum over the tokens).
    """
    import torch

    trainer.model.train()  # the metrics of a step are filed under the model's mode
    with torch.random.fork_rng(), torch.no_grad():
        inputs = trainer._prepare_inputs(next(iter(trainer.get_train_dataloader())))
        loss = trainer.compute_loss(trainer.model, inputs).item()
    metrics = {key: values[-1] for key, values in trainer._metrics["train"].items() if values}
    trainer._metrics["train"].clear()
    trainer._total_train_tokens = 0
    found = {"loss": loss, "rewards_chosen": metrics["rewards/chosen"], "rewards_rejected": metrics["rewards/rejected"]}
    worst = max(abs(found["rewards_chosen"]), abs(found["rewards_rejected"]))
    if abs(loss - math.log(2)) > 1e-2 or worst > 5e-2:
        raise RuntimeError(
            f"DPO does not start at its reference: loss {loss:.4f} (expected ln 2 = {math.log(2):.4f}), rewards "
            f"{found['rewards_chosen']:.4f} and {found['rewards_rejected']:.4f} (expected 0): wrong reference model"
        )
    return found


def merge_gap(model, tokenizer, prompts: list, completions: list[str]) -> float | None:
    """Mean absolute change of a completion's log-probability when the LoRA adapter is merged into the base weights.

    In nats a completion. None for a model without an adapter: there is nothing to merge.
    """
    if not hasattr(model, "merge_adapter"):
        return None
    apart, _ = completion_logps(model, tokenizer, prompts, completions)
    model.merge_adapter()
    merged, _ = completion_logps(model, tokenizer, prompts, completions)
    model.unmerge_adapter()
    return sum(abs(a - b) for a, b in zip(apart, merged, strict=True)) / len(apart)


def phases(trainer) -> dict:
    """The phase of each timed method of a DPOTrainer, for `Run.watch`.

    TRL runs the reference inside `compute_loss`, without gradients: by its own model, or by an adapter of the policy's.
    """
    import torch

    found = {
        "compute_loss": "forward_grad",
        "model.forward": lambda: "forward_grad" if torch.is_grad_enabled() else "forward_reference",
    }
    return found | ({"ref_model.forward": "forward_reference"} if trainer.ref_model is not None else {})


def restore_policy(trainer, checkpoint: str) -> None:
    """On resume, put the checkpoint's adapter back into the policy.

    TRL saves the reference as a second adapter in a subfolder, and transformers 5.17 (not 5.24) then restores the
    subfolders alone: the policy would silently begin again from the shared start.
    """
    from pathlib import Path

    from transformers import TrainerCallback

    weights = Path(checkpoint) / "adapter_model.safetensors"

    class Restore(TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            from peft import set_peft_model_state_dict
            from safetensors.torch import load_file

            set_peft_model_state_dict(trainer.model, load_file(weights), adapter_name="default")

    if weights.exists():
        trainer.add_callback(Restore())


def count_completion_tokens(trainer, run) -> None:
    """Keep the completion tokens of each DPO batch in `tokens.jsonl`: TRL logs log-probs as sums only.

    A batch holds the chosen rows, then the rejected ones (TRL's DataCollatorForPreference).
    """
    import torch

    from lib import clock

    compute_loss = trainer.compute_loss

    def counted(model, inputs, *args, **kwargs):
        if torch.is_grad_enabled():
            chosen, rejected = inputs["completion_mask"].sum(-1).chunk(2)
            row = {"pairs": len(chosen), "chosen_tokens": int(chosen.sum()), "rejected_tokens": int(rejected.sum())}
            clock.append(run.folder / "tokens.jsonl", {"step": trainer.state.global_step + 1, **row})
        return compute_loss(model, inputs, *args, **kwargs)

    trainer.compute_loss = counted


def dpo_steps(folder):
    """The steps table of a DPO run: TRL's metrics under the field's names, log-probs also per token.

    chosen_logp, rejected_logp: summed over the completion, mean over the step's pairs; *_token: the same sum over all
    pairs divided by all their completion tokens.
    """
    import pandas as pd

    from lib import clock, runs

    steps = runs.logged_steps(folder)
    tokens = pd.DataFrame(clock.read_lines(folder / "tokens.jsonl"))
    # A step trained twice (after an interruption) counted its tokens twice: keep the last.
    tokens = tokens.drop_duplicates("step", keep="last").set_index("step")
    table = pd.DataFrame(
        {
            "step": steps["step"],
            "loss": steps["loss"],
            "learning_rate": steps["learning_rate"],
            "grad_norm": steps["grad_norm"],
            "chosen_logp": steps["logps/chosen"],
            "rejected_logp": steps["logps/rejected"],
            "accuracy": steps["rewards/accuracies"],
            "margin": steps["rewards/margins"],
            "chosen_reward": steps["rewards/chosen"],
            "rejected_reward": steps["rewards/rejected"],
            "entropy": steps["entropy"],
        }
    )
    table = table.join(tokens, on="step")
    for side in ("chosen", "rejected"):
        table[f"{side}_logp_token"] = table[f"{side}_logp"] * table["pairs"] / table[f"{side}_tokens"]
    return table
