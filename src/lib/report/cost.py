"""What a run cost: billed hours on its device, dollars, and where the time went. No statistics and no pictures here.

A run bills the wall-clock of its training process: model load, engine start and pair sampling included, evaluation and
the second load of a resumed run excluded. Whoever writes the record draws that line (`billed`); here it is added up.
"""

import pandas as pd

UNITS = {"cuda": "GPU-hours", "cpu": "CPU-hours"}
SHORT_HOURS = 0.25  # times below it read better in seconds

# What a rule may put on an arm's bill or take off it: key -> in words. A rule says of each whether it is on the bill.
COUNTABLE = {
    "pair_sampling": "the sampling of preference pairs",
    "start": "the shared start",
    "base_evaluation": "the base model's evaluation",
    "resumes": "second loads and lost work",
    "tuning": "the trials of settings",
}

# Rows of the bill in the published order: label -> the phases that it adds up.
PARTS = {
    "pair sampling": ["pair_sampling"],
    "generation": ["generation"],
    "weight sync to the engine": ["weight_sync"],
    "rest of generate": ["tokenise", "detokenise", "generate_rest"],
    "reward function": ["reward"],
    "no-grad forward": ["forward_nograd"],
    "reference forward": ["forward_reference"],
    "grad forward": ["forward_grad"],
    "backward": ["backward"],
    "gradient clipping": ["clip"],
    "optimizer": ["optimizer", "zero_grad"],
    "data": ["data"],
    "logging": ["log", "bookkeeping"],
    "load, start, checkpoints": ["model_load", "engine_start", "trainer_setup", "checkpoint", "final_save"],
    "the timers themselves": ["timer"],
}
UNACCOUNTED = "unaccounted"
# Phases that name no work, only the span of which they are left: generating and scoring, a micro-batch, a step.
REMAINDERS = {"score", "training_step", "unaccounted"}
UPDATE = ("backward", "gradient clipping", "optimizer")  # one residual in the published study
TOGETHER = "backward + clipping + optimizer"


def device_hours(billed_s: float, count: int) -> float:
    """Hours that count: billed seconds / 3600 x devices held."""
    return float(billed_s) / 3600 * int(count)


def total_hours(runs, key: str = "billed_s") -> float:
    """Device-hours of some records together, of one of their seconds."""
    return sum(device_hours(run.info[key], run.info["device"]["count"]) for run in runs)


def unit(kind: str) -> str:
    """The unit of `device_hours` for a device kind: GPU-hours or CPU-hours."""
    if kind not in UNITS:
        raise ValueError(f"device kind {kind!r}: expected one of {sorted(UNITS)}")
    return UNITS[kind]


def axis(kind: str, longest_hours: float) -> tuple[str, float]:
    """The unit of a cost axis, and how many of it an hour has: device-seconds where every run is short."""
    return (unit(kind), 1.0) if longest_hours >= SHORT_HOURS else (unit(kind).replace("hours", "seconds"), 3600.0)


def price(hours: float | None, kind: str, price_per_hour: float) -> float | None:
    """Price of device-hours; None on a CPU, where no price of a GPU applies, and None for no hours."""
    if unit(kind) != "GPU-hours" or pd.isna(hours):
        return None
    return hours * price_per_hour


def show_hours(hours: float | None, per_hour: float | None = None) -> str:
    """A time with three significant digits, "never" for None; in hours or seconds as the axis (`per_hour` of `axis`).

    Without an axis a short time is in seconds.
    """
    if hours is None or pd.isna(hours):
        return "never"
    if per_hour == 1 or (per_hour is None and hours >= SHORT_HOURS):
        return f"{hours:.3g} h"
    seconds = hours * 3600
    return f"{seconds:,.0f} s" if seconds >= 100 else f"{seconds:.3g} s"


def show_price(amount: float | None, currency: str = "USD") -> str:
    """An amount of money with two decimals; a dash where no price applies."""
    if amount is None or pd.isna(amount):
        return "-"
    return f"${amount:,.2f}" if currency == "USD" else f"{currency} {amount:,.2f}"


