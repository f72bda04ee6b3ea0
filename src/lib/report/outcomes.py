"""What the numbers allow to be said: how a statement comes out in each seed, and the sentence over all seeds.

A verdict follows an exact test with Holm, never a point estimate; where nothing was compared it says so.
"""

import pandas as pd

# How a statement can come out in one seed. A missing number is not measured, never wrong.
HELD, WRONG, NOT_SHOWN, NOT_MEASURED = OUTCOMES = ("held", "wrong", "not shown", "not measured")


def shown(left_better: float, right_better: float, p: float, alpha: float) -> str:
    """What a test says of "left is better": held, wrong (right is, significantly), not shown, not measured."""
    if pd.isna(p):
        return NOT_MEASURED
    if not p < alpha or left_better == right_better:
        return NOT_SHOWN
    return HELD if left_better > right_better else WRONG


def of_rows(table: pd.DataFrame, alpha: float) -> dict[int, str]:
    """`shown` of each row (one a seed) after Holm, by seed; rows without a `p_holm` are not measured."""
    return {r.seed: shown(r.left_better, r.right_better, r.p_holm, alpha) for r in table.itertuples()}


def counted(value) -> str:
    """The outcome of a statement that is counted, not tested: True, False, or missing. An outcome stays what it is."""
    if isinstance(value, str):
        return value
    return NOT_MEASURED if pd.isna(value) else HELD if value else WRONG


def all_of(outcomes: list[str]) -> str:
    """The outcome of a statement with several parts: wrong if one is, held only if all are."""
    return next((o for o in (WRONG, NOT_MEASURED, NOT_SHOWN) if o in outcomes), HELD if outcomes else NOT_MEASURED)


def sooner(row) -> str:
    """Whether continued SFT held a target on fewer hours than GRPO; `row` of `reach_table`.

    An arm that never held it, and had ended before the other did, shows nothing.
    """
    if pd.isna(row.sft_hours) and pd.isna(row.grpo_hours):
        return NOT_SHOWN
    if pd.isna(row.grpo_hours):
        return HELD if row.grpo_end_hours >= row.sft_hours else NOT_SHOWN
    if pd.isna(row.sft_hours):
        return WRONG if row.sft_end_hours >= row.grpo_hours else NOT_SHOWN
    return NOT_SHOWN if row.sft_hours == row.grpo_hours else counted(row.sft_hours < row.grpo_hours)


def more_wins(row) -> str:
    """Whether left wins, after Holm, at more budgets than right; `row` of `compare.all_budgets_table`."""
    more = row.left_wins_holm - row.right_wins_holm
    return NOT_MEASURED if not row.compared else NOT_SHOWN if more == 0 else counted(more > 0)


def by_seed(texts: dict[int, str]) -> str:
    """One text a seed, as a phrase: "0.889 (seed 0), 0.886 (seed 1)"."""
    between = "; " if any("," in text for text in texts.values()) else ", "
    return between.join(f"{text} (seed {seed})" for seed, text in texts.items())


def across_seeds(sentences: dict[int, str | None], unknown: str) -> str:
    """The sentence that all seeds support, or each seed's; `unknown` where none (None) could be judged.

    Where only some could, it says in how many of the seeds.
    """
    known = {seed: text for seed, text in sentences.items() if text is not None}
    if not known:
        return unknown
    text = next(iter(known.values())) if len(set(known.values())) == 1 else by_seed(known)
    return text if len(known) == len(sentences) else f"{text}; measured in {len(known)} of {len(sentences)} seeds"


def each_seed(rows: pd.DataFrame, tell, seeds=None, unknown: str = "not measured") -> str:
    """`across_seeds` of what `tell` says of each seed's rows; one of `seeds` (default: all of `rows`) may have none."""
    own = dict(list(rows.groupby("seed")))
    return across_seeds({s: tell(own[s]) if s in own else None for s in (own if seeds is None else seeds)}, unknown)


