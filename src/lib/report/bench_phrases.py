"""What the articles print of the benches, as phrases; "not measured" where a bench, or a part of it, is absent."""

import pandas as pd

from lib.report import benches, projection, upstream
from lib.report.bench_layouts import moment, multiple, seconds, steps
from lib.report.compare import LETTERS
from lib.report.show import percent, times

ABSENT = "not measured"


def lean(pairs: pd.DataFrame, sessions: list[dict]) -> dict[str, str]:
    """What the lean trainer gains at the published case: without dead groups (live; with timers inside; without
    generating) and with the most of them (dead), over stock and over TRL's own switches; what these are; and what it
    gains at other lengths (longer).

    pairs: `benches.pairs`.
    """
    keys = ("lean_live", "lean_timed", "lean_recorded", "lean_dead", "lean_dead_share", "lean_switches", "lean_longer")
    found = dict.fromkeys((*keys, "lean_live_switches", "lean_bench", "lean_basis"), ABSENT)
    if pairs.empty:
        return found
    own = pairs[(pairs["case"] == benches.PUBLISHED) & (pairs["variant"] == "lean")]
    dead = own[(own["part"] == "wall") & (own["dead_share"] > 0) & (own["base"] == "stock")].nlargest(1, "dead_share")
    for row in own[own["dead_share"] == 0].itertuples():
        key = {"wall": "lean_live", "phases": "lean_timed", "recorded": "lean_recorded"}[row.part]
        if row.base == "stock":
            found[key] = beside(row)
        elif row.part == "wall":
            found["lean_live_switches"] = beside(row)
            told = next(s for s in sessions if s["session"] == row.session)["variants"]["stock-best"]
            found["lean_switches"] = (
                f"micro-batches of {told['per_device_train_batch_size']} rollouts, gradient checkpointing "
                f"{'on' if told['gradient_checkpointing'] else 'off'}"
            )
    for row in dead.itertuples():
        found |= {"lean_dead": beside(row), "lean_dead_share": percent(row.dead_share, ".0%")}
    ratios = pairs[pairs["case"].str.startswith("ratio-") & (pairs["part"] == "wall") & (pairs["base"] == "stock")]
    told = [
        f"{times(row.over)} at {row.prompt:.0f} + {row.answer:.0f} tokens"
        for row in ratios[ratios["variant"] == "lean"].itertuples()
    ]
    found["lean_longer"] = "; ".join(told) or ABSENT
    over = own[(own["base"] == "stock") & (own["dead_share"] == 0)].set_index("part")["over"]
    if {"phases", "wall"} <= set(over.index):
        found["lean_basis"] = f"{times(over['phases'])} in these steps, {times(over['wall'])} in whole ones"
    told = {f"{s['device']['name']}, TRL {s['versions']['trl']}, vLLM {s['versions']['vllm']}": 1 for s in sessions}
    return found | {"lean_bench": "; ".join(told)}


def beside(row) -> str:
    """A multiple of `benches.pairs` with the two medians that it is of, their ranges by turn, and how many steps."""
    against = f"{seconds(row, 'base', ' s')} against {seconds(row, 'own', ' s')}"
    return f"{multiple(row)}: {against}, n = {steps(row)}, session {moment(row.session)}"


def floor(table: pd.DataFrame) -> dict[str, str]:
    """The floor of the lean step, how much of the step it is, and what fills the gap; of `benches.floor`."""
    if "lean" not in table or pd.isna(table["lean"]["floor"]):
        return {"lean_floor": ABSENT, "lean_gap": ABSENT}
    own = table["lean"]
    share = percent(own["floor"] / own[benches.STEP], ".0%")
    needed = "arithmetic of the positions"
    gap = own.drop(["generation", needed, "floor", benches.STEP, benches.STEPS])
    return {
        "lean_floor": f"generation {own['generation']:.2f} s and arithmetic {own[needed]:.2f} s, {share} of "
        f"{own[benches.STEP]:.2f} s (means of {own[benches.STEPS]:.0f} steps with timers inside)",
        "lean_gap": "; ".join(f"{part} {s:.2f} s" for part, s in gap.sort_values(ascending=False).items()),
    }