def hours_under(rule: dict[str, bool], run, start, setup, trials: pd.DataFrame | None) -> list[float]:
    """Device-hours that an arm had spent at the shared start, at each own checkpoint in order, and at its end.

    rule: of each key of COUNTABLE, whether it is on the bill. `pair_sampling` precedes the first checkpoint, so without
    it all own points are cheaper by it. `start` (its interruptions and trials too, where these count) and
    `base_evaluation` are paid before the arm begins, so they move its first point too. `resumes`: second loads and lost
    work, from the first checkpoint saved after them. `tuning`: all trials of the arm's settings, paid before its first
    step; every seed bears them whole.
    Raises ValueError for a rule that lacks a switch, and where trials are to count and none is recorded.
    """
    if set(rule) != set(COUNTABLE):
        raise ValueError(f"rule of the bill: got {sorted(rule)}, expected {sorted(COUNTABLE)}")
    if rule["tuning"] and trials is None:
        raise ValueError("tuning is to be on the bill, and no trial of a setting is recorded (trials.csv)")
    count = run.info["device"]["count"]
    before = after = 0.0
    if rule["base_evaluation"]:
        before += device_hours(setup.info["evaluation_s"], setup.info["device"]["count"])
    if rule["start"]:
        start_s = start.info["billed_s"] + (interrupted_s(start.phases) if rule["resumes"] else 0)
        start_s += tuning_s(trials, "start") if rule["tuning"] else 0
        before += device_hours(start_s, start.info["device"]["count"])
    if rule["tuning"]:
        after += device_hours(tuning_s(trials, run.arm), count)
    if not rule["pair_sampling"]:
        sampled = run.phases[run.phases["billed"].astype(bool) & (run.phases["phase"] == "pair_sampling")]
        after -= device_hours(sampled["host_s"].sum(), count)
    own = run.checkpoints.sort_values("billed_s")
    spent_s = [*own["billed_s"], run.info["billed_s"]]
    if rule["resumes"]:
        spent_s = [s + interrupted_s(run.phases, at) for s, at in zip(spent_s, [*own["step"], None], strict=True)]
    return [before, *(before + after + device_hours(s, count) for s in spent_s)]


def interrupted_s(phases: pd.DataFrame, step: int | None = None) -> float:
    """Seconds of second loads and of lost work in a run, or in what came before its checkpoint at `step` was saved.

    A second load belongs to the attempt that it begins; work is lost by an attempt that a later one did not go on from.
    """
    loads, lost = phases["kind"] == "resume", phases["kind"] == "lost"
    if step is not None:
        until = (phases["step"] <= step).fillna(False).astype(bool)
        attempt = phases.loc[phases["billed"].astype(bool) & until, "attempt"].max()
        loads, lost = loads & (phases["attempt"] <= attempt), lost & (phases["attempt"] < attempt)
    return float(phases.loc[loads | lost, "host_s"].sum())


def tuning_s(trials: pd.DataFrame, arm: str) -> float:
    """Billed seconds of the trials of an arm's settings ("start" is an arm here); 0 for an arm left untuned."""
    return float(trials.loc[trials["arm"] == arm, "billed_s"].sum())


def other_rules(rule: dict[str, bool]) -> dict[str, dict[str, bool]]:
    """The rule itself, and with each switch flipped: {how it differs, in words: rule}."""
    flipped = {f"{'without' if on else 'with'} {COUNTABLE[item]}": rule | {item: not on} for item, on in rule.items()}
    return {"as set": rule} | flipped


def rule_text(rule: dict[str, bool]) -> str:
    """What is on the bill beside the training itself, and what is not, as a phrase."""
    on, off = ([COUNTABLE[item] for item, counts in rule.items() if counts is side] for side in (True, False))
    return f"on the bill beside training: {', '.join(on) or 'nothing'}; not on it: {', '.join(off) or 'nothing'}"


def seconds(phases: pd.DataFrame) -> pd.Series:
    """Of each row of a ledger, the seconds that count: in a step the device's where it has a clock, else the host's.

    A host that hands work to a GPU runs ahead of it and books the wait on whichever phase waits; either clock's rows
    add up to the step. Outside steps the host's count.
    """
    return phases["device_s"].where(phases["step"].notna()).fillna(phases["host_s"])


