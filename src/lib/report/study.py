"""The records that a comparison reads: those that the stages before it used."""

import contextlib
import os
import re

from lib import records, written
from lib.paths import BOOK
from lib.report import compare
from lib.written import NUMBER

ARMS = ("start", *compare.NAMES)


def published() -> dict:
    """The published study's figures, of book/published.yaml. Raises ValueError with the field that is wrong."""

    def rows(texts=(), numbers=()):
        own = dict.fromkeys(texts, str) | dict.fromkeys(numbers, NUMBER)
        return {"rows": [own | {...: NUMBER | None}]}

    ends = [f"{side}_logp_{end}" for side in ("chosen", "rejected") for end in ("first", "last")]
    tenths = [f"zero_{tenth}" for tenth in ("first", "middle", "last")]
    shape = {
        "setup": dict.fromkeys(("model", "text", "device", "price_date"), str)
        | {"usd_per_hour": NUMBER, "n": int, "seeds": int, "learning_rates": {...: NUMBER}},
        "final": rows(["arm"]),
        "equal_spend": rows(["of"]),
        "all_budgets": rows(),
        "reach_and_hold": rows(["of"], ["seed", "sft_hours"]),
        "dpo": rows(numbers=ends) | {"pairs": int},
        "errors": {"places_share": NUMBER},
        "bill": rows(["part"], ["seconds", "share"]) | {"billed_s": NUMBER},
        "tokens": rows(numbers=["steps", "trainer", "generated"]),
        "groups": rows(numbers=["seed", *tenths]),
        "nulls": rows(["checkpoint"]) | {"gold": {...: int}},
        "predictions": dict.fromkeys(("made", "wrong", "mixed"), int),
        "findings": {"source": str, ...: {...: {"published": str, "text": str}}},
    }
    return written.read(BOOK / "published.yaml", shape)


def read(profile: str, seeds: list[int]) -> tuple[list[int], records.Record, dict, dict]:
    """Seeds, the setup, the shared start of each seed, and the runs by (arm, seed).

    Given `seeds` must all be there; without, they are those that any arm has, and an arm may lack some, but not all.
    Raises FileNotFoundError for a run that is missing, ValueError for one that was not judged on the held-out split.
    """
    # Only names are read here: a pin of a seed or an arm that is not asked for may be stale.
    pins = {path.stem for path in (records.RUNS / profile / "pins").glob("*.json")}
    own = [re.fullmatch(r"([a-z]+)-s([0-9]+)", pin) for pin in pins]  # no variant
    arms = {arm: {int(pin[2]) for pin in own if pin and pin[1] == arm} for arm in compare.NAMES}
    wanted = seeds or sorted(set.union(*arms.values())) or [0]
    setup = records.pinned(profile, "setup")
    starts = {seed: records.pinned(profile, f"start-s{seed}") for seed in wanted}
    runs = {
        (arm, seed): records.pinned(profile, f"{arm}-s{seed}")
        for seed in wanted
        for arm in ("sft", "grpo", "dpo")  # the published order
        if seeds or seed in arms[arm] or not arms[arm]
    }
    compare.check_judged([setup, *starts.values(), *runs.values()])
    return wanted, setup, starts, runs


def variants(profile: str, there: list[records.Record]) -> list[records.Record]:
    """Finished variants of the runs in `there` (setup, starts, arms): starts first, then by name.

    Of each name the run that was executed last in this copy, else the recorded one, else this copy's own. It counts
    only if it began from runs in `there`, or from another variant's start or arm that did; with TRAIN=always recorded
    ones do not.
    """
    names = {path.stem for path in (records.RUNS / profile / "pins").glob("*.json")}
    names |= {path.parent.name for path in (records.RESULTS / profile).glob("*/run.json")}
    names |= {path.parent.parent.name for path in (records.RUNS / profile).glob("*/record/run.json")}
    seeds = {run.seed for run in there}
    pattern = re.compile(r"(start|sft|dpo|grpo)-[a-z][a-z0-9_]*-s([0-9]+)")
    varied = {name: found for name in names if (found := pattern.fullmatch(name)) and int(found[2]) in seeds}
    ids, used = {run.name: run.info["id"] for run in there}, []
    for name in sorted(varied, key=lambda name: (ARMS.index(varied[name][1]), name)):
        for run in _finished(profile, name):
            if run.info["parents"].items() <= ids.items():
                ids[name] = run.info["id"]
                used.append(run)
                break
    compare.check_judged(used)
    return used


def _finished(profile, name):
    """Records of a run, the one that an executed notebook used first; a pin to what is gone or changed is none."""
    with contextlib.suppress(FileNotFoundError, RuntimeError):
        yield records.pinned(profile, name)
    places = [] if os.environ.get("TRAIN") == "always" else [records.RESULTS / profile / name]
    for folder in [*places, records.RUNS / profile / name / "record"]:
        if (folder / "run.json").exists():
            yield records.load(folder)


def with_both(profile: str, runs: dict) -> list[int]:
    """Seeds that have continued SFT and GRPO, in order of `runs`. Raises ValueError if there is none."""
    both = [seed for arm, seed in runs if arm == "sft" and ("grpo", seed) in runs]
    if not both:
        names = [run.name for run in runs.values()]
        raise ValueError(f"profile {profile}: no seed has both sft and grpo; runs are {names}")
    return both


def devices(profile: str, runs) -> tuple[str, list[str]]:
    """The one kind of device of some runs, and the devices' names. Raises ValueError for more than one kind."""
    found = sorted({(run.info["device"]["kind"], run.info["device"]["name"]) for run in runs})
    if len({kind for kind, _ in found}) > 1:
        raise ValueError(f"profile {profile}: runs on {found} have no common cost axis, expected one kind of device")
    return found[0][0], [name for _, name in found]