def waterfall(chain: pd.DataFrame, not_reached: list[str]) -> dict[str, str]:
    """From where to where the savings lead, and the largest three. not_reached: savings that the session had no time
    for."""
    if chain.empty:
        return {"waterfall_ends": ABSENT, "waterfall_largest": ABSENT}
    largest = chain.dropna(subset=["saved_s"]).nlargest(3, "saved_s")
    made = len(chain) - 1
    ends = f"the time was over before {', '.join(not_reached)}; " if not_reached else ""
    return {
        "waterfall_ends": f"{chain['s'].iloc[0]:.2f} s without any and {chain['s'].iloc[-1]:.2f} s with {made} of "
        f"{made + len(not_reached)} ({ends}n = {chain['n'].min()} each, session {moment(chain['session'].iloc[0])})",
        "waterfall_largest": ", ".join(f"{row.saving} {row.saved_s:.2f} s" for row in largest.itertuples()),
    }


def shapes(timed: pd.DataFrame) -> dict[str, str]:
    """How work and seconds grow from the published shape to each other one; of `benches.phases`."""
    live = timed[timed["dead_share"] == 0]
    at = {row["variant"]: row for _, row in live[live["case"] == benches.PUBLISHED].iterrows()}
    found = []
    for _, cell in live[(live["case"] != benches.PUBLISHED) & live["variant"].isin(list(at))].iterrows():
        first = at[cell["variant"]]
        names = {"prompt": "prompts", "positions": "positions", "passes": "passes", "generation": "generation"}
        ratios = ", ".join(f"{word} {times(cell[name] / first[name])}" for name, word in names.items())
        found.append(f"{cell['variant']}, {first['answer']:.0f} to {cell['answer']:.0f} tokens: {ratios}")
    return {"shapes": "; ".join(found) or ABSENT}


def projected(table: pd.DataFrame, study: dict, rates: pd.DataFrame) -> dict[str, str]:
    """The published multiples under each way to train C (`projection.multiples`), and A's and B's hours with their own
    savings (`projection.arm_rates`)."""
    found = {}
    for seed in (0, 1):
        rows = table[table["seed"] == seed] if len(table) else table
        told = [
            f"{'as published' if row.way == 'stock' else row.way} {times(row.multiple)}" for row in rows.itertuples()
        ]
        own = rows["own_multiple"].iloc[-1] if told else None
        told += [] if pd.isna(own) else [f"the last, with A's own savings too, {times(own)}"]
        found[f"projected_s{seed}"] = "; ".join(told) or ABSENT
    for arm in ("sft", "dpo"):
        row = projection.fastest(rates, arm)
        (hours,) = (r["hours"] for r in study["final"]["rows"] if r["arm"] == arm and r["seed"] == 0)
        found[f"projected_{arm}"] = f"{LETTERS[arm]}: {ABSENT}"
        if row is not None:
            found[f"projected_{arm}"] = (
                f"{LETTERS[arm]}: {row.rate:,.0f} tokens a second, {times(row.over)} of stock's "
                f"{row.rate / row.over:,.0f} in bf16; its {hours:.3f} h would be {hours / row.over:.3f} h"
            )
    return found


def drift(rows: pd.DataFrame | None) -> dict[str, str]:
    """How far weight syncs move the frozen base; of `upstream.base_drift`."""
    if rows is None:
        return {"drift_stock": ABSENT, "drift_lean": ABSENT, "drift_where": ABSENT}
    found = {}
    for trainer, own in rows.groupby("trainer"):
        told = [f"{row.ratio:.1%} after {row.syncs}" for row in own.sort_values("syncs").itertuples()]
        found[f"drift_{trainer}"] = ", ".join(told) if own["ratio"].any() else "exactly 0 throughout"
    row = rows.iloc[0]
    return found | {"drift_where": f"{row.device}, PEFT {row.peft}, TRL {row.trl}, commit {str(row.commit)[:10]}"}


def constant_groups(rows: pd.DataFrame) -> dict[str, str]:
    """How many constant groups TRL's measure misses in the recorded runs, by device, and one group worked out."""
    told = [
        f"{(own['constant'] - own['trl']).sum():,.0f} of {own['constant'].sum():,} ({device}, {len(own)} "
        f"{'run' if len(own) == 1 else 'runs'})"
        for device, own in (rows.dropna(subset=["trl"]).groupby("device") if len(rows) else ())
    ]
    deviation, advantage = upstream.one_after_the_other(0.3, 8)
    example = f"8 rewards of 0.3 have a standard deviation of {deviation:.1e} and advantages of {advantage:.1e}"
    return {"constant_missed": "; ".join(told) or ABSENT, "constant_example": example}


def timers(found: dict | None) -> str:
    """What the timers cost a step; of `benches.timers`."""
    if found is None:
        return ABSENT
    return (
        "{on:.3f} s a step with them ({on_low:.3f} to {on_high:.3f} by turn), {off:.3f} s without ({off_low:.3f} to "
        "{off_high:.3f}), {n} steps each on {device}"
    ).format(**found)
