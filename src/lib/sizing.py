"""How much memory post-training takes: bytes of a model, its training state, its activations and its rollouts.

No torch here: every number follows from a Hugging Face config.json and a few settings. Bytes everywhere; GIB and GB
convert. What a trainer keeps was read off its code (TRL 1.16, PyTorch's SDPA, bf16 autocast) and is formula, not fit;
`CONSTANTS` are what a formula cannot know.
"""

from numbers import Number
from typing import NamedTuple

import numpy as np

from lib import written
from lib.paths import BOOK

GIB, GB = 2**30, 1e9

# Bytes a trained parameter: (weights, gradients, float32 master copy, optimizer moments).
STATES = {
    "bfloat16": (2, 2, 0, 4),  # torch's AdamW keeps its moments in the type of the weights
    "note": (2, 2, 0, 8),  # the published hardware note: bf16 weights and gradients, float32 moments, no master copy
    "16": (2, 2, 4, 8),  # mixed precision of ZeRO, arXiv:1910.02054, section 3.1
    "18": (2, 4, 4, 8),  # the same with float32 gradients (Megatron-LM)
    "20": (2, 6, 4, 8),  # bf16 gradients, summed up in float32 beside them (DeepSpeed's bf16 optimizer)
    "float32": (4, 4, 0, 8),  # TRL's default for a model given by name: float32 weights under bf16 autocast
}
NF4 = 0.5 + 0.127 / 8  # bytes a weight in QLoRA: 4 bits and, quantised twice, 0.127 bits of scales (arXiv:2305.14314)
METHODS, UPDATES = ("sft", "dpo", "grpo", "ppo"), ("full", "lora", "qlora")
PLACES = ("none", "colocated", "sleep", "separate")
MOVING = ("gradients", "activations", "head", "casts")
HEAD_ROWS, HEAD_COLUMNS = 4096, 32768  # tile of TRL's fused LM head: tokens x entries of the vocabulary
# Before any measurement. activation: factor on what is kept for the backward pass and used in it; overhead: GiB
# allocated beside every term (matrix-product workspaces); reserved: the allocator's pool over what it handed out;
# context: GiB of the device that no allocator sees (CUDA context, loaded kernels).
CONSTANTS = {"activation": 1.0, "overhead": 0.1, "reserved": 1.03, "context": 0.6}


