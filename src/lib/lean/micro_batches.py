"""How the lean trainer deals rollouts to micro-batches: the same gradient as TRL's, from fewer and fuller ones."""

import itertools

import torch

# What the loss of a micro-batch must be scaled by, so that other micro-batches add up to the gradient of TRL's.
SCALES = {"dapo": "none", "cispo": "none", "grpo": "rows", "dr_grpo": "rows", "bnpo": "tokens"}
RESHAPE = {"drop", "prefix", "pack"}  # the savings that deal rows to micro-batches anew


class MicroBatches:
    """Mixin before GRPOTrainer: `_prepare_inputs` for the savings drop, prefix, pack, trim and checkpoint."""

    def _prepare_inputs(self, generation_batch):
        if not self.model.training or not self.savings & {*RESHAPE, "trim", "checkpoint"}:
            return super()._prepare_inputs(generation_batch)
        slots = self.args.steps_per_generation
        if self._step % (slots * self.num_iterations) == 0 or self._buffered_inputs is None:
            self._buffered_inputs = self._micro_batches(self._generate_and_score_completions(generation_batch))
        return self._buffered_inputs[self._step % slots]

    def _micro_batches(self, rollouts: dict) -> list:
        """The micro-batches of all slots up to the next generation; None where nothing is left to do."""
        advantages, slots = rollouts["advantages"].tolist(), self.args.steps_per_generation
        chunks = torch.randperm(len(advantages)).view(slots, -1).tolist()  # TRL's shuffle: the same draw, same chunks
        if not self.savings & RESHAPE:
            self._positions(rollouts, [(0, chunks[0])], len(chunks[0]))
            return [self._rows(rollouts, chunk) for chunk in chunks]
        prompts = rollouts["prompt_mask"].sum(1).tolist()
        lengths = rollouts["completion_mask"].sum(1).tolist()
        trained = rollouts["completion_mask"] * rollouts.get("tool_mask", 1)
        tokens = trained.sum(1).tolist()
        chunk_tokens = {i: max(1, sum(tokens[j] for j in chunk)) for chunk in chunks for i in chunk}
        window, batches = min(self.args.gradient_accumulation_steps, slots), []
        for first in range(0, slots, window):
            rows = sorted(i for chunk in chunks[first : first + window] for i in chunk)
            if "drop" in self.savings:
                rows = [i for i in rows if advantages[i] != 0]
            most = None if "pack" in self.savings else len(chunks[0])
            units = self._units(rows, prompts, lengths, most)
            budget = self._positions(rollouts, units, len(chunks[0]))
            plan = fill(units, window, budget, most, padded="prefix" not in self.savings)
            batches += self._aligned(plan, window, rollouts, chunk_tokens)
        return batches

    def _units(self, rows, prompts, lengths, most) -> list:
        """(positions, rows) of what stays together: a group with one prompt, or a row."""
        if "prefix" not in self.savings:
            return [(prompts[i] + lengths[i], [i]) for i in rows]
        before = self.accelerator.process_index * len(prompts)
        groups = [list(g) for _, g in itertools.groupby(rows, key=lambda i: (before + i) // self.num_generations)]
        groups = [g[k : k + (most or len(g))] for g in groups for k in range(0, len(g), most or len(g))]
        return [(prompts[g[0]] + sum(lengths[i] for i in g), g) for g in groups]

    def _positions(self, rollouts, units, rows) -> float:
        """Positions that a micro-batch may hold: as many as TRL's, or on a GPU as many as a probe says that fit."""
        stock = rows * (rollouts["prompt_ids"].shape[1] + rollouts["completion_ids"].shape[1])
        if self._budget is None and units and torch.cuda.is_available() and self.savings & {"checkpoint", "pack"}:
            self._budget = self._probe(rollouts, max(units)[1][: self.num_generations], stock)
        return self._budget or stock

    def _probe(self, rollouts, rows, stock) -> float:
        """Forward a few rows without checkpointing; switch it off where the memory for it is there.

        Returns the positions whose activations fit then, or `stock` where checkpointing stays.
        """
        batch = self._rows(rollouts, rows)
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
        mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
        positions = ids.numel()
        if "prefix" in self.savings:  # the rows are of one group
            positions = int(mask.sum() - (len(rows) - 1) * batch["prompt_mask"].sum(1).max())
        self.model.gradient_checkpointing_disable()
        before = torch.cuda.memory_allocated()
        held = self._forward(self.model, ids, mask, batch["completion_ids"].shape[1], compute_entropy=True)
        each = (torch.cuda.memory_allocated() - before) / positions
        del held
        free = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        fits = 0.7 * free / each
        needed = positions if {"prefix", "pack"} <= self.savings else stock
        keep = self.args.gradient_checkpointing and ("checkpoint" not in self.savings or fits < needed)
        if keep:
            self.model.gradient_checkpointing_enable(self.args.gradient_checkpointing_kwargs)
        self._say(
            f"{each / 2**20:.2f} MiB a position without checkpointing, room for {fits:.0f} positions: gradient "
            f"checkpointing {'stays on' if keep else 'is off'}"
        )
        return stock if keep else fits

    def _aligned(self, plan, window, rollouts, chunk_tokens) -> list:
        """Micro-batches of a window, empty ones first (the last one reduces gradients), equal on all processes."""
        if self.accelerator.num_processes > 1:
            # Every process runs as many micro-batches of as many rows; -1 stands for a row of one token, advantage 0.
            sizes = [len(rows) for rows in plan] + [0] * (window - len(plan))
            sizes = torch.tensor(sizes, device=self.accelerator.device)
            most = self.accelerator.gather(sizes).view(-1, window).amax(0).tolist()
            most = [n for n in most if n] or [1]
            plan = [(plan[k] if k < len(plan) else []) for k in range(len(most))]
            plan = [rows + [-1] * (n - len(rows)) for rows, n in zip(plan, most, strict=True)]
        done = [self._rows(rollouts, rows, chunk_tokens) for rows in plan]
        return [None] * (window - len(done)) + done

    def _rows(self, rollouts, rows, chunk_tokens=None) -> dict:
        """A micro-batch of these rows, whose loss adds up with the others' to TRL's."""
        index = torch.tensor(rows, device=rollouts["advantages"].device)
        filler, index = index < 0, index.clamp(min=0)
        batch = {k: v[index] if torch.is_tensor(v) and v.ndim else v for k, v in rollouts.items()}
        if chunk_tokens:
            if filler.any():
                batch["advantages"] = batch["advantages"].masked_fill(filler, 0.0)
                batch["completion_mask"][filler, 1:] = 0
            scale = SCALES[self.loss_type]
            if scale == "rows":  # TRL's mean is over the rows of a full micro-batch
                batch["advantages"] = batch["advantages"] * (len(rows) / self.args.per_device_train_batch_size)
            elif scale == "tokens":  # and its mean over tokens over those of the row's own micro-batch
                mine = (batch["completion_mask"] * batch.get("tool_mask", 1)).sum().clamp(min=1)
                own = torch.tensor([chunk_tokens[max(i, 0)] for i in rows], device=index.device)
                batch["advantages"] = batch["advantages"] * (mine / own)
        if "trim" in self.savings:
            prompt = int(batch["prompt_mask"].sum(1).max())
            width = max(1, int(batch["completion_mask"].sum(1).max()))
            full = batch["completion_ids"].shape[1]
            for k, v in batch.items():
                if k in ("prompt_ids", "prompt_mask"):
                    batch[k] = v[:, v.shape[1] - prompt :]
                elif torch.is_tensor(v) and v.ndim == 2 and v.shape[1] == full:
                    batch[k] = v[:, :width]
        return batch


def fill(units: list[tuple[int, list]], slots: int, budget: float, rows: int | None, padded: bool) -> list[list]:
    """Deal units (positions, rollouts) to at most `slots` micro-batches, long ones first.

    A micro-batch costs the positions of its units, or where rows are padded its number of units x the longest, and
    holds at most `budget`; or, where `rows` is given, at most that many rollouts whatever their length. When the slots
    do not suffice, the budget grows.
    """
    units = sorted(units, key=lambda unit: -unit[0])
    while True:
        batches: list[list] = []
        for positions, members in units:
            last = batches[-1] if batches else []
            if rows is not None:
                full = sum(len(m) for _, m in last) + len(members) > rows
            elif padded:
                full = (len(last) + 1) * max([positions, *(p for p, _ in last)]) > budget
            else:
                full = positions + sum(p for p, _ in last) > budget
            if full or not batches:
                batches.append([])
            batches[-1].append((positions, members))
        if len(batches) <= slots:
            return [[i for _, members in batch for i in members] for batch in batches]
        budget, rows = budget * 1.25, rows and rows + 1
