"""What a target accuracy costs: reach and hold, first touch, and both on documents drawn again. No pictures here.

An arm reaches and holds a target at the first checkpoint from which it never falls below it again. "Never" is an answer
and stays one: it is not dropped, and no arm is read past the end of its run.
"""

import numpy as np
import pandas as pd

from lib.report.compare import Curve, last


def reached(arm: Curve, target: float, hold: bool = True) -> float | None:
    """Hours of the first checkpoint at or above the target, and from which it stays there if `hold`; None: never."""
    points = arm.points[["accuracy", "hours"]].to_numpy(float)
    (hours,) = arrival(points[None, :, 0], np.array([target]), points[:, 1], hold)
    return None if np.isnan(hours) else float(hours)


def reach_row(sft: Curve, grpo: Curve, target: float) -> dict:
    """Hours of both arms to reach and hold `target`, and to touch it, each with GRPO's multiple of continued SFT.

    `<prefix>at_least`: continued SFT was there at its first checkpoint, so before it: the multiple is a lower bound.
    """
    row: dict = {"target": target}
    first_hours = float(sft.points["hours"][1])
    for prefix, hold in (("", True), ("touch_", False)):
        hours = {"sft": reached(sft, target, hold), "grpo": reached(grpo, target, hold)}
        row |= {f"{prefix}{arm}_hours": value for arm, value in hours.items()}
        row[f"{prefix}multiple"] = multiple(hours["grpo"], hours["sft"])
        row[f"{prefix}at_least"] = row[f"{prefix}multiple"] is not None and hours["sft"] == first_hours
    return row


def multiple(hours: float | None, base_hours: float | None) -> float | None:
    """How many times the base an arm spent; None where either never arrived or the base was there at the start."""
    return hours / base_hours if hours and base_hours else None


def table(curves: dict[tuple[str, int], Curve], seeds: list[int], targets: list[float]) -> pd.DataFrame:
    """What it took to reach and hold both arms' last accuracies, and further `targets` (`of`: whose), by seed.

    Columns of `reach_row`, `seed`, `of`, `sft_end_hours`, `grpo_end_hours`, and `dpo_hours` (DPO's reach and hold).
    """
    rows = []
    for seed in seeds:
        sft, grpo, dpo = (curves.get((arm, seed)) for arm in ("sft", "grpo", "dpo"))
        asked = [("C's last", last(grpo)), ("A's last", last(sft)), *(("asked for", target) for target in targets)]
        for of, target in asked:
            row = {"seed": seed, "of": of} | reach_row(sft, grpo, target)
            row |= {"sft_end_hours": sft.end_hours, "grpo_end_hours": grpo.end_hours}
            rows.append(row | {"dpo_hours": reached(dpo, target) if dpo else None})
    return pd.DataFrame(rows)


def arrival(exact_R_C: np.ndarray, target_R: np.ndarray, hours_C: np.ndarray, hold: bool) -> np.ndarray:
    """Hours until each draw reaches its target, and holds it to the end if `hold`; NaN: never. Shape R.

    exact_R_C, target_R: exact records, as counts or as shares. hours_C: of the checkpoints.
    """
    at_R_C = exact_R_C >= target_R[:, None]
    if hold:
        at_R_C = np.logical_and.accumulate(at_R_C[:, ::-1], axis=1)[:, ::-1]
    return np.where(at_R_C.any(axis=1), hours_C[at_R_C.argmax(axis=1)], np.nan)


def multiples(base_R: np.ndarray, other_R: np.ndarray) -> np.ndarray:
    """How many times the base's hours the other spent, in each draw, so that "never" keeps its place in the order.

    -inf where the base never arrived, whether the other did or not; inf where only the other never did, and where the
    base was there at the start and had nothing to spend. Both are hours as from `arrival`.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        multiple_R = other_R / base_R
    multiple_R = np.where(np.isnan(other_R) | (base_R == 0), np.inf, multiple_R)
    return np.where(np.isnan(base_R), -np.inf, multiple_R)


def resampled(curves: dict, exact: dict, seeds: list[int], targets: list[float], level: float) -> pd.DataFrame:
    """The multiple of `table`, GRPO's hours over continued SFT's, in every draw of the documents.

    An arm's last accuracy is a number from the same documents, so each draw takes it anew: the question is "what GRPO
    ended with", whatever that is on the documents drawn. Kept at its observed value, GRPO would miss its own last
    accuracy in about half of the draws. `targets` are fixed, since they were asked for as numbers.
    One row a seed, target (`of`) and `rule` ("hold", "touch"). `median`, `low`, `high`: of `multiples` over all draws,
    so that they may be infinite. Shares of the draws: `sft_never`, `grpo_never`, `sft_at_start` (it spent nothing),
    `sft_sooner` (it arrived on fewer hours than GRPO, or GRPO never did).
    """
    tails = [0.5, (1 - level) / 2, (1 + level) / 2]
    rows = []
    for seed in seeds:
        sft, grpo = curves["sft", seed], curves["grpo", seed]
        sft_R_C, grpo_R_C = exact["sft", seed], exact["grpo", seed]
        n = int(sft.points["n"][0])
        asked = [("C's last", grpo_R_C[:, -1]), ("A's last", sft_R_C[:, -1])]
        asked += [(f"asked for: {target:g}", np.full(len(sft_R_C), target * n)) for target in targets]
        for of, target_R in asked:
            for rule in ("hold", "touch"):
                a, c = (
                    arrival(exact_R_C, target_R - 1e-6, curve.points["hours"].to_numpy(float), rule == "hold")
                    for exact_R_C, curve in ((sft_R_C, sft), (grpo_R_C, grpo))
                )
                row = {"seed": seed, "of": of, "rule": rule}
                # A quantile between two draws would be no number next to an infinite one: take the draw itself.
                at = np.quantile(multiples(a, c), tails, method="inverted_cdf")
                row |= dict(zip(("median", "low", "high"), at, strict=True))
                row |= {"sft_never": np.isnan(a).mean(), "grpo_never": np.isnan(c).mean()}
                row |= {"sft_at_start": (a == curves["sft", seed].points["hours"][0]).mean()}
                rows.append(row | {"sft_sooner": (a < np.where(np.isnan(c), np.inf, c)).mean()})
    return pd.DataFrame(rows)
