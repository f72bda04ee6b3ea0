"""Memory by formula, against counts done by hand, published parameter counts, and what PyTorch keeps on a CPU."""

import pytest
import yaml

from lib import sizing
from lib.paths import BOOK

# one layer of width 4, two heads of width 2 and one key-value head, an MLP of width 6, five tokens known
SMALL = dict(
    model_type="qwen3", hidden_size=4, intermediate_size=6, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=1, head_dim=2, vocab_size=5, tie_word_embeddings=True,
)  # fmt: skip


def test_parameters_by_hand_and_as_published():
    counted = sizing.parameters(sizing.read(SMALL))
    # q 4x4, k and v 4x2, o 4x4, MLP 3 x 4x6; two norms of 4, two of 2, the last one of 4; embedding 5x4
    assert counted["linear"] == 16 + 8 + 8 + 16 + 72 and counted["other"] == 8 + 4 + 4 and counted["embedding"] == 20
    assert counted["total"] == counted["active"] == 156
    listed = yaml.safe_load((BOOK / "models.yaml").read_text())
    computed = {name: sizing.parameters(shape)["total"] for name, shape in sizing.models().items()}
    assert computed == {name: entry["parameters"] for name, entry in listed.items()}


def test_a_mixture_uses_some_experts_and_holds_all():
    mixture = SMALL | dict(model_type="qwen3_moe", moe_intermediate_size=6, num_experts=3, num_experts_per_tok=2)
    counted = sizing.parameters(sizing.read(mixture))
    assert counted["total"] - 156 == 2 * 72 + 4 * 3  # two further experts and a router
    assert counted["total"] - counted["active"] == 72


def test_state_of_a_full_update_is_sharded_as_zero_says():
    s = sizing.read(SMALL | dict(vocab_size=1))  # 140 parameters, 4 of them the tied embedding
    job = dict(method="sft", update="full", positions=0, scored=0, longest=0, states="16")

    def state(**more):
        found = sizing.training(s, **job, **more)
        assert found["moment"] == "end"
        return found["weights"], found["optimizer"], found["gradients"]

    assert state() == (280, 1680, 280 + 8)  # at the end both gradients of the tied embedding are there
    assert state(cards=4, zero=1) == (280, 420, 288)
    assert state(cards=4, zero=2) == (280, 420, 72)
    assert state(cards=4, zero=3) == (70, 420, 72)
    assert state(offload="optimizer") == (280, 0, 288)
    assert state(offload="all") == (0, 0, 288)


def test_a_reference_costs_a_copy_and_an_adapter_none():
    s = sizing.read(SMALL)
    job = dict(positions=0, scored=0, longest=0)
    reference = {
        (method, update): sizing.training(s, method, update, **job)["reference"]
        for method in ("sft", "dpo", "grpo")
        for update in ("full", "lora")
    }
    assert reference.pop(("dpo", "full")) == 2 * 156 and set(reference.values()) == {0}


def test_a_critic_doubles_the_state():
    s, bare = sizing.read(SMALL), sizing.CONSTANTS | {"overhead": 0.0}
    job = dict(update="full", positions=8, scored=4, longest=8, states="note", constants=bare)
    ppo, grpo = (sizing.training(s, method, **job) for method in ("ppo", "grpo"))
    assert ppo["critic"] == grpo["allocated"] == (ppo["allocated"] - ppo["reference"]) / 2


def test_keys_and_values_of_shared_prompts():
    s = sizing.read(SMALL)  # 2 x 1 layer x 1 head x 2 wide x 2 bytes = 8 bytes a token
    assert sizing.kv_cache(s, prompts=3, group=4, prompt=10, completion=5) == 8 * 3 * (10 + 4 * 5)
    assert sizing.kv_cache(s, prompts=3, group=4, prompt=10, completion=5, shared=False) == 8 * 3 * 4 * 15


def test_what_fits_counts_the_engine_by_where_it_is():
    s = sizing.read(SMALL)
    trained = sizing.training(s, "grpo", "full", 64, 32, 8)
    constants = sizing.CONSTANTS | {"reserved": 1.0, "context": 0.0}
    used = {place: sizing.in_use(trained, s, place, kv=1e9, constants=constants) for place in sizing.PLACES}
    assert used["none"] == used["separate"] == trained["allocated"]
    assert used["colocated"] == trained["allocated"] + 312 + 1e9
    resident = trained["weights"] + trained["optimizer"] + trained["overhead"]
    assert used["sleep"] == resident + 312 + 1e9 < used["colocated"]


