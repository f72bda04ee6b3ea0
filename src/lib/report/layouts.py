"""Columns of the tables on the pages: {title: function of a row that gives the cell's text}. No numbers are made here.

A layout that needs to know more than its row is a function of it; `dpo_seeds` are the seeds that have a DPO run.
A name in braces in a title is a text that was glued before (`show.table`).
"""

import pandas as pd

from lib.report.budgets import PAIRS
from lib.report.compare import LETTERS, NAMES
from lib.report.diagnose import MISTAKES, NULLABLE
from lib.report.errors import written
from lib.report.outcomes import HELD, NOT_MEASURED, WRONG
from lib.report.show import accuracy, entered, moved, number, p_value, percent, priced, spent, timed, times, versus
from lib.report.variants import words

NO_BREAK = "\u00a0"  # a space at which narrow columns do not break a line
NO_BREAK_HYPHEN = "\u2011"
MAY_BREAK = "\u200b"  # no space, and a line may end there: inside a long name
RUN = {"run": lambda row: f"{row.source}, seed {row.seed}"}
ARM = {"arm": lambda row: f"{LETTERS[row.arm]} {NAMES[row.arm]}".replace(" ", NO_BREAK)}
SEED = {"seed": lambda row: str(row.seed)}
FIELD = {"field": lambda row: row.field.replace("_", " ")}
NAMED = {"run": lambda row: unbroken(row.run)}
PART = {"part": lambda row: row.part}


def unbroken(name: str) -> str:
    """A name such as grpo-s0, at whose hyphens no line ends."""
    return name.replace("-", NO_BREAK_HYPHEN)


def only(name: str, form):
    """A function of a row that writes one of its values."""
    return lambda row: form(getattr(row, name))


def columns(names: dict[str, str], form) -> dict:
    """Columns that write one value each: {title: name in the row}, all in the same form."""
    return {title: only(name, form) for title, name in names.items()}


# the last columns of every table with a test
TESTED = columns({"p": "p", "p (Holm)": "p_holm", "mid-p": "mid_p"}, p_value)
FIRST_SECOND = columns({"first": "left_accuracy", "second": "right_accuracy"}, accuracy)


def written_as(form: str, names: dict[str, str]) -> dict:
    """`columns` of numbers with one format; a dash where they are missing."""
    return columns(names, lambda value: number(value, form))


def counts(value) -> str:
    return number(value, ",.0f")


def fields(names, cell) -> dict:
    """One column a field; `cell` takes the row and the field."""
    return {field.replace("_", " "): lambda row, field=field: cell(row, field) for field in names}


def better(title: str) -> dict:
    return {title: lambda row: versus(row.left_better, row.right_better)}


PAIR = {"pair": lambda row: f"{LETTERS[row.left]} and {LETTERS[row.right]}, seed {row.seed}".replace(" ", NO_BREAK)}


def hours(titles: dict[str, str]) -> dict:
    """Columns of hours, {title: name in the row}; a dash where they are missing, and no line break before the unit."""

    def column(name):
        def cell(row):
            value = getattr(row, name)
            return "-" if pd.isna(value) else timed(value, getattr(row, "source", "here")).replace(" ", NO_BREAK)

        return cell

    return {title: column(name) for title, name in titles.items()}


BUDGET = hours({"budget": "budget_hours"})

FINAL = (
    ARM
    | RUN
    | columns({"start": "start", "last": "last", "best": "best"}, accuracy)
    | {"spent ({unit})": lambda row: spent(row.hours, row.source)}
    | {"from scratch": lambda row: "-" if pd.isna(row.from_scratch_hours) else spent(row.from_scratch_hours)}
    | better("last / start better")
    | {"p (Holm)": TESTED["p (Holm)"]}  # the other p, and what the best one cost, are in the download
)


def entering(title: str, side: str) -> dict:
    """The accuracy that one side enters a budget with."""
    return {title: lambda row: entered(getattr(row, f"{side}_accuracy"), getattr(row, f"{side}_step"))}


def equal_spend(dpo_seeds) -> dict:
    own = entering("A", "left") | entering("C GRPO", "right") | entering("B DPO", "dpo")
    dpo = own["B DPO"]
    own["B DPO"] = lambda row: "not run" if row.source == "here" and row.seed not in dpo_seeds else dpo(row)
    return BUDGET | {"all of": lambda row: LETTERS[row.of]} | RUN | own | better("A / C better") | TESTED


