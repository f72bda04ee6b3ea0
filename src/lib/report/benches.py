"""What the benches measured: seconds of a GRPO step by trainer, and what the timers cost. Here they are only read.

Sessions of `lib.bench.grpo_step` append to one table. Of a cell (case, part, variant, share of dead groups) the newest
session counts that timed at least as many steps as every other one (`newest`).
"""

from pathlib import Path

import pandas as pd

from lib import clock, provenance, records, sizing
from lib.bench.cases import CASES
from lib.paths import RESULTS
from lib.report import cost
from lib.report.ledger import PEAK_FLOPS

PUBLISHED = "published-1.7b"  # the case that has the published study's shape
VARIANTS = ("stock", "stock-best", "lean", "lean-compiled")
CELL = ["case", "dead_share", "variant"]
REST = "under no timer"
NOTED = ("session", "case", "arguments", "device", "versions", "commit", "variants", "failed", "facts")
# What fills the gap between the floor and the step: in words -> parts of cost.PARTS.
PASSES = ("no-grad forward", "grad forward", "backward")
GAP = {
    "weight sync to the engine": ["weight sync to the engine"],
    "the rest of generating, rewards": ["rest of generate", "reward function"],
    "gradient clipping, optimizer": ["gradient clipping", "optimizer"],
    "data, logging, under no timer": ["data", "logging", "the timers themselves", REST],
}


def grpo_step() -> tuple[pd.DataFrame, list[dict]]:
    """Rows of `lib.bench.grpo_step`, one a timed step, and notes of its sessions; both empty where none is recorded.

    Raises ValueError, with the file, for a damaged or incomplete one.
    """
    path = RESULTS / "bench" / "grpo_step.parquet"
    if not path.exists():
        return pd.DataFrame(columns=["session", *CELL, "part", "wall_s"]), []
    rows = records.read_table(path, ("session", "case", "variant", "part"), ("dead_share",))
    needed = ("wall_s", "positions_grad", "positions_nograd", "completion_tokens")
    counted(path, rows, (*needed, *(name for name in ("tokens", "timed_s") if name in rows)))
    if not (rows["wall_s"] > 0).where(rows["part"] != "phases", rows["wall_s"].isna()).all():
        raise ValueError(f"{records.shown(path)}: wall_s: expected seconds above 0 in each row, and none with timers")
    return rows, notes(path, rows)


def counted(path: Path, rows: pd.DataFrame, columns: tuple[str, ...]) -> None:
    """Raise ValueError for a column that is missing or holds anything but numbers; some may be missing in a row."""
    for name in columns:
        if name not in rows:
            raise ValueError(f"{records.shown(path)}: expected the column {name!r}, got {', '.join(rows)}")
        values = rows[name].dropna()
        if len(values) and not pd.api.types.is_numeric_dtype(values):
            raise ValueError(f"{records.shown(path)}: {name}: got {list(values)[:3]}, expected numbers")


def notes(path: Path, rows: pd.DataFrame, keys: tuple[str, ...] = NOTED) -> list[dict]:
    """What the sessions of a bench noted, in the .json beside its table: `keys` and more.

    Raises ValueError, with the file, for a damaged one, a key that is missing, and a session of `rows` without a note.
    """
    path = path.with_suffix(".json")
    if not path.is_file():
        raise ValueError(f"{records.shown(path)} is not there, expected the notes of the table beside it")
    found = clock.read_json(path)
    if not isinstance(found, list) or not all(isinstance(note, dict) for note in found):
        raise ValueError(f"{records.shown(path)}: expected a list of sessions, got {str(found)[:60]!r}")
    for note in found:
        if missing := [key for key in keys if key not in note]:
            raise ValueError(f"{records.shown(path)}: session {note.get('session')}: {', '.join(missing)} is missing")
    if unknown := set(rows["session"]) - {note["session"] for note in found}:
        raise ValueError(f"{records.shown(path)}: expected notes of session {min(unknown)}, which the table has")
    return found


