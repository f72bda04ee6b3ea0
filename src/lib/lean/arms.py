"""SFT and DPO with the same gradient for less: TRL 1.16.0's trainers without the work that cannot change it.

Each saving is exact and has a name. Where a setting would make one inexact, it is off and a line says why. Weights in
bfloat16 and no gradient checkpointing save more than any of them; they are TRL's own switches, and are set there.
"""

import torch
from trl import DPOTrainer, SFTTrainer
from trl.trainer.dpo_trainer import DataCollatorForPreference
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from lib.lean import adapters, flat, modules, norms
from lib.lean.modules import OPTIONAL

SFT_SAVINGS = {
    "padding": "no padded position is computed, nor looked at (lib.lean.flat)",
    "instruction": "what all rows of a batch begin with is computed once",
} | modules.SAVINGS
DPO_SAVINGS = SFT_SAVINGS | {
    "prompt": "what a pair begins with, the prompt above all, is computed once (so is the instruction)",
    "reference": "the reference scores each pair once, before training, not once an epoch",
}
FORWARD = {"padding", "instruction", "prompt"} | modules.FORWARD  # those that compute the forward pass otherwise


class Lean(modules.LeanTrainer):
    """Mixin before SFTTrainer or DPOTrainer, and `savings`: which to use; all but the optional ones by default."""

    FORWARD = FORWARD

    def __init__(self, *args, savings=None, **kwargs):
        self.savings = frozenset()  # until the trainer stands
        super().__init__(*args, **kwargs)
        self._models = [m for m in (self.model, getattr(self, "ref_model", None)) if m is not None]
        self._norms = [norms.layers(m) for m in self._models]
        self._flat = [flat.Flat(m) for m in self._models]
        self.use(self.SAVINGS if savings is None else savings)

    def use(self, savings) -> None:
        """Use these savings from the next step on. Raises ValueError for an unknown name."""
        self.savings = modules.settle(savings, [*self.SAVINGS, *OPTIONAL], self._inexact(savings), self._say)
        self._checked = 0
        modules.keep_mode(self.model, "mode" in self.savings)

    def _inexact(self, savings) -> tuple:
        """(whether it holds, savings that it switches off, reason) of this trainer's settings."""
        args, everything, shared = self.args, [*self.SAVINGS, *OPTIONAL], ["instruction", "prompt"]
        rows = ["padding", *shared]
        collators = (DataCollatorForLanguageModeling, DataCollatorForPreference)
        packed = getattr(args, "packing", False) or getattr(self, "padding_free", False)
        not_plain = adapters.not_plain(self.model)
        return (
            (self.is_fsdp_enabled or self.is_deepspeed_enabled, everything, "the model is sharded"),
            (modules.has_dropout(self.model), FORWARD, "dropout draws anew in every pass"),
            (self._is_vlm, rows, "batches may hold images"),
            (self.aux_loss_enabled, rows, "the auxiliary loss of a mixture of experts counts every position"),
            (type(self.data_collator) not in collators, rows, "batches are not TRL's, which are padded on the right"),
            (packed, FORWARD, "batches without padding cannot be checked against stock ones"),
            (not modules.plain_attention(self.model), rows, "attention is not plain SDPA"),
            (not self._flat[0].configs, rows, "the layers' attention is not of the known form"),
            ("padding" not in savings, shared, "the rows run apart without padding"),
            (not_plain, ["casts", "lora"], not_plain),
            (self.accelerator.mixed_precision == "no", ["casts"], "no autocast takes their place"),
            (not self._norms[0], ["norms"], "the model has none of the known form"),
        )

    def _use_modules(self, savings) -> None:
        for model, found, rows in zip(self._models, self._norms, self._flat, strict=True):
            modules.use(model, found, savings)
            share = "pairs" if "prompt" in savings else "rows" if "instruction" in savings else None
            rows.use("padding" in savings, share)

    def compute_loss(self, model, inputs, *args, **kwargs):
        if self.model.training and torch.is_grad_enabled():
            self._check(inputs)
        return super().compute_loss(model, inputs, *args, **kwargs)

    def _check(self, inputs) -> None:
        """Compare with TRL's own log-probabilities on the longest and the shortest row (DPO: their pairs).

        On the first batch, and when a row is an eighth longer than any that was compared.
        """
        if not self.savings & FORWARD:
            return
        lengths = inputs["attention_mask"].sum(1)
        if not self._to_check(lengths):
            return
        rows, half = [int(lengths.argmax()), int(lengths.argmin())], len(lengths) // 2
        if self.PAIRS:
            rows = [row % half for row in rows] + [row % half + half for row in rows]
        batch = {k: inputs[k][rows] for k in ("input_ids", "attention_mask")}
        if self.PAIRS:
            batch["labels"] = batch["input_ids"].masked_fill(inputs["completion_mask"][rows] == 0, -100)
        else:
            batch["labels"] = inputs["labels"][rows]
        ours = self._logps(batch).detach()  # with gradients: as it trains
        with torch.no_grad(), self._modules(frozenset(), after=self.savings):
            stocks = self._logps(batch)
            filler = dict(input_ids=int(batch["input_ids"][0, 0]), attention_mask=0, labels=-100)
            again = self._logps({k: torch.nn.functional.pad(v, (32, 0), value=filler[k]) for k, v in batch.items()})
        self._compare(ours, stocks, again)

    def _logps(self, batch):
        with self.accelerator.autocast():
            out = self.model(**batch, use_cache=False, fused_lm_head=True)
        return out.log_probs[out.label_mask].float()


class LeanSFTTrainer(Lean, SFTTrainer):
    SAVINGS, PAIRS = SFT_SAVINGS, False


class LeanDPOTrainer(Lean, DPOTrainer):
    SAVINGS, PAIRS = DPO_SAVINGS, True

    def _inexact(self, savings) -> tuple:
        args = self.args
        return (
            *super()._inexact(savings),
            (args.precompute_ref_log_probs, ["reference"], "TRL does it itself (precompute_ref_log_probs)"),
            (args.sync_ref_model, ["reference"], "the reference follows the policy (sync_ref_model)"),
            (not hasattr(self.train_dataset, "add_column"), ["reference"], "the pairs are a stream"),
            (modules.has_dropout(self.model), ["reference"], "dropout draws anew in every pass"),
        )

    def train(self, *args, **kwargs):
        self.score_reference()
        return super().train(*args, **kwargs)

    def score_reference(self) -> None:
        """Score all pairs by the reference, once, so that no step does; nothing without the saving `reference`.

        `train` calls it where it was not called before. TRL's own switch does the same and hashes all weights first.
        """
        if "reference" not in self.savings or self.precompute_ref_logps:
            return
        scorer, size, found = self.ref_model or self.model, self.args.per_device_train_batch_size, []
        savings = self.savings
        with self.modules_in_use():
            for start in range(0, len(self.train_dataset), size):
                rows = [self.train_dataset[i] for i in range(start, min(start + size, len(self.train_dataset)))]
                batch = self._prepare_inputs(self.data_collator(rows))
                self._check(batch)
                found.append(torch.stack(self.compute_ref_log_probs(scorer, batch)))
        if self.savings != savings:  # a check failed: once more without what it dropped
            return self.score_reference()
        for name, logps in zip(("ref_chosen_logps", "ref_rejected_logps"), torch.cat(found, 1).tolist(), strict=True):
            self.train_dataset = self.train_dataset.add_column(name, logps)
        self.precompute_ref_logps = True  # the loss reads them from the batch
        self.ref_model = None
        del self._models[1:], self._norms[1:], self._flat[1:]
