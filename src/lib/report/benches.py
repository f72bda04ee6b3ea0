"""What the benches measured: seconds of a GRPO step by trainer, and what the timers cost. Here they are only read.

Sessions of `lib.bench.grpo_step` append to one table, and code changes between them. Of a cell (case, part, variant,
share of dead groups) the newest session counts; two trainers are compared within one session, the newest with both.
"""

from itertools import combinations
from pathlib import Path

import pandas as pd

from lib import clock, records, sizing
from lib.bench.cases import CASES
from lib.paths import RESULTS
from lib.report import cost
from lib.report.ledger import PEAK_FLOPS

PUBLISHED = "published-1.7b"  # the case that has the published study's shape
TIMED = ("wall", "phases", "recorded")  # parts that time steps of several variants in turn
VARIANTS = ("stock", "stock-best", "lean", "lean-compiled")
CELL = ["case", "dead_share", "variant"]
REST, STEP, STEPS = "under no timer", "the step, timers on", "steps timed"
COUNTED = ("step", "wall_s", "positions_grad", "positions_nograd", "completion_tokens")
OPTIONAL = ("tokens", "timed_s")  # older sessions, and those without phases, have none
NOTED = ("session", "case", "arguments", "device", "versions", "commit", "variants", "failed", "facts")
# What fills the gap between the floor and the step: in words -> parts of cost.PARTS.
PASSES = ["no-grad forward", "grad forward", "backward"]
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
        return pd.DataFrame(columns=["session", *CELL, "part", *COUNTED, *OPTIONAL]), []
    rows = records.read_table(path, ("session", "case", "variant", "part"), ("dead_share",))
    rows = rows.assign(**{name: float("nan") for name in OPTIONAL if name not in rows})
    counted(path, rows, (*COUNTED, *OPTIONAL))
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
    """The sessions whose rows a page reads, the newest first: `bench`, `session`, `case`, `parts` timed, `device`,
    `commit`, `busy` (other GPUs of the host in use, missing where that was not noted) and `rows`.

    read: rows and notes of each bench; None for one that was not run.
    """
    found = []
    for bench, (rows, told) in ((bench, pair) for bench, pair in read.items() if pair):
        for note in sorted(told, key=lambda n: n["session"], reverse=True):
            own = rows[rows["session"] == note["session"]]
            if len(own):
                row = {"bench": bench, "session": note["session"], "case": note.get("case")}
                row |= {"parts": ", ".join(own["part"].unique()) if "part" in own else None}
                row |= {"device": note["device"]["name"], "commit": note.get("commit")}
                found.append(row | {"busy": note.get("other_gpus_busy"), "rows": len(own)})
    return pd.DataFrame(found, columns=["bench", "session", "case", "parts", "device", "commit", "busy", "rows"])


def shape_of(case: str) -> sizing.Shape:
    """The Qwen3 shape of a case of `lib.bench.cases` that has one of its own."""
    return sizing.read({"model_type": "qwen3"} | CASES[case]["shape"])


def rollouts(case: str) -> int:
    """Rollouts of a step of a case of `lib.bench.cases`."""
    return CASES[case]["prompts"] * CASES[case]["group"]


def newest(rows: pd.DataFrame, part: str) -> pd.DataFrame:
    """Rows of a part of the bench, of a cell those of its newest session."""
    own = rows[rows["part"] == part]
    return own[own["session"] == own.groupby(CELL)["session"].transform("max")]


def order(variants) -> list[str]:
    """Variants in the order of VARIANTS, others after them."""
    return sorted(variants, key=lambda v: (VARIANTS.index(v) if v in VARIANTS else len(VARIANTS), v))


def median(seconds: pd.Series) -> dict:
    """`s` (the median), `low`, `high` (quartiles) and `n` of some seconds."""
    return {"s": seconds.median(), "low": seconds.quantile(0.25), "high": seconds.quantile(0.75), "n": len(seconds)}


def by_turn(steps: pd.DataFrame) -> list[float]:
    """Median `seconds` of each turn of a variant: steps numbered on end, since a turn begins with one of warm-up."""
    return steps.groupby((steps["step"].diff() != 1).cumsum())["seconds"].median().tolist()


