"""Log-probabilities of completions and the DPO checks that rest on them."""

import math
from pathlib import Path

from lib.data import CHAT

# What every DPO checkpoint is judged on: so many training pairs, and the pairs of so many held-out documents.
TRAIN_PAIRS, HELDOUT_DOCUMENTS = 48, 128


def completion_logps(
    model, tokenizer, prompts: list, completions: list[str], batch: int = 16
) -> tuple[list[float], list[int]]:
    """Summed log-probability of each completion given its chat prompt, and its number of tokens (end token included).

    Returns two lists of length N. sum_t log pi(y_t | x, y_<t), as in Rafailov et al. 2023 (arXiv:2305.18290), eq. 7.
    Completions stand at the right edge of a batch, so that logits are made for their positions alone.
    """
    import torch

    device, found = model.device, [None] * len(prompts)
    heads = [tokenizer.apply_chat_template(p, tokenize=False, add_generation_prompt=True, **CHAT) for p in prompts]
    heads = tokenizer(heads, add_special_tokens=False)["input_ids"]
    tails = [ids + [tokenizer.eos_token_id] for ids in tokenizer(completions, add_special_tokens=False)["input_ids"]]
    was_training = model.training
    model.eval()
    order = sorted(range(len(heads)), key=lambda i: len(heads[i]) + len(tails[i]))  # like lengths together
    for start in range(0, len(order), batch):
        rows = order[start : start + batch]
        width = max(len(heads[i]) + len(tails[i]) for i in rows)
        kept = max(len(tails[i]) for i in rows)  # the last positions, of completions
        ids_B_T = torch.full((len(rows), width), tokenizer.pad_token_id)
        mask_B_T = torch.zeros_like(ids_B_T)
        target_B_T = torch.zeros(len(rows), kept, dtype=torch.bool)
        for row, i in enumerate(rows):
            ids_B_T[row, width - len(heads[i]) - len(tails[i]) :] = torch.tensor(heads[i] + tails[i])
            mask_B_T[row, width - len(heads[i]) - len(tails[i]) :] = 1
            target_B_T[row, kept - len(tails[i]) :] = True
        ids_B_T, mask_B_T, target_B_T = ids_B_T.to(device), mask_B_T.to(device), target_B_T.to(device)
        places_B_T = (mask_B_T.cumsum(-1) - 1).clamp(min=0)
        inputs = dict(input_ids=ids_B_T, attention_mask=mask_B_T, position_ids=places_B_T)
        with torch.inference_mode():
            logits = model(**inputs, logits_to_keep=kept + 1).logits[:, :-1].float()
        logps_B_T = logits.log_softmax(-1).gather(-1, ids_B_T[:, -kept:, None]).squeeze(-1) * target_B_T
        for i, total in zip(rows, logps_B_T.sum(-1).tolist(), strict=True):
            found[i] = total
    model.train(was_training)
    return found, [len(tail) for tail in tails]


def checkpoints(run, checkpoints: dict, sets: dict, greedy: dict, base: Path, dtype: str):
    """The table `likelihood`: log-probs of fixed pairs under every checkpoint {step: folder}, booked as evaluation.

    sets: {"train" or the split: pairs}, each pair {id, prompt, chosen, rejected}. greedy: {step: {id: answer}}; a pair
    whose id has one is judged on that too. dtype: of the base weights. A row a (step, set, id): `chosen_logp`,
    `rejected_logp`, `greedy_logp` (nats, summed; missing without an answer) and `*_tokens` (end token included).
    An answer is tokenised again from its text, and taken to end, as the chosen and rejected ones are. Done
    checkpoints are kept in `likelihood/`, so that an interrupted evaluation goes on where it stopped.
    """
    import pandas as pd

    from lib import clock, decode

    done = run.folder / "likelihood"
    done.mkdir(exist_ok=True)
    tables = []
    with run.clock.phase("evaluation"):
        tokenizer = decode.load_tokenizer(base)
        for step, folder in checkpoints.items():
            path = done / f"{step}.json"
            if not path.exists():
                model = decode.load_policy(base, folder, dtype)
                by_set = [_judged(model, tokenizer, name, pairs, greedy[step]) for name, pairs in sets.items()]
                clock.write_json(path, sum(by_set, []))
                del model
            tables.append(pd.DataFrame(clock.read_json(path)).assign(step=step))
    table = pd.concat(tables, ignore_index=True)
    sides = [f"{side}_{measure}" for side in ("chosen", "rejected", "greedy") for measure in ("logp", "tokens")]
    return table.reindex(columns=["step", "set", "id", *sides])


def _judged(model, tokenizer, name: str, pairs: list[dict], greedy: dict[str, str]) -> list[dict]:
    """Rows of one set of pairs under one model, without the step."""
    if not pairs:
        return []  # no held-out document had a wrong sample
    rows = [{"set": name, "id": pair["id"]} for pair in pairs]
    texts = {side: {i: pair[side] for i, pair in enumerate(pairs)} for side in ("chosen", "rejected")}
    texts["greedy"] = {i: greedy[pair["id"]] for i, pair in enumerate(pairs) if pair["id"] in greedy}
    asked = [(side, i, text) for side, by_row in texts.items() for i, text in by_row.items()]
    logps, lengths = completion_logps(
        model, tokenizer, [pairs[i]["prompt"] for _, i, _ in asked], [text for *_, text in asked]
    )
    for (side, i, _), logp, length in zip(asked, logps, lengths, strict=True):
        rows[i] |= {f"{side}_logp": logp, f"{side}_tokens": length}
    return rows


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
    counted = [c for c in steps if c.startswith("forward_") or c == "peak_memory_bytes"]  # lib.meter's
    table = table.join(steps[counted]).join(tokens, on="step")
    for side in ("chosen", "rejected"):
        table[f"{side}_logp_token"] = table[f"{side}_logp"] * table["pairs"] / table[f"{side}_tokens"]
    return table
