"""The figure of the README, drawn from recorded runs: `python -m lib.report.headline PROFILE` (`make headline`)."""

import re
import sys
from pathlib import Path

import pandas as pd
from PIL import Image

from lib import records
from lib.identity import digest
from lib.paths import BOOK, RESULTS
from lib.report import compare, cost, plots

PICTURE = BOOK / "headline.png"


def runs(profile: str) -> dict[tuple[str, int], records.Record]:
    """Recorded runs of the arms and their starts by (arm, seed), no variant and no rerun.

    Raises FileNotFoundError where the profile has none.
    """
    names = [p.parent.name for p in sorted((RESULTS / profile).glob("*/run.json"))]
    arms = "|".join(["start", *compare.NAMES])
    found = [re.fullmatch(rf"({arms})-s([0-9]+)", name) for name in names]
    read = {(m[1], int(m[2])): records.load(RESULTS / profile / m[0]) for m in found if m}
    if not any(arm != "start" for arm, _ in read):
        raise FileNotFoundError(f"no recorded run of an arm in book/results/{profile}")
    return read


def drawn_from(read: dict) -> str:
    """What a picture of these runs notes: one hash of their records."""
    return digest(sorted(run.info["sealed"] if "sealed" in run.info else run.info["id"] for run in read.values()))


def draw(profile: str, path: Path = PICTURE) -> None:
    """Draw the cost curves of the recorded runs; the PNG's text `records` says from which (`drawn_from`)."""
    read = runs(profile)
    keys = sorted((key for key in read if key[0] != "start"), key=lambda key: list(compare.NAMES).index(key[0]))
    curves = [compare.curve(read[arm, seed], read["start", seed]) for arm, seed in keys]
    device = next(iter(read.values())).info["device"]
    unit, per_hour = cost.axis(device["kind"], max(curve.end_hours for curve in curves))
    parts = [c.points.assign(arm=c.arm, seed=c.seed, spent=per_hour * c.points["hours"]) for c in curves]
    ends = sorted(max(c.end_hours for c in curves if c.arm == arm) for arm in {c.arm for c in curves})
    zoom = 1.05 * per_hour * ends[max(0, len(ends) - 2)]
    n = int(next(iter(read.values())).checkpoints["n"].iloc[-1])
    title = f"Profile {profile}, {device['name']}: exact records of {n:,} held-out documents"
    figure = plots.cost_curves(pd.concat(parts), compare.NAMES, unit, zoom, title)
    figure.savefig(path, metadata={"records": drawn_from(read), "Software": ""})


def noted(path: Path = PICTURE) -> str | None:
    """The hash of the records that a picture was drawn from, None where it has none."""
    with Image.open(path) as picture:
        return picture.text.get("records")


if __name__ == "__main__":
    draw(*sys.argv[1:2])
