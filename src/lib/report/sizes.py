"""What the sizing chapter shows: the hardware note's figures beside the formulas, tiers, and predictions beside
measurements. The formulas are lib.sizing's; here they are only applied."""

import pandas as pd
from scipy.optimize import least_squares

from lib import records, sizing
from lib.bench import memory
from lib.paths import BOOK, RESULTS
from lib.report import benches
from lib.sizing import GB, GIB

FITS, OFFLOAD, NOT = "fits", "with offload", "does not"
SHORT = {FITS: "fits", OFFLOAD: "offload", NOT: "no"}  # in a table of many columns
# A card of so many GB reports about as many GiB.
CARDS = ((1, 24), (1, 48), (2, 24), (2, 48), (1, 80), (4, 48), (4, 80), (8, 80))
ROOM = 0.97  # of a card's memory that may be in use: the rest is the driver's and what fragments
JOB = dict(rows=4, prompt=512, completion=512, prompts=8, group=8)  # of the tiers: a micro-batch, and rollouts a card


def note(models: dict[str, sizing.Shape]) -> pd.DataFrame:
    """The hardware note's figures: `what`, `note` (as it says), `formula`, `value` (by it), `real` (the model's own).

    value: for the round number of parameters that the note takes. Sizes in GB (1e9 bytes), as there.
    """
    names = {"7B": "Qwen2.5-7B", "14B": "Qwen2.5-14B", "70B": "Llama-3.1-70B"}
    real = {size: sizing.parameters(models[name])["total"] for size, name in names.items()}
    round_number = {"7B": 7e9, "14B": 14e9, "70B": 70e9}
    found = []
    for size, what, said, formula, factor in (
        ("7B", "parameters", "14", "P x 2", 2),
        ("7B", "gradients", "14", "P x 2", 2),
        ("7B", "AdamW states", "56", "P x (4 + 4)", 8),
        ("7B", "full update", "84", "P x (2 + 2 + 8)", 12),
        ("7B", "PPO's critic, which GRPO drops", "a copy of all three", "P x (2 + 2 + 8)", 12),
        ("7B", "reference model", "beside them", "P x 2", 2),
        ("14B", "4 cards, ZeRO-3, each", "48 to 80", "P x 12 / 4", 3),
        ("70B", "8 cards, ZeRO-3, each", "80, usually with offload", "P x 12 / 8", 1.5),
        ("70B", "8 cards, optimizer offloaded, each", "80", "P x (2 + 2) / 8", 0.5),
    ):
        row = dict(what=f"{size}: {what}", note=said, formula=formula)
        found.append(row | dict(value=round_number[size] * factor / GB, real=real[size] * factor / GB))
    return pd.DataFrame(found)


def conventions(shape: sizing.Shape, of_note: float = 7e9) -> pd.DataFrame:
    """A full update's state by byte convention: `states`, `weights` to `moments` and `bytes` (a parameter), `gb` (for
    `of_note` parameters), `real_gb` (for the shape's own)."""
    total = sizing.parameters(shape)["total"]
    rows = []
    for name, parts in sizing.STATES.items():
        row = dict(states=name) | dict(zip(("weights", "gradients", "master", "moments"), parts, strict=True))
        rows.append(row | dict(bytes=sum(parts), gb=sum(parts) * of_note / GB, real_gb=sum(parts) * total / GB))
    return pd.DataFrame(rows)


def on_cards(
    s: sizing.Shape, method: str, update: str, cards: int, offload: str, states: str = "16",
    constants: dict = sizing.CONSTANTS, **job,
) -> float:  # fmt: skip
    """GiB in use on each of some cards: state sharded by ZeRO-3, checkpointing on, rollouts in turn with training.

    job: as JOB. The engine is spread over the cards, and each holds the keys and values of `prompts` x `group`.
    """
    job = JOB | job
    states = "bfloat16" if update != "full" else states
    positions, scored, longest = sizing.batch(method, job["rows"], job["prompt"], job["completion"])
    trained = sizing.training(
        s, method, update, positions, scored, longest, states=states, cards=cards, zero=3 if cards > 1 else 0,
        offload=offload, reward_model=s if method == "ppo" else None, constants=constants,
    )  # fmt: skip
    generates = method in ("grpo", "ppo")
    kv = sizing.kv_cache(s, job["prompts"], job["group"], job["prompt"], job["completion"])
    place = "sleep" if generates else "none"
    return sizing.in_use(trained, s, place, kv=kv, cards=cards, constants=constants) / GIB


