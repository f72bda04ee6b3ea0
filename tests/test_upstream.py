"""Findings on TRL: zero-variance groups that it does not count, and what a weight sync leaves in the base."""

from types import SimpleNamespace

import pandas as pd
import pytest

from lib.report import bench_phrases, upstream


def run(rewards_by_group, advantages_by_group, logged):
    """A record of one step with groups of two rollouts."""
    rows = [
        {"step": 1, "group": g, "reward": r, "advantage": a}
        for g, (rewards, advantages) in enumerate(zip(rewards_by_group, advantages_by_group, strict=True))
        for r, a in zip(rewards, advantages, strict=True)
    ]
    steps = pd.DataFrame({"step": [1]} | ({} if logged is None else {"frac_reward_zero_std": [logged]}))
    return SimpleNamespace(rollouts=pd.DataFrame(rows), steps=steps, info={"device": {"name": "A processor"}})


def test_constant_groups_by_hand():
    rewards = [(0.3, 0.3), (1.0, 1.0), (0.2, 0.4), (0.8, 0.8)]
    advantages = [(3e-4, 3e-4), (0.0, 0.0), (-0.7, 0.7), (-5e-4, -5e-4)]
    table = upstream.constant_groups([("a run", run(rewards, advantages, 0.25)), ("b", run(rewards, advantages, None))])
    first, second = table.itertuples()
    assert (first.groups, first.constant, first.trl, first.spurious, first.advantage) == (4, 3, 1, 2, 5e-4)
    assert pd.isna(second.trl)
    twice = pd.concat([table, table])
    assert bench_phrases.constant_groups(twice)["constant_missed"] == "4 of 6 (A processor, 2 runs)"


@pytest.mark.parametrize("reward", [0.1, 0.3, 0.5, 0.68, 0.84, 1.0])
def test_the_worked_group_is_what_trl_computes(reward):
    torch = pytest.importorskip("torch")
    utils = pytest.importorskip("trl.trainer.utils", reason="training is not installed (extra `train`)")
    rewards = torch.full((1, 8), reward)
    deviation = utils.nanstd(rewards, dim=1)
    advantage = (rewards - torch.nanmean(rewards, dim=1)) / (deviation + 1e-4)
    own = upstream.one_after_the_other(reward, 8)
    assert own == pytest.approx((deviation.item(), advantage[0, 0].item()), rel=1e-6)
    assert (own[1] == 0) == (reward in (0.5, 1.0))


def test_a_sync_as_trl_makes_it_moves_the_base_and_the_lean_one_does_not():
    pytest.importorskip("trl", reason="training is not installed (extra `train`)")
    from lib.bench import base_drift

    stock, lean = ({row["syncs"]: row for row in base_drift.measure(which, (1, 4))} for which in ("stock", "lean"))
    assert [lean[n]["base_change"] for n in (1, 4)] == [0, 0]
    assert 0 < stock[1]["ratio"] < stock[4]["ratio"]
    assert stock[4]["lora_delta"] == pytest.approx(lean[4]["lora_delta"], rel=0.01)  # the same steps


def test_norms_by_hand():
    torch = pytest.importorskip("torch")
    pytest.importorskip("trl", reason="training is not installed (extra `train`)")
    from lib.bench import base_drift
    from lib.lean import adapters

    model = base_drift.adapted_model()
    layers = adapters.layers(model)
    before = {name: layer.base_layer.weight.detach().double() for name, layer in layers.items()}
    assert base_drift.norms(model, before) == (0.0, 0.0)  # B is zero at first
    first, second = list(layers.values())[:2]
    with torch.no_grad():
        for layer, number in ((first, 3.0), (second, 4.0)):
            layer.base_layer.weight[0, 0] = 0.0
            layer.lora_A["default"].weight.zero_()[0, 0] = 1.0
            layer.lora_B["default"].weight[0, 0] = number / 2  # scaled by 2
    values = [before[name][0, 0].item() for name in list(layers)[:2]]
    assert base_drift.norms(model, before) == pytest.approx((sum(v * v for v in values) ** 0.5, 5.0))
