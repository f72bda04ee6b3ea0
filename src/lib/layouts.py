"""Columns of the tables on the pages: {title: function of a row that gives the cell's text}. No numbers are made here.

A layout that needs to know more than its row is a function of it: `spent` writes hours (`show.spender`), `dpo_seeds`
are the seeds that have a DPO run.
"""

import pandas as pd

from lib import cost
from lib.compare import LETTERS, NAMES
from lib.diagnose import MISTAKES, NULLABLE
from lib.show import accuracy, entered, moved, number, only, p_value, percent, run_name, tenths, times, versus

RUN = {"run": run_name}
TESTED = {  # the last columns of every table with a test
    "p": lambda row: p_value(row.p),
    "p (Holm)": lambda row: p_value(row.p_holm),
    "mid-p": lambda row: p_value(row.mid_p),
}


def columns(names: dict[str, str], form) -> dict:
    """Columns that write one value each: {title: name in the row}, all in the same form."""
    return {title: only(name, form) for title, name in names.items()}


def counts(value) -> str:
    return number(value, ",.0f")


def fields(names, cell) -> dict:
    """One column a field; `cell` takes the row and the field."""
    return {field.replace("_", " "): lambda row, field=field: cell(row, field) for field in names}


def better(title: str) -> dict:
    return {title: lambda row: versus(row.left_better, row.right_better)}


def hours(value) -> str:
    return "-" if pd.isna(value) else cost.show_hours(value)


def final(spent, unit: str) -> dict:
    return (
        {"arm": lambda row: f"{LETTERS[row.arm]} {NAMES[row.arm]}"}
        | RUN
        | columns({"start": "start", "last": "last", "best": "best"}, accuracy)
        | columns({"best at": "best_hours"}, hours)
        | {f"spent ({unit})": lambda row: spent(row.hours, row.source)}
        | {"from scratch": lambda row: "-" if pd.isna(row.from_scratch_hours) else spent(row.from_scratch_hours)}
        | better("last / start better")
        | TESTED
    )


def equal_spend(dpo_seeds) -> dict:
    def dpo(row):
        return (
            "not run"
            if row.source == "here" and row.seed not in dpo_seeds
            else entered(row.dpo_accuracy, row.dpo_hours)
        )

    own = {
        "A": lambda row: entered(row.left_accuracy, row.left_hours),
        "C GRPO": lambda row: entered(row.right_accuracy, row.right_hours),
        "B DPO": dpo,
    }
    return columns({"budget": "budget_hours"}, hours) | RUN | own | better("A / C better") | TESTED


ALL_BUDGETS = RUN | columns(
    {
        "A's budgets": "budgets",
        "compared": "compared",
        "C's own": "own",
        "A ahead": "left_wins",
        "C ahead": "right_wins",
    }
    | {"A ahead (Holm)": "left_wins_holm", "C ahead (Holm)": "right_wins_holm"},
    counts,
)

PAIRS = (
    {"pair": lambda row: f"{LETTERS[row.left]} and {LETTERS[row.right]}, seed {row.seed}"}
    | columns({"budget": "budget_hours"}, hours)
    | columns({"first": "left_accuracy", "second": "right_accuracy"}, accuracy)
    | better("first / second better")
    | TESTED
)


def reach_hold(spent, dpo_seeds) -> dict:
    return (
        {"target": lambda row: f"{accuracy(row.target)} ({row.of})"}
        | RUN
        | {"A": lambda row: spent(row.sft_hours, row.source), "C GRPO": lambda row: spent(row.grpo_hours, row.source)}
        | {"B DPO": lambda r: spent(r.dpo_hours) if r.source == "here" and r.seed in dpo_seeds else "-"}
        | columns({"C / A": "multiple", "C / A, first touch": "touch_multiple"}, times)
    )


ATTEMPTS = columns({name: name for name in ("run", "device", "attempts", "interrupted")}, str) | columns(
    {"billed (s)": "billed_s", "evaluation (s)": "evaluation_s", "loading again (s)": "resume_s", "lost (s)": "lost_s"},
    "{:,.1f}".format,
)