def verdict(s: sizing.Shape, method: str, update: str, cards: int, card_gib: float, **job) -> tuple[str, float]:
    """(FITS, OFFLOAD or NOT, GiB in use): offload is the optimizer's, then the weights' as well, to the host."""
    for offload in ("none", "optimizer", "all"):
        used = on_cards(s, method, update, cards, offload, **job)
        if used <= ROOM * card_gib:
            return (FITS if offload == "none" else OFFLOAD), used
    return NOT, used


def tiers(models: dict[str, sizing.Shape], **job) -> pd.DataFrame:
    """Model x method x update by cards: `model`, `method`, `update`, `cards`, `card_gib`, `verdict`, `used_gib`."""
    rows = []
    for name, shape in models.items():
        for update in ("full", "lora"):
            for method in sizing.METHODS:
                for cards, card_gib in CARDS:
                    said, used = verdict(shape, method, update, cards, card_gib, **job)
                    row = dict(model=name, method=method, update=update, cards=cards, card_gib=card_gib)
                    rows.append(row | dict(verdict=said, used_gib=used))
    return pd.DataFrame(rows)


def note_tiers(models: dict[str, sizing.Shape], **job) -> pd.DataFrame:
    """The note's tiers: `tier`, `what`, the verdicts at its 12 bytes a parameter and at 16 (`at_12`, `at_16`), and
    `used_gib` a card at 16, as little as offloading makes it where it does not fit otherwise."""
    long = dict(rows=1, completion=8192, prompts=1, group=8)
    found = []
    for tier, name, update, cards, card_gib, more in (
        ("one card, scraping", "Qwen2.5-7B", "lora", 1, 48, {}),
        ("entry", "Qwen2.5-7B", "lora", 2, 24, {}),
        ("entry", "Qwen2.5-7B", "lora", 2, 48, {}),
        ("main", "Qwen2.5-7B", "full", 4, 48, {}),
        ("main", "Qwen2.5-7B", "full", 4, 80, {}),
        ("main", "Qwen2.5-14B", "full", 4, 48, {}),
        ("main", "Qwen2.5-14B", "full", 4, 80, {}),
        ("high", "Qwen2.5-14B", "full", 8, 80, long),
        ("high", "Llama-3.1-70B", "full", 8, 80, {}),
        ("high", "Llama-3.1-70B", "full", 8, 80, long),
    ):
        at = [verdict(models[name], "grpo", update, cards, card_gib, **(job | more), states=s) for s in ("note", "16")]
        what = f"GRPO, {name}, {update}, {cards} x {card_gib}" + (", long chains" if more else "")
        found.append(dict(tier=tier, what=what, at_12=at[0][0], at_16=at[1][0], used_gib=at[1][1]))
    return pd.DataFrame(found)


def wide(found: pd.DataFrame) -> pd.DataFrame:
    """Tiers, a row a model, update and method, with a column a set of cards, such as `on_4x80`."""
    keys = ["model", "update", "method"]
    named = found.assign(on=[f"on_{r.cards}x{r.card_gib}" for r in found.itertuples()])
    table = named.pivot(index=keys, columns="on", values="verdict")[[f"on_{n}x{size}" for n, size in CARDS]]
    return table.reindex(pd.MultiIndex.from_frame(named[keys].drop_duplicates())).reset_index()


def measured() -> tuple[pd.DataFrame, list[dict]] | None:
    """Rows of `lib.bench.memory` and notes of its sessions; None where nothing was recorded.

    Raises ValueError, with the file, for a damaged or incomplete one.
    """
    path = RESULTS / "bench" / "memory.parquet"
    if not path.exists():
        return None
    rows, known = records.read_table(path, ("session", "configuration", "role")), memory.configurations()
    numbers = ("predicted_gib", "predicted_nvml_gib", "measured_gib", "nvml_gib")
    benches.counted(path, rows, numbers)
    own = rows[["measured_gib", "nvml_gib"]].astype(float)
    if "failed" not in rows or not ((own > 0).all(axis=1) & rows["failed"].isna() | own.isna().all(axis=1)).all():
        raise ValueError(f"{records.shown(path)}: expected measured_gib and nvml_gib above 0, or neither, and failed")
    if unknown := set(rows["configuration"]) - set(known):
        raise ValueError(f"{records.shown(path)}: configuration: got {min(unknown)!r}, which lib.bench.memory lacks")
    return rows, benches.notes(path, rows, ("session", "device"))


def predicted() -> pd.DataFrame:
    """What was predicted before any measurement: `configuration`, `role`, `predicted_gib`, `predicted_nvml_gib`."""
    return records.read_table(
        BOOK / "memory_predicted.csv", ("configuration", "role"), ("predicted_gib", "predicted_nvml_gib")
    )