class Shape(NamedTuple):
    """What a decoder's memory depends on. `intermediate` is one expert's where `experts` is above 0."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool
    qk_norm: bool
    qkv_bias: bool
    experts: int = 0
    experts_used: int = 1


def read(config: dict) -> Shape:
    """The shape in a Hugging Face config.json (Llama, Mistral, Qwen2, Qwen3 and their mixtures of experts).

    Raises ValueError naming a field that is missing or of another kind, or a model type of another form.
    """
    if not isinstance(config, dict):
        raise ValueError(f"config: got {str(config)[:60]!r}; expected the object of a config.json")
    kind = config.get("model_type")
    known = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe")
    if kind not in known:
        raise ValueError(f"model_type: got {kind!r}; expected one of {list(known)}")
    experts = config.get("num_experts") or config.get("num_local_experts") or 0
    wanted = ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"]
    wanted += [name for name in ("num_key_value_heads", "head_dim") if config.get(name) is not None]
    if experts:
        wanted += ["num_experts" if config.get("num_experts") else "num_local_experts", "num_experts_per_tok"]
    wanted += ["moe_intermediate_size" if kind == "qwen3_moe" else "intermediate_size"]
    for field in wanted:
        value = config.get(field)
        if type(value) is not int or value < 1:
            raise ValueError(f"{field}: got {value!r}; expected a whole number above 0")
    tied = config.get("tie_word_embeddings", False)
    if type(tied) is not bool:
        raise ValueError(f"tie_word_embeddings: got {tied!r}; expected true or false")
    heads, kv_heads = config["num_attention_heads"], config.get("num_key_value_heads")
    used = config["num_experts_per_tok"] if experts else 1
    for field, value, whole in (
        ("num_key_value_heads", kv_heads or heads, heads),
        *([("num_attention_heads", heads, config["hidden_size"])] if config.get("head_dim") is None else []),
    ):
        if whole % value:
            raise ValueError(f"{field}: got {value}; expected a divisor of {whole}")
    if used > max(1, experts):
        raise ValueError(f"num_experts_per_tok: got {used}; expected at most the {experts} experts")
    if experts and (config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1):
        told = config.get("mlp_only_layers") or config["decoder_sparse_step"]
        raise ValueError(f"mlp_only_layers, decoder_sparse_step: got {told!r}; expected experts in every layer")
    return Shape(
        hidden=config["hidden_size"], intermediate=config[wanted[-1]], layers=config["num_hidden_layers"], heads=heads,
        kv_heads=kv_heads or heads, head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        vocabulary=config["vocab_size"], tied=tied, qk_norm=kind.startswith("qwen3"), qkv_bias=kind == "qwen2",
        experts=experts, experts_used=used,
    )  # fmt: skip


def above_zero(**numbers) -> None:
    """Raises ValueError for a number that is not above 0. An expression passes: a control of the page bounds it."""
    for name, value in numbers.items():
        if isinstance(value, Number) and not 0 < value < float("inf"):
            raise ValueError(f"{name}: got {value!r}; expected a number above 0")


def models() -> dict[str, Shape]:
    """The models of book/models.yaml by name. Raises ValueError with the model and field that is wrong."""
    listed, found = written.read(BOOK / "models.yaml", {...: {"config": dict}}), {}
    for name, entry in listed.items():
        try:
            found[name] = read(entry["config"])
        except ValueError as error:
            raise ValueError(f"book/models.yaml: {name}: {error}") from None
    return found


def parameters(s: Shape) -> dict[str, int]:
    """Parameters by part: `embedding`, `head` (0 where tied), `linear` (of all layers), `other`, `total`, `active`.

    A layer has q, k, v, o: h (2 a d + 2 k d) for a heads and k key-value heads of width d, and a gated MLP: 3 h f, once
    an expert beside a router of h E. `active` are those that one token uses. `other`: norms and biases.
    """
    q, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
    attention, expert = 2 * s.hidden * (q + kv), 3 * s.hidden * s.intermediate
    router = s.hidden * s.experts
    linear = s.layers * (attention + expert * max(1, s.experts) + router)
    biases = (q + 2 * kv if s.qkv_bias else 0) + (2 * s.head_dim if s.qk_norm else 0)
    other = s.layers * (2 * s.hidden + biases) + s.hidden
    embedding = s.vocabulary * s.hidden
    head = 0 if s.tied else embedding
    total = embedding + head + linear + other
    idle = s.layers * expert * (s.experts - s.experts_used) if s.experts else 0
    return dict(embedding=embedding, head=head, linear=linear, other=other, total=total, active=total - idle)


def adapter_parameters(s: Shape, rank: int) -> int:
    """Parameters of a LoRA adapter on every linear layer but the head: r (inputs + outputs) of each (arXiv:2106.09685).

    Of a mixture of experts the attention is adapted alone, as PEFT's all-linear does where experts are one tensor.
    """
    q, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
    attention = 2 * (s.hidden + q) + 2 * (s.hidden + kv)
    mlp = 0 if s.experts else 3 * (s.hidden + s.intermediate)
    return s.layers * rank * (attention + mlp)


def kept_by_layer(s: Shape, update: str, wide: bool, length: int, masked: bool, rank: int = 16) -> float:
    """Bytes a token that one layer keeps for its backward pass, without checkpointing, under bf16 autocast.

    Counted as in Korthikanti et al. (arXiv:2205.05198, section 4.1: 34 h for GPT), for a layer with RMS norms, grouped
    keys, SDPA and a gated MLP: h hidden, q = heads x d, k = key-value heads x d, f the MLP's width (x experts used).
    norms      their float32 inputs, 4 h twice (and 4 q, 4 k with query-key norms), and 4 a norm for the scale;
               trained norms keep what they scaled, in the type of their input
    attention  queries, keys, values, output: 2 (2 q + 2 k), and 4 a head; under a padding mask keys and values are
               repeated to q, and each layer keeps its own mask, 2 x length a token
    MLP        6 f: the gate before and after SiLU, and the up projection
    inputs     trained weights keep their inputs: h before q, k, v, h before gate and up, f before down (o's is the
               attention's output); `wide` (float32 weights): a bf16 copy of h for each of the five. LoRA keeps a copy
               for each of the seven, and r behind its first factor.
    """
    h, q, kv = s.hidden, s.heads * s.head_dim, s.kv_heads * s.head_dim
    f, full = s.intermediate * s.experts_used, update == "full"
    norms = 8 * h + 8 + (4 * (q + kv + s.heads + s.kv_heads) if s.qk_norm else 0)
    if full:
        norms += 2 * h * (4 if wide else 2) + (2 * (q + kv) if s.qk_norm else 0)
    attention = 4 * q + 4 * (q if masked else kv) + 4 * s.heads + (2 * length if masked else 0)
    if full:
        inputs = 2 * h * (5 if wide else 2) + 2 * f
    else:
        inputs = 2 * h * 5 + 2 * q + 2 * f + 2 * rank * 7
    routed = 4 * h * s.experts_used if s.experts else 0  # inputs gathered by expert, outputs before they are weighted
    return norms + attention + 6 * f + inputs + routed


def used_by_layer(s: Shape, update: str) -> float:
    """Bytes a token that a layer's backward pass holds beside what was kept: gradients as wide as the MLP, and of h.

    Two of width f in bf16; LoRA's input cast adds a float32 one less the bf16 copy that it frees.
    """
    return (4 if update == "full" else 6) * s.intermediate * s.experts_used + 8 * s.hidden


def head_bytes(s: Shape, trained: bool, wide: bool, tokens: int, scored: int) -> tuple[float, float]:
    """(kept, used in the backward pass) by the final norm and TRL's fused LM head, in bytes.

    The head never holds logits of `scored` x vocabulary: a tile of HEAD_ROWS x HEAD_COLUMNS in bf16 at a time. It keeps
    the hidden states of the scored positions; its backward sums their gradient in float32, and where the head is
    trained that of its weight too, 4 V h, before both are cast to their own type.
    """
    size = 4 if wide else 2
    kept = tokens * s.hidden * (4 + size + (size if trained else 0)) + scored * s.hidden * size
    tile = 2 * np.minimum(scored, HEAD_ROWS) * min(HEAD_COLUMNS, s.vocabulary)
    cast = 0 if wide else 2
    used = scored * s.hidden * (4 + cast) + tokens * s.hidden * size + tile
    used += s.vocabulary * s.hidden * (4 + cast) if trained else 0
    used += 2 * min(HEAD_COLUMNS, s.vocabulary) * s.hidden if wide else 0  # weights of a tile, cast
    return kept, used


def kv_cache(s: Shape, prompts: int, group: int, prompt: int, completion: int, shared: bool = True):
    """Bytes of keys and values, 2 x layers x key-value heads x d x 2 bytes a token, of prompts x group whole rollouts.

    shared: the rollouts of a prompt share its keys and values (prefix caching; PagedAttention, arXiv:2309.06180).
    """
    tokens = prompts * ((prompt if shared else group * prompt) + group * completion)
    return 2 * s.layers * s.kv_heads * s.head_dim * 2 * tokens


def batch(method: str, rows: int, prompt: int, completion: int) -> tuple[int, int, int]:
    """(positions, scored positions, longest row) of a micro-batch of `rows` sequences (of a DPO pair, count both).

    SFT here scores every token but the first. Raises ValueError for a number that is not above 0.
    """
    above_zero(rows=rows, prompt=prompt, completion=completion)
    positions = rows * (prompt + completion)
    return positions, (positions - rows if method == "sft" else rows * completion), prompt + completion


def moments(
    s: Shape, method: str, update: str, positions: int, scored: int, longest: int, *, states: str = "bfloat16",
    checkpointing: bool = True, masked: bool = True, rank: int = 16, accumulate: bool = False,
    reward_model: Shape | None = None, cards: int = 1, zero: int = 0,
    offload: str = "none", constants: dict = CONSTANTS,
) -> tuple[dict[str, float], dict[str, tuple]]:  # fmt: skip
    """Bytes a card in training: the parts that stay, and those that move (MOVING) at each moment that may be the peak.

    states: bytes a trained parameter, a key of STATES; for LoRA and QLoRA the type of the frozen base ("float32", else
    2 bytes), while the adapter takes 16 bytes a parameter. positions, scored, longest: of a micro-batch on this card
    (`batch`). masked: rows of unlike length, so attention gets a mask. accumulate: gradients of an earlier micro-batch
    are there during the forward pass. The reference of DPO and PPO is a copy of the weights in a full update, with an
    adapter the same weights with it switched off; SFT and GRPO (beta 0) have none.
    zero: 1 shards master and moments over `cards`, 2 gradients too, 3 (FSDP) every weight too, one layer gathered at a
    time (arXiv:1910.02054). offload: "optimizer" keeps master and moments in the host's memory, "all" the weights too.

    positions, scored and longest may be expressions (lib.report.expressions): nothing here branches on them.
    The moments: `forward` (everything kept; DPO's reference pass runs then), `head` (its backward), `last layer` and
    `first layer` (their backward; gradients grow as activations go), `end`. Raises ValueError for an unknown setting.
    """
    for name, value, among in (
        ("method", method, METHODS), ("update", update, UPDATES), ("states", states, STATES), ("zero", zero, range(4)),
        ("offload", offload, ("none", "optimizer", "all")),
    ):  # fmt: skip
        if value not in among:
            raise ValueError(f"{name}: got {value!r}; expected one of {list(among)}")
    above_zero(cards=cards, rank=rank)
    full, wide, p = update == "full", states == "float32", parameters(s)
    trained = p["total"] if full else adapter_parameters(s, rank)
    weight, gradient, master, moments = STATES[states] if full else STATES["float32"]
    base = 0 if full else p["total"] * (4 if wide else 2)
    if update == "qlora":
        base = p["linear"] * NF4 + (p["total"] - p["linear"]) * 2
    sharded = [cards if zero >= level else 1 for level in (1, 2, 3)]
    kept_here = offload == "none", offload != "all"
    parts = {
        "weights": (trained * weight + base) / sharded[2] * kept_here[1],
        "optimizer": trained * (master + moments) / sharded[0] * kept_here[0],
    }
    gradients = trained * gradient / sharded[1]
    size = 4 if wide else 2  # bytes a weight of what only runs forward
    gathered = p["linear"] / s.layers * size * (zero == 3 or offload == "all")
    # Float32 weights are cast to bf16 for the pass. Autocast keeps the copies of trained ones until the forward pass
    # ends; without checkpointing the backward pass keeps all of them.
    casts = 2 * p["linear"] * wide + (0 if full else 2 * trained)
    copied = full and method in ("dpo", "ppo")
    parts["reference"] = p["total"] * size / sharded[2] * kept_here[1] if copied else 0.0
    parts["reward model"] = parameters(reward_model)["total"] * 2 / sharded[2] if reward_model else 0.0
    factor = constants["activation"]
    layer = kept_by_layer(s, update, wide, longest, masked, rank) * positions * factor
    used = used_by_layer(s, update) * positions * factor
    inputs = s.layers * s.hidden * (4 if wide else 2) * positions * factor
    kept = inputs if checkpointing else s.layers * layer
    head_kept, head_used = head_bytes(s, full, wide, positions, scored)
    head_gradient = s.vocabulary * s.hidden * gradient / sharded[1] if full else 0.0
    passing = (6 * s.intermediate * s.experts_used + 4 * s.hidden) * positions * factor  # a pass without gradients
    before = gradients if accumulate else 0.0
    tied, stay = full and s.tied, 0 if checkpointing else casts
    first = gradients if tied else gradients - head_gradient  # when the first layer's backward runs
    moving = {
        "forward": (before, kept + (passing if method == "dpo" else used / 2), head_kept, casts if full else stay),
        "head": (before, kept, head_kept + head_used, stay),
        "last layer": (max(before, head_gradient), kept + used + (layer if checkpointing else 0), 0.0, stay),
        "first layer": (max(before, first), layer + used, 0.0, 0.0),
        "end": (gradients + (head_gradient if tied else 0.0), 0.0, 0.0, 0.0),  # both gradients of a tied embedding
    }
    parts["gathered layer"] = gathered
    parts["overhead"] = constants["overhead"] * GIB
    return parts, moving


def training(s: Shape, method: str, update: str, positions: int, scored: int, longest: int, **how) -> dict:
    """Bytes a card in training at the moment of its peak: each part, `allocated` (their sum), and `moment`, its name.

    Arguments of `moments`. PPO's critic, of the policy's shape and trained in the same way, is the part `critic`,
    at its own peak, its activations kept at the same time.
    """
    parts, moving = moments(s, method, update, positions, scored, longest, **how)
    moment = max(moving, key=lambda name: sum(moving[name]))
    parts |= dict(zip(MOVING, moving[moment], strict=True))
    if method == "ppo":
        own = {k: v for k, v in how.items() if k != "reward_model"}
        own["constants"] = how.get("constants", CONSTANTS) | {"overhead": 0.0}
        parts["critic"] = training(s, "sft", update, positions, scored, longest, **own)["allocated"]
    return parts | {"allocated": sum(parts.values()), "moment": moment}


def in_use(
    trained: dict, s: Shape, place: str = "none", kv: float = 0.0, share: float | None = None, card: float = 0.0,
    cards: int = 1, constants: dict = CONSTANTS,
) -> float:  # fmt: skip
    """Bytes that NVML reports on a training card at its fullest: this, and not `allocated`, decides what fits.

    The allocator's pool (`reserved` x allocated) and the context, and of the rollouts, 2 bytes a weight over `cards`
    (tensor parallel) and this card's part of the cache, `kv`, by place: "colocated" beside the training; "sleep" in
    turn with it, weights and optimizer staying; "separate" (or "none") on other cards. share: of the `card`'s bytes,
    vLLM's `gpu_memory_utilization`, taken instead.
    """
    if place not in PLACES:
        raise ValueError(f"place: got {place!r}; expected one of {list(PLACES)}")
    above_zero(cards=cards, **({"share": share, "card": card} if share is not None else {}))
    if share is not None and share > 1:
        raise ValueError(f"share: got {share}; expected a share of the card, at most 1")
    rollout = share * card if share else parameters(s)["total"] * 2 / cards + kv
    pool, context = constants["reserved"] * trained["allocated"], constants["context"] * GIB
    if place == "colocated":
        return pool + rollout + context
    if place == "sleep":
        resident = sum(trained[k] for k in ("weights", "optimizer", "reference", "reward model", "overhead"))
        return np.maximum(pool, constants["reserved"] * resident + rollout) + context
    return pool + context