TRIALS = {
    "arm": lambda row: f"{LETTERS[row.arm]} {NAMES[row.arm]}, seed {row.seed}",
    "setting": lambda row: f"{row.parameter} = {row.value:g}",
    "split": lambda row: row.split,
    "exact, last": lambda row: f"{row.exact} of {row.n}",
    "exact, best": lambda row: f"{row.best_exact} of {row.n}",
    "used here": lambda row: "yes" if row.used else "",
    "billed (s)": lambda row: f"{row.billed_s:,.1f}",
    "device": lambda row: row.device,
    "commit": lambda row: str(row.commit)[:10] + ("-dirty" if str(row.commit).endswith("-dirty") else ""),
}


def change(name: str, form: str = ".2f"):
    """From the first tenth of the steps to the last."""
    return lambda row: moved(getattr(row, f"{name}_first"), getattr(row, f"{name}_last"), form)


DPO = RUN | {
    "chosen, sum": change("chosen_logp"),
    "rejected, sum": change("rejected_logp"),
    "chosen, per token": change("chosen_logp_token", ".3f"),
    "rejected, per token": change("rejected_logp_token", ".3f"),
    "preference accuracy": change("accuracy"),
    "reward of chosen / rejected, last": lambda row: (
        "not measured" if pd.isna(row.chosen_reward) else f"{row.chosen_reward:+.3f} / {row.rejected_reward:+.3f}"
    ),
    "margin from rejected falling": lambda row: number(row.pushed_down, ".0%"),
}

DPO_PAIRS = (
    {"run": lambda row: f"seed {row.seed}"}
    | {"pairs": lambda row: f"{row.pairs} of {row.set}", "step": lambda row: f"{row.step:.0f}"}
    | columns({"chosen, sum": "chosen", "rejected, sum": "rejected"}, "{:+.2f}".format)
    | columns({"chosen, per token": "chosen_token", "rejected, per token": "rejected_token"}, "{:+.3f}".format)
    | columns({"margin": "margin"}, "{:+.2f}".format)
    | {
        "from rejected falling": lambda row: number(row.pushed_down, ".0%"),
        "preference accuracy": lambda row: number(row.preference, ".2f"),
        "greedy answer, per token": lambda row: number(row.greedy_token, ".3f"),
        "exact": lambda row: number(row.exact, ".4f"),
        "alarm": lambda row: ", ".join(a for a in ("displaced", "parted") if getattr(row, a) == 1) or "-",
    }
)

MISTAKES_BY_CHECKPOINT = (
    {"step": lambda row: str(row.step)}
    | fields(("name", *NULLABLE), lambda row, field: " / ".join(str(getattr(row, f"{field}_{m}")) for m in MISTAKES))
    | columns({"invalid": "invalid"}, str)
)

FIELD_CHANGES = (
    {"seed": lambda row: str(row.seed), "field": lambda row: row.field.replace("_", " ")}
    | {m: lambda row, m=m: f"{getattr(row, f'{m}_first')} to {getattr(row, f'{m}_last')}" for m in MISTAKES}
    | better("right only at the end / only at the start")
    | TESTED
)

CEILING = {
    "seed": lambda row: str(row.seed),
    "fields that any arm has not right": lambda row: counts(row.any),
    "that no arm has right": lambda row: counts(row.all),
    "of these, all arms answer alike": lambda row: counts(row.alike),
} | {f"of {NAMES[arm]}'s errors": only(arm, percent) for arm in NAMES}


def written(value) -> str:
    return "null" if value is None or value != value else str(value)


EXAMPLES = {
    "document": lambda row: row.id,
    "seed": lambda row: str(row.seed),
    "field": lambda row: row.field.replace("_", " "),
    "answers": lambda row: written(row.answers[0]) if row.alike else " / ".join(map(written, row.answers)),
    "label": lambda row: row.label,
    "text": lambda row: row.text,
}


