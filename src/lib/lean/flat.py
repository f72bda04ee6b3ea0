"""A batch of padded rows run as one row without padding; what rows share at their start is computed once.

Everything but attention looks at one position at a time, so the decoder gets the real positions alone, and its last
hidden states go back to their places in the padded batch: what comes before and after it does not notice. Attention
alone is told which positions a row sees (lib.lean.attention).
"""

import copy
from typing import NamedTuple

import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from lib.lean.attention import Attention, Parts, spans

NAME = "lib_lean_flat"


class Rows(NamedTuple):
    """Where the positions of a padded batch of B rows and L columns are in the flat row of T, and back."""

    cells: torch.Tensor  # (B * L): the flat position of each cell; of padding any
    own: torch.Tensor  # (T): the cell that each flat position was taken from
    again: torch.Tensor  # (S): real cells whose flat position was taken from another row
    batch: int  # B
    parts: Parts  # what the flat positions see


def rows_of(ids, mask, share: str | None = None) -> Rows:
    """The layout of a batch padded on the right: ids and mask (B, L), mask 1 where there is a token.

    share: None; or "rows", what a row and the one before it begin with is computed once (and so on back: a group's
    prompt, the instruction of all); or "pairs", the same with row i + B/2 behind row i (DPO's batch).
    """
    real, index = mask.bool(), torch.arange(len(ids), device=ids.device)
    source = index[:, None].expand(real.shape)  # the row that each cell is taken from
    if share is not None:
        order = index.view(2, -1).t().flatten() if share == "pairs" else index
        ordered = ids[order].masked_fill(~real[order], -1)
        same = (ordered[1:] == ordered[:-1]) & real[order][1:]
        begin = index[:, None].repeat(1, ids.shape[1])
        begin[1:].masked_fill_(same.long().cumprod(1).bool(), 0)
        source = torch.empty_like(begin)
        source[order] = order[begin.cummax(0).values]
    mine = real & (source == index[:, None])
    place = (mine.flatten().cumsum(0) - 1).view_as(real).gather(0, source)
    return Rows(
        place.masked_fill(~real, 0).flatten(),
        mine.flatten().nonzero().flatten(),
        index[:0] if share is None else (real & ~mine).flatten().nonzero().flatten(),
        len(ids),
        _parts(place, real & ~mine, mine.sum(1), share),
    )


def _parts(place, shared, own, share) -> Parts:
    """place (B, L): the flat position of each cell; shared (B, L): those of other rows; own (B): how many are not."""
    some = own[own > 0]
    none = Parts(spans(some, some), own[:0], own[:0], None)
    if share is None:
        return none
    before = shared.sum(1)
    rows = ((before > 0) & (own > 0)).nonzero().flatten()
    if not len(rows):
        return none
    # Neighbours that share the same positions look at them as one stretch.
    first = torch.ones_like(rows, dtype=torch.bool)
    last = place[rows, before[rows] - 1]
    first[1:] = last[1:] != last[:-1]
    stretch, heads = first.cumsum(0) - 1, rows[first]
    queries = torch.zeros_like(heads).index_add_(0, stretch, own[rows])
    looks = torch.repeat_interleave((before > 0) & (own > 0), own)
    return none._replace(
        looking=looks.nonzero().flatten(), seen=place[heads][shared[heads]], shared=spans(queries, before[heads])
    )


class _Spread(torch.autograd.Function):
    """(T, ...) to (B * L, ...)."""

    @staticmethod
    def forward(ctx, flat, cells, own, again):
        ctx.save_for_backward(cells, own, again)
        return flat.index_select(0, cells)

    @staticmethod
    def backward(ctx, grad):
        cells, own, again = ctx.saved_tensors
        flat = grad.index_select(0, own)  # padding, whose gradient is 0, is left out
        if len(again):  # many rows may meet here: added up in float32, rounded once
            flat = flat.to(torch.promote_types(grad.dtype, torch.float32))
            flat.index_add_(0, cells[again], grad.index_select(0, again).to(flat.dtype))
        return flat.to(grad.dtype), None, None, None


def _spread(flat, rows: Rows, again):
    cells = _Spread.apply(flat, rows.cells, rows.own, again)
    return cells.view(rows.batch, -1, *flat.shape[1:])


