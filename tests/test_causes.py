"""Where a finding came out otherwise than in the study: a cause only where its numbers bear it out."""

from types import SimpleNamespace

import pandas as pd

from lib.report import causes

DPO = {
    "pairs": 3676,
    "rows": [{"chosen_logp_first": -1, "chosen_logp_last": -3, "rejected_logp_first": -3, "rejected_logp_last": -9}],
}


def dpo(rejected_reward):
    """A run of twenty steps of 16 pairs, with beta 0.1, whose last tenth has these rewards."""
    steps = pd.DataFrame({"chosen_reward": 0.01, "rejected_reward": [rejected_reward] * 20, "pairs": 16})
    return SimpleNamespace(steps=steps, info={"trainer": {"beta": 0.1}})


def test_dpo_that_moved_less_is_told_in_nats():
    assert causes.moved_less([dpo(-0.1)], DPO) == (
        "B moved less: against the start, chosen answers ended +0.10 nats and rejected ones -1.00, after 320 pairs; "
        "in the study, first to last tenth, -2.0 and -6.0, after 3,676"
    )
    assert causes.moved_less([dpo(-0.1), dpo(-0.7)], DPO) == causes.UNKNOWN  # one of them moved further
    assert causes.moved_less([], DPO) == causes.UNKNOWN
    unlogged = SimpleNamespace(steps=pd.DataFrame({"loss": [0.7, 0.6]}), info={"trainer": {}})
    assert causes.moved_less([unlogged], DPO) == causes.UNKNOWN


def test_what_was_tried_is_told_by_its_profile(tmp_path):
    path = tmp_path / "laptop" / "trials.csv"
    path.parent.mkdir()
    head, row = (
        "arm,seed,parameter,value,split,n,exact,best_exact,billed_s,device,commit,trainer,at_once,id\n",
        ",1.0,CPU,abc,lean,1,1\n",
    )
    rows = [f"dpo,{seed},dpo_learning_rate,{rate},dev,200,{exact},130{row}"
            for seed, rate, exact in ((0, 0.0001, 113), (0, 0.00001, 129), (1, 0.001, 20))]  # fmt: skip
    path.write_text(head + "".join(rows))
    assert causes.tried(path) == ". Tried on profile laptop: learning rates 1e-05 / 0.0001 ended at 129 / 113 of 200"
    path.write_text(head + rows[0])
    assert causes.tried(path) == ""


def test_nulls_are_counted_by_their_label():
    """Of four labels one is null: filled at the first checkpoint, answered null at the second."""
    rows = [(1, "spurious", "x"), (2, "right", None)]
    rows = [row for step, *null in rows for row in ((step, *null), *[(step, "right", "y")] * 3)]
    table = pd.DataFrame(rows, columns=["step", "birth_place_verdict", "birth_place"])
    assert causes.fewer_nulls([table], 0.5).startswith(
        "fewer places of birth are null: 25.0%, and A filled at most 1 at a checkpoint; in the study 50.0%"
    )
    assert causes.fewer_nulls([table], 0.25) == causes.fewer_nulls([], 0.5) == causes.UNKNOWN


def test_a_cause_stands_only_where_a_measured_seed_disagrees():
    found = pd.DataFrame({"key": ["a", "b", "c", "d"], "published": ["held", "held", "wrong", "held"]})
    verdicts = {
        "a": {0: "held", 1: "not measured"},
        "b": {0: "held", 1: "not shown"},
        "c": {0: "held"},
        "d": {0: "wrong"},
    }
    told = causes.add(found, verdicts, {"a": "x", "b": "y", "c": "z"})["cause"].tolist()
    assert told == ["-", "y", "z", causes.UNKNOWN]