def sessions(read: dict[str, tuple[pd.DataFrame, list[dict]] | None]) -> pd.DataFrame:
    """The sessions whose rows a page reads, by bench, in the order of time: `bench`, `session`, `device`, `commit`,
    `rows`, and `same_code`: whether the code that measured is this copy's. read: rows and notes of each bench."""
    found = []
    for bench, (rows, told) in ((bench, pair) for bench, pair in read.items() if pair):
        counted = rows["session"].value_counts()
        for note in sorted((n for n in told if n["session"] in counted), key=lambda n: n["session"]):
            row = {"bench": bench, "session": note["session"], "device": note["device"]["name"]}
            row |= {"commit": note.get("commit"), "rows": counted[note["session"]]}
            found.append(row | {"same_code": note.get("source_sha256") == provenance.source_sha256()})
    return pd.DataFrame(found, columns=["bench", "session", "device", "commit", "rows", "same_code"])


def shape_of(case: str) -> sizing.Shape:
    """The Qwen3 shape of a case of `lib.bench.cases` that has one of its own."""
    return sizing.read({"model_type": "qwen3"} | CASES[case]["shape"])


def newest(rows: pd.DataFrame, part: str) -> pd.DataFrame:
    """Rows of a part of the bench, of one session a cell: of those with the most timed steps, the newest."""
    own = rows[rows["part"] == part]
    steps = own.groupby([*CELL, "session"]).size().rename("n").reset_index()
    last = steps.sort_values(["n", "session"]).groupby(CELL).tail(1)
    return own.merge(last.drop(columns="n"), on=[*CELL, "session"])


def order(variants) -> list[str]:
    """Variants in the order of VARIANTS, others after them."""
    return sorted(variants, key=lambda v: (VARIANTS.index(v) if v in VARIANTS else len(VARIANTS), v))


def median(seconds: pd.Series) -> dict:
    """`s` (the median), `low`, `high` (quartiles) and `n` of some seconds."""
    return {"s": seconds.median(), "low": seconds.quantile(0.25), "high": seconds.quantile(0.75), "n": len(seconds)}


def whole_steps(rows: pd.DataFrame) -> pd.DataFrame:
    """Whole steps, no timers inside: one row a case, share of dead groups and variant, in this order.

    `case`, `dead_share`, `variant`, `session`, those of `median`, and `positions` (median, through the pass with
    gradient; missing where none was made). `over_stock`, `over_best`: the median of stock and of stock-best over this
    variant's, of one session that timed both (`together`); missing where none did, and of themselves.
    """
    wall, found = rows[rows["part"] == "wall"], []
    for (case, dead_share, variant), own in newest(rows, "wall").groupby(CELL):
        row = {"case": case, "dead_share": dead_share, "variant": variant, "session": own["session"].iloc[0]}
        row |= median(own["wall_s"]) | {"positions": own["positions_grad"].median()}
        cell = wall[(wall["case"] == case) & (wall["dead_share"] == dead_share)]
        for key, base, itself in (("over_stock", "stock", ()), ("over_best", "stock-best", ("stock",))):
            found_both = None if variant in (base, *itself) else together(cell, variant, base)
            row |= {f"{key}{name}": value for name, value in (found_both or {"": None}).items()}
        found.append(row)
    table = pd.DataFrame(found)
    if table.empty:
        return table
    rank = {variant: number for number, variant in enumerate(order(set(table["variant"])))}
    return table.sort_values(CELL, key=lambda c: c.map(rank) if c.name == "variant" else c, ignore_index=True)


def together(cell: pd.DataFrame, variant: str, base: str) -> dict | None:
    """A variant beside its base in the session that timed the most steps of both, the newest of such; None without one.

    "": the multiple of the medians; `_base_s`, `_own_s`: the medians; `_n`: steps of the one with fewer; `_session`.
    """
    pair = cell[cell["variant"].isin([variant, base])]
    seconds = pair.groupby(["session", "variant"])["wall_s"].agg(["median", "size"]).unstack("variant")
    if seconds.empty or len(seconds["size"].columns) < 2:
        return None
    n = seconds["size"].min(axis=1, skipna=False).dropna()
    if n.empty:
        return None
    session = n[n == n.max()].index.max()
    base_s, own_s = (float(seconds.loc[session, ("median", name)]) for name in (base, variant))
    return {"": base_s / own_s, "_base_s": base_s, "_own_s": own_s, "_n": int(n[session]), "_session": session}


