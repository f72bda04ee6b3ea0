"""Writes small finished runs in the schema of the records, with every number chosen by the caller: for tests only.

`write` makes all runs of a study under `<runs>/<profile>/`, pinned, so that `lib.records` reads them once its RUNS is
that folder. What a test perturbs is an argument: an arm's curve (ARMS), the seconds of a GRPO step (GRPO_STEP).
"""

import json
from pathlib import Path

import numpy as np
import pandas as pd

FIELDS = ("name", "birth_date", "birth_place", "death_date", "death_place")
N = 200  # held-out documents
START = 0.60

# arm -> checkpoints as (billed seconds, accuracy). By default continued SFT leads at equal spend.
ARMS = {
    "sft": [(40, 0.70), (80, 0.78), (120, 0.84), (160, 0.86), (200, 0.87)],
    "dpo": [(60, 0.61), (120, 0.57), (150, 0.54)],
    "grpo": [(150, 0.62), (300, 0.66), (600, 0.76), (900, 0.80)],
}
# Seconds of a GRPO step by phase; the rest of the run's bill is setup.
GRPO_STEP = {
    "generation": 4.0,
    "generate_rest": 0.5,
    "reward": 0.1,
    "tokenise": 0.2,
    "forward_nograd": 5.0,
    "forward_grad": 6.0,
    "backward": 12.0,
    "clip": 0.1,
    "optimizer": 0.4,
    "data": 0.1,
    "log": 0.1,
    "unaccounted": 0.3,
}
LEARNING_RATES = {"start": 1e-3, "sft": 1e-3, "dpo": 1e-4, "grpo": 5e-4}
GPU = {"kind": "cuda", "name": "Fake GPU", "count": 1, "uuid": None, "driver": None}
CPU = {"kind": "cpu", "name": "Fake CPU", "count": 1, "uuid": None, "driver": None}
SETUP = ("model_load", "trainer_setup", "final_save")


def swapped(arms: dict, left: str, right: str) -> dict:
    """The same curves with those of two arms exchanged."""
    return arms | {left: arms[right], right: arms[left]}


def write(
    runs: Path,
    profile="fake",
    arms=ARMS,
    seeds=None,
    device=GPU,
    grpo_step=GRPO_STEP,
    drop_steps=(),
    skip=(),
    info=None,
    variants=None,
    outside=False,
):
    """Write and pin all runs of a study: setup, and for each seed the start and the arms.

    seeds: arm -> its seeds (default: 0 and 1 for every arm). drop_steps: runs that logged nothing of their own by step.
    skip: runs that are left out. info: name of a run -> what its run.json says otherwise. variants: of seed 0, by name
    such as "grpo-lean" -> (curve, parameters, the run that it began from, "start-s0" or "setup"). outside: last
    checkpoints were judged on another text too, with what they have on this one.
    """
    seeds = seeds or {arm: [0, 1] for arm in arms}
    folder = Path(runs) / profile
    every_seed = sorted({seed for own in seeds.values() for seed in own})
    writer = _Writer(folder, profile, device, skip, info or {}, outside)
    writer.run("setup", None, [(0, 0.20)], {}, None, [("model_load", None, 1.0)])
    for seed in every_seed:
        start_curve, load = [(50, 0.45), (90, START)], [("model_load", None, 10.0)]
        writer.run("start", seed, start_curve, {"setup": "id-setup"}, _plain_steps(6), load)
        parents = {"setup": "id-setup", f"start-s{seed}": f"id-start-s{seed}"}
        for arm, curve in arms.items():
            if seed not in seeds[arm]:
                continue
            logged = _plain_steps if f"{arm}-s{seed}" in drop_steps else LOGGED.get(arm, _plain_steps)
            steps = logged(20)
            phases = [("model_load", None, 5.0), ("trainer_setup", None, 2.0)]
            if arm == "grpo":
                phases += [(phase, step, seconds) for step in steps["step"] for phase, seconds in grpo_step.items()]
            curve = [(billed_s, accuracy - 0.02 * seed) for billed_s, accuracy in curve]
            judged = arm == "dpo" and f"{arm}-s{seed}" not in drop_steps
            more = {"likelihood": _likelihood(len(curve))} if judged else {}
            writer.run(arm, seed, curve, parents, steps, phases, more)
    for name, (curve, parameters, origin) in (variants or {}).items():
        arm, _, variant = name.partition("-")
        parents = {"setup": "id-setup"} | {origin: f"id-{origin}"}
        writer.run(
            arm, 0, curve, parents, LOGGED.get(arm, _plain_steps)(20), [], variant=variant, parameters=parameters
        )