def fit(rows: pd.DataFrame, models: dict[str, sizing.Shape]) -> dict[str, float] | None:
    """CONSTANTS of lib.sizing that suit the measured `fit` rows best: least squares of relative errors, none below 0.

    `activation` and `overhead` from what was allocated, then `reserved` and `context` from what NVML reports.
    None where fewer than three of them were measured.
    """
    own = rows[(rows["role"] == "fit") & rows["measured_gib"].notna()]
    if len(own) < 3:
        return None
    every, constants = memory.configurations(), dict(sizing.CONSTANTS)
    for names, of, target in (
        (("activation", "overhead"), "predicted_gib", "measured_gib"),
        (("reserved", "context"), "predicted_nvml_gib", "nvml_gib"),
    ):

        def errors(values, names=names, of=of, target=target, constants=constants):
            now = constants | dict(zip(names, values, strict=True))
            found = [memory.predict(every[c], models[every[c]["model"]], now)[of] for c in own["configuration"]]
            return found / own[target].to_numpy(float) - 1

        best = least_squares(errors, [constants[n] for n in names], bounds=(0, float("inf")), x_scale=[0.1, 0.1])
        constants |= dict(zip(names, map(float, best.x), strict=True))
    return constants


def beside(rows: pd.DataFrame, models: dict[str, sizing.Shape], constants: dict | None) -> pd.DataFrame:
    """Predicted against measured, one configuration a row: GiB allocated, and in use by NVML.

    `before_gib`, `before_nvml_gib`: predicted before any measurement. `gib`, `nvml_gib`: with the fitted constants
    (missing without). `..._error`: share of the measured value, missing where nothing was measured.
    """
    every, found = memory.configurations(), []
    for r in predicted().merge(rows.drop(columns=["role", "predicted_gib", "predicted_nvml_gib"]), "left",
                               "configuration").itertuples():  # fmt: skip
        row = dict(configuration=r.configuration, role=r.role, measured_gib=r.measured_gib, in_use_gib=r.nvml_gib)
        row |= dict(before_gib=r.predicted_gib, before_nvml_gib=r.predicted_nvml_gib, failed=r.failed)
        c = every[r.configuration]
        now = memory.predict(c, models[c["model"]], constants) if constants else {}
        row |= dict(gib=now.get("predicted_gib"), nvml_gib=now.get("predicted_nvml_gib"))
        for name, of in (("before", "measured_gib"), ("before_nvml", "in_use_gib"), ("", "measured_gib"),
                         ("nvml", "in_use_gib")):  # fmt: skip
            value = row[f"{name}_gib".lstrip("_")]
            known = pd.notna(value) and pd.notna(row[of])
            row[f"{name or 'fitted'}_error"] = value / row[of] - 1 if known else None
        found.append(row)
    return pd.DataFrame(found).astype({c: float for c in found[0] if c.endswith(("_gib", "gib", "_error"))})


def measured_or_why(row) -> str:
    """What a row of `beside` was measured to allocate, in GiB, or why there is no such number."""
    if pd.notna(row.measured_gib):
        return f"{row.measured_gib:.1f}"
    failed = row.failed if isinstance(row.failed, str) else "not run"
    return "out of memory" if failed.startswith("OutOfMemoryError") else failed.split(":")[0]


def told(compared: pd.DataFrame | None, error: str) -> str:
    """How well the held-out rows were predicted, as a phrase: how many within 10%, the median, the worst by name."""
    known = None if compared is None else compared[(compared["role"] == "held_out") & compared[error].notna()]
    if known is None or known.empty:
        return "not measured"
    size = known[error].abs()
    worst = known.loc[size.idxmax()]
    return (
        f"{(size <= 0.1).sum()} of {len(known)} held-out configurations within 10%, median {size.median():.1%}, "
        f"worst {worst[error]:+.1%} ({worst['configuration'].replace('_', ' ')})"
    )


def fits_told(compared: pd.DataFrame | None) -> str:
    """How many verdicts were right that were made before: in use, by NVML, below the card's memory or not; and how many
    of these were easy, predicted to use less than half of the card.

    A configuration did not fit where it ended in an out-of-memory error; one that ended otherwise is not counted.
    """
    if compared is None:
        return "not measured"
    ran, out = compared["measured_gib"].notna(), compared["failed"].fillna("").str.startswith("OutOfMemoryError")
    said = compared["before_nvml_gib"] <= memory.CARD_GIB
    right = (said & ran) | (~said & out)
    easy = (ran | out) & (compared["before_nvml_gib"] < 0.5 * memory.CARD_GIB)
    return (
        f"{right.sum()} of {(ran | out).sum()} verdicts were right on a card of {memory.CARD_GIB} GiB; {out.sum()} did "
        f"not fit, and {easy.sum()} were predicted to need less than half of it"
    )
