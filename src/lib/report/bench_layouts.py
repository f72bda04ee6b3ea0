"""Columns of the bench's tables, as in `layouts`: {title: function of a row that gives the cell's text}."""

import pandas as pd

from lib.report.compare import LETTERS, NAMES
from lib.report.layouts import columns, counts, only, scaled, written_as
from lib.report.show import number, times


def measured(row) -> str:
    """A median of seconds with its quartiles and number."""
    return "-" if pd.isna(row.s) else f"{row.s:.2f} ({row.low:.2f} to {row.high:.2f}), n = {row.n:.0f}"


SESSIONS = {
    "bench": lambda row: row.bench,
    "began (UTC)": lambda row: row.session[:16].replace("T", " "),
    "device": lambda row: row.device,
    "commit": lambda row: "unknown" if pd.isna(row.commit) else row.commit[:10],
    "code": lambda row: "this copy's" if row.same_code else "changed since",
    **columns({"rows": "rows"}, counts),
}

DEAD = {"dead groups": scaled("dead_share", ".0%")}

LEAN = (
    {"case": lambda row: row.case}
    | DEAD
    | {"trainer": lambda row: row.variant, "its step (s)": measured}
    | columns({"over stock": "over_stock", "over stock-best": "over_best"}, times)
    | columns({"positions": "positions"}, counts)
)

GRID = {
    "micro-batch (rollouts), checkpointing": lambda row: row.cell.replace("b=", "").replace(" checkpointing=", ", "),
    "its step (s)": lambda row: row.failed if isinstance(getattr(row, "failed", None), str) else measured(row),
}


def by_variant(table: pd.DataFrame) -> dict:
    """Of rows with a `part`: a column of seconds for each column of `table`, which has the parts as its index."""

    def cell(name):
        return lambda row: number(table.loc[row.part, name], ".3f")

    return {"part": lambda row: row.part} | {f"{name} (s)": cell(name) for name in table}


WATERFALL = {
    "saving": lambda row: row.saving if row.saving == "none" else f"+ {row.saving}",
    "what it leaves out": lambda row: (
        "TRL's own path" if row.saving == "none" else "not noted" if pd.isna(row.does) else row.does
    ),
    "the step with it (s)": measured,
    **written_as("+.2f", {"saved (s)": "saved_s"}),
}

OF = {"step": "whole step", "trainer": "trainer's part"}

LAWS = {"law": lambda row: row.law, "seconds of": lambda row: OF[row.of]} | {
    **written_as(".2f", {"intercept (s)": "intercept"}),
    **written_as(".3g", {"rate (s a million)": "rate"}),
    "cells fitted / held out": lambda row: f"{row.fitted} / {row.held}",
    **columns({"median error": "median_error", "worst": "worst_error"}, lambda value: number(value, ".1%")),
}

LAW_ROWS = (
    {"law": lambda row: row.law, "seconds of": lambda row: OF[row.of], "case": lambda row: row.case}
    | DEAD
    | columns({"work": "work"}, counts)
    | written_as(".2f", {"measured (s)": "seconds", "by the law (s)": "predicted"})
    | columns({"off by": "error"}, lambda value: number(value, "+.1%"))
    | {"": lambda row: "held out" if row.held else "fitted"}
)


def projected(table: pd.DataFrame) -> dict:
    """Of `projection.bill`: the published seconds, and for each way those projected with the bench's in brackets."""

    def cell(way):
        at, bench = table.columns.get_loc(way), table.columns.get_loc(f"bench {way}")

        def text(row):
            seconds = row[1 + bench]
            of_bench = "" if pd.isna(seconds) or row.part == "sum" else f" ({seconds:.3f})"
            return f"{row[1 + at]:,.0f}{of_bench}"

        return text

    ways = [name for name in table if f"bench {name}" in table]
    layout = {"part": lambda row: row.part} | columns({"published (s)": "published"}, counts)
    return layout | {way: cell(way) for way in ways}


ARM_RATES = {
    "arm": lambda row: f"{LETTERS[row.arm]} {NAMES[row.arm]}",
    "trainer": lambda row: row.variant,
    **columns({"documents a batch": "batch"}, counts),
    "tokens a second": lambda row: f"{row.rate:,.0f} ({row.low:,.0f} to {row.high:,.0f}), n = {row.n}",
    **columns({"over TRL's default": "over_default", "over bf16": "over"}, times),
}

ARM_GRADIENTS = {
    "arm": lambda row: f"{LETTERS[row.arm]} {NAMES[row.arm]}",
    "trainer": lambda row: row.variant,
    "gradient: cosine to bf16": scaled("cosine", ".6f"),
    "relative error": scaled("error", ".2g"),
}

MULTIPLES = (
    {"seed": lambda row: str(row.seed), "C trained by": lambda row: row.way}
    | written_as(".3f", {"C (h)": "grpo_hours", "A as published (h)": "sft_hours"})
    | columns({"C / A": "multiple"}, times)
    | {
        "A with its own savings (h)": scaled("sft_own_hours", ".3f"),
        "C / A then": lambda row: "not measured" if pd.isna(row.own_multiple) else times(row.own_multiple),
    }
)

AGREEMENT = {
    "case": lambda row: row.case,
    "trainer": lambda row: row.variant,
    **written_as(".6f", {"gradient: cosine to stock": "cosine"}),
    **written_as(".2g", {"relative error": "error"}),
    **written_as(".3f", {"engine's gap: synced": "synced", "adapter moved": "adapter_changed"}),
    **written_as(".3f", {"synced again (nats)": "synced_again"}),
}

BASE_DRIFT = {
    "trainer": lambda row: row.trainer,
    "weight syncs": only("syncs", counts),
    **written_as(".3g", {"change of the base (norm)": "base_change", "the adapter's product (norm)": "lora_delta"}),
    **columns({"ratio": "ratio"}, lambda value: number(value, ".1%")),
}

CONSTANT_GROUPS = {
    "run": lambda row: row.run,
    "device": lambda row: row.device,
    **columns({"groups": "groups", "max equals min": "constant"}, counts),
    "TRL's count": lambda row: "not logged" if pd.isna(row.trl) else counts(row.trl),
    **columns({"of them with an advantage": "spurious"}, counts),
    **written_as(".1e", {"the largest": "advantage"}),
}
