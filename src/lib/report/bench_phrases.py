"""What the articles print of the benches, as phrases; "not measured" where a bench, or a part of it, is absent."""

import pandas as pd

from lib import provenance
from lib.report import benches, projection, upstream
from lib.report.compare import LETTERS
from lib.report.show import percent, times

ABSENT = "not measured"


def lean(steps: pd.DataFrame, sessions: list[dict]) -> dict[str, str]:
    """What the lean trainer gains at the published case: without dead groups (live) and with the most of them (dead),
    over stock and over TRL's own switches; what these are; and on what that was measured.

    steps: `benches.whole_steps`.
    """
    keys = ("lean_live", "lean_dead", "lean_dead_share", "lean_switches", "lean_live_switches", "lean_bench")
    found = dict.fromkeys(keys, ABSENT)
    if steps.empty:
        return found
    here = steps[steps["case"] == benches.PUBLISHED].sort_values("dead_share")
    own = here[here["variant"] == "lean"]
    for key, rows in (("lean_live", own[own["dead_share"] == 0]), ("lean_dead", own[own["dead_share"] > 0].tail(1))):
        for row in rows.dropna(subset=["over_stock"]).itertuples():
            found[key] = beside(row, "over_stock")
            found |= {"lean_dead_share": percent(row.dead_share, ".0%")} if key == "lean_dead" else {}
    for row in own[own["dead_share"] == 0].dropna(subset=["over_best"]).itertuples():
        found["lean_live_switches"] = beside(row, "over_best")
        told = next(s for s in sessions if s["session"] == row.over_best_session)["variants"]["stock-best"]
        found["lean_switches"] = (
            f"micro-batches of {told['per_device_train_batch_size']} rollouts, gradient checkpointing "
            f"{'on' if told['gradient_checkpointing'] else 'off'}"
        )
    shown = [s for s in sessions if s["session"] in set(steps["session"])]
    return found | {"lean_bench": "; ".join(dict.fromkeys(map(where, shown)))}


def recorded(rows: pd.DataFrame) -> dict[str, str]:
    """Steps without generation, on the same recorded rollouts, at the published case without dead groups."""
    own = rows[(rows["part"] == "recorded") & (rows["case"] == benches.PUBLISHED) & (rows["dead_share"] == 0)]
    found = benches.together(own, "lean", "stock") if len(own) else None
    told = ABSENT if found is None else beside(pd.Series({f"over{k}": v for k, v in found.items()}), "over")
    return {"lean_recorded": told}


def beside(row, key: str) -> str:
    """A multiple of `benches.whole_steps` with the two medians that it is of, and the smaller n of the two."""
    base_s, own_s, n = (getattr(row, f"{key}{name}") for name in ("_base_s", "_own_s", "_n"))
    return f"{times(getattr(row, key))} ({base_s:.2f} s against {own_s:.2f} s, n = {n:.0f})"


def where(session: dict) -> str:
    """On what a session ran: device, date, commit, versions, what else ran on that host, and whether by this code."""
    versions = session["versions"]
    commit = f"commit {str(session['commit'])[:10]}, TRL {versions['trl']}, vLLM {versions['vllm']}"
    busy = session.get("other_gpus_busy")
    others = f", {busy} other GPU of the host busy" if busy == 1 else f", {busy} others busy" if busy else ""
    code = "" if session.get("source_sha256") == provenance.source_sha256() else ", by other code than this copy's"
    return f"{session['device']['name']}, {session['session'][:10]}, {commit}{others}{code}"


def floor(table: pd.DataFrame) -> dict[str, str]:
    """The floor of the lean step and how much of the step it is; of `benches.floor`."""
    if "lean" not in table:
        return {"lean_floor": ABSENT}
    own = table["lean"]
    step = own["the step, timers on"]
    told = "generation {:.2f} s and arithmetic {:.2f} s, {} of {:.2f} s"
    share = percent(own["floor"] / step, ".0%")
    return {
        "lean_floor": ABSENT
        if pd.isna(own["floor"])
        else told.format(own["generation"], own["arithmetic of the positions"], share, step)
    }


def waterfall(steps: pd.DataFrame, whole: pd.DataFrame, not_reached: list[str]) -> dict[str, str]:
    """From where to where the savings lead, and the largest three; stock's and lean's own steps for comparison.

    not_reached: savings that the session had no time for.
    """
    if steps.empty:
        return {"waterfall_ends": ABSENT, "waterfall_largest": ABSENT}
    largest = steps.dropna(subset=["saved_s"]).nlargest(3, "saved_s")
    here = whole[(whole["case"] == benches.PUBLISHED) & (whole["dead_share"] == 0)] if len(whole) else whole
    own = {row.variant: f"{row.s:.2f} s" for row in here.itertuples()}
    first, last = steps["s"].iloc[0], steps["s"].iloc[-1]
    most = f"the {len(steps) - 1} reached (not {', '.join(not_reached)})" if not_reached else "all"
    return {
        "waterfall_ends": f"{first:.2f} s without any and {last:.2f} s with {most} (stock's own step "
        f"{own.get('stock', ABSENT)}, lean's {own.get('lean', ABSENT)})",
        "waterfall_largest": ", ".join(f"{row.saving} {row.saved_s:.2f} s" for row in largest.itertuples()),
    }


def laws(summary: pd.DataFrame) -> dict[str, str]:
    """How far each law is off on the shapes held out; of `steplaw.laws`."""
    keys = {
        ("stock, prompt tokens x rollouts x passes", "trainer"): "law_prompts",
        ("stock, positions x passes", "trainer"): "law_stock",
        ("lean, positions", "trainer"): "law_lean",
        ("stock, prompt tokens x rollouts x passes", "step"): "law_prompts_step",
        ("stock, positions x passes", "step"): "law_stock_step",
        ("lean, positions", "step"): "law_lean_step",
    }
    found = dict.fromkeys(keys.values(), ABSENT)
    for row in summary.itertuples():
        off = f"{row.median_error:.1%} in the median and {row.worst_error:.1%} at the worst of {row.held} held out"
        found[keys[row.law, row.of]] = off
    return found


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
    """How many constant groups TRL's measure misses in each recorded run, and one group worked out."""
    told = [
        f"{row.constant - row.trl:.0f} of {row.constant} ({row.run}, {row.device})"
        for row in rows.itertuples()
        if pd.notna(row.trl)
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