def share_table(phases: pd.DataFrame, billed_s: float, max_unaccounted: float, run: str = "run") -> pd.DataFrame:
    """Where the billed seconds went: one row a part, then what no timer saw.

    `phases` has one row a (step, phase): `step`, `phase`, `host_s`, `device_s` (null without a device clock), `billed`.
    Returns `part`, `phases`, `seconds` (those that count), `host_s`, `device_s`, `share` (of the billed seconds).
    A part of which no phase was measured stays missing (NaN), never 0; a phase of no part is a row of its own.
    REMAINDERS and billed time outside every timer are `unaccounted`.
    Raises ValueError when those are above `max_unaccounted` (a share), naming the worst step, or the parts exceed the
    bill by more than 1%.
    """
    if not billed_s > 0:
        raise ValueError(f"{run}: billed_s is {billed_s!r}, expected seconds above 0")
    billed = phases[phases["billed"].astype(bool)]
    known = {phase for group in PARTS.values() for phase in group} | REMAINDERS
    parts = PARTS | {phase: [phase] for phase in sorted(set(billed["phase"]) - known)}
    billed = billed.assign(seconds=seconds(billed))
    clocks = ["seconds", "host_s", "device_s"]
    # min_count=1 keeps a phase whose every time is null missing; a plain sum would make it 0.
    by_phase = billed.groupby("phase")[clocks].sum(min_count=1)
    rows = []
    for part, group in parts.items():
        measured = [phase for phase in group if phase in by_phase.index and pd.notna(by_phase.loc[phase, "seconds"])]
        sums = by_phase.loc[measured].sum(min_count=1)
        rows.append({"part": part, "phases": " + ".join(measured), **sums, "share": sums["seconds"] / billed_s})
    table = pd.DataFrame(rows)
    unaccounted_s = billed_s - table["seconds"].sum()
    if unaccounted_s < -0.01 * billed_s:
        raise ValueError(
            f"{run}: phases sum to {billed_s - unaccounted_s:.3f} s, more than the {billed_s:.3f} s billed"
        )
    if unaccounted_s > max_unaccounted * billed_s:
        step, share = worst_step(phases)
        worst = "" if step is None else f"; the worst step is {step}, with {share:.1%} of its own time"
        raise ValueError(
            f"{run}: {unaccounted_s / billed_s:.1%} of the billed time is under no timer, "
            f"expected at most {max_unaccounted:.1%} (max_unaccounted){worst}"
        )
    rest = {"seconds": unaccounted_s, "host_s": billed_s - table["host_s"].sum(), "share": unaccounted_s / billed_s}
    rest |= {"part": UNACCOUNTED, "phases": " + ".join(sorted(REMAINDERS & set(by_phase.index)))}
    table = pd.concat([table, pd.DataFrame([rest])], ignore_index=True)
    return table.astype(dict.fromkeys([*clocks, "share"], float))


def by_phase(phases: pd.DataFrame) -> pd.DataFrame:
    """Billed rows of a ledger by phase, in the order of the bill: `phase`, `part` (its row there), `n`, `seconds`."""
    billed = phases.assign(seconds=seconds(phases))[phases["billed"].astype(bool)]
    part_of = {phase: part for part, group in PARTS.items() for phase in group} | dict.fromkeys(REMAINDERS, UNACCOUNTED)
    rows = billed.groupby("phase", as_index=False)["seconds"].agg(n="size", seconds="sum")
    rows.insert(1, "part", [part_of.get(phase, phase) for phase in rows["phase"]])
    order = [*PARTS, *sorted(set(rows["part"]) - {*PARTS, UNACCOUNTED}), UNACCOUNTED]
    return rows.sort_values("part", kind="stable", key=lambda part: part.map(order.index), ignore_index=True)


def worst_step(phases: pd.DataFrame) -> tuple[int | None, float | None]:
    """The optimizer step with the largest share of its own time under no timer, and that share; None without steps."""
    steps = phases[phases["billed"].astype(bool) & phases["step"].notna()]
    if steps.empty:
        return None, None
    steps = steps.assign(seconds=seconds(steps), unaccounted=steps["phase"].isin(REMAINDERS))
    by_step = steps.pivot_table(index="step", columns="unaccounted", values="seconds", aggfunc="sum", fill_value=0.0)
    shares = by_step.get(True, pd.Series(0.0, by_step.index)) / by_step.sum(axis=1)
    return int(shares.idxmax()), float(shares.max())


