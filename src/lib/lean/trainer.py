"""GRPO with the same gradient for less: TRL 1.16.0's GRPOTrainer without the work that cannot change it.

Each saving is exact and has a name in `SAVINGS`. Where a setting would make one inexact, it is off and a line says why.
"""

import copy
import functools
import json
import math

import numpy as np
import torch
from datasets import Dataset
from trl import GRPOTrainer

from lib.lean import adapters, engine, flat, modules, norms
from lib.lean.micro_batches import RESHAPE, SCALES, MicroBatches
from lib.lean.modules import OPTIONAL

SAVINGS = {
    "drop": "rows whose advantage is exactly 0 are not forwarded; AdamW still steps, on zeros if none is left",
    "prefix": "what neighbouring rows begin with, a group's prompt above all, is forwarded once (lib.lean.flat)",
    "old": "on-policy, the old log-probabilities are the training pass's own: no pass without gradients before it",
    "pack": "micro-batches are filled by positions, not by rows",
    "trim": "padding that no row of a micro-batch needs is cut off",
    "checkpoint": "no recomputation in the backward pass, where a probe says that its memory is there",
    "sync": "the engine gets what changed, in one call, and nothing is merged into the base",
    "tokens": "a prompt is tokenised once, and made an array once, not once a rollout and step",
    "rows": "the rows of a generation are read from the data set once, not at every micro-batch",
    "rollouts": "the engine is asked once a prompt, and its text, which nobody reads, is not decoded",
} | modules.SAVINGS
FORWARD = {"prefix"} | modules.FORWARD  # those that compute the forward pass otherwise


