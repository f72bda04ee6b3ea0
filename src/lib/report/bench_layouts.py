"""Columns of the bench's tables, as in `layouts`: {title: function of a row that gives the cell's text}."""

import pandas as pd

from lib.report.benches import STEPS
from lib.report.compare import LETTERS, NAMES
from lib.report.layouts import NAMED, columns, counts, only, scaled, written_as
from lib.report.show import number, times


def measured(row) -> str:
    """A median of seconds with its quartiles and number."""
    return "-" if pd.isna(row.s) else f"{row.s:.2f} ({row.low:.2f} to {row.high:.2f}), n = {row.n:.0f}"


def moment(session: str) -> str:
    """When a session began, which is its name."""
    return session[:19].replace("T", " ")


def spread(value: float, low: float, high: float, form, unit: str = "") -> str:
    """A value with the lowest and the highest by turn, where there was more than one turn."""
    return f"{form(value)}{unit}" + ("" if low == high else f" ({form(low)} to {form(high)})")


def seconds(row, key: str, unit: str = "") -> str:
    """The `base` or the `own` seconds of a row of `benches.pairs`."""
    return spread(*(getattr(row, f"{key}_{name}") for name in ("s", "low", "high")), "{:.2f}".format, unit)


def multiple(row) -> str:
    return spread(row.over, row.over_low, row.over_high, times)


def steps(row) -> str:
    """How many steps a row of `benches.pairs` rests on: one number where both trainers made as many."""
    return f"{row.base_n}" if row.base_n == row.own_n else f"{row.base_n} / {row.own_n}"


WHAT = {"wall": "whole", "phases": "timers inside", "recorded": "without generating"}
DEAD = {"zero-variance groups": scaled("dead_share", ".0%")}
SESSION = {"session": only("session", moment)}

LEAN = (
    {"steps": lambda row: WHAT[row.part]}
    | {"prompt + answer (tokens)": lambda row: f"{row.prompt:.0f} + {row.answer:.0f}"}
    | DEAD
    | {"trainer (s)": lambda row: f"{row.base} {seconds(row, 'base')}"}
    | {"beside (s)": lambda row: f"{row.variant} {seconds(row, 'own')}"}
    | {"multiple": multiple, "n": steps}
    | SESSION
)

SESSIONS = (
    {"bench": lambda row: row.bench}
    | SESSION
    | {"case": lambda row: row.case or "-", "parts": lambda row: row.parts or "-", "device": lambda row: row.device}
    | {"commit": lambda row: "unknown" if pd.isna(row.commit) else row.commit[:10]}
    | columns({"other GPUs busy": "busy", "rows": "rows"}, counts)
)

GRID = {
    "micro-batch (rollouts), checkpointing": lambda row: row.cell.replace("b=", "").replace(" checkpointing=", ", "),
    "its step (s)": lambda row: row.failed if isinstance(getattr(row, "failed", None), str) else measured(row),
} | SESSION


def by_variant(table: pd.DataFrame) -> dict:
    """Of rows with a `part`: a column of seconds for each column of `table`, which has the parts as its index."""

    def cell(name):
        return lambda row: number(table.loc[row.part, name], ".0f" if row.part == STEPS else ".3f")

    return {"part": lambda row: row.part} | {f"{name} (s)": cell(name) for name in table}


WATERFALL = {
    "saving": lambda row: row.saving if row.saving == "none" else f"+ {row.saving}",
    "what it leaves out": lambda row: (
        "TRL's own path" if row.saving == "none" else "not noted" if pd.isna(row.does) else row.does
    ),
    "the step with it (s)": measured,
    **written_as("+.2f", {"saved (s)": "saved_s"}),
    "resolved": lambda row: "-" if pd.isna(row.saved_s) else "yes" if row.resolved else "no",
}

SHAPES = {
    **columns({"prompt (tokens)": "prompt", "answer": "answer"}, counts),
    "trainer": lambda row: row.variant,
    **DEAD,
    **columns({"n": "n", "positions": "positions"}, counts),
    **written_as(".2f", {"passes (s)": "passes", "generation (s)": "generation", "step (s)": "step"}),
    **written_as(".0f", {"passes, of a million positions (s)": "rate"}),
}


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
    "sessions": lambda row: "; ".join(moment(s) for s in (row.gradient_session, row.engine_session) if pd.notna(s)),
}

BASE_DRIFT = {
    "trainer": lambda row: row.trainer,
    "weight syncs": only("syncs", counts),
    **written_as(".3g", {"change of the base (norm)": "base_change", "the adapter's product (norm)": "lora_delta"}),
    **columns({"ratio": "ratio"}, lambda value: number(value, ".1%")),
}

CONSTANT_GROUPS = {
    **NAMED,
    "device": lambda row: row.device,
    **columns({"groups": "groups", "max equals min": "constant"}, counts),
    "TRL's count": lambda row: "not logged" if pd.isna(row.trl) else counts(row.trl),
    **columns({"of them with an advantage": "spurious"}, counts),
    **written_as(".1e", {"the largest": "advantage"}),
}
