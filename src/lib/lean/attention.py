"""Causal attention of rows that begin alike, each position computed once.

A row looks at its own positions and at those before them, which it may share with other rows. Both parts go through one
kernel call each; their results are joined by their normalisers, as blocks are inside that kernel (Milakov and
Gimelshein 2018, arXiv:1805.02867; Dao et al. 2022, arXiv:2205.14135). Backward, the kernel gives the gradient of each
part when it gets the joined result and normaliser, since it forms the weights anew from these.
"""

from typing import NamedTuple

import torch
from torch.nn.functional import pad


class Spans(NamedTuple):
    """N stretches of queries, one after another, and of the keys that each looks at."""

    queries: torch.Tensor  # (N + 1) int32: where they begin, and the end of the last
    keys: torch.Tensor  # (N + 1) int32
    most_queries: int  # in a stretch
    most_keys: int


def spans(queries, keys) -> Spans:
    """Of these lengths (N), N at least 1."""
    ends = torch.stack([queries, keys]).cumsum(1)
    most = torch.stack([queries.max(), keys.max()]).tolist()
    return Spans(*pad(ends, (1, 0)).int(), *most)


class Parts(NamedTuple):
    """How T positions look at one another: each row at its own, and some at T_s positions of other rows."""

    own: Spans
    looking: torch.Tensor  # (T_l): the positions that look at others' too
    seen: torch.Tensor  # (T_s): at these, stretch by stretch
    shared: Spans | None  # None: no position does


class Attention(torch.autograd.Function):
    """(T, H, D) of query (T, H, D), key and value (T, K, D), where each K serves H / K heads."""

    @staticmethod
    def forward(ctx, query, key, value, parts: Parts, scale: float):
        out, norm = _forward(query, key, value, parts.own, True, scale)
        if parts.shared is not None:
            seen = (x.index_select(0, parts.seen) for x in (key, value))
            theirs, theirs_norm = _forward(query.index_select(0, parts.looking), *seen, parts.shared, False, scale)
            own_norm = norm.index_select(1, parts.looking)
            joined = torch.logaddexp(own_norm, theirs_norm)
            own, theirs = (
                x * (n - joined).exp().t()[:, :, None]
                for x, n in ((out.index_select(0, parts.looking), own_norm), (theirs, theirs_norm))
            )
            out.index_copy_(0, parts.looking, (own + theirs).to(out.dtype))
            norm.index_copy_(1, parts.looking, joined)
        ctx.save_for_backward(query, key, value, out, norm)
        ctx.parts, ctx.scale = parts, scale
        return out

    @staticmethod
    def backward(ctx, grad):
        query, key, value, out, norm = ctx.saved_tensors
        parts, scale, grad = ctx.parts, ctx.scale, grad.contiguous()
        grads = _backward(grad, query, key, value, out, norm, parts.own, True, scale)
        if parts.shared is not None:
            looking = [x.index_select(0, parts.looking) for x in (grad, query, out)]
            seen = [x.index_select(0, parts.seen) for x in (key, value)]
            more = _backward(
                looking[0], looking[1], *seen, looking[2], norm.index_select(1, parts.looking), parts.shared, False,
                scale,
            )  # fmt: skip
            # Many rows meet at a shared position: added up in float32, rounded once.
            grads = (
                g.to(torch.promote_types(g.dtype, torch.float32)).index_add_(0, at, m.to(torch.float32)).to(g.dtype)
                for g, m, at in zip(grads, more, (parts.looking, parts.seen, parts.seen), strict=True)
            )
        return *grads, None, None


def _kernel(x) -> bool:
    """Whether PyTorch's FlashAttention takes it: half precision on a GPU. Else the same in plain tensors."""
    return x.is_cuda and x.dtype in (torch.bfloat16, torch.float16)


def _forward(query, key, value, spans: Spans, causal: bool, scale: float):
    """Result (T, H, D) of each stretch by itself, and the logarithm of its normaliser (H, T), float32."""
    if _kernel(query):
        out, norm, *_ = torch.ops.aten._flash_attention_forward(
            query, key, value, spans.queries, spans.keys, spans.most_queries, spans.most_keys, 0.0, causal, False,
            scale=scale,
        )  # fmt: skip
        if norm.shape != query.shape[1::-1]:
            raise RuntimeError(f"normalisers of FlashAttention: got {tuple(norm.shape)}, expected (heads, positions)")
        return out, norm
    with torch.autocast(query.device.type, enabled=False):
        scores, _, values, real = _scores(query, key, value, spans, causal, scale)
        norm = scores.logsumexp(-1)
        out = (scores - norm[..., None]).exp() @ values
    return out.transpose(1, 2)[real].to(query.dtype), norm.transpose(1, 2)[real].t().contiguous()


def _backward(grad, query, key, value, out, norm, spans: Spans, causal: bool, scale: float):
    """Gradients of query, key and value. out, norm: of all that the queries look at, here and elsewhere."""
    if _kernel(query):
        unused = torch.zeros(2, dtype=torch.uint64, device=query.device)  # the state of dropout, which is 0
        return torch.ops.aten._flash_attention_backward(
            grad, query, key, value, out, norm, spans.queries, spans.keys, spans.most_queries, spans.most_keys, 0.0,
            causal, unused, unused[:0], scale=scale,
        )  # fmt: skip
    with torch.autocast(query.device.type, enabled=False):
        scores, (queries, keys), values, real = _scores(query, key, value, spans, causal, scale)
        grads, outs = (_padded(x, spans.queries, spans.most_queries)[0] for x in (grad, out))
        norms = _padded(norm.t(), spans.queries, spans.most_queries)[0]
        weights = (scores - norms[..., None]).exp().masked_fill(~real[:, None, :, None], 0)
        of_scores = weights * (grads @ values.transpose(2, 3) - (grads * outs).sum(-1, keepdim=True)) * scale
        of_keys, of_values = of_scores.transpose(2, 3) @ queries, weights.transpose(2, 3) @ grads
        of_keys, of_values = (x.unflatten(1, (key.shape[1], -1)).sum(2) for x in (of_keys, of_values))
    there = _padded(key, spans.keys, spans.most_keys)[1]
    found = ((of_scores @ keys, real), (of_keys, there), (of_values, there))
    return tuple(x.transpose(1, 2)[mask].to(query.dtype) for x, mask in found)


def _scores(query, key, value, spans: Spans, causal: bool, scale: float):
    """Scores (N, H, queries, keys) in float32, (queries, keys), values, all padded, and which queries are real."""
    queries, real = _padded(query, spans.queries, spans.most_queries)
    times = query.shape[1] // key.shape[1]
    (keys, there), (values, _) = (_padded(x, spans.keys, spans.most_keys) for x in (key, value))
    keys, values = (x.repeat_interleave(times, dim=1) for x in (keys, values))
    visible = there[:, None, None, :]
    if causal:
        visible = visible & visible.new_ones(queries.shape[2], keys.shape[2]).tril()
    scores = (queries @ keys.transpose(2, 3) * scale).masked_fill(~visible, -torch.inf)
    return scores, (queries, keys), values, real


def _padded(x, starts, most: int):
    """(N, H, most, ...) in float32 of x (T, H, ...), 0 behind the end of a stretch, and what is real (N, most)."""
    index = starts[:-1, None] + torch.arange(most, device=x.device)
    real = index < starts[1:, None]
    rows = x[index.clamp(max=len(x) - 1).long()].float()
    return rows.masked_fill(~real.view(*real.shape, *[1] * (x.dim() - 1)), 0).transpose(1, 2), real