def grid(rows: pd.DataFrame, sessions: list[dict]) -> pd.DataFrame:
    """TRL's own switches without dead groups at the published case: `cell` and `median`; `failed` says why one ended.

    Stock's whole steps are the first row.
    """
    here = rows[(rows["case"] == PUBLISHED) & (rows["dead_share"] == 0)]
    found = {name: median(own["wall_s"]) for name, own in newest(here, "grid").groupby("variant")}
    for session in (s for s in sessions if s["case"] == PUBLISHED):
        found |= {
            name: {"failed": why.split(":")[0]}
            for name, why in session["failed"].items()
            if name.startswith("grid ") and name not in found
        }
    if not found:
        return pd.DataFrame()
    stock = newest(here[here["variant"] == "stock"], "wall")["wall_s"]
    table = pd.DataFrame([{"cell": name.removeprefix("grid ")} | row for name, row in found.items()])
    rank = table["cell"].str.extract(r"b=(\d+)")[0].astype(int)
    table = table.iloc[rank.argsort(kind="stable")]
    return pd.concat([pd.DataFrame([{"cell": "stock"} | median(stock)]), table], ignore_index=True)


def part_seconds(rows: pd.DataFrame) -> pd.DataFrame:
    """Mean seconds of a step by part: `case`, `dead_share`, `variant`, `part`, `seconds`, `n` (steps timed).

    Means, because they add up to the step: the last part, REST, is what the others leave of it. A part of which a
    variant has no row stays missing: it makes no such pass, or no timer saw it.
    """
    found = []
    for key, own in newest(rows, "phases").groupby(CELL):
        cell, left_s = dict(zip(CELL, key, strict=True)) | {"n": len(own)}, own["timed_s"].mean()
        for part, phases in cost.PARTS.items():
            timed = [phase for phase in phases if phase in own and own[phase].notna().any()]
            seconds = own[timed].fillna(0.0).sum(axis=1).mean() if timed else None
            left_s -= seconds or 0.0
            found.append(cell | {"part": part, "seconds": seconds})
        found.append(cell | {"part": REST, "seconds": left_s})
    return pd.DataFrame(found, columns=[*CELL, "n", "part", "seconds"]).astype({"seconds": float})


def side_by_side(parts: pd.DataFrame) -> pd.DataFrame:
    """Of `part_seconds`: a row a part and a column a variant, at the published case without dead groups; and the step.

    Parts that no variant has are left out.
    """
    here = parts[(parts["case"] == PUBLISHED) & (parts["dead_share"] == 0)]
    table = here.pivot(index="part", columns="variant", values="seconds").reindex([*cost.PARTS, REST])
    table = table[order(table.columns)].dropna(how="all")
    if not table.empty:
        table.loc["the step, timers on"] = table.sum()
    return table


def arithmetic_s(shape: sizing.Shape, nograd: float, grad: float, scored: float, peak: float) -> float:
    """Seconds that the matrix products of a step's passes need at `peak` FLOP/s, from below.

    nograd, grad: positions through the layers, without and with gradient. scored: completion tokens, which alone go
    through the output matrix, in either pass. Forward 2 a parameter and position; backward as much again, for the
    gradients of the activations: frozen weights have none of their own (Kaplan et al. 2020, arXiv:2001.08361, section
    2.1, has 2 and 4, with them). The adapters' products and attention's are left out: a few percent.
    """
    counted = sizing.parameters(shape)
    through_output = scored * ((nograd > 0) + 2 * (grad > 0))
    return 2 * (counted["linear"] * (nograd + 2 * grad) + counted["embedding"] * through_output) / peak


def floor(rows: pd.DataFrame, sessions: list[dict]) -> pd.DataFrame:
    """What a step without dead groups cannot go below at the published case, and what fills the gap, by variant.

    A row a `part`, a column a variant, in seconds: generation as timed, the arithmetic of the positions forwarded, both
    as the floor; the passes beyond their arithmetic, GAP, and the step. Arithmetic is missing without a known device.
    """
    parts = part_seconds(rows)
    seconds = side_by_side(parts)
    own = newest(rows, "phases")
    devices = {session["session"]: session["device"]["name"] for session in sessions}
    columns = {}
    for variant in seconds.columns:
        here = own[(own["case"] == PUBLISHED) & (own["dead_share"] == 0) & (own["variant"] == variant)]
        nograd, grad, scored = (
            here[name].fillna(0.0).mean() for name in ("positions_nograd", "positions_grad", "completion_tokens")
        )
        peak = PEAK_FLOPS.get(devices.get(here["session"].iloc[0]))
        needed = arithmetic_s(shape_of(PUBLISHED), nograd, grad, scored, peak) if peak else float("nan")
        timed = seconds[variant]
        column = {"generation": timed["generation"], "arithmetic of the positions": needed}
        column["floor"] = sum(column.values())
        column["passes beyond their arithmetic"] = timed.reindex(PASSES).sum(min_count=1) - needed
        column |= {name: timed.reindex(group).sum(min_count=1) for name, group in GAP.items()}
        columns[variant] = column | {"the step, timers on": timed["the step, timers on"]}
    return pd.DataFrame(columns)


