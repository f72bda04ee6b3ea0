"""How far the held-out documents decide: documents drawn again (paired bootstrap), and what the exact test can show.

All runs are judged on the same documents, so each draw takes the same documents for every run (Efron and Tibshirani
1993, the percentile interval). It covers the sampling of documents alone: a run trained again is another matter.
Names end in R for draws, C for checkpoints, D for documents.

Power is of the exact McNemar test. A difference is a share of documents: those that only one side has right, minus
those that only the other has. Levels are of one test; Holm's first step over k tests is the level alpha / k.
"""

from functools import cache

import numpy as np
import pandas as pd
from scipy.optimize import brentq
from scipy.stats import binom

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


@cache
def fewest(pairs: int, alpha: float) -> int:
    """Largest count of the rarer kind among `pairs` discordant pairs at which the exact test has p < alpha; -1: none.

    Two-sided p = 2 P(X <= count), X ~ Binomial(pairs, 1/2).
    """
    count = int(binom.ppf(alpha / 2, pairs, 0.5))  # the smallest with P(X <= count) >= alpha / 2
    while count >= 0 and 2 * binom.cdf(count, pairs, 0.5) >= alpha:
        count -= 1
    return count


def smallest_split(pairs: int, alpha: float) -> int | None:
    """Smallest difference of the two discordant counts that is significant with so many discordant pairs; None: none.

    With fewer than 6 pairs no split has p < 0.05, since 2 / 2^5 is more.
    """
    count = fewest(pairs, alpha)
    return None if count < 0 else pairs - 2 * count


def power(n: int, discordant: float, difference: float, alpha: float) -> float:
    """Probability that the exact McNemar test on n documents has p < alpha and the right sign.

    discordant: share of documents expected on which the sides differ. difference: expected difference, 0 to discordant.
    The number of discordant pairs is Binomial(n, discordant); given it, the better side's count is binomial with
    (discordant + difference) / (2 discordant). Power is the mean of the conditional power over the first (Schork and
    Williams 1980). It is of the test that judges here; the normal approximations (Miettinen 1968, Connor 1987) are of
    the asymptotic test, which claims a little more.
    Raises ValueError for shares outside their ranges.
    """
    if not (0 < discordant <= 1 and 0 <= difference <= discordant):
        raise ValueError(
            f"discordant {discordant!r}, difference {difference!r}: expected 0 <= difference <= discordant"
        )
    # Outside these counts lies too little probability to matter.
    pairs = np.arange(int(binom.ppf(1e-9, n, discordant)), int(binom.isf(1e-9, n, discordant)) + 1)
    worse = np.array([fewest(int(m), alpha) for m in pairs])
    share_worse = (discordant - difference) / (2 * discordant)
    return float((binom.pmf(pairs, n, discordant) * binom.cdf(worse, pairs, share_worse)).sum())


def detectable(n: int, discordant: float, alpha: float, wanted: float = 0.8) -> float | None:
    """Smallest difference that the exact test shows with power `wanted`, at this discordant share; None: not any.

    None also where no document is discordant, and where even all of them on one side would not do.
    """
    if discordant == 0 or power(n, discordant, discordant, alpha) < wanted:
        return None
    return float(brentq(lambda d: power(n, discordant, d, alpha) - wanted, 0, discordant, xtol=1e-5))


def add_smallest(table: pd.DataFrame, n: int, alpha: float) -> pd.DataFrame:
    """`table` of tests on n documents with, for each row's own discordant share, in points:

    `smallest`: the smallest difference with p < alpha among its discordant pairs. `detectable`: the smallest true one
    that a single test at alpha shows in four of five repetitions. Missing where there is none, or no test.
    """
    points = []
    for pairs in table["left_better"] + table["right_better"]:
        split = None if pd.isna(pairs) else smallest_split(int(pairs), alpha)
        true = None if pd.isna(pairs) else detectable(n, pairs / n, alpha)
        points.append([None if split is None else 100 * split / n, None if true is None else 100 * true])
    return table.assign(**pd.DataFrame(points, columns=["smallest", "detectable"], index=table.index, dtype=float))
