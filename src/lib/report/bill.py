"""The cost section of a trained run's page: where its seconds went, whether they add up, and what went through."""

from IPython.display import HTML

from lib.report import cost, layouts, ledger, plots


def tables(record, title: str, max_unaccounted: float) -> HTML:
    """Three tables: parts of the bill, how well the ledger closes, and the passes through the model, where counted.

    title: what the run is called in the caption. Raises ValueError when more than `max_unaccounted` (a share) of the
    billed seconds is under no timer.
    """
    info = record.info
    shares = cost.share_table(record.phases, info["billed_s"], max_unaccounted, record.name).dropna(subset="seconds")
    told = f"{title}: {info['billed_s']:.1f} billed seconds on {info['device']['name']}. "
    told += "Unaccounted: under no timer, or left of a timed span beside the phases inside it."
    closed = ledger.table([record])
    passes = ledger.passes(record).assign(run=record.name)
    parts = (
        (shares, layouts.SHARES, "bill", told),
        (closed, layouts.LEDGER, "ledger", f"{title}: how well the seconds add up."),
        (passes, layouts.PASSES, "passes", f"{title}: passes through the model."),
    )
    return HTML(
        "".join(
            plots.table(plots.lay_out(rows, layout), f"{record.arm}_{what}", caption, csv=rows).data
            for rows, layout, what, caption in parts
            if not rows.empty
        )
    )
