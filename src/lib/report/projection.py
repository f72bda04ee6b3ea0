"""What the published bill and multiples would have been under other trainers: a projection from a bench, not a run.

Each part of the published bill of GRPO is scaled by the ratio that the bench measured for that part at the published
shape. Assumed: the parts of the study's step stand to stock's here as the bench's do, on another GPU and with its
rollouts; the curve over steps is the same, because the gradient is; seed 1 spent its hours on the same parts as seed 0,
the only one whose bill was published.
"""

import numpy as np
import pandas as pd

from lib import records
from lib.paths import RESULTS
from lib.report import benches
from lib.report.cost import TOGETHER, UPDATE

# Parts that are scaled, as published -> the bench's. Rewards, loading and what no timer saw stay.
SCALED = {
    "generation": ["generation"],
    "weight sync to the engine": ["weight sync to the engine"],
    "rest of generate": ["rest of generate"],
    "no-grad forward": ["no-grad forward"],
    "grad forward": ["grad forward"],
    TOGETHER: list(UPDATE),
}
KEPT = "under no timer"
# How GRPO is trained: label -> (variant, whether the study's dead groups are counted).
WAYS = {
    "stock": ("stock", False),
    "TRL's own switches": ("stock-best", False),
    "lean, no zero-variance group": ("lean", False),
    "lean, the study's zero-variance groups": ("lean", True),
}
# Variants of lib.bench.arm_step: what the study is taken to have run (it says bf16; C's stock here is that too), the
# same in float32, as TRL loads a model by name, and compiled layers, which C's lean trainer goes without.
STOCK, DEFAULT, COMPILED = "bf16", "TRL's default", "+compile"
PLACES = (0.05, 0.5, 0.95)  # where the middles of the first, middle and last tenth of the steps lie


def dead_over_run(groups: dict, steps: int = 1000) -> np.ndarray:
    """Share of dead groups at `steps` moments of a published run, from `zero_first`, `zero_middle`, `zero_last`: linear
    between the middles of these tenths, constant outside them."""
    moments = (np.arange(steps) + 0.5) / steps
    return np.interp(moments, PLACES, [groups[f"zero_{tenth}"] for tenth in ("first", "middle", "last")])


def bench_seconds(timed: pd.DataFrame, variant: str, dead: np.ndarray | None = None) -> pd.Series | None:
    """Mean seconds of a step of the bench by published part (SCALED) for a variant, at the published case.

    timed: of `benches.phases`. dead: shares of dead groups over a run, for a mean over it, linear between the shares
    measured; None: no dead group. A pass that a variant does not make takes no time. None where the phases were not
    timed, or not over the range of `dead`.
    """
    here = timed[(timed["case"] == benches.PUBLISHED) & (timed["variant"] == variant)].sort_values("dead_share")
    shares = here["dead_share"].to_numpy(float)
    wanted = np.zeros(1) if dead is None else dead
    if not len(shares) or shares[0] > wanted.min() or shares[-1] < wanted.max():
        return None
    summed = {part: here[own].astype(float).sum(axis=1) for part, own in SCALED.items()}
    return pd.Series({part: np.interp(wanted, shares, seconds).mean() for part, seconds in summed.items()})


def bill(timed: pd.DataFrame, study: dict, seed: int = 0) -> pd.DataFrame:
    """The published bill, part by part, scaled to each of WAYS: one row a part, then what stays, then the sum.

    `part`, `published` (s), and for each way `bench <way>` (seconds of the bench's step) and `<way>` (projected s). A
    way that was not measured is left out. seed: whose dead groups. Empty without stock's phases, and where stock lacks
    a part that is to be scaled.
    """
    published = pd.DataFrame(study["bill"]["rows"]).set_index("part")["seconds"].astype(float)
    published[KEPT] = study["bill"]["billed_s"] - published.sum()
    stock = bench_seconds(timed, "stock")
    if stock is None or (stock == 0).any():
        return pd.DataFrame()
    dead = dead_over_run(next(row for row in study["groups"]["rows"] if row["seed"] == seed))
    table = published.rename("published").to_frame()
    for way, (variant, counted) in WAYS.items():
        seconds = bench_seconds(timed, variant, dead if counted else None)
        if seconds is not None:
            table[f"bench {way}"] = seconds
            table[way] = published * (seconds / stock).reindex(published.index).fillna(1.0)
    table.loc["sum"] = table.sum(min_count=1)
    return table.rename_axis("part").reset_index()