ALL_BUDGETS = (
    RUN
    | columns({"A's budgets": "budgets", "compared": "compared", "C's own": "own"}, counts)
    | columns({"A ahead": "left_wins", "C ahead": "right_wins"}, counts)
    | columns({"A ahead (Holm)": "left_wins_holm", "C ahead (Holm)": "right_wins_holm"}, counts)
)

OTHER_PAIRS = PAIR | BUDGET | FIRST_SECOND | better("first / second better") | TESTED


def points(value) -> str:
    return number(value, "+.1f")


def difference(row) -> str:
    """A difference in points with its interval."""
    return f"{points(row.difference)} ({points(row.low)} to {points(row.high)})"


SMALLEST = written_as(".1f", {"smallest significant": "smallest", "detectable, 80% power": "detectable"})

BUDGETS = (
    PAIR
    | columns({"budgets": "compared"}, counts)
    | {"first / second ahead": lambda row: versus(row.left_wins, row.right_wins)}
    | {"ahead (Holm)": lambda row: versus(row.left_wins_holm, row.right_wins_holm)}
    | {"difference at the last (points)": difference, "its p (Holm)": lambda row: p_value(row.p_holm)}
    | SMALLEST
)

VARIATION = (
    ARM
    | {"runs": lambda row: row.pair}
    | FIRST_SECOND
    | columns({"difference (points)": "difference"}, points)
    | better("first / second better")
    | written_as(".1f", {"widest at one step (points)": "widest"})
    | hours({"first spent": "left_hours", "second spent": "right_hours"})
)


def reach_hold(dpo_seeds) -> dict:
    def dpo(write):
        return lambda r: write(r.dpo_hours) if r.source == "here" and r.seed in dpo_seeds else "-"

    layout = {"target": lambda row: f"{accuracy(row.target)} ({row.of})"} | RUN
    for title, arm in (("A", "sft"), ("C GRPO", "grpo")):
        for name, write in ((title, timed), (f"{LETTERS[arm]}, price", priced)):
            layout |= {name: lambda row, arm=arm, write=write: write(getattr(row, f"{arm}_hours"), row.source)}
    layout |= {"B DPO": dpo(timed), "B, price": dpo(priced)}
    return layout | {"C / A": at_least, "C / A, first touch": lambda row: at_least(row, "touch_")}


def at_least(row, prefix: str = "") -> str:
    """A multiple, marked where it is a lower bound: its base was there at the first checkpoint, so before it."""
    bound = getattr(row, f"{prefix}at_least", None)
    return ("at least " if pd.notna(bound) and bound else "") + times(getattr(row, f"{prefix}multiple"))


def multiples(row) -> str:
    """An interval of multiples; one word where both ends are the same."""
    ends = times(row.low), times(row.high)
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)


REACH_RESAMPLED = {
    "target": lambda row: f"{row.of}, seed {row.seed}",
    "rule": lambda row: {"hold": "reach and hold", "touch": "first touch"}[row.rule],
    "C / A, median": only("median", times),
    "C / A, interval": multiples,
    **columns({"A sooner": "sft_sooner", "A never": "sft_never", "C never": "grpo_never"}, percent),
    "A at the start": only("sft_at_start", percent),
}


def held(arm: str):
    """Hours to hold a target under a rule of the bill; one that could not be applied says nothing, else "never"."""
    return lambda row: "-" if row.sft_grpo == NOT_MEASURED else timed(getattr(row, f"{arm}_hours"))


def leads(left: str, right: str):
    """Who leads under a rule of the bill, with p after Holm."""
    said = {HELD: f"{LETTERS[left]} leads", WRONG: f"{LETTERS[right]} leads"}

    def cell(row):
        outcome, p, start = (getattr(row, f"{left}_{right}{what}") for what in ("", "_p", "_start"))
        return said.get(outcome, outcome) + ("" if pd.isna(p) else f", p {p_value(p)}") + start

    return cell


RULES = (
    {"rule": lambda row: row.rule}
    | SEED
    | {f"{LETTERS[left]} and {LETTERS[right]}": leads(left, right) for left, right in PAIRS}
    | {"A holds C's last": held("sft"), "C holds it": held("grpo")}
    | columns({"C / A": "multiple"}, times)
)

ATTEMPTS = NAMED | {title: only(title, str) for title in ("device", "attempts", "interrupted")}
ATTEMPTS |= columns(
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
    "at a time": lambda row: row.at_once,
    "trainer": lambda row: row.trainer,
    "device": lambda row: row.device,
    "commit": lambda row: str(row.commit)[:10] + ("-dirty" if str(row.commit).endswith("-dirty") else ""),
}