class _Writer:
    def __init__(self, folder, profile, device, skip, info, outside):
        self.folder, self.profile, self.device, self.skip, self.info = folder, profile, device, skip, info
        self.outside = outside
        (folder / "pins").mkdir(parents=True, exist_ok=True)

    def run(self, arm, seed, curve, parents, steps, phases, more=None, variant="", parameters=None):
        name = arm if seed is None else f"{arm}{variant and '-'}{variant}-s{seed}"
        if name in self.skip:
            return
        record = self.folder / name / "record"
        record.mkdir(parents=True, exist_ok=True)
        predictions = [_predictions(10 * k, accuracy, arm, seed) for k, (_, accuracy) in enumerate(curve, start=1)]
        checkpoints = []
        for table, (billed_s, _) in zip(predictions, curve, strict=True):
            row = {"step": table["step"].iloc[0], "billed_s": float(billed_s), "train_s": 0.9 * billed_s, "n": N}
            row |= {"exact": int(table["exact"].sum()), "valid": int(table["valid"].sum()), "weights_sha256": "0" * 64}
            for field in FIELDS:
                for verdict in ("right", "wrong", "missing", "spurious"):
                    row[f"{field}_{verdict}"] = int((table[f"{field}_verdict"] == verdict).sum())
            checkpoints.append(row)
        billed_s = float(curve[-1][0])
        known_s = sum(seconds for _, _, seconds in phases)
        rows = [*phases, ("final_save", None, max(0.0, billed_s - known_s))]
        ledger = pd.DataFrame(rows, columns=["phase", "step", "host_s"])
        if known_s > billed_s > 0:  # the parts of a short run are scaled to its bill
            ledger["host_s"] *= billed_s / known_s
        outside = ledger["phase"].isin(SETUP)
        ledger = ledger.assign(attempt=0, device_s=None, calls=1, billed=True)
        ledger["kind"] = outside.map({True: "setup", False: "train"})
        said = self.info.get(name, {})
        apart = {"evaluation": 3.0, "resume": said.get("resume_s", 0.0), "lost": said.get("lost_s", 0.0)}
        unbilled = {"attempt": 0, "calls": 1, "billed": False}
        apart = [unbilled | {"phase": kind, "kind": kind, "host_s": seconds} for kind, seconds in apart.items()]
        ledger = pd.concat([ledger, pd.DataFrame(apart)], ignore_index=True)
        ledger["step"] = ledger["step"].astype("Int64")
        ledger["device_s"] = ledger["device_s"].astype("float64")
        tables = {"checkpoints": pd.DataFrame(checkpoints), "predictions": pd.concat(predictions), "phases": ledger}
        tables |= (more or {}) | ({"predictions_outside": predictions[-1]} if self.outside else {})
        if steps is not None:
            tables["steps"] = steps
        for table, rows in tables.items():
            rows.to_parquet(record / f"{table}.parquet", index=False)
        times = {"start_utc": "2026-01-01T00:00:00+00:00", "end_utc": "2026-01-01T01:00:00+00:00"}
        trained = arm != "setup"
        trainer = {"learning_rate": LEARNING_RATES[arm], "gradient_checkpointing": True} if trained else {}
        identity = {"arm": arm, "seed": seed, "data": "f" * 64, "model": "e" * 64, "parents": parents}
        identity |= {group: {"values": {}, "defaults": {}} for group in ("parameters", "trainer")}
        identity["parameters"]["values"] = parameters or {}
        info = {
            "run": name, "arm": arm, "seed": seed, "profile": self.profile, "status": "finished", "id": f"id-{name}",
            "identity": identity, "parents": parents, "parameters": {"judged_split": "heldout"} if trained else {},
            "trainer": trainer, "facts": {}, "files": {},
            "data_fingerprint": "f" * 64, "model": {"name": "fake", "sha256": "e" * 64}, "source_sha256": "d" * 64,
            "device": self.device, "versions": {}, "commit": None, "billed_s": billed_s,
            "attempts": [{"attempt": 0, **times, "status": "finished"}], "evaluation_s": 3.0, "resume_s": 0.0,
            "train_s": float(ledger.loc[ledger["kind"] == "train", "host_s"].sum()), "lost_s": 0.0,
        } | self.info.get(name, {})  # fmt: skip
        (record / "run.json").write_text(json.dumps(info))
        pin = {"folder": str(record.resolve()), "id": info["id"]}
        (self.folder / "pins" / f"{name}.json").write_text(json.dumps(pin))


