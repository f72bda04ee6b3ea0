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
    outs, norms = [], []
    with torch.autocast(query.device.type, enabled=False):
        for q, k, v in _stretches(spans, [query], [key, value]):
            scores = _scores(q, k, causal, scale)
            norms.append(scores.logsumexp(-1))
            outs.append((scores - norms[-1][..., None]).exp() @ v)
    return torch.cat(outs, 1).transpose(0, 1).to(query.dtype), torch.cat(norms, 1)


def _backward(grad, query, key, value, out, norm, spans: Spans, causal: bool, scale: float):
    """Gradients of query, key and value. out, norm: of all that the queries look at, here and elsewhere."""
    if _kernel(query):
        unused = torch.zeros(2, dtype=torch.uint64, device=query.device)  # the state of dropout, which is 0
        return torch.ops.aten._flash_attention_backward(
            grad, query, key, value, out, norm, spans.queries, spans.keys, spans.most_queries, spans.most_keys, 0.0,
            causal, unused, unused[:0], scale=scale,
        )  # fmt: skip
    of_queries, of_keys, of_values = [], [], []
    with torch.autocast(query.device.type, enabled=False):
        for q, g, o, n, k, v in _stretches(spans, [query, grad, out, norm.t()[..., None]], [key, value]):
            weights = (_scores(q, k, causal, scale) - n).exp()
            of_scores = weights * (g @ v.transpose(1, 2) - (g * o).sum(-1, keepdim=True)) * scale
            of_queries.append(of_scores @ k)
            of_keys.append(of_scores.transpose(1, 2) @ q)
            of_values.append(weights.transpose(1, 2) @ g)
    of_queries, of_keys, of_values = (torch.cat(x, 1).transpose(0, 1) for x in (of_queries, of_keys, of_values))
    of_keys, of_values = (x.unflatten(1, (key.shape[1], -1)).sum(2) for x in (of_keys, of_values))  # heads of one key
    return tuple(x.to(query.dtype) for x in (of_queries, of_keys, of_values))


def _stretches(spans: Spans, of_queries: list, of_keys: list):
    """For each stretch, these tensors (T, H, D) as (H, its length, D) in float32, with as many heads as the queries."""
    heads = of_queries[0].shape[1]
    of_keys = [x.repeat_interleave(heads // x.shape[1], 1) for x in of_keys]
    lengths = [spans.queries.diff().tolist()] * len(of_queries) + [spans.keys.diff().tolist()] * len(of_keys)
    columns = (x.float().transpose(0, 1).split(n, 1) for x, n in zip([*of_queries, *of_keys], lengths, strict=True))
    return zip(*columns, strict=True)


def _scores(query, key, causal: bool, scale: float):
    """(H, queries, keys)."""
    scores = query @ key.transpose(1, 2) * scale
    return scores.masked_fill(torch.ones_like(scores[0], dtype=torch.bool).triu(1), -torch.inf) if causal else scores
