"""What the articles print of a row or a table, as a phrase. Every number comes from the comparing notebook."""

import pandas as pd

from lib import written
from lib.paths import BOOK
from lib.report import alarms, cost, diagnose, layouts, outcomes
from lib.report import variants as beside
from lib.report.compare import NAMES
from lib.report.outcomes import HELD, NOT_MEASURED, NOT_SHOWN, WRONG, across_seeds, by_seed, either
from lib.report.predictions import PLANNED
from lib.report.show import accuracy, entered, number, p_value, percent, spent, times, told


def published(study: dict) -> dict[str, str]:
    """What the published study was, of published.yaml."""
    setup = study["setup"]
    made = "{made} predictions, of which {wrong} were wrong and {mixed} held in one seed only"
    return {
        "published_setup": f"{setup['model']}, on {setup['text']}, one {setup['device']}",
        "published_n": f"{setup['n']:,} held-out documents, {setup['seeds']} seeds",
        "published_predictions": made.format(**study["predictions"]),
        "published_places_share": percent(study["errors"]["places_share"], ".0%"),
        "published_price": f"${setup['usd_per_hour']:.2f} an hour (USD, an {setup['device']}, {setup['price_date']})",
    }


def last(row) -> str:
    return f"{accuracy(row.last)} for {spent(row.hours)}"


def best(row) -> str:
    return f"{accuracy(row.best)} at {spent(row.best_hours)}"


def gain(row) -> str:
    return f"{100 * (row.last - row.start):+.1f} points, p {p_value(row.p_holm)} after Holm"


def equal_spend(row) -> str:
    a, c = entered(row.left_accuracy, row.left_step), entered(row.right_accuracy, row.right_step)
    return f"{a} against {c} after {spent(row.budget_hours)} each, p {p_value(row.p_holm)} after Holm"


def all_budgets(row) -> str:
    if not row.compared:
        return "none, since C had ended"
    ahead = f"A is ahead at {row.left_wins} of {row.compared} budgets and C at {row.right_wins}, after Holm "
    own = f" (C had saved a checkpoint of its own at {row.own} of them, and is the shared start before)"
    return f"{ahead}{row.left_wins_holm} and {row.right_wins_holm}{own}"


def difference(row) -> str:
    """At the most that both have spent: the difference, its interval, its verdict."""
    return f"{layouts.difference(row)}, p {p_value(row.p_holm)} after Holm over {row.compared}"


def detectable(every_budget: pd.DataFrame) -> str:
    """The smallest differences that a test would show; of `precision.add_smallest`."""
    low, high = every_budget["detectable"].min(), every_budget["detectable"].max()
    return f"{low:.1f} to {high:.1f} points" if pd.notna(low) else "none"


def between_seeds(variation: pd.DataFrame) -> str:
    """The largest difference between two seeds of each arm; of `budgets.variation`."""
    most = variation[~variation["rerun"]].groupby("arm", sort=False)["difference"].agg(lambda d: d.abs().max())
    return "; ".join(f"{NAMES[arm]} {points:.1f} points" for arm, points in most.items()) or "not measured: one seed"


def reruns(variation: pd.DataFrame) -> str:
    texts = [
        f"{NAMES[row.arm]}, {row.pair}: {layouts.points(row.difference)} points, for {spent(row.left_hours)} and "
        f"{spent(row.right_hours)}"
        for row in variation[variation["rerun"]].itertuples()
    ]
    return "; ".join(texts) or "not measured: no run was trained twice under one seed"


def reached(row) -> str:
    """What holding a target took."""
    multiple = f", {layouts.at_least(row)}" if pd.notna(row.multiple) else ""
    return f"GRPO {spent(row.grpo_hours)}, continued SFT {spent(row.sft_hours)}{multiple}"


def reached_again(row) -> str:
    sooner, never = percent(row.sft_sooner), percent(row.sft_never)
    return f"{layouts.multiples(row)}, A sooner in {sooner} of the draws, A never there in {never}"


def multiple_by_rule(rules: pd.DataFrame) -> str:
    """The lowest and the highest multiple of each seed over the rules of the bill; of `budgets.under_rules`."""
    ends = rules.dropna(subset=["multiple"]).groupby("seed")["multiple"].agg(["min", "max"])
    texts = {seed: f"{times(row['min'])} to {times(row['max'])}" for seed, row in ends.iterrows()}
    return by_seed(texts) or "none"


def labels(documents: dict[str, dict]) -> str:
    """What fields that no arm has right say about the labels; documents: those held out that are at hand."""
    if documents and all(document.get("verified") for document in documents.values()):
        return "The labels of these documents are known to be right, so these are hard texts"
    return "Whether these labels are right is not known here, so this bounds what wrong labels can cost"