def pairs(rows: pd.DataFrame) -> pd.DataFrame:
    """Two trainers beside each other: one row a case, part of TIMED, share of dead groups, base (TRL's) and variant.

    Of the newest session that timed both, `session`. `base_s`, `own_s`: medians; `base_low`, `base_high` and `own_...`:
    lowest and highest of the medians by turn; `base_n`, `own_n`: steps. `over`: base's median over the variant's;
    `over_low`, `over_high`: of turns that followed each other. `prompt`, `answer`: tokens of a rollout (means).
    Steps with timers inside, part phases, have their seconds in `timed_s`.
    """
    steps, found = rows[rows["part"].isin(TIMED)], []
    steps = steps.assign(seconds=steps["timed_s"].where(steps["part"] == "phases", steps["wall_s"]))
    for (case, part, dead_share), cell in steps.groupby(["case", "part", "dead_share"]):
        sessions = cell.groupby("variant")["session"].agg(set)
        for base, variant in combinations(order(sessions.index), 2):
            if not base.startswith("stock") or not (both := sessions[base] & sessions[variant]):
                continue
            row = {"case": case, "part": part, "dead_share": dead_share, "base": base, "variant": variant}
            row |= {"session": max(both)}
            own = cell[cell["session"] == row["session"]]
            turns = {}
            for key, name in (("base", base), ("own", variant)):
                timed = own[own["variant"] == name]
                turns[key] = by_turn(timed)
                row |= {f"{key}_s": timed["seconds"].median(), f"{key}_n": len(timed)}
                row |= {f"{key}_low": min(turns[key]), f"{key}_high": max(turns[key])}
            over = [b / o for b, o in zip(turns["base"], turns["own"], strict=False)]  # one may have more turns
            row |= {"over": row["base_s"] / row["own_s"], "over_low": min(over), "over_high": max(over)}
            answer, tokens = (own[name].mean() / rollouts(case) for name in ("completion_tokens", "tokens"))
            found.append(row | {"prompt": tokens - answer, "answer": answer})
    table = pd.DataFrame(found)
    if table.empty:
        return table
    rank = table.assign(other=table["case"] != PUBLISHED, part=table["part"].map(TIMED.index))
    rank["answer"] = rank["answer"].where(rank["other"])
    rank = rank.sort_values(["other", "part", "dead_share", "answer"], kind="stable")
    return table.loc[rank.index].reset_index(drop=True)


def grid(rows: pd.DataFrame, sessions: list[dict]) -> pd.DataFrame:
    """TRL's own switches without dead groups at the published case: `cell`, those of `median`, `session`; `failed` says
    why one ended. Stock's whole steps are the first row."""
    here = rows[(rows["case"] == PUBLISHED) & (rows["dead_share"] == 0)]

    def measured(own):
        return median(own["wall_s"]) | {"session": own["session"].iloc[0]}

    found = {name: measured(own) for name, own in newest(here, "grid").groupby("variant")}
    for session in (s for s in sessions if s["case"] == PUBLISHED):
        found |= {
            name: {"failed": why.split(":")[0], "session": session["session"]}
            for name, why in session["failed"].items()
            if name.startswith("grid ") and name not in found
        }
    if not found:
        return pd.DataFrame()
    stock = newest(here[here["variant"] == "stock"], "wall")
    table = pd.DataFrame([{"cell": name.removeprefix("grid ")} | row for name, row in found.items()])
    rank = table["cell"].str.extract(r"b=(\d+)")[0].astype(int)
    table = table.iloc[rank.argsort(kind="stable")]
    first = [{"cell": "stock"} | measured(stock)] if len(stock) else []
    return pd.concat([pd.DataFrame(first), table], ignore_index=True)


def phases(rows: pd.DataFrame) -> pd.DataFrame:
    """Where the seconds of steps with timers inside went: one row a cell, published case first.

    `session`, `n` (steps), a column a part of cost.PARTS, REST, `step`: means, because they add up; REST is what the
    others leave of the step. A part of which a variant has no row stays missing: it makes no such pass, or no timer saw
    it. `prompt`, `answer`: tokens of a rollout; `answers`: of all; `positions_nograd`, `positions_grad` and both,
    `positions`: through the passes, 0 where none was made; `passes`: their seconds, and `rate`: of a million positions.
    """
    found = []
    for key, own in newest(rows, "phases").groupby(CELL):
        row = dict(zip(CELL, key, strict=True)) | {"session": own["session"].iloc[0], "n": len(own)}
        size, answers, tokens = rollouts(row["case"]), own["completion_tokens"].mean(), own["tokens"].mean()
        row |= {"prompt": (tokens - answers) / size, "answer": answers / size, "answers": answers}
        row |= {name: own[name].fillna(0.0).mean() for name in ("positions_nograd", "positions_grad")}
        parts = {}
        for part, names in cost.PARTS.items():
            timed = [name for name in names if name in own and own[name].notna().any()]
            parts[part] = own[timed].fillna(0.0).sum(axis=1).mean() if timed else None
        step = own["timed_s"].mean()
        found.append(row | parts | {REST: step - sum(s or 0.0 for s in parts.values()), "step": step})
    columns = [*CELL, "session", "n", "prompt", "answer", "answers", "positions_nograd", "positions_grad"]
    table = pd.DataFrame(found, columns=[*columns, *cost.PARTS, REST, "step"])
    table = table.astype(dict.fromkeys(table.columns[5:], float))
    table["passes"] = table[PASSES].sum(axis=1)
    table["positions"] = table["positions_nograd"] + table["positions_grad"]
    table["rate"] = (1e6 * table["passes"] / table["positions"]).where(table["positions"] > 0)
    rank = table.assign(other=table["case"] != PUBLISHED, variant=table["variant"].map(order(table["variant"]).index))
    return table.loc[rank.sort_values(["other", "case", "dead_share", "variant"]).index].reset_index(drop=True)