def bill(runs: dict, max_unaccounted: float) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The share tables of runs (by seed) joined, with `seed`; and the same as (seconds, share) x seed by part.

    The second one ends in a row TOGETHER, the sum of UPDATE (missing where none of it was measured).
    """
    tables = [
        share_table(run.phases, run.info["billed_s"], max_unaccounted, run.name).assign(seed=seed)
        for seed, run in runs.items()
    ]
    rows = pd.concat(tables, ignore_index=True)
    parts = rows.pivot(index="part", columns="seed", values=["seconds", "share"]).reindex(rows["part"].unique())
    parts.loc[TOGETHER] = parts.loc[list(UPDATE)].sum(min_count=1)
    return rows, parts


def training_share(shares: pd.DataFrame) -> pd.Series:
    """By seed, the share of the trainer's passes: no-grad forward, where there is one, grad forward, and UPDATE.

    Missing where grad forward or backward was not measured: the sum would be too low.
    """
    total = shares.loc[["no-grad forward", "grad forward", TOGETHER]].sum(min_count=1)
    return total.where(shares.loc[["grad forward", "backward"]].notna().all())


def tokens(steps: pd.DataFrame) -> dict[str, int | None]:
    """Tokens of a GRPO run, from `prompt_tokens`, `completion_tokens` (totals over a step's rollouts).

    `trainer`: every rollout's whole sequence, prompt included, once; each trainer pass takes all of them again.
    `generated`: completion tokens alone. None where a step has no count.
    """
    if not {"prompt_tokens", "completion_tokens"} <= set(steps.columns):
        return {"trainer": None, "generated": None}
    counts = steps[["prompt_tokens", "completion_tokens"]]
    if counts.isna().any(axis=None) or counts.empty:
        return {"trainer": None, "generated": None}
    return {"trainer": int(counts.sum(axis=None)), "generated": int(counts["completion_tokens"].sum())}


def avoidable(phases: pd.DataFrame, steps: pd.DataFrame, billed_s: float) -> dict[str, float | None]:
    """Upper bounds on the GRPO time that bought no gradient, as shares of billed seconds; None where not measured.

    `nograd`: the no-grad forward; with beta 0 and one iteration a batch only the engine's importance-sampling
    correction reads it. `constant`: each step's grad forward and backward times its share of zero-variance groups,
    whose advantages are exactly 0. Both at most: a smaller batch saves less than its share.
    """
    billed = phases[phases["billed"].astype(bool) & phases["step"].notna()]
    billed = billed.assign(seconds=seconds(billed))
    by_step = billed.pivot_table(index="step", columns="phase", values="seconds", aggfunc="sum")
    shares: dict[str, float | None] = {"nograd": None, "constant": None}
    if "forward_nograd" in by_step:
        shares["nograd"] = float(by_step["forward_nograd"].sum() / billed_s)
    known = {"groups", "zero_variance_groups"} <= set(steps.columns)
    if known and {"forward_grad", "backward"} <= set(by_step.columns):
        constant = steps.set_index("step")["zero_variance_groups"] / steps.set_index("step")["groups"]
        trained_s = by_step["forward_grad"] + by_step["backward"]
        shares["constant"] = float((trained_s * constant).sum() / billed_s)
    return shares


def attempts(runs) -> pd.DataFrame:
    """How each run came about: `run`, `device`, `attempts`, `interrupted`, and its seconds by kind.

    `resume_s` (second loads) and `lost_s` (work since the last checkpoint before an interruption) are not billed.
    """
    rows = []
    for run in runs:
        status = [attempt["status"] for attempt in run.info["attempts"]]
        device = run.info["device"]
        row = {"run": run.name, "device": (f"{device['count']} x " if device["count"] > 1 else "") + device["name"]}
        row |= {"attempts": len(status), "interrupted": status.count("interrupted")}
        rows.append(row | {key: run.info[key] for key in ("billed_s", "evaluation_s", "resume_s", "lost_s")})
    return pd.DataFrame(rows)


def setting(run, parameter: str):
    """The value that a run took for a notebook parameter, such as `dpo_learning_rate`; None if its record has none."""
    settings = run.info["parameters"] | run.info["trainer"]
    return settings.get(parameter, settings.get(parameter.removeprefix(f"{run.arm}_")))


def tried(trials: pd.DataFrame, runs: dict) -> pd.DataFrame:
    """Trials with `best` (most exact at the last checkpoint, of its arm and parameter) and `used`, by the recorded run.

    trials: rows of trials.csv: `arm`, `parameter`, `value`, `exact`, ... runs: one record an arm (and "start").
    """
    best = trials.groupby(["arm", "parameter"])["exact"].transform("max")
    used = [
        setting(runs.get("start" if row.parameter.startswith("start_") else row.arm), row.parameter) == row.value
        for row in trials.itertuples()
    ]
    return trials.assign(best=trials["exact"] == best, used=used)


def tuning(trials: pd.DataFrame | None, runs: dict, published: dict[str, float], names: dict[str, str]) -> str:
    """How the arms' learning rates came about, as a phrase; trials as from `tried`, or None if none is recorded.

    runs: one record an arm. published: the study's learning rate of each arm. names: the arms' names in the phrase.
    """
    texts = {}
    for arm in (arm for arm in names if arm in runs):
        parameter = f"{arm}_learning_rate"
        value = setting(runs[arm], parameter)
        rows = None if trials is None else trials[trials["parameter"] == parameter]
        if rows is None or rows.empty:
            texts[arm] = "left untuned, at the published value" if value == published[arm] else "left untuned"
            continue
        of = f"{rows['value'].nunique()} values tried on {' and '.join(rows['split'].unique())}"
        if rows.loc[rows["best"], "used"].any():
            texts[arm] = f"chosen as best among {of}"
        elif rows["used"].any():
            behind = rows["exact"].max() - rows.loc[rows["used"], "exact"].max()
            texts[arm] = f"one of {of}, {behind} of {rows['n'].iloc[0]} documents behind the best of them"
        else:
            texts[arm] = f"none of {of}"
    if len(set(texts.values())) == 1:
        return f"each learning rate was {next(iter(texts.values()))}"
    return "; ".join(f"the learning rate of {names[arm]} was {text}" for arm, text in texts.items())