def arm_step() -> tuple[pd.DataFrame | None, list[dict]]:
    """Rows of `lib.bench.arm_step`, one a timed step of SFT or DPO, and notes of its sessions; None and no notes where
    nothing was recorded."""
    path = RESULTS / "bench" / "arm_step.parquet"
    if not path.exists():
        return None, []
    rows = records.read_table(path, ("session", "arm", "variant", "case"), ("tokens", "wall_s", "batch_documents"))
    benches.counted(path, rows, ("reference_s",) if "reference_s" in rows else ())
    if not (rows[["tokens", "wall_s", "batch_documents"]] > 0).all(axis=None):
        raise ValueError(f"{records.shown(path)}: expected tokens, wall_s and batch_documents above 0 in each row")
    return rows, benches.notes(path, rows)


def arm_rates(rows: pd.DataFrame | None) -> pd.DataFrame:
    """Tokens a second of SFT and DPO at the published case, in the order measured: one row an arm and variant.

    `arm`, `variant`, `batch` (documents), `rate` (median), `low`, `high` (quartiles), `n`, `over` and `over_default`
    (of the medians, over STOCK's and DEFAULT's). Where a reference scored the pairs beforehand, its seconds count, as
    in a run of one epoch. Of each arm one session: of those with the most variants, the newest.
    """
    found = []
    for arm, own in () if rows is None else rows[rows["case"] == benches.PUBLISHED].groupby("arm", sort=False):
        variants = own.groupby("session")["variant"].nunique().rename("n").reset_index()
        own = own[own["session"] == variants.sort_values(["n", "session"])["session"].iloc[-1]]
        before_s = own["reference_s"].astype(float).fillna(0.0) if "reference_s" in own else 0.0
        own = own.assign(rate=own["tokens"] / (own["wall_s"] + before_s))
        for variant, steps in own.groupby("variant", sort=False):
            rate = benches.median(steps["rate"])
            row = {"arm": arm, "variant": variant, "batch": int(steps["batch_documents"].iloc[0])}
            row |= {"rate": rate.pop("s")} | rate
            for name, base in (("over", STOCK), ("over_default", DEFAULT)):
                row[name] = row["rate"] / own.loc[own["variant"] == base, "rate"].median()
            found.append(row)
    columns = ["arm", "variant", "batch", "rate", "low", "high", "n", "over", "over_default"]
    return pd.DataFrame(found, columns=columns)


def arm_gradients(sessions: list[dict]) -> pd.DataFrame:
    """Gradients of SFT and DPO at the published case, beside STOCK's on the same documents from the same weights.

    One row an arm and variant, of the newest session that has it: `arm`, `variant`, `cosine`, `error` (relative, by
    norm); both missing where a gradient had no norm.
    """
    found: dict = {}
    for session in sorted((s for s in sessions if s["case"] == benches.PUBLISHED), key=lambda s: s["session"]):
        for arm in ("sft", "dpo"):
            for name in ("cosine", "error"):
                for variant, value in session["facts"].get(f"{arm}_gradient_{name}_to_{STOCK}", {}).items():
                    row = found.setdefault((arm, variant), {"arm": arm, "variant": variant})
                    row[name] = value
    return pd.DataFrame(list(found.values()), columns=["arm", "variant", "cosine", "error"])


def fastest(rates: pd.DataFrame, arm: str):
    """The row of `arm_rates` with the highest rate over STOCK's, compiled layers apart; None where none is known."""
    own = rates[(rates["arm"] == arm) & (rates["variant"] != COMPILED)].dropna(subset=["over"])
    return None if own.empty else next(own.nlargest(1, "over").itertuples())


def multiples(timed: pd.DataFrame, study: dict, rates: pd.DataFrame) -> pd.DataFrame:
    """C's hours over A's to hold C's last accuracy, as published and projected: one row a seed and way.

    `seed`, `way`, `grpo_hours` and `sft_hours` (A as published), `multiple`; `sft_own_hours` and `own_multiple` with
    A's own savings, all of its time scaled by its tokens a second (`fastest`): missing where that was not measured.
    """
    sft = fastest(rates, "sft")
    found = []
    for row in (row for row in study["reach_and_hold"]["rows"] if row.get("multiple")):
        table = bill(timed, study, row["seed"])
        if table.empty:
            continue
        total = table.set_index("part").loc["sum"]
        own_hours = row["sft_hours"] / sft.over if sft else None
        for way in (way for way in WAYS if way in total):
            hours = row["grpo_hours"] * total[way] / total["published"]
            told = {"seed": row["seed"], "way": way, "grpo_hours": hours, "sft_hours": row["sft_hours"]}
            told |= {"multiple": hours / row["sft_hours"], "sft_own_hours": own_hours}
            found.append(told | {"own_multiple": hours / own_hours if own_hours else None})
    return pd.DataFrame(found)
