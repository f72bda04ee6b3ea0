"""What a budget buys, read off the recorded curves: no more than they show, and "not decidable" where they do not.

Each arm is read at its newest checkpoint within the budget. Its interval covers the sampling of documents, seed by
seed, and spans the seeds; it does not cover other models, data or tasks. A verdict needs intervals that do not overlap,
and inputs inside what was measured.
"""

from numbers import Real

import pandas as pd

from lib.report.compare import NAMES, Curve, newest_within, standard_error
from lib.report.cost import show_hours

Z = 1.959964  # of a 95% interval
NOT_DECIDABLE = "not decidable"


def expected(curves: dict[tuple[str, int], Curve], arm: str, hours: float) -> dict:
    """{accuracy, low, high, note} of an arm at a budget: the mean over its seeds, and the span of their intervals.

    note: "ended" where a run ended within the budget, which then buys its end for less; "start" where one had saved
    nothing by then. All missing for an arm without runs.
    """
    own = [curve for (name, _), curve in curves.items() if name == arm]
    if not own:
        return dict(accuracy=None, low=None, high=None, note="")
    note, rows = "", []
    for curve in own:
        at = newest_within(curve, hours)
        note = "ended" if at is None else "start" if at == 0 else note
        point = curve.points.iloc[-1 if at is None else at]
        error = standard_error(point["exact"], point["n"])
        rows.append((point["accuracy"], point["accuracy"] - Z * error, point["accuracy"] + Z * error))
    accuracy, low, high = zip(*rows, strict=True)
    return dict(accuracy=sum(accuracy) / len(own), low=max(0.0, min(low)), high=min(1.0, max(high)), note=note)


def inputs_outside(curves: dict, labels: int | None, start_accuracy: float | None, measured_labels: int | None) -> str:
    """Why labels at hand or a start accuracy lie outside what was measured, else "". None: as measured."""
    why = []
    if labels is not None and measured_labels is not None and labels < measured_labels:
        why.append(f"{labels:,} labels, measured with {measured_labels:,}")
    if start_accuracy is not None:
        starts = [curve.points.iloc[0] for curve in curves.values()]
        spans = [(p["accuracy"], Z * standard_error(p["exact"], p["n"])) for p in starts]
        low, high = min(a - e for a, e in spans), max(a + e for a, e in spans)
        if not low <= start_accuracy <= high:
            why.append(f"a start at {start_accuracy:.3f}, measured from {low:.3f} to {high:.3f}")
    return "; ".join(why)


def plan(curves: dict, budgets_hours: list[float], outside: str = "") -> pd.DataFrame:
    """One row a budget: `hours`, for each arm `<arm>`, `<arm>_low`, `<arm>_high`, `<arm>_note`, and `verdict`.

    outside: of `inputs_outside`; where it says something, nothing is decidable. Nor is it past the end of the longest
    run, before any arm has saved a checkpoint, or with one arm alone. Else the verdict names the arm whose interval
    lies above those of all others. Raises ValueError for a budget that is no number of hours above 0.
    """
    for hours in budgets_hours:
        if type(hours) is bool or not isinstance(hours, Real) or not 0 < hours < float("inf"):
            raise ValueError(f"budgets: got {hours!r}, expected device-hours above 0")
    longest = max(curve.end_hours for curve in curves.values())
    rows = []
    for hours in budgets_hours:
        found = {arm: expected(curves, arm, hours) for arm in NAMES}
        row = {"hours": hours}
        for arm, values in found.items():
            row |= {arm: values["accuracy"]} | {f"{arm}_{k}": values[k] for k in ("low", "high", "note")}
        there = {arm: values for arm, values in found.items() if values["accuracy"] is not None}
        best = max(there, key=lambda arm: there[arm]["low"])
        others = [values["high"] for arm, values in there.items() if arm != best]
        if outside:
            why = outside
        elif hours > longest * (1 + 1e-9):
            why = f"the longest run took {show_hours(longest)}"
        elif all(values["note"] == "start" for values in there.values()):
            why = "no arm had saved a checkpoint"
        elif not others:
            why = "one arm alone was run"
        else:
            why = "" if there[best]["low"] > max(others) else "intervals overlap"
        row["verdict"] = f"{NOT_DECIDABLE}: {why}" if why else f"{NAMES[best]} is ahead"
        rows.append(row)
    return pd.DataFrame(rows)


def break_even(curves: dict, left: str, right: str) -> dict[int, float | None]:
    """By seed, the first budget (h) from which `left` is at or above `right` for as long as both ran; None: at none.

    Asked at every checkpoint of both, once each has saved one of its own; by accuracy alone, without a test.
    """
    found = {}
    for (arm, seed), one in curves.items():
        other = curves.get((right, seed))
        if arm != left or other is None:
            continue
        hours = sorted({*one.points["hours"], *other.points["hours"]})
        both = [(h, newest_within(one, h), newest_within(other, h)) for h in hours]
        both = [(h, a, b) for h, a, b in both if a and b]
        held = None
        for h, a, b in reversed(both):
            if one.points["accuracy"][a] < other.points["accuracy"][b]:
                break
            held = h
        found[seed] = held
    return found


def shown(accuracy, low, high, note) -> str:
    """An accuracy with its interval, such as "0.873 (0.851 to 0.895), ended"; a dash where it is missing."""
    if pd.isna(accuracy):
        return "-"
    return f"{accuracy:.3f} ({low:.3f} to {high:.3f})" + (f", {note}" if note else "")
