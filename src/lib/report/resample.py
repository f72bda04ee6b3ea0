"""Documents drawn again: how far the comparisons depend on which held-out documents there were (paired bootstrap).

All runs are judged on the same documents, so each draw takes the same documents for every run (Efron and Tibshirani
1993, the percentile interval). It covers the sampling of documents alone: a run trained again is another matter.
Names end in R for draws, C for checkpoints, D for documents.
"""

import numpy as np
import pandas as pd

from lib.report.compare import Curve, check_same_documents


def draws(curves: dict[tuple[str, int], Curve], resamples: int, seed: int) -> dict[tuple[str, int], np.ndarray]:
    """Exact records of every checkpoint in every draw of the documents with replacement: `exact_R_C` by run.

    Raises ValueError for fewer than 2 resamples, or runs that were not scored on the same documents.
    """
    if resamples < 2:
        raise ValueError(f"resamples: got {resamples}, expected 2 or more")
    first = next(iter(curves.values()))
    for curve in curves.values():
        check_same_documents(first.exact_D_C, curve.exact_D_C, first.name, curve.name)
    n = len(first.exact_D_C)
    drawn_R_D = np.random.default_rng(seed).integers(n, size=(resamples, n))
    times_R_D = np.stack([np.bincount(drawn_D, minlength=n) for drawn_D in drawn_R_D]).astype(np.float64)
    ids = first.exact_D_C.index
    return {key: times_R_D @ curve.exact_D_C.reindex(ids).to_numpy(np.float64) for key, curve in curves.items()}


def add_interval(table: pd.DataFrame, curves: dict, exact: dict, level: float) -> pd.DataFrame:
    """`table` (`budgets.table`) with `low`, `high`: the percentile interval of each row's `difference`, points.

    exact: `draws` of these curves. level: the interval's coverage, such as 0.95.
    """
    tails = [(1 - level) / 2, (1 + level) / 2]
    rows = []
    for row in table.itertuples():
        sides = []
        for arm, step in ((row.left, row.left_step), (row.right, row.right_step)):
            curve = curves[arm, row.seed]
            position = curve.points.index[curve.points["step"] == step][0]
            sides.append(exact[arm, row.seed][:, position] / curve.points["n"][position])
        rows.append(100 * np.quantile(sides[0] - sides[1], tails))
    return table.assign(**pd.DataFrame(rows, columns=["low", "high"], index=table.index, dtype=float))
