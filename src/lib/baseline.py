"""How far no model gets: a regular expression that finds the place of birth, judged like a completion's field."""

import re

from lib.records import VERDICTS
from lib.rewards import verdict

MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
# "born in Litchville, Barnes County, N.Dak., April 9, 1897": what lies between the clause's start and the first date.
PLACE = re.compile(rf"\bborn (?:on [^;]*?, )?(?:in|at|near) ([^;]+?),? (?:on |in )?(?:(?:{MONTHS}) \d|\d{{4}})")


def birth_place(text: str) -> str | None:
    """The place that PLACE finds first in a text; None where it finds none."""
    found = PLACE.search(text)
    return found[1] if found else None


def counts(documents: list[dict]) -> dict[str, int]:
    """{"n": documents, "right": ..., "wrong": ..., "missing": ..., "spurious": ...} of `birth_place` by the labels."""
    found = [verdict(birth_place(document["text"]), document["birth_place"]) for document in documents]
    return {"n": len(documents)} | {how: found.count(how) for how in VERDICTS}
