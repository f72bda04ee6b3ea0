"""A batch of padded rows run as one row without padding; what rows share at their start is computed once.

Everything but attention looks at one position at a time, so the decoder gets the real positions alone, and its last
hidden states go back to their places in the padded batch: what comes before and after it does not notice. Attention
alone sees the rows again, as a rectangle: padding stands to the right, where no real position looks under a causal
mask, so that it needs no mask, which is what the fast kernels ask for.
"""

import copy
from typing import NamedTuple

import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

NAME = "lib_lean_flat"


class Rows(NamedTuple):
    """Where the positions of a padded batch of B rows and L columns are in the flat row of T, and back."""

    cells: torch.Tensor  # (B * L): the flat position of each cell; of padding any
    own: torch.Tensor  # (T): the cell that each flat position was taken from
    again: torch.Tensor  # (S): cells beyond the head whose flat position was taken from the first row of the pair
    head: int  # columns that are the same in all rows, and taken from the first
    batch: int  # B


def rows_of(ids, mask, head: bool, pairs: bool) -> Rows:
    """The layout of a batch padded on the right: ids and mask (B, L), mask 1 where there is a token.

    head: what all rows begin with is computed once. pairs: row i + B/2 is computed from where it parts from row i on
    (DPO's batch: chosen rows, then rejected ones).
    """
    real = mask.bool()
    shared, half, width = torch.zeros_like(real), len(ids) // 2, 0
    if pairs:
        same = (ids[:half] == ids[half:]) & real[:half] & real[half:]
        shared[half:] = same.long().cumprod(1).bool()
    if head:
        width = int(((ids == ids[0]) & real).all(0).long().cumprod(0).sum())
        shared[1:, :width] = True
    mine = real & ~shared
    place = (mine.flatten().cumsum(0) - 1).view_as(real)
    if pairs:
        place[half:] = torch.where(shared[half:], place[:half], place[half:])
    place[:, :width] = place[0, :width].clone()  # a copy: of a single row it is the same memory
    shared[:, :width] = False
    return Rows(
        place.masked_fill(~real, 0).flatten(),
        mine.flatten().nonzero().flatten(),
        shared.flatten().nonzero().flatten() if pairs else place.new_empty(0),
        width,
        len(ids),
    )


class _Spread(torch.autograd.Function):
    """(T, ...) to (B * L, ...)."""

    @staticmethod
    def forward(ctx, flat, cells, own, again, head, batch):
        ctx.save_for_backward(cells, own, again)
        ctx.head, ctx.batch = head, batch
        return flat.index_select(0, cells)

    @staticmethod
    def backward(ctx, grad):
        cells, own, again = ctx.saved_tensors
        flat = grad.index_select(0, own)  # padding, whose gradient is 0, is left out
        if len(again):
            flat.index_add_(0, cells[again], grad.index_select(0, again))  # no place twice: the order cannot matter
        if ctx.head:  # many rows: added up in float32, rounded once
            wide = torch.promote_types(grad.dtype, torch.float32)
            flat[: ctx.head] = grad.view(ctx.batch, -1, *grad.shape[1:])[:, : ctx.head].sum(0, dtype=wide)
        return flat, None, None, None, None, None


class _Collect(torch.autograd.Function):
    """(B * L, ...) to (T, ...)."""

    @staticmethod
    def forward(ctx, cells, own):
        ctx.save_for_backward(own)
        ctx.shape = cells.shape
        return cells.index_select(0, own)

    @staticmethod
    def backward(ctx, grad):
        (own,) = ctx.saved_tensors
        return grad.new_zeros(ctx.shape).index_copy_(0, own, grad), None


def _spread(flat, rows: Rows):
    cells = _Spread.apply(flat, *rows)
    return cells.view(rows.batch, -1, *flat.shape[1:])


def _attention(module, query, key, value, attention_mask, flat_rows: Rows | None = None, **kwargs):
    """Attention of the layers whose `config` names it: SDPA's, on the rows of a flat batch without a mask."""
    if flat_rows is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    query, key, value = (_spread(x[0].transpose(0, 1), flat_rows).transpose(1, 2) for x in (query, key, value))
    out, _ = sdpa_attention_forward(module, query, key, value, None, **kwargs)
    return _Collect.apply(out.flatten(0, 1), flat_rows.own)[None], None


AttentionInterface.register(NAME, _attention)


class Flat:
    """The flat way of running a model's decoder, to be switched on and off."""

    def __init__(self, model):
        self.decoder = model.get_decoder()
        found = [m for m in self.decoder.modules() if type(m).__name__.endswith("Attention") and hasattr(m, "config")]
        self.configs = {m: m.config for m in found}  # of each attention layer
        self.handles, self.shared = [], {}

    def use(self, on: bool, head: bool = False, pairs: bool = False) -> None:
        """on: run batches that come with a mask of two dimensions flat. head, pairs: as in `rows_of`."""
        self.shared = dict(head=head, pairs=pairs)
        if on and not self.handles:
            self.handles = [
                self.decoder.register_forward_pre_hook(self._enter, with_kwargs=True, prepend=True),  # before counters
                self.decoder.register_forward_hook(self._leave, with_kwargs=True),
            ]
            for m, config in self.configs.items():
                m.config = copy.copy(config)  # the model's own configuration, which is saved, stays as it is
                m.config._attn_implementation = NAME
        elif not on and self.handles:
            for handle in self.handles:
                handle.remove()
            self.handles = []
            for m, config in self.configs.items():
                m.config = config

    def _enter(self, decoder, args, kwargs):
        ids, mask = kwargs.get("input_ids"), kwargs.get("attention_mask")
        if args or ids is None or mask is None or mask.dim() != 2 or kwargs.get("use_cache") is not False:
            return None  # no training pass of a padded batch: generation, for instance
        if kwargs.get("position_ids") is not None:
            return None
        rows = rows_of(ids, mask, **self.shared)
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
            output.last_hidden_state = _spread(output.last_hidden_state[0], rows)
        return output