def _attention(module, query, key, value, attention_mask, flat_rows: Rows | None = None, scaling=None, **kwargs):
    """Attention of the layers whose `config` names it: SDPA's, or that of a flat batch."""
    if flat_rows is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    kind = query.dtype
    if torch.is_autocast_enabled(query.device.type):  # as it casts for SDPA
        kind = torch.get_autocast_dtype(query.device.type)
    query, key, value = (x[0].transpose(0, 1).to(kind) for x in (query, key, value))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return _attend(query, key, value, flat_rows.parts, scale)[None], None


# Compiled layers leave it as it is: the stretches of a batch are no shapes to compile for.
_attend = torch.compiler.disable(Attention.apply)


AttentionInterface.register(NAME, _attention)


class Flat:
    """The flat way of running a model's decoder, to be switched on and off."""

    def __init__(self, model):
        self.decoder = model.get_decoder()
        found = [m for m in self.decoder.modules() if type(m).__name__.endswith("Attention") and hasattr(m, "config")]
        self.configs = {m: (m.config, copy.copy(m.config)) for m in found}  # of each attention layer: its own, flat's
        for _, config in self.configs.values():  # the model's own, which is saved, stays as it is
            config._attn_implementation = NAME
        self.handles, self.share = [], None
        self.asked = True  # False: on, but for `completion_logps` alone

    def use(self, on: bool, share: str | None = None) -> None:
        """on: run batches that come with a mask of two dimensions flat. share: as in `rows_of`."""
        self.share = share
        if on and not self.handles:
            self.handles = [
                self.decoder.register_forward_pre_hook(self._enter, with_kwargs=True, prepend=True),  # before counters
                self.decoder.register_forward_hook(self._leave, with_kwargs=True),
            ]
            for m, (_, config) in self.configs.items():
                m.config = config
        elif not on and self.handles:
            for handle in self.handles:
                handle.remove()
            self.handles = []
            for m, (config, _) in self.configs.items():
                m.config = config

    def _enter(self, decoder, args, kwargs):
        ids, mask = kwargs.get("input_ids"), kwargs.get("attention_mask")
        if not self.asked or args or kwargs.get("use_cache") is not False or kwargs.get("position_ids") is not None:
            return None  # no training pass of a padded batch: generation, for instance
        if ids is None or mask is None or mask.dim() != 2:
            return None
        rows = rows_of(ids, mask, self.share)
        flat = dict(
            input_ids=ids.flatten()[rows.own][None],
            position_ids=(rows.own % ids.shape[1])[None],
            # Four dimensions: transformers builds none of its own. It says that all positions are real, and takes no
            # memory; attention goes by the rows.
            attention_mask=mask.new_ones((), dtype=torch.bool).expand(1, 1, len(rows.own), len(rows.own)),
            flat_rows=rows,
        )
        return args, kwargs | flat

    def _leave(self, decoder, args, kwargs, output):
        rows = kwargs.get("flat_rows")
        if rows is not None:
            output.last_hidden_state = _spread(output.last_hidden_state[0], rows, rows.again)
        return output


def completion_logps(model, flat: Flat, autocast, input_ids, attention_mask, width: int):
    """Log-probabilities and entropies (B, width) of completions, 0 where masked, from a batch run flat.

    input_ids, attention_mask (B, P + width): prompts padded on the left, completions on the right, rows of a group side
    by side. model: with TRL's fused head, and flat in use. autocast: the context to run under.
    """
    real = attention_mask.bool()
    scored = real.clone()
    scored[:, :-width] = False
    place = (~real).byte().argsort(dim=1, stable=True)[:, : int(real.sum(1).max())]  # padding to the right
    labels = input_ids.masked_fill(~scored, -100).gather(1, place)
    flat.asked = True
    try:
        with autocast:
            rows = dict(input_ids=input_ids.gather(1, place), attention_mask=real.gather(1, place).long())
            out = model(**rows, labels=labels, fused_lm_head=True)
    finally:
        flat.asked = False
    of_labels, of_completions = labels[:, 1:] != -100, scored[:, -width:]
    return tuple(
        None if x is None else x.new_zeros(of_completions.shape).masked_scatter(of_completions, x[of_labels])
        for x in (out.log_probs, out.entropy)
    )