def _predictions(step, accuracy, arm, seed):
    """One checkpoint: document i is right when its difficulty, shaken a little for each arm, is below the accuracy."""
    random = np.random.default_rng([7, seed or 0, sum(map(ord, arm)), step])
    difficulty = np.linspace(0, 1, N, endpoint=False) + random.normal(0, 0.05, N)
    exact = np.zeros(N, dtype=bool)
    exact[np.argsort(difficulty, kind="stable")[: round(accuracy * N)]] = True
    table = pd.DataFrame({"step": step, "id": [f"doc-{i:04}" for i in range(N)], "valid": True, "exact": exact})
    alive = np.arange(N) % 3 == 0  # gold has no death
    for field in FIELDS:
        values = np.where(alive, None, "a value") if field.startswith("death") else np.full(N, "a value", dtype=object)
        table[field], table[f"{field}_verdict"] = values, "right"
    # A wrong record goes wrong in its birth place: in turn null, another value; every seventh in its birth date.
    order = np.cumsum(~exact)
    in_date = ~exact & (order % 7 == 0)
    in_place = ~exact & ~in_date
    table.loc[in_date, "birth_date_verdict"] = "wrong"
    table.loc[in_place, "birth_place_verdict"] = np.where(order[in_place] % 2, "missing", "wrong")
    table.loc[table["birth_place_verdict"] == "missing", "birth_place"] = None
    return table


def _plain_steps(n_steps):
    step = np.arange(1, n_steps + 1)
    return pd.DataFrame({"step": step, "loss": 1 / step, "learning_rate": 1e-4, "grad_norm": 1.0})


def _dpo_steps(n_steps):
    rise = np.linspace(0, 1, n_steps)
    chosen, rejected = -1.7 - 2 * rise, -3.6 - 6 * rise
    return _plain_steps(n_steps).assign(
        chosen_logp=chosen, rejected_logp=rejected, chosen_logp_token=chosen / 30, rejected_logp_token=rejected / 30,
        accuracy=0.55 + 0.15 * rise, margin=rise, rejected_reward=-1.5 * rise, chosen_reward=-0.5 * rise,
    )  # fmt: skip


def _likelihood(n_checkpoints, n_pairs=40):
    """Fixed pairs at the start and every checkpoint: both answers get less likely, the rejected ones three times so.

    In one pair in ten it is the other way round.
    """
    rows = []
    for at in range(n_checkpoints + 1):
        for name in ("train", "heldout"):
            for pair in range(n_pairs):
                fall = 0.5 * at * (1 + pair / n_pairs)
                chosen, rejected = (fall, 3 * fall) if pair % 10 else (3 * fall, fall)
                row = {"step": 10 * at, "set": name, "id": f"doc-{pair:04}", "chosen_logp": -2.0 - chosen}
                row |= {"chosen_tokens": 30, "rejected_logp": -4.0 - rejected, "rejected_tokens": 32}
                greedy = {"greedy_logp": -1.0 - 0.1 * at, "greedy_tokens": 28} if name == "heldout" else {}
                rows.append(row | greedy)
    return pd.DataFrame(rows)


def _grpo_steps(n_steps):
    rise = np.linspace(0, 1, n_steps)
    steps = _plain_steps(n_steps).assign(
        reward=0.8 + 0.1 * rise, reward_std=0.1, entropy=0.005 * (1 - rise) + 0.0007, groups=16, rollouts=128,
        zero_variance_groups=np.round(16 * (0.5 + 0.45 * rise)).astype(int), groups_all_right=8, groups_all_wrong=0,
        completion_tokens=128 * 40, prompt_tokens=128 * 300,
    )  # fmt: skip
    steps["zero_variance_all_right"] = steps["zero_variance_groups"] // 2
    steps["zero_variance_all_wrong"] = steps["zero_variance_groups"] // 4
    steps["zero_variance_between"] = steps["zero_variance_groups"] // 8
    steps["wasted_s"] = 10.0 * steps["zero_variance_groups"] / 16
    steps["dead_steps"] = 0
    steps["grad_norm"] = np.where(rise > 0.5, 0.0, 1.0)
    for number, field in enumerate(FIELDS):
        expected = 40 if field.startswith("death") else 0
        steps[f"null_expected_{field}"] = expected
        steps[f"null_{field}"] = expected + np.round(6 * number * np.sin(3 * rise)).astype(int)
        for verdict in ("wrong", "spurious", "missing"):
            steps[f"{verdict}_{field}"] = number
    return steps


LOGGED = {"dpo": _dpo_steps, "grpo": _grpo_steps}