def change(name: str, form: str = ".2f"):
    """From the first tenth of the steps to the last."""
    return lambda row: moved(getattr(row, f"{name}_first"), getattr(row, f"{name}_last"), form)


DPO = {"run": lambda row: RUN["run"](row) + (f": {words(row.variant)}" if isinstance(row.variant, str) else "")} | {
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

DPO_PAIRS = {
    "run": lambda row: f"seed {row.seed}",
    "pairs": lambda row: f"{row.pairs} of {row.set}",
    "step": lambda row: f"{row.step:.0f}",
    **written_as("+.2f", {"chosen, sum": "chosen", "rejected, sum": "rejected"}),
    **written_as("+.3f", {"chosen, per token": "chosen_token", "rejected, per token": "rejected_token"}),
    **written_as("+.2f", {"margin": "margin"}),
    **written_as(".0%", {"from rejected falling": "pushed_down"}),
    **written_as(".2f", {"preference accuracy": "preference"}),
    **written_as(".3f", {"greedy answer, per token": "greedy_token"}),
    **written_as(".4f", {"exact": "exact"}),
    "alarm": lambda row: ", ".join(a for a in ("displaced", "parted") if getattr(row, a) == 1) or "-",
}

OF_FIELDS = fields(
    ("name", *NULLABLE), lambda row, field: " / ".join(str(getattr(row, f"{field}_{m}")) for m in MISTAKES)
)
INVALID = {"invalid": lambda row: str(row.invalid)}

MISTAKES_BY_CHECKPOINT = {"step": lambda row: str(row.step)} | OF_FIELDS | INVALID

FIELD_CHANGES = (
    SEED
    | FIELD
    | {m: lambda row, m=m: f"{getattr(row, f'{m}_first')} to {getattr(row, f'{m}_last')}" for m in MISTAKES}
    | better("right only at the end / only at the start")
    | TESTED
)

CEILING = (
    SEED
    | columns({"fields that any arm has not right": "any", "that no arm has right": "all"}, counts)
    | columns({"of these, all arms answer alike": "alike"}, counts)
    | columns({f"of {NAMES[arm]}'s errors": arm for arm in NAMES}, percent)
)

EXAMPLES = {"document": lambda row: row.id, **SEED, **FIELD} | {
    "answers": lambda row: written(row.answers[0]) if row.alike else " / ".join(map(written, row.answers)),
    "label": lambda row: row.label,
    "text": lambda row: row.text,
}


def signal(seeds) -> dict:
    """Of rows `measure` and `<first, middle, last>_<seed>`: one column a seed."""

    def cell(seed):
        return lambda row: " / ".join(number(getattr(row, f"{at}_{seed}"), ".3g") for at in ("first", "middle", "last"))

    return {"first / middle / last tenth": lambda row: row.measure} | {f"seed {seed}": cell(seed) for seed in seeds}


TENTHS = {"measure": lambda row: row.measure}
TENTHS |= written_as(".3g", {f"{at} tenth": at for at in ("first", "middle", "last")})

NULL_ALARM = {**SEED, **FIELD} | {
    "alarm in this run": lambda row: "-" if pd.isna(row.alarm) else f"step {row.alarm:.0f}",
    "false alarms": only("false_alarms", percent),
    **written_as(".1%", {"collapses found": "found"}),
    **written_as(".0f", {"delay, median (steps)": "delay", "ninth decile (steps)": "delay_90"}),
    **written_as(".0%", {"null rate by then": "null_rate"}),
}

DIVERGENCE = SEED | {
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
    | OF_FIELDS
    | columns({"places' share": "places_share"}, percent)
    | INVALID
)


def bill(parts: pd.DataFrame, published: pd.DataFrame) -> dict:
    """Of rows with a `part`: seconds and share of each seed from `parts` (cost.bill), then the study's."""

    def cell(measure, seed, form):
        values = parts[measure, seed]
        return lambda row: "missing" if pd.isna(values[row.part]) else format(values[row.part], form)

    layout = dict(PART)
    for seed in parts["share"]:
        layout |= {f"s, seed {seed}": cell("seconds", seed, ",.1f"), f"share, seed {seed}": cell("share", seed, ".1%")}
    return layout | {
        "published, s": lambda row: counts(published["seconds"].get(row.part)),
        "published, share": lambda row: number(published["share"].get(row.part), ".1%"),
    }


def scaled(name: str, form: str, factor: float = 1.0):
    """A function of a row that writes one of its values times a factor; "not measured" where it is missing."""

    def text(row) -> str:
        value = getattr(row, name)
        return "not measured" if pd.isna(value) else format(value * factor, form)

    return text


def bills(by_run: pd.DataFrame) -> dict:
    """Of rows with a `part`: seconds and share of each run from `by_run` (cost.bill by name)."""

    def cell(run):
        seconds, shares = by_run["seconds", run], by_run["share", run]
        return lambda row: "-" if pd.isna(seconds[row.part]) else f"{seconds[row.part]:,.1f} ({shares[row.part]:.1%})"

    return PART | {unbroken(run): cell(run) for run in by_run["share"]}


SHARES = {**PART, "seconds": scaled("seconds", ",.2f"), "share": scaled("share", ".1%")}

FILES = columns({"file": "file"}, str) | columns({"rows": "n"}, counts) | columns({"columns": "columns"}, str)

PHASES = {
    "row of the bill": lambda row: row.part,
    "phase in the file": lambda row: row.phase,
    **columns({"rows": "n"}, counts),
    **written_as(",.2f", {"seconds": "seconds"}),
}

LEDGER = {
    **NAMED,
    "unaccounted": scaled("unaccounted", ".2%"),
    "worst step": lambda row: "-" if pd.isna(row.worst_step) else f"{row.worst_share:.1%} (step {row.worst_step:.0f})",
    "device to host": scaled("device_gap", "+.3%"),
    "rows to system clock": scaled("clock_gap", "+.3%"),
    "timers' cost": scaled("timer", ".2%"),
    "processor seconds a second": scaled("process", ".2f"),
}

WORK = {
    **NAMED,
    "tokens through the trainer": scaled("tokens", ",.0f"),
    "trained tokens a second": scaled("tokens_per_s", ",.0f"),
    "utilisation (MFU)": scaled("utilisation", ".1%"),
    "energy (Wh)": lambda row: (
        "not measured"
        if pd.isna(row.joules)
        else f"{row.joules / 3600:.1f}" + ("" if pd.isna(row.joules_error) else f" +- {row.joules_error / 3600:.2g}")
    ),
    "peak memory (GiB)": scaled("peak_bytes", ".1f", 2**-30),
}

PASSES = {
    **NAMED,
    "pass": lambda row: row.kind.removeprefix("forward_"),
    "rows": scaled("rows", ",.0f"),
    "real tokens": scaled("tokens", ",.0f"),
    "positions": scaled("positions", ",.0f"),
    "padded": scaled("padded", ".1%"),
    "seconds": scaled("seconds", ",.1f"),
    "tokens a second": lambda row: f"{row.tokens / row.seconds:,.0f}",
}

TOKENS = RUN | columns({"steps": "steps", "through each trainer pass": "trainer", "generated": "generated"}, counts)
TOKENS |= {"ratio": lambda row: number(row.ratio, ".2g")}


def tenths(row) -> str:
    """Shares of zero-variance groups in the first, middle and last tenth."""
    return " / ".join(percent(share, ".0%") for share in (row.zero_first, row.zero_middle, row.zero_last))


GROUPS = (
    RUN
    | {"zero-variance groups": tenths}
    | columns({"of these, all right": "constant_right", "equal in between": "constant_between"}, percent)
    | columns({"all wrong": "constant_wrong"}, percent)
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

FINDINGS = columns({"statement": "text", "published study": "published", "here": "here"}, str)
CAUSES = FINDINGS | {"most likely cause": only("cause", str)}

CLAIMS = columns(
    {"sentence": "sentence", "what is tested": "tested", "test": "test", "came out": "outcome", "p (Holm)": "p"}
    | {"computed in": "section"},
    str,
)

PREDICTIONS = {
    "statement": only("statement", str),
    "rule": only("rule", lambda rule: rule.replace("_", f"_{MAY_BREAK}")),
    "here": only("here", str),
    "probability": only("probability", "{:.0%}".format),
    "came out": only("outcome", str),
    "Brier": lambda row: number(row.brier, ".3f"),
    "seen before": only("seen", str),
}


def quantities(seeds) -> dict:
    """Of rows with a `name` and one column a seed, `seed_<seed>`."""
    return columns({"quantity": "name"}, str) | written_as(".4g", {f"seed {seed}": f"seed_{seed}" for seed in seeds})