def waterfall(rows: pd.DataFrame, sessions: list[dict]) -> pd.DataFrame:
    """Each saving added in turn, at the published case without dead groups: one row a saving, the first without any.

    `saving`, `does` (in words, missing where the session did not note it), those of `median`, `saved_s` (the median
    before minus this one: they add up to the first minus the last), `session`. All of one session: of those with the
    most savings, then the most steps of the one with fewest, the newest.
    """
    own = rows[(rows["part"] == "waterfall") & (rows["case"] == PUBLISHED) & (rows["dead_share"] == 0)]
    if own.empty:
        return pd.DataFrame()
    steps = own.groupby(["session", "variant"]).size().groupby("session").agg(["size", "min"]).reset_index()
    session = steps.sort_values(["size", "min", "session"])["session"].iloc[-1]
    own = own[own["session"] == session]
    told = next((s["facts"].get("savings", {}) for s in sessions if s["session"] == session), {})
    found = [
        {"saving": name.removeprefix("+"), "does": told.get(name.removeprefix("+"))} | median(step["wall_s"])
        for name, step in own.groupby("variant", sort=False)
    ]
    table = pd.DataFrame(found).assign(session=session)
    return table.assign(saved_s=-table["s"].diff())


def not_reached(chain: pd.DataFrame, sessions: list[dict]) -> list[str]:
    """The savings that a session has, and that its time ended before: of `waterfall`. Compiled layers are optional."""
    if chain.empty:
        return []
    told = next((s["facts"].get("savings", {}) for s in sessions if s["session"] == chain["session"].iloc[0]), {})
    return [name for name in told if name not in {*chain["saving"], "compile"}]


def agreement(sessions: list[dict]) -> pd.DataFrame:
    """What the bench checked, one row a case and variant, each fact of the newest session that has it.

    `cosine`, `error`: of the gradient to stock's, on the same rollouts and weights (relative, by norm). `synced`,
    `adapter_changed`, `synced_again`: mean gap of engine and trainer in log-probability (nats a token).
    """
    found: dict = {}
    for session in sorted(sessions, key=lambda s: s["session"]):
        for fact, name in (("gradient_cosine_to_stock", "cosine"), ("gradient_error_to_stock", "error")):
            for variant, value in session["facts"].get(fact, {}).items():
                found.setdefault((session["case"], variant), {})[name] = value
        for variant, gaps in session["facts"].get("engine_gap_nats", {}).items():
            found.setdefault((session["case"], variant), {}).update(gaps)
    names = ["cosine", "error", "synced", "adapter_changed", "synced_again"]
    rank = order({variant for _, variant in found})
    keys = sorted(found, key=lambda key: (key[0], rank.index(key[1])))
    return pd.DataFrame(
        [{"case": case, "variant": variant} | found[case, variant] for case, variant in keys],
        columns=["case", "variant", *names],
    )


def timers() -> dict | None:
    """What `lib.bench.timers` found: medians of the step in seconds, timers `on` and `off`, and `n` steps of each.

    The first turn, in which the process warms up, is left out. None where nothing was recorded.
    """
    path = RESULTS / "bench" / "timer.csv"
    if not path.exists():
        return None
    rows = records.read_table(path, ("device", "timers"), ("turn", "wall_s"))
    rows = rows[rows["turn"] > 0]
    if set(rows["timers"]) != {"on", "off"}:
        got = sorted(set(rows["timers"])) or "no turn after the first"
        raise ValueError(f"{records.shown(path)}: timers: got {got}, expected turns with timers on and off")
    found = {"device": rows["device"].iloc[0], "n": int(rows.groupby("timers").size().min())}
    for mode, own in rows.groupby("timers"):
        by_turn = own.groupby("turn")["wall_s"].median()
        found |= {mode: float(own["wall_s"].median()), f"{mode}_low": by_turn.min(), f"{mode}_high": by_turn.max()}
    return found
