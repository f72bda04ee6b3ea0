"""What the tiny base model is pretrained on: copying, dates, questions, lists, rows and JSON about invented lives.

No exercise shows the five keys of the study in their order, a reserved surname or place, or a knotted text.
"""

import hashlib
import json

from lib.sentences import MONTHS
from lib.synthetic import FACTS, Writer, iso

KEYS = {
    "name": ("name", "person", "who"),
    "birth_date": ("birth_date", "born", "born_on"),
    "birth_place": ("birth_place", "birthplace", "born_at"),
    "death_date": ("death_date", "died", "died_on"),
    "death_place": ("death_place", "deathplace", "died_at"),
}
LABELS = {
    "name": ("Name", "Full name"),
    "birth_date": ("Born", "Date of birth"),
    "birth_place": ("Birthplace", "Place of birth"),
    "death_date": ("Died", "Date of death"),
    "death_place": ("Place of death", "Died in"),
}
QUESTIONS = {
    "name": ("Who is described?", "What is the full name?"),
    "birth_date": ("When was {last} born?", "What is the date of birth?"),
    "birth_place": ("Where was {last} born?", "What is the place of birth?"),
    "death_date": ("When did {last} die?", "What is the date of death?"),
    "death_place": ("Where did {last} die?", "What is the place of death?"),
}
STYLES = ("ISO", "ISO", "slash", "dot", "written")  # how an exercise wants its dates
ASK_JSON = (
    "Give JSON with {what}; {style} dates; null if not said.",
    "Return {what} as JSON, {style} dates, null for what is missing.",
    "JSON, keys {what}; {style} dates; null if the text is silent.",
    "Find {what}. Answer in JSON; dates {style}; null if not said.",
)
ASK_LINES = (
    "List {what}; {style} dates; unknown if not said.",
    "One line each: {what}; {style} dates; unknown if the text is silent.",
    "Write {what} in lines, dates {style}.",
)
ASK_ROW = ("Row with {what}; {style} dates; - if not said.", "Table row: {what}, dates {style}, - for what is missing.")


def in_style(date, style):
    """Text of a date tuple as an exercise asks for it: 1834-03-12, 12/03/1834, 12.03.1834 or 12 March 1834."""
    if style == "ISO":
        return iso(date)
    if style == "written":
        year, *rest = date
        return " ".join([*map(str, rest[1:]), *(MONTHS[month - 1] for month in rest[:1]), str(year)])
    return {"slash": "/", "dot": "."}[style].join(reversed(iso(date).split("-")))


def exercise(writer, ease):
    """One (prompt, answer). `ease` from 1 to 0: share of short texts and of bare copying, for the start of training."""
    if writer.chance(0.06):
        return _date_drill(writer)
    if writer.chance(0.08 + 0.25 * ease):
        return _copy_drill(writer)
    text, person = writer.plain(writer.pick((0, 0, 1, 1, 2)) if writer.chance(ease) else writer.pick((2, 3, 3, 4)))
    fields = writer.random.sample(["name", *FACTS], writer.pick((1, 2, 3, 3, 4, 4)))
    style = writer.pick(STYLES)

    def values(missing):
        for field in fields:
            value = person[field]
            yield missing if value is None else in_style(value, style) if field.endswith("date") else value

    form = writer.random.random()
    if form < 0.5:
        names = [writer.pick(KEYS[field]) for field in fields]
        ask = writer.pick(ASK_JSON)
        answer = json.dumps(dict(zip(names, values(None), strict=True)), ensure_ascii=False)
    elif form < 0.7:
        names = [writer.pick(LABELS[field]) for field in fields]
        ask = writer.pick(ASK_LINES)
        answer = "\n".join(f"{name}: {value}" for name, value in zip(names, values("unknown"), strict=True))
    elif form < 0.9:
        names, style = [writer.pick(QUESTIONS[field]).format(last=person["last"]) for field in fields], "written"
        ask = " ".join(names)
        answer = "\n".join(values("not known"))
    else:
        names = [writer.pick(LABELS[field]).lower() for field in fields]
        ask = writer.pick(ASK_ROW)
        answer = " | ".join(values("-"))
    ask = ask.format(what=", ".join(names), style=style)
    return (f"{ask}\n\n{text}" if writer.chance(0.75) else f"{text}\n\n{ask}"), answer


def _date_drill(writer):
    style = writer.pick(STYLES[:-1])
    dates = [writer.date(1740, 2010) for _ in range(writer.random.randint(2, 5))]
    return (
        f"Give {style} dates.\n\n" + "; ".join(writer.written(date) for date in dates),
        "\n".join(in_style(date, style) for date in dates),
    )


def _copy_drill(writer):
    items = [
        writer.person()["name"] if writer.chance(0.5) else writer.place() for _ in range(writer.random.randint(2, 6))
    ]
    return "Copy this.\n\n" + "; ".join(items), "; ".join(items)


def exercise_writer(seed):
    """The Writer of exercises: persons that no document is about, no reserved surname or place."""
    return Writer(seed, rest=16, use_reserved=False)


def fingerprint(seed, n=2000):
    """sha256 (hex) over n exercises, easy and not: unchanged as long as pretraining sees the same text."""
    writer = exercise_writer(f"exercises-{seed}")
    return hashlib.sha256(repr([exercise(writer, i % 2) for i in range(n)]).encode()).hexdigest()
