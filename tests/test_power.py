"""What n documents can show: by hand, against the approximation of Connor (1987), and by simulation."""

from functools import cache
from math import sqrt

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

from lib.report import compare, precision


def test_smallest_significant_split_by_hand():
    # 2 / 2^5 = 0.0625 is not below 0.05; 2 / 2^6 = 0.031 is, and 2 (1 + 6) / 2^6 = 0.22 is not
    assert [precision.smallest_split(pairs, 0.05) for pairs in (0, 5, 6)] == [None, None, 6]
    # of 20: 5 against 15 has p 0.041, 6 against 14 has 0.115
    assert precision.smallest_split(20, 0.05) == 10
    for pairs in (6, 20, 137):
        worse = (pairs - precision.smallest_split(pairs, 0.05)) // 2
        assert compare.mcnemar(worse, pairs - worse)[0] < 0.05 <= compare.mcnemar(worse + 1, pairs - worse - 1)[0]


def test_power_by_hand():
    # 6 documents, all discordant, all but surely one way: significant only if all 6 fall there
    assert precision.power(6, 1.0, 0.8, 0.05) == pytest.approx(0.9**6)
    assert precision.power(5, 1.0, 1.0, 0.05) == 0  # five can never be enough
    with pytest.raises(ValueError, match="expected 0 <= difference <= discordant"):
        precision.power(100, 0.1, 0.2, 0.05)


@pytest.mark.parametrize(("n", "discordant", "difference"), [(300, 0.2, 0.08), (1000, 0.1, 0.03), (2000, 0.07, 0.015)])
def test_the_exact_power_is_a_little_below_the_normal_approximation(n, discordant, difference):
    # Connor 1987: n d^2 = (z_(alpha/2) sqrt(psi) + z_beta sqrt(psi - d^2))^2, solved for the power
    z = (difference * sqrt(n) - norm.isf(0.025) * sqrt(discordant)) / sqrt(discordant - difference**2)
    assert norm.cdf(z) - 0.04 < precision.power(n, discordant, difference, 0.05) < norm.cdf(z)


def test_detectable_has_the_power_that_it_promises():
    difference = precision.detectable(1000, 0.1, 0.05)
    assert precision.power(1000, 0.1, difference, 0.05) == pytest.approx(0.8, abs=1e-3)
    assert precision.detectable(1000, 0.0, 0.05) is None
    assert precision.detectable(20, 0.1, 0.05) is None  # two documents that differ show nothing


def test_add_smallest_in_points_and_missing_without_a_test():
    table = precision.add_smallest(
        pd.DataFrame({"left_better": [14, 1, None], "right_better": [6, 1, None]}), 200, 0.05
    )
    assert table.loc[0, "smallest"] == 100 * 10 / 200
    assert table.loc[0, "detectable"] == pytest.approx(100 * precision.detectable(200, 0.1, 0.05))
    assert table.loc[1:, ["smallest", "detectable"]].isna().all(axis=None)


# ------------------------------------------------------------------------------------------------------ calibration


@cache
def p_value(left_only, right_only):
    return compare.mcnemar(int(left_only), int(right_only))[0]


def correlated_checkpoints(random, studies, n, budgets, switch):
    """Two arms of equal true accuracy at each of some budgets: bool, studies x budgets x documents, twice.

    A checkpoint is the one before with a share `switch` of the documents drawn again, as along a training run.
    """
    difficulty_S_1_D = random.random((studies, 1, n))
    sides = []
    for _ in range(2):
        exact_S_B_D = random.random((studies, budgets, n)) > difficulty_S_1_D
        for b in range(1, budgets):
            keep_S_D = random.random((studies, n)) > switch
            exact_S_B_D[:, b] = np.where(keep_S_D, exact_S_B_D[:, b - 1], exact_S_B_D[:, b])
        sides.append(exact_S_B_D)
    return sides


def test_without_a_true_difference_false_alarms_stay_at_their_level(monkeypatch):
    monkeypatch.setattr(
        "gc.collect", lambda *_: 0
    )  # statsmodels collects garbage at each adjustment, a tenth of a second
    studies, alpha = 800, 0.05
    left, right = correlated_checkpoints(np.random.default_rng(1), studies, 120, 6, 0.4)
    left_only_S_B, right_only_S_B = (left & ~right).sum(axis=2), (~left & right).sum(axis=2)
    p_S_B = np.vectorize(p_value)(left_only_S_B, right_only_S_B)
    raw_S = (p_S_B < alpha).any(axis=1)  # Holm only raises p
    adjusted = sum(min(compare.holm(list(p_B))) < alpha for p_B in p_S_B[raw_S]) / studies
    assert adjusted <= alpha
    assert raw_S.mean() > 2 * alpha  # without Holm a budget somewhere would be significant far too often
    assert (p_S_B < alpha).mean(axis=0).max() <= alpha + 3 * sqrt(alpha * (1 - alpha) / studies)  # each test alone


def test_with_a_known_difference_the_power_is_as_computed():
    n, discordant, difference, studies = 300, 0.2, 0.08, 4000
    better, worse = (discordant + difference) / 2, (discordant - difference) / 2
    counts = np.random.default_rng(2).multinomial(n, [better, worse, 1 - discordant], size=studies)
    found = np.mean([b > c and p_value(b, c) < 0.05 for b, c, _ in counts])
    computed = precision.power(n, discordant, difference, 0.05)
    assert abs(found - computed) < 3 * sqrt(computed * (1 - computed) / studies)
