"""Rows that share a prompt, forwarded once: the packed row of a group, and micro-batches filled by positions."""

import numpy as np
import torch


def shared_prefix(input_ids, attention_mask, width: int, pad_id: int) -> tuple[dict, tuple]:
    """One row for each distinct prompt: `prompt[:-1] | prompt[-1], c_1[:-1] | prompt[-1], c_2[:-1] | ...`.

    input_ids, attention_mask: (N, P + width), prompts padded on the left, completions on the right. A completion's
    segment attends to the prompt and to itself, and its positions go on from the prompt's, so every token is computed
    from what its own row would show it. The last prompt token opens each segment, since it predicts the first token.
    Returns the model's inputs (R rows of W positions) and where each scored token lies: (row, column) of the (N, width)
    result, (packed row, position) in the packed one. W is a multiple of 8, which attention kernels want of a mask.
    """
    ids_N_L, mask_N_L = input_ids.cpu().numpy(), attention_mask.cpu().numpy().astype(bool)
    split = ids_N_L.shape[1] - width
    groups: dict[bytes, list] = {}
    for i in range(len(ids_N_L)):
        prompt = ids_N_L[i, :split][mask_N_L[i, :split]]
        groups.setdefault(prompt.tobytes(), [prompt]).append((i, ids_N_L[i, split:][mask_N_L[i, split:]]))
    sizes = [len(prompt) - 1 + sum(len(c) for _, c in members) for prompt, *members in groups.values()]
    shape = (len(groups), -8 * (-max(*sizes, 1, 1) // 8))
    ids, labels = np.full(shape, pad_id), np.full(shape, -100)
    segment, position = np.full(shape, -1), np.zeros(shape, dtype=int)
    where = []
    for r, (prompt, *members) in enumerate(groups.values()):
        head = len(prompt) - 1
        ids[r, :head], segment[r, :head], position[r, :head] = prompt[:-1], 0, np.arange(head)
        start = head
        for number, (i, c) in enumerate(members, start=1):
            span = slice(start, start + len(c))
            ids[r, span], labels[r, span] = np.append(prompt[-1:], c[:-1])[: len(c)], c
            segment[r, span], position[r, span] = number, head + np.arange(len(c))
            where.append(
                np.stack([np.full(len(c), i), np.arange(len(c)), np.full(len(c), r), start + np.arange(len(c))])
            )
            start += len(c)
    device = input_ids.device
    ids, labels, segment, position = (torch.from_numpy(a).to(device) for a in (ids, labels, segment, position))
    query, key = segment[:, :, None], segment[:, None, :]
    causal = torch.ones(shape[1], shape[1], dtype=torch.bool, device=device).tril()
    # Padding has a segment of its own: no token sees it, and it sees itself, so that no softmax is over nothing.
    allowed = ((key == 0) | (key == query)) & causal
    inputs = dict(input_ids=ids, attention_mask=allowed[:, None], position_ids=position, shift_labels=labels)
    return inputs, tuple(torch.from_numpy(np.concatenate(where, axis=1)).to(device))


def shared_prefix_logps(model, autocast, input_ids, attention_mask, width: int, pad_id: int):
    """Log-probabilities and entropies (N, width) of the completions, 0 where masked; gradients flow to the model.

    model: with TRL's fused head (`add_fused_lm_head`) and SDPA attention. autocast: the context to run it under.
    """
    inputs, (row, column, packed_row, at) = shared_prefix(input_ids, attention_mask, width, pad_id)
    with autocast:
        out = model(**inputs, fused_lm_head=True)
    blank = out.log_probs.new_zeros(len(input_ids), width)
    return tuple(
        None if x is None else blank.index_put((row, column), x[packed_row, at]) for x in (out.log_probs, out.entropy)
    )


def fill(units: list[tuple[int, list]], slots: int, budget: float, rows: int | None = None) -> list[list]:
    """Deal units (positions of the row, its rollouts) to at most `slots` micro-batches, long rows first.

    A micro-batch of R rows costs R x its longest row, and holds at most `budget` positions; or, where `rows` is given,
    at most that many rollouts whatever their length. When the slots do not suffice, the budget grows.
    """
    units = sorted(units, key=lambda unit: -unit[0])
    while True:
        batches: list[list] = []
        for positions, members in units:
            full = not batches
            if batches and rows is not None:
                full = sum(len(m) for _, m in batches[-1]) + len(members) > rows
            elif batches:
                full = (len(batches[-1]) + 1) * batches[-1][0][0] > budget
            if full:
                batches.append([])
            batches[-1].append((positions, members))
        if len(batches) <= slots:
            return [[i for _, members in batch for i in members] for batch in batches]
        budget, rows = budget * 1.25, rows and rows + 1