class LeanGRPOTrainer(modules.LeanTrainer, MicroBatches, GRPOTrainer):
    """GRPOTrainer, and `savings`: which of `SAVINGS` (or `OPTIONAL`) to use; all by default, none is TRL's own path."""

    FORWARD = FORWARD

    def __init__(self, *args, savings=frozenset(SAVINGS), **kwargs):
        self.savings = frozenset()  # until the trainer stands
        super().__init__(*args, **kwargs)
        self._norms, self._flat = norms.layers(self.model), flat.Flat(self.model)
        self._flat.asked = False  # stock passes, evaluation among them, pad prompts on the left
        self._loader, self._prompt_ids = None, {}
        self._scoring = self._known_rewards = self._correcting = None
        self.use(savings)

    def use(self, savings) -> None:
        """Use these savings from the next generation on. Raises ValueError for an unknown name."""
        self.savings = modules.settle(savings, [*SAVINGS, *OPTIONAL], self._inexact(), self._say)
        self._checked, self._budget, self._sent = 0, None, None
        if self.args.gradient_checkpointing:
            self.model.gradient_checkpointing_enable(self.args.gradient_checkpointing_kwargs)
        self._use_modules(self.savings)
        self._place_rows()
        modules.keep_mode(self.model, "mode" in self.savings)
        if self.use_vllm:
            for saving, name, method in (
                ("sync", "sync_weights", self._sync_weights),
                ("rollouts", "generate", functools.partial(engine.generate, self.vllm_generation)),
            ):
                self.vllm_generation.__dict__.pop(name, None)
                if saving in self.savings:
                    setattr(self.vllm_generation, name, method)

    def _use_modules(self, savings) -> None:
        modules.use(self.model, self._norms, savings)
        self._flat.use("prefix" in savings, share="rows")

    def _inexact(self) -> tuple:
        """(whether it holds, savings that it switches off, reason) of this trainer's settings."""
        args = self.args
        window, slots = args.gradient_accumulation_steps, args.steps_per_generation
        rows, rows_of = [*RESHAPE, "trim", "old"], self.train_dataset
        asked, layers, everything = ["sync", "rollouts"], ["casts", "lora"], [*SAVINGS, *OPTIONAL]
        server = self.use_vllm and (
            self.vllm_mode != "colocate" or args.vllm_tensor_parallel_size > 1 or args.vllm_enable_sleep_mode
        )
        not_plain = adapters.not_plain(self.model)
        return (
            (self.is_fsdp_enabled or self.is_deepspeed_enabled, everything, "the model is sharded"),
            (modules.has_dropout(self.model), [*rows, *FORWARD, "checkpoint"], "dropout draws anew in every pass"),
            (self._is_vlm, [*rows, "tokens", "rollouts"], "prompts hold images"),
            (self.beta != 0, rows, "beta is not 0, so every row feels the reference model"),
            (self._entropy_bonus_enabled, rows, "the entropy bonus acts on every row"),
            (self.top_entropy_quantile < 1, rows, "top_entropy_quantile compares the tokens of all rows"),
            (self.aux_loss_enabled, rows, "the auxiliary loss of a mixture of experts counts every row"),
            (self.loss_type not in SCALES, rows, f"not proven for loss_type {self.loss_type}"),
            (self.off_policy_mask_threshold is not None, rows, "not proven with off_policy_mask_threshold"),
            (window % slots and slots % window, rows, "generations and optimizer steps are not aligned"),
            (window % (slots * self.num_iterations), ["old"], "some steps train on rollouts of earlier weights"),
            (self.multi_objective_aggregation != "sum_then_normalize", ["drop"], "rewards are normalised over groups"),
            (self.rollout_func is not None, ["drop", "rollouts"], "a rollout_func makes the rollouts"),
            (not modules.plain_attention(self.model), ["prefix"], "attention is not plain SDPA"),
            (not self._flat.configs, ["prefix"], "the layers' attention is not of the known form"),
            (self.tools or self.environment_factories is not None, ["tokens"], "prompts depend on tools"),
            (not_plain, [*layers, "sync"], not_plain),
            (not isinstance(rows_of, Dataset) or rows_of.format["type"], ["rows"], "the data set makes its rows anew"),
            (self.accelerator.mixed_precision == "no", ["casts"], "no autocast takes their place"),
            (not self._norms, ["norms"], "the model has none of the known form"),
            (not self.use_vllm, asked, "no vLLM engine"),
            (server, asked, "the engine is shared, split or sleeps"),
        )

    @property
    def skips_old_pass(self) -> bool:
        """Whether no pass without gradients comes before the training pass."""
        return "old" in self.savings and self.use_vllm and self.vllm_importance_sampling_correction

    # Rollouts

    def get_train_dataloader(self):
        """TRL's loader, which yields the rows of a generation once a micro-batch, over rows that are kept between."""
        if isinstance(self.train_dataset, Dataset):
            self.train_dataset = copy.copy(self.train_dataset)  # the caller's own stays as it is
            read, last = self.train_dataset.__getitems__, [None, None]

            def read_once(indices):
                if "rows" not in self.savings or indices != last[0]:
                    last[:] = list(indices), read(indices)
                return last[1]

            self.train_dataset.__getitems__ = read_once
        self._loader = super().get_train_dataloader()
        self._place_rows()
        return self._loader

    def _place_rows(self) -> None:
        """Whether the loader looks for tensors in its rows, to move them to the device."""
        if self._loader is not None:
            self._loader.device = None if "rows" in self.savings else self.accelerator.device

    def _tokenize_prompts(self, prompts):
        if "tokens" not in self.savings:
            return super()._tokenize_prompts(prompts)
        keys = [json.dumps(p, sort_keys=True, ensure_ascii=False) for p in prompts]
        new = {k: p for k, p in zip(keys, prompts, strict=True) if k not in self._prompt_ids}
        if new:
            ids, images, fields = super()._tokenize_prompts(list(new.values()))
            if images is not None or fields:
                raise ValueError("prompts hold more than text: leave 'tokens' out of savings")
            self._prompt_ids |= zip(new, ids, strict=True)
        return [self._prompt_ids[k] for k in keys], None, {}

    def _sync_weights(self) -> None:
        everything = self._sent is None
        self._sent = self._sent or adapters.weights(self.model)
        engine.load_weights(self.vllm_generation, self._sent, everything)

    # Scoring

    def _generate_and_score_completions(self, inputs):
        self._scoring, self._known_rewards, self._live = inputs, None, None
        try:
            out = super()._generate_and_score_completions(inputs)
        finally:
            self._scoring = None
        if self.model.training and (self.skips_old_pass or self._live is not None):
            # Rows that were not forwarded hold NaN, which must reach neither the loss nor the metrics.
            if self.skips_old_pass or not self._live.any():
                for values in [v for k, v in self._metrics["train"].items() if k.startswith("sampling/") and v]:
                    values.pop()
            if "old_per_token_logps" in out:
                out["old_per_token_logps"] = out["old_per_token_logps"].nan_to_num(0.0)
        return out

    def _generate(self, prompts):
        out = super()._generate(prompts)
        if self._scoring is not None and self.model.training and "drop" in self.savings and not self.skips_old_pass:
            # Rewards before the pass without gradients, which then leaves dead rows out too; TRL's call gets these.
            rewards = self._calculate_rewards(self._scoring, prompts, out[3], out[1])
            self._known_rewards = rewards
            weighted = (rewards * self.reward_weights.to(rewards.device)).nansum(1).view(-1, self.num_generations)
            weighted[rewards.isnan().all(1).view_as(weighted)] = torch.nan
            live = (weighted - weighted.nanmean(1, keepdim=True)).nan_to_num(0.0).flatten() != 0
            self._live = live[self.accelerator.process_index * len(prompts) :][: len(prompts)]
        if "tokens" not in self.savings:
            return out
        arrays = {id(ids): ids for ids in out[0]}  # a prompt's rollouts share its list
        arrays = {key: np.array(ids, dtype=np.int64) for key, ids in arrays.items()}  # read by TRL as tensors, at once
        return [arrays[id(ids)] for ids in out[0]], *out[1:]

    def _calculate_rewards(self, *args):
        return super()._calculate_rewards(*args) if self._known_rewards is None else self._known_rewards

    # Loss

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        if inputs is not None:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        if self.accelerator.sync_gradients:  # a gradient of zero moves AdamW (momentum, decay); no gradient does not
            for p in self.model.parameters():
                if p.requires_grad and p.grad is None:
                    p.grad = torch.zeros_like(p)
        return torch.zeros((), device=self.accelerator.device, requires_grad=True)

    def _compute_loss(self, model, inputs):
        if self.model.training and self.skips_old_pass:
            inputs = {k: v for k, v in inputs.items() if k != "old_per_token_logps"}  # TRL takes the pass's own then
            self._correcting = inputs
        try:
            return super()._compute_loss(model, inputs)
        finally:
            self._correcting = None

    def _get_per_token_logps_and_entropies(self, model, input_ids, attention_mask, logits_to_keep, **kwargs):
        parts = (model, input_ids, attention_mask, logits_to_keep)
        if not self.model.training:
            return super()._get_per_token_logps_and_entropies(*parts, **kwargs)
        if not torch.is_grad_enabled() and self.skips_old_pass:
            return input_ids.new_full((len(input_ids), logits_to_keep), torch.nan, dtype=torch.float32), None, None
        if not torch.is_grad_enabled() and self._live is not None:
            logps = input_ids.new_full((len(input_ids), logits_to_keep), torch.nan, dtype=torch.float32)
            for part in self._live.nonzero().flatten().split(kwargs.get("batch_size") or len(input_ids)):
                rows = self._forward(model, input_ids[part], attention_mask[part], logits_to_keep, **kwargs)
                logps[part] = rows[0].float()
            return logps, None, None
        if torch.is_grad_enabled() and self.savings & FORWARD:
            self._check(*parts[1:])
        out = self._forward(*parts, **kwargs)
        if self._correcting is not None:
            self._correcting["importance_sampling_ratio"] = self._ratio(out[0].detach(), self._correcting)
        return out

    def _forward(self, model, input_ids, attention_mask, width, **kwargs):
        if "prefix" not in self.savings:
            return super()._get_per_token_logps_and_entropies(model, input_ids, attention_mask, width, **kwargs)
        parts = (self.accelerator.autocast(), input_ids, attention_mask, width)
        return *flat.completion_logps(model, self._flat, *parts), None

    def _ratio(self, logps, batch):
        """Importance-sampling ratio of engine and trainer as TRL computes it, and its metrics."""
        mask = batch["completion_mask"] * batch.get("tool_mask", 1)
        gap = torch.nan_to_num((logps - batch["sampling_per_token_logps"]) * mask, nan=0.0)
        mode, low, high = (
            self.vllm_importance_sampling_mode, self.vllm_importance_sampling_clip_min,
            self.vllm_importance_sampling_clip_max,
        )  # fmt: skip
        ratio = torch.exp(gap.sum(-1, keepdim=True) if mode.startswith("sequence") else gap)
        if mode.endswith("truncate"):
            ratio = ratio.clamp(min=low, max=high)
        else:
            outside = (ratio < (-math.inf if low is None else low)) | (ratio > (math.inf if high is None else high))
            ratio = ratio.masked_fill(outside, 0.0)
        shown = ratio.flatten() if mode.startswith("sequence") else ratio[mask.bool()]
        means = torch.stack([gap.abs().sum() / mask.sum().clamp(min=1), shown.mean()])
        means = self.accelerator.gather(means[None]).mean(0).tolist()
        self._metrics["train"]["sampling/sampling_logp_difference/mean"].append(means[0])
        self._metrics["train"]["sampling/importance_sampling_ratio/mean"].append(means[1])
        return ratio

    def _check(self, input_ids, attention_mask, width) -> None:
        """Compare with TRL's own log-probabilities on the longest row and one that shares its prompt.

        On the first micro-batch, and when a row is an eighth longer than any that was compared.
        """
        longest = attention_mask.sum(1)
        if not self._to_check(longest):
            return
        first = int(longest.argmax())
        split = input_ids.shape[1] - width
        same = ((input_ids == input_ids[first]) & (attention_mask == attention_mask[first]))[:, :split].all(1)
        rows = torch.cat([longest.new_tensor([first]), same.nonzero().flatten()]).unique()[:4]
        ids, mask = input_ids[rows], attention_mask[rows]
        scored = mask[:, split:].bool()
        stock = super()._get_per_token_logps_and_entropies
        model = self.model  # not the wrapper that reduces gradients
        lean = self._forward(model, ids, mask, width)[0].detach()[scored].float()  # with gradients: as it trains
        with torch.no_grad(), self._modules(frozenset(), after=self.savings):
            own = stock(model, ids, mask, width)[0][scored].float()
            padded = [torch.nn.functional.pad(x, (32, 0), value=v) for x, v in ((ids, ids[0, 0]), (mask, 0))]
            again = stock(model, *padded, width)[0][scored].float()
        self._compare(lean, own, again)