def costlier(trains_more: dict) -> str:
    """Whether training or generating costs GRPO more; by seed True, False or missing."""
    return either(
        trains_more,
        "GRPO pays more for training on its rollouts than for generating them",
        "GRPO pays more for generating its rollouts than for training on them",
        "GRPO's bill was not split into generating and training",
    )


def checkpointing(runs: dict) -> str:
    return either(
        {seed: run.info["trainer"].get("gradient_checkpointing") for seed, run in runs.items()},
        "Activations were recomputed to save memory (gradient checkpointing), so backward holds a second forward",
        "Gradient checkpointing was off, so backward holds no second forward",
        "Whether backward recomputed activations is not recorded",
    )


def entropy(falls: dict) -> str:
    """falls: by seed, the outcome of "entropy falls over the steps"."""
    says = {HELD: "entropy fell over the steps", WRONG: "entropy rose over the steps"}
    says[NOT_SHOWN] = "no change of entropy over the steps is shown"
    return across_seeds({seed: says.get(how) for seed, how in falls.items()}, "entropy was not measured")


def null_verdict(more_nulls: dict[int, str]) -> str:
    """more_nulls: by seed, the outcome of "more wrong nulls than at the start"."""
    says = {HELD: "more often than at the start", WRONG: "less often than at the start"}
    says[NOT_SHOWN] = "no change is shown"
    return across_seeds({seed: says.get(how) for seed, how in more_nulls.items()}, "not measured")


def wasted(run) -> str | None:
    """What a GRPO run spent on zero-variance groups; None where it was not measured."""
    seconds = diagnose.column(run.steps, "wasted_s").sum(min_count=1)
    if pd.isna(seconds):
        return None
    cost_hours = cost.device_hours(seconds, run.info["device"]["count"])
    return f"{spent(cost_hours)}, {percent(seconds / run.info['billed_s'])} of the bill"


def nulls_moved(nulls: pd.DataFrame) -> str:
    """Wrong nulls at the start, at the peak since then and at the end, of one seed."""
    counts = nulls.set_index("checkpoint")["all"]
    when = {"start": "at the start", "most nulls": "at the peak since then", "last": "at the end"}
    return ", ".join(f"{counts[checkpoint]} {words}" for checkpoint, words in when.items())


def null_alarms(rows: pd.DataFrame) -> str:
    """The fields of one seed that raised the null alarm, and when."""
    raised = rows.dropna(subset=["alarm"]).itertuples()
    return ", ".join(f"{row.field.replace('_', ' ')} at step {row.alarm:.0f}" for row in raised) or "in no field"


def null_alarm_delay(rows: pd.DataFrame) -> str:
    """The median delays of the fields' null alarms."""
    ends = [f"{end:.0f}" for end in (rows["delay"].min(), rows["delay"].max())]
    return f"{' to '.join(dict.fromkeys(ends))} steps"


def null_alarm_rule() -> str:
    return f"a slack of {alarms.SLACK:g} and a threshold of {alarms.THRESHOLD:g} standard deviations"


def variants(found: pd.DataFrame, alpha: float) -> str:
    """Which variants ended above their arm's run, below it, or with no difference shown; of `variants.table`."""
    says = {
        HELD: "above its arm's end",
        WRONG: "below its arm's end",
        NOT_SHOWN: "no difference to its arm's end is shown",
    }
    says[NOT_MEASURED] = "its arm has no such run"
    texts = {how: [] for how in says}
    seeds = found["seed"].nunique() if len(found) else 0
    for row in found.itertuples():
        how = outcomes.shown(row.arm_better, row.arm_worse, row.arm_p_holm, alpha)
        texts[how].append((row.name, row.seed))
    texts = {
        how: _with_seeds(own) if seeds > 1 else [beside.words(name) for name, _ in own] for how, own in texts.items()
    }
    return ". ".join(f"{says[how].capitalize()}: {'; '.join(own)}" for how, own in texts.items() if own) or "none"


def _with_seeds(runs: list[tuple[str, int]]) -> list[str]:
    """Runs (name, seed), in words, a name once: "C lean (seeds 0, 1)"."""
    seeds = {name: [str(seed) for other, seed in runs if other == name] for name, _ in runs}
    return [
        f"{beside.words(name)} ({'seed' if len(own) == 1 else 'seeds'} {', '.join(own)})" for name, own in seeds.items()
    ]


