"""The cost of a GRPO step as a law, seconds = intercept + rate x work, fitted on some shapes and scored on the others.

Three laws. The published study's: stock's work is prompt tokens x rollouts x passes. Then positions x passes, padding
and completions included, for stock and for lean. Each is asked of whole steps and of the trainer's part of them. Which
shapes are fitted was fixed before any but the published one was measured.
"""

import numpy as np
import pandas as pd

from lib.bench.cases import CASES
from lib.report import benches
from lib.report.cost import UPDATE

FITTED = ("published-1.7b", "ratio-8-1", "ratio-1-2")  # the others are held out
STUDY_PASSES = 3  # as the study counts: a forward without gradient, one with, and its backward
# law -> (variant, column of `points` that is its work)
LAWS = {
    "stock, prompt tokens x rollouts x passes": ("stock", "prompt_work"),
    "stock, positions x passes": ("stock", "positions"),
    "lean, positions": ("lean", "positions"),
}
TRAINER = ("no-grad forward", "grad forward", *UPDATE)


def points(rows: pd.DataFrame, sessions: list[dict]) -> pd.DataFrame:
    """Cells that a law could be asked of: one row a case of the published model, share of dead groups and variant.

    `case`, `dead_share`, `variant`, `step` (median seconds of whole steps), `trainer` (mean seconds of its passes and
    its update; missing where no phases were timed), `positions` (median, over the passes; 0 where nothing was
    forwarded), `prompt_work`: prompt tokens of a step's rollouts x STUDY_PASSES. Where the bench did not count tokens
    they are those that the case asks for, and missing where other documents were given. Stock with dead groups is left
    out: it does the same work over again.
    """
    given = {session["session"]: session["arguments"].get("data") for session in sessions}
    parts = benches.part_seconds(rows)
    parts = parts[parts["part"].isin(TRAINER)].groupby(benches.CELL)["seconds"].sum(min_count=1)
    found = []
    for key, own in benches.newest(rows, "wall").groupby(benches.CELL):
        case, dead_share, variant = key
        shape = CASES.get(case)
        if shape is None or shape["shape"] != CASES[benches.PUBLISHED]["shape"] or (dead_share and variant != "lean"):
            continue
        passed = own[["positions_nograd", "positions_grad"]].fillna(0.0).sum(axis=1)
        if "tokens" in own and own["tokens"].notna().all():
            prompts = (own["tokens"] - own["completion_tokens"]).median()
        else:
            asked = sum(shape["prompt_tokens"]) / 2 * shape["prompts"] * shape["group"]
            prompts = asked if given.get(own["session"].iloc[0]) is None else float("nan")
        row = dict(zip(benches.CELL, key, strict=True)) | {"step": own["wall_s"].median(), "trainer": parts.get(key)}
        found.append(row | {"positions": passed.median(), "prompt_work": STUDY_PASSES * prompts})
    columns = [*benches.CELL, "step", "trainer", "positions", "prompt_work"]
    return pd.DataFrame(found, columns=columns).astype(dict.fromkeys(columns[3:], float))


def laws(cells: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Each law fitted on the cells of FITTED and scored on those of the other shapes; and its rows.

    cells: of `points`. First table: `law`, `of` (step or trainer), `intercept` (s), `rate` (s a million), `fitted`,
    `held` (numbers of cells), `median_error`, `worst_error` (of the held-out ones: absolute, relative to the measured).
    Second: `law`, `of`, `case`, `dead_share`, `work`, `seconds`, `predicted`, `error` (signed), `held`. A law is fitted
    only with three shapes or more, of which two are of FITTED and one is not.
    """
    summary, rows = [], []
    for law, (variant, work) in LAWS.items():
        for of in ("step", "trainer"):
            own = cells[cells["variant"] == variant].dropna(subset=[work, of])
            held = ~own["case"].isin(FITTED)
            if own.loc[~held, "case"].nunique() < 2 or not held.any():
                continue
            rate, intercept = np.polyfit(own.loc[~held, work], own.loc[~held, of], 1)  # least squares
            own = own.assign(law=law, of=of, work=own[work], seconds=own[of], held=held)
            own["predicted"] = intercept + rate * own["work"]
            own["error"] = own["predicted"] / own["seconds"] - 1
            off = own.loc[held, "error"].abs()
            told = {"law": law, "of": of, "intercept": intercept, "rate": 1e6 * rate}
            told |= {"fitted": int((~held).sum()), "held": int(held.sum())}
            summary.append(told | {"median_error": off.median(), "worst_error": off.max()})
            rows.append(own[["law", "of", "case", "dead_share", "work", "seconds", "predicted", "error", "held"]])
    return pd.DataFrame(summary), pd.concat(rows, ignore_index=True) if rows else pd.DataFrame()