def side_by_side(timed: pd.DataFrame) -> pd.DataFrame:
    """Of `phases`: a row a part that any cell has, the step, and how many were timed; a column a cell."""
    names = []
    for row in timed.itertuples():
        dead = f", {row.dead_share:.0%} zero-variance" if row.dead_share else ""
        names.append(row.variant + dead + ("" if row.case == PUBLISHED else f", answers of {row.answer:.0f}"))
    table = timed.set_index(pd.Index(names))[[*cost.PARTS, REST, "step", "n"]].T.dropna(how="all")
    return table.rename({"step": STEP, "n": STEPS})


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


def floor(timed: pd.DataFrame, sessions: list[dict]) -> pd.DataFrame:
    """What a step without dead groups cannot go below at the published case, and what fills the gap, by variant.

    timed: of `phases`. A row a `part`, a column a variant, in seconds: generation as timed, the arithmetic of the
    positions forwarded, both as the floor; the passes beyond their arithmetic, GAP, and the step. Arithmetic is missing
    without a known device.
    """
    devices = {session["session"]: session["device"]["name"] for session in sessions}
    columns = {}
    for _, own in timed[(timed["case"] == PUBLISHED) & (timed["dead_share"] == 0)].iterrows():
        peak = PEAK_FLOPS.get(devices.get(own["session"]))
        work = (own["positions_nograd"], own["positions_grad"], own["answers"])
        needed = arithmetic_s(shape_of(PUBLISHED), *work, peak) if peak else float("nan")
        column = {"generation": own["generation"], "arithmetic of the positions": needed}
        column["floor"] = sum(column.values())
        column["passes beyond their arithmetic"] = own["passes"] - needed
        column |= {name: own[group].astype(float).sum(min_count=1) for name, group in GAP.items()}
        columns[own["variant"]] = column | {STEP: own["step"], STEPS: own["n"]}
    return pd.DataFrame(columns)


def waterfall(rows: pd.DataFrame, sessions: list[dict]) -> pd.DataFrame:
    """Each saving added in turn, at the published case without dead groups: one row a saving, the first without any.

    `saving`, `does` (in words, missing where the session did not note it), those of `median`, `saved_s` (the median
    before minus this one: they add up to the first minus the last), `resolved` (whether the quartiles before and after
    lie apart), `session`. All of the newest session.
    """
    own = rows[(rows["part"] == "waterfall") & (rows["case"] == PUBLISHED) & (rows["dead_share"] == 0)]
    if own.empty:
        return pd.DataFrame()
    session = own["session"].max()
    own = own[own["session"] == session]
    told = next((s["facts"].get("savings", {}) for s in sessions if s["session"] == session), {})
    found = [
        {"saving": name.removeprefix("+"), "does": told.get(name.removeprefix("+"))} | median(step["wall_s"])
        for name, step in own.groupby("variant", sort=False)
    ]
    table = pd.DataFrame(found).assign(session=session)
    before = table.shift()
    apart = (table["high"] < before["low"]) | (table["low"] > before["high"])
    return table.assign(saved_s=before["s"] - table["s"], resolved=apart)


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
    `gradient_session`, `engine_session`: where these are from.
    """
    found: dict = {}
    for session in sorted(sessions, key=lambda s: s["session"]):
        for fact, name in (("gradient_cosine_to_stock", "cosine"), ("gradient_error_to_stock", "error")):
            for variant, value in session["facts"].get(fact, {}).items():
                own = {name: value, "gradient_session": session["session"]}
                found.setdefault((session["case"], variant), {}).update(own)
        for variant, gaps in session["facts"].get("engine_gap_nats", {}).items():
            own = gaps | {"engine_session": session["session"]}
            found.setdefault((session["case"], variant), {}).update(own)
    names = ["cosine", "error", "synced", "adapter_changed", "synced_again", "gradient_session", "engine_session"]
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