def lean_bills(found: pd.DataFrame) -> str:
    """The bill of each arm's lean runs as a share of the arm's, by seed; of `variants.table`."""
    texts = {}
    for row in found.itertuples():
        if row.name == beside.called(row.arm, "lean") and pd.notna(row.bill_ratio):
            texts.setdefault(row.name, {})[row.seed] = percent(row.bill_ratio, ".0%")
    return "; ".join(f"{beside.words(name)} {by_seed(own)}" for name, own in texts.items()) or "not measured"


def diverged(rows: pd.DataFrame) -> str:
    """Variants of GRPO in which the divergence alarm went off; of `variants.divergence`."""
    if rows.empty:
        return "not measured"
    on = rows[rows["alarms"] > 0]
    texts = _with_seeds([(row.name, row.seed) for row in on.itertuples()])
    return f"in {len(on)} of {len(rows)} {'run' if len(rows) == 1 else 'runs'}" + (
        f", {'; '.join(texts)}" if texts else ""
    )


def multiple_by_trainer(rows: pd.DataFrame) -> str:
    """C's multiple of A's cost with each choice of trainers; of `variants.by_trainer`."""
    texts = {
        rule: by_seed({row.seed: times(row.multiple) for row in own.itertuples() if pd.notna(row.multiple)})
        for rule, own in (rows.groupby("rule", sort=False) if len(rows) else ())
    }
    return "; ".join(f"{rule} {text}" for rule, text in texts.items() if text) or "none"


def outside(rows: pd.DataFrame) -> str:
    """Exact records of the base model, the start and the arms on the text from elsewhere; of `outside.fields`."""
    texts = {}
    for row in rows.itertuples():
        if row.name in ("base", "start", *NAMES):
            texts.setdefault(row.name, {})[row.seed] = f"{row.exact} of {row.n}"
    told = [f"{beside.words(name)} {own[''] if '' in own else by_seed(own)}" for name, own in texts.items()]
    return "; ".join(told) or "not measured"


def not_run(names: set) -> str:
    """What was planned beside the arms and did not run; names: the variants that did."""
    return "; ".join(words for name, (_, words) in PLANNED.items() if name not in names) or "nothing"


def tally(outcomes: pd.Series) -> str:
    """How many statements came out how."""
    counts = sorted(outcomes.value_counts().items())
    return f"of {len(outcomes)}, " + ", ".join(f"{count} {how}" for how, count in counts)


def predictions(score: dict, scores: pd.DataFrame) -> str:
    """How predictions came out; of `predictions.brier` and `predictions.scored`."""
    if not (scores["decided"] > 0).any():
        return f"none of the {len(scores)} is scored on these runs"
    counts = tally(scores["outcome"].str.replace("; [^)]*", "", regex=True))
    brier_score = f"Their Brier score, for which lower is better: {brier(score, scores)}"
    return f"{counts}. {brier_score}. Those on which a coin would have scored better: {missed(scores)}"


def missed(scores: pd.DataFrame) -> str:
    """Predictions that earned less than one half would have; of `predictions.scored`, with what was found as `here`."""
    worse = scores[scores["brier"] > 0.25].itertuples()
    return (
        "; ".join(f"“{row.statement}” (given {row.probability:.0%}, here {row.here}; {row.outcome})" for row in worse)
        or "none"
    )


def brier(score: dict, scores: pd.DataFrame) -> str:
    return (
        f"{number(score['brier'], '.3f')} over the {(scores['decided'] > 0).sum()} that can be decided; "
        f"{number(score['expected'], '.3f')} would be the average if every probability were right, 0.25 that of a coin"
    )


def claims(verdicts: dict, quantities: dict) -> pd.DataFrame:
    """The judging sentences of book/claims.yaml as they were glued, with how their verdicts came out and p by seed.

    verdicts: name -> outcome by seed. quantities: `p_<name>` -> p after Holm by seed, of the names that are tested.
    Raises ValueError with the section whose row is wrong.
    """
    rows = []
    for section, sentences in written.read(BOOK / "claims.yaml", {...: [[str | None]]}).items():
        for sentence in sentences:
            if len(sentence) != 4 or sentence[0] not in told or sentence[1] not in (None, *verdicts):
                raise ValueError(
                    f"book/claims.yaml: {section}: got {sentence}, expected the key of a text glued before, a verdict "
                    "or null, what is tested, and how"
                )
            key, name, tested, test = sentence
            p = {seed: p_value(p) for seed, p in quantities.get(f"p_{name}", {}).items()}
            row = {"key": key, "sentence": told[key], "tested": tested, "test": test, "section": section}
            row["outcome"] = "the sentence says it" if name is None else outcomes.outcome(verdicts[name])
            rows.append(row | {"p": by_seed(p) if p else "-"})
    return pd.DataFrame(rows)