@pytest.mark.parametrize("field", ["hidden_size", "num_hidden_layers", "model_type"])
def test_a_config_without_a_field_is_refused(field):
    with pytest.raises(ValueError, match=f"{field}: got None"):
        sizing.read({k: v for k, v in SMALL.items() if k != field})


@pytest.mark.parametrize(
    "field, value",
    [
        ("hidden_size", True), ("num_key_value_heads", -1), ("num_key_value_heads", 3), ("head_dim", "2"),
        ("tie_word_embeddings", "false"), ("num_experts", "8"),
    ],
)  # fmt: skip
def test_a_config_with_another_kind_of_value_is_refused(field, value):
    with pytest.raises(ValueError, match=f"{field}: got {value!r}; expected"):
        sizing.read(SMALL | {field: value} | ({"num_experts_per_tok": 2} if field == "num_experts" else {}))


def test_no_length_below_one_and_no_card_less_than_one():
    for lengths in ((-4, 10, 10), (4, 0, 10), (4, float("nan"), 10)):
        with pytest.raises(ValueError, match="expected a number above 0"):
            sizing.batch("grpo", *lengths)
    with pytest.raises(ValueError, match="cards: got 0"):
        sizing.training(sizing.read(SMALL), "sft", "full", 1, 1, 1, cards=0, zero=3)


def test_an_unknown_setting_is_refused():
    with pytest.raises(ValueError, match="states: got '17'; expected one of"):
        sizing.training(sizing.read(SMALL), "sft", "full", 1, 1, 1, states="17")


@pytest.mark.parametrize("kind", ["qwen3", "qwen2"])
@pytest.mark.parametrize("update", ["full", "lora"])
@pytest.mark.parametrize("weights", ["bfloat16", "float32"])
@pytest.mark.parametrize("masked", [False, True])
def test_a_layer_keeps_what_pytorch_keeps(kind, update, weights, masked):
    """One layer added to a model adds exactly the bytes of the formula, and of cast weights, to what autograd saves."""
    torch = pytest.importorskip("torch", reason="training is not installed (extra `train`)")
    peft = pytest.importorskip("peft", reason="training is not installed (extra `train`)")
    from transformers import AutoConfig, AutoModelForCausalLM

    fields = dict(
        hidden_size=64, intermediate_size=192, num_attention_heads=8, num_key_value_heads=2, vocab_size=200,
        max_position_embeddings=64, tie_word_embeddings=False, head_dim=16 if kind == "qwen3" else 8,
    )  # fmt: skip
    rows, length, rank = 4, 32, 16

    def saved(layers):
        config = AutoConfig.for_model(kind, **fields, num_hidden_layers=layers)
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, weights))
        inner = model.model
        if update == "lora":
            peft.get_peft_model(model, peft.LoraConfig(r=rank, target_modules="all-linear", task_type="CAUSAL_LM"))
        own = {p.untyped_storage().data_ptr() for p in model.parameters()}
        kept, sizes = [], {}

        def pack(tensor):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                kept.append(tensor)  # so that no address is used again
                sizes[storage.data_ptr()] = storage.nbytes()
            return tensor

        ids, mask = torch.ones(rows, length, dtype=torch.long), torch.ones(rows, length, dtype=torch.long)
        mask[0, -8:] = 0 if masked else 1
        hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x)
        with hooks, torch.autocast("cpu", torch.bfloat16):
            inner(input_ids=ids, attention_mask=mask, use_cache=False)
        return sum(sizes.values())

    shape = sizing.read(fields | dict(model_type=kind, num_hidden_layers=1))
    wide = weights == "float32"
    cast = 2 * sizing.parameters(shape)["linear"] * wide
    cast += 2 * sizing.adapter_parameters(shape, rank) if update == "lora" else 0
    by_formula = rows * length * sizing.kept_by_layer(shape, update, wide, length, masked, rank) + cast
    assert saved(3) - saved(2) == by_formula
