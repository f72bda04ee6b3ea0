"""What the benches measured: seconds of a GRPO step by trainer, and what the timers cost. Here they are only read."""

import pandas as pd

from lib import clock, records
from lib.paths import RESULTS


def grpo_step() -> tuple[pd.DataFrame, list[dict]] | None:
    """Rows of `lib.bench.grpo_step`, one a timed step, and notes of its sessions; None where nothing was recorded."""
    path = RESULTS / "bench" / "grpo_step.parquet"
    if not path.exists():
        return None
    return records.read_table(path, ("case", "variant", "part"), ("wall_s",)), clock.read_json(
        path.with_suffix(".json")
    )


def whole_steps(rows: pd.DataFrame) -> pd.DataFrame:
    """Whole steps, no timers inside, by case and share of dead groups: stock beside every other variant.

    `case`, `dead_share`, `variant`, `stock_s` and `s` (medians), `stock_low` to `high` (quartiles), `stock_n`, `n`,
    `multiple` (of the medians), `positions` (median, through the pass with gradient; missing where none was made).
    """
    wall = rows[rows["part"] == "wall"]
    found = []
    for (case, dead_share), cell in wall.groupby(["case", "dead_share"], sort=True):
        stock = cell.loc[cell["variant"] == "stock", "wall_s"]
        for variant, own in cell[cell["variant"] != "stock"].groupby("variant"):
            row = {"case": case, "dead_share": dead_share, "variant": variant}
            for prefix, seconds in (("stock_", stock), ("", own["wall_s"])):
                row |= {f"{prefix}n": len(seconds), f"{prefix}s": seconds.median()}
                row |= {f"{prefix}low": seconds.quantile(0.25), f"{prefix}high": seconds.quantile(0.75)}
            row |= {"multiple": row["stock_s"] / row["s"], "positions": own["positions_grad"].median()}
            found.append(row)
    return pd.DataFrame(found)


def timers() -> dict | None:
    """What `lib.bench.timers` found: medians of the step in seconds, timers `on` and `off`, and `n` steps of each.

    The first turn, in which the process warms up, is left out. None where nothing was recorded.
    """
    path = RESULTS / "bench" / "timer.csv"
    if not path.exists():
        return None
    rows = records.read_table(path, ("device", "timers"), ("turn", "wall_s"))
    rows = rows[rows["turn"] > 0]
    found = {"device": rows["device"].iloc[0], "n": int(rows.groupby("timers").size().min())}
    for mode, own in rows.groupby("timers"):
        by_turn = own.groupby("turn")["wall_s"].median()
        found |= {mode: float(own["wall_s"].median()), f"{mode}_low": by_turn.min(), f"{mode}_high": by_turn.max()}
    return found