def signal(seeds) -> dict:
    """Of rows `measure` and `<first, middle, last>_<seed>`: one column a seed."""

    def cell(seed):
        return lambda row: " / ".join(number(getattr(row, f"{at}_{seed}"), ".3g") for at in ("first", "middle", "last"))

    return {"first / middle / last tenth": lambda row: row.measure} | {f"seed {seed}": cell(seed) for seed in seeds}


TENTHS = {"measure": lambda row: row.measure} | {
    f"{at} tenth": only(at, lambda value: number(value, ".3g")) for at in ("first", "middle", "last")
}

NULL_ALARM = {
    "seed": lambda row: str(row.seed),
    "field": lambda row: row.field.replace("_", " "),
    "alarm in this run": lambda row: "-" if pd.isna(row.alarm) else f"step {row.alarm:.0f}",
    "false alarms": lambda row: percent(row.false_alarms, ".1%"),
    "collapses found": lambda row: number(row.found, ".1%"),
    "delay, median (steps)": lambda row: number(row.delay, ".0f"),
    "ninth decile (steps)": lambda row: number(row.delay_90, ".0f"),
    "null rate by then": lambda row: number(row.null_rate, ".0%"),
}

DIVERGENCE = {
    "seed": lambda row: str(row.seed),
    "step": lambda row: f"{row.step}",
    "reward since the checkpoint before": lambda row: f"{row.reward:.4f}",
    "exact": lambda row: accuracy(row.accuracy),
    "best before": lambda row: f"{accuracy(row.best_accuracy)} ({'start' if row.best_step == 0 else row.best_step})",
    "p": lambda row: p_value(row.p),
    "reward fell": lambda row: "yes" if row.reward_fell else "no",
    "alarm": lambda row: "alarm" if row.alarm else "-",
}

ERRORS = (
    {"arm": lambda row: f"{NAMES.get(row.arm, 'shared start')}, seed {row.seed}"}
    | fields(("name", *NULLABLE), lambda row, field: " / ".join(str(getattr(row, f"{field}_{m}")) for m in MISTAKES))
    | columns({"places' share": "places_share"}, percent)
    | columns({"invalid": "invalid"}, str)
)


def bill(parts: pd.DataFrame, published: pd.DataFrame) -> dict:
    """Of rows with a `part`: seconds and share of each seed from `parts` (cost.bill), then the study's."""

    def cell(measure, seed, form):
        values = parts[measure, seed]
        return lambda row: "missing" if pd.isna(values[row.part]) else format(values[row.part], form)

    layout = {"part": lambda row: row.part}
    for seed in parts["share"]:
        layout |= {f"s, seed {seed}": cell("seconds", seed, ",.1f"), f"share, seed {seed}": cell("share", seed, ".1%")}
    return layout | {
        "published, s": lambda row: counts(published["seconds"].get(row.part)),
        "published, share": lambda row: number(published["share"].get(row.part), ".1%"),
    }


TOKENS = RUN | columns({"steps": "steps", "through each trainer pass": "trainer", "generated": "generated"}, counts)
TOKENS |= {"ratio": lambda row: number(row.ratio, ".2g")}

GROUPS = (
    RUN
    | {"zero-variance groups": tenths}
    | columns(
        {
            "of these, all right": "constant_right",
            "equal in between": "constant_between",
            "all wrong": "constant_wrong",
        },
        percent,
    )
    | {"entropy": change("entropy", ".4f")}
    | columns({"steps with gradient exactly 0": "gradient_zero"}, percent)
)

NULLS = (
    RUN
    | {"checkpoint": lambda row: f"{row.checkpoint} (step {row.step})"}
    | fields(NULLABLE, lambda row, field: f"{getattr(row, field)} of {getattr(row, f'{field}_gold'):.0f}")
    | better("only here / at the start")
    | TESTED
)

CLAIMS = columns({"statement": "text", "published study": "published", "here": "here"}, str)