def either(values: dict, yes: str, no: str, unknown: str) -> str:
    """`across_seeds` of True, False or missing values, by seed."""
    return across_seeds({seed: None if pd.isna(v) else yes if v else no for seed, v in values.items()}, unknown)


def outcome(by_seed: dict[int, str]) -> str:
    """How a statement came out over the seeds: "held", or "held in 1 of 2 seeds, not shown in 1"."""
    found = list(by_seed.values())
    counts = {o: found.count(o) for o in OUTCOMES if o in found}
    if len(counts) < 2:
        return next(iter(counts), NOT_MEASURED)
    (first, count), *rest = counts.items()
    return f"{first} in {count} of {len(found)} seeds" + "".join(f", {o} in {k}" for o, k in rest)


def verdict(table: pd.DataFrame, left: str, right: str, alpha: float, seeds: list[int]) -> str:
    """The sentence that a comparison supports, over `seeds`.

    table: at most one row a seed: `seed`, `left_better`, `right_better`, `p_holm`, `left_step`, `right_step` (0: the
    shared start). left, right: the arms' names in the sentence. Only Holm-adjusted significance makes an arm lead.
    """
    tested = {row.seed: shown(row.left_better, row.right_better, row.p_holm, alpha) for row in table.itertuples()}
    found = [tested.get(seed, NOT_MEASURED) for seed in seeds]
    counts = {o: found.count(o) for o in OUTCOMES if o in found}
    if set(counts) <= {NOT_MEASURED}:
        return f"At equal spend {left} and {right} could not be compared"
    says = {HELD: f"{left} beats {right}", WRONG: f"{right} beats {left}"}
    says[NOT_SHOWN] = f"no difference between {left} and {right} is shown"
    if HELD in counts and WRONG in counts:
        says[HELD], says[WRONG] = f"the seeds disagree: {says[HELD]}", f"{left} loses"
    (first, count), *rest = counts.items()
    text = f"At equal spend {says[first]}, in " + (
        "the one seed" if len(seeds) == 1 else f"{count} of {len(seeds)} seeds"
    )
    short = says | {NOT_SHOWN: "no difference is shown", NOT_MEASURED: "there was nothing to compare"}
    text += "".join(f"; {short[o]} in {k}" for o, k in rest)
    for side, name in (("left", left), ("right", right)):
        at_start = table[table["p_holm"].notna() & (table[f"{side}_step"] == 0)]["seed"].tolist()
        if at_start:
            which = f"seed {', '.join(str(seed) for seed in at_start)}"
            text += f"; {name} had saved nothing by then and enters as the shared start ({which})"
    return text


def on_rules(rules: pd.DataFrame, pairs: dict[str, tuple[str, str]]) -> str:
    """Whether who leads at equal spend hangs on the rule of the bill, and on which.

    rules: one row a `rule` and `seed`, the rule as set first, with the outcome of "left is better" in a column a pair;
    a rule that could not be applied is not measured throughout. pairs: column -> the names of left and right.
    """
    as_set = rules[rules["rule"] == rules["rule"].iloc[0]].set_index("seed")
    applied = rules[~(rules[list(pairs)] == NOT_MEASURED).all(axis=1)]
    found = []
    for row in applied.itertuples():
        for key, (left, right) in pairs.items():
            was, now = as_set.loc[row.seed, key], getattr(row, key)
            says = {HELD: f"{left} leads", WRONG: f"{right} leads"}
            if was != now:
                how = f"{says.get(was, was)} becomes {says.get(now, now)}"
                found.append(f"{row.rule}, {left} and {right}, seed {row.seed}: {how}")
    if found:
        return f"Who leads at equal spend hangs on the rule of the bill ({'; '.join(found)})"
    others = applied["rule"].nunique() - 1
    return f"Who leads at equal spend is the same under all {others} other rules that could be applied"
