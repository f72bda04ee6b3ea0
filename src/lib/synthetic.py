"""Invented biographies whose five facts are known exactly.

Everything is drawn from one seeded random stream: same seed, same text, on every machine. A sentence is a template;
every `{slot}` is filled afresh, so `{place}` twice is two places. The person's own facts have slots of their own.

Documents add clauses ("knots") that pretraining never shows: relatives and namesakes with full dates, corrected dates
and places, and traps where a tempting value stands beside a fact the text does not give.
"""

import random
import re
from zlib import crc32

from lib.sentences import (
    ASIDES,
    BIRTH,
    CORRECTED,
    DEATH,
    FAMILY,
    FAMILY_END,
    FEMALE,
    GIVEN,
    JOBS,
    KIN,
    MALE,
    MONTHS,
    SCHOOLS,
    TOWN,
    TOWN_END,
    TOWN_START,
    TRAPS,
)

INSTRUCTION = "Give JSON with name, birth_date, birth_place, death_date, death_place; ISO dates; null if not said."
FACTS = ("birth_date", "birth_place", "death_date", "death_place")
WORDS = (35, 60)  # shortest and longest document, in words
KNOT_SHARE = 0.85  # share of documents with at least one knot
SECOND_KNOT_SHARE = 0.25  # of those, share with a second one
MISLEADING_SHARE = 0.2  # of the corrected facts, share whose wrong value an ordinary sentence states first
RESERVED_PERCENT = 12  # surnames and places that pretraining never shows


def _join(starts, ends):
    return [start + end for start in starts.split() for end in ends.split()]


def reserved(word):
    """True for the surnames and places (bare, without "Great" and the like) that only documents use."""
    return crc32(word.encode()) % 100 < RESERVED_PERCENT


MEN, WOMEN, SURNAMES, PLACES = (
    _join(*pair) for pair in ((GIVEN, MALE), (GIVEN, FEMALE), (FAMILY, FAMILY_END), (TOWN, TOWN_END))
)


def iso(date):
    """ISO 8601 text of a (year,), (year, month) or (year, month, day) tuple; None stays None."""
    return None if date is None else "-".join(f"{part:0{4 if i == 0 else 2}d}" for i, part in enumerate(date))


class Writer:
    """Draws persons, places and dates from one random stream and fills templates.

    `rest` keeps persons apart: only names whose checksum leaves this rest (0 to 15 for documents, 16 for pretraining)
    when divided by 17 are given to a subject. `use_reserved=False` leaves the reserved surnames and places out.
    """

    def __init__(self, seed, rest, use_reserved):
        self.random = random.Random(seed)
        self.rest = rest
        self.surnames = [word for word in SURNAMES if use_reserved or not reserved(word)]
        self.places = [word for word in PLACES if use_reserved or not reserved(word)]

    def chance(self, share):
        return self.random.random() < share

    def pick(self, options):
        return options[int(self.random.random() * len(options))]

    def place(self):
        place = self.pick(self.places)
        return f"{self.pick(TOWN_START)} {place}" if self.chance(0.12) else place

    def other_place(self, than):
        while (place := self.place()) == than:
            pass
        return place

    def given(self, female):
        return self.pick(WOMEN if female else MEN)

    def date(self, first_year, last_year):
        """A date tuple; 16% give the year alone, 12% year and month."""
        year, month = self.random.randint(first_year, last_year), self.random.randint(1, 12)
        day = self.random.randint(1, 30 if month in (4, 6, 9, 11) else 28 if month == 2 else 31)
        precision = self.random.random()
        return (year,) if precision < 0.16 else (year, month) if precision < 0.28 else (year, month, day)

    def written(self, date):
        """English text of a date tuple in one of several formats, with no preposition."""
        if len(date) == 1:
            return str(date[0])
        month = MONTHS[date[1] - 1]
        if len(date) == 2:
            return f"{month} {date[0]}"
        day = date[2]
        ending = "th" if 10 <= day <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
        formats = (f"{day} {month} {date[0]}", f"{month} {day}, {date[0]}", f"the {day}{ending} of {month} {date[0]}")
        return self.random.choices(formats, (50, 35, 15))[0]

    def when(self, date):
        return ("on " if len(date) == 3 else "in ") + self.written(date)

    def person(self):
        """A person with all four facts, each removed with probability 0.15."""
        female = self.chance(0.5)
        while True:
            first = self.given(female)
            if self.chance(0.18):
                first += " " + self.given(female)
            elif self.chance(0.12):
                first += f" {self.pick('ABCDEFGHIJKLMNOPRSTVW')}."
            last = self.pick(self.surnames)
            if crc32(f"{first} {last}".encode()) % 17 == self.rest:
                break
        year = self.random.randint(1770, 1925)
        facts = {
            "birth_date": self.date(year, year),
            "birth_place": self.place(),
            "death_date": self.date(year + 31, year + 88),
            "death_place": self.place(),
        }
        for fact in FACTS:
            if self.chance(0.15):
                facts[fact] = None
        return {"name": f"{first} {last}", "last": last, "female": female, "year": year, **facts}

    def fill(self, template, person, wrong=None):
        """The template with every slot filled; a slot written with a capital starts with one."""

        def value(match):
            slot, first, last = match["slot"].lower(), match["first"], match["last"]
            text = self._slot(slot, person, wrong, first and (int(first), int(last)))
            return text[0].upper() + text[1:] if match["slot"][0].isupper() else text

        return re.sub(r"\{(?P<slot>\w+)(?::(?P<first>-?\d+)-(?P<last>-?\d+))?\}", value, template)

    def _slot(self, slot, person, wrong, ages):
        female = person["female"]
        if ages:  # an event when the person is so many years old
            date = self.date(person["year"] + ages[0], person["year"] + ages[1])
            return {"date": self.written, "when": self.when, "year": lambda date: str(date[0])}[slot](date)
        if slot in ("born", "died", "born_when", "died_when"):
            date = person["birth_date" if slot.startswith("born") else "death_date"]
            return (self.when if slot.endswith("when") else self.written)(date)
        if slot in ("wrong", "wrong_when"):
            return wrong if isinstance(wrong, str) else (self.when if slot.endswith("when") else self.written)(wrong)
        job, kin_female = self.pick(JOBS), self.chance(0.5)
        kin = self.pick(("mother", "aunt", "sister") if kin_female else ("father", "uncle", "brother"))
        return {
            "full": lambda: person["name"],
            "last": lambda: person["last"],
            "who": lambda: self.pick(("She" if female else "He",) * 2 + (person["last"],)),
            "he": lambda: "she" if female else "he",
            "him": lambda: "her" if female else "him",
            "his": lambda: "her" if female else "his",
            "spouse": lambda: "husband" if female else "wife",
            "birthplace": lambda: person["birth_place"],
            "deathplace": lambda: person["death_place"],
            "place": self.place,
            "given": lambda: self.given(self.chance(0.5)),
            "man": lambda: self.given(False),
            "stranger": lambda: f"{self.given(self.chance(0.5))} {self.pick(self.surnames)}",
            "kin": lambda: f"{kin} {self.given(kin_female)} {person['last']}",
            "a_job": lambda: ("an " if job[0] in "aeiou" else "a ") + job,
            "school": lambda: self.pick(SCHOOLS),
        }[slot]()

    def brackets(self, person):
        """A dictionary-style opening: "Name (born DATE, PLACE; died DATE, PLACE) was a ..."."""
        halves = []
        for word, date, place in (("born", "birth_date", "birth_place"), ("died", "death_date", "death_place")):
            known = [person[date] and self.written(person[date]), person[place]]
            if any(known):
                halves.append(f"{word} " + ", ".join(part for part in known if part))
        return self.fill("{full}" + (f" ({'; '.join(halves)})" if halves else "") + " was {a_job}.", person)

    def plain(self, n_asides):
        """(text, person) without knots."""
        person = self.person()
        asides = [self.fill(aside, person) for aside in self.random.sample(ASIDES, n_asides)]
        if self.chance(0.2):
            return " ".join([self.brackets(person), *asides]), person
        birth, death = self._fact_sentences(person)
        return " ".join(part for part in (birth, *asides, death) if part), person

    def _fact_sentences(self, told):
        birth = BIRTH[told["birth_date"] is not None, told["birth_place"] is not None]
        death = DEATH[told["death_date"] is not None, told["death_place"] is not None]
        return self.fill(self.pick(birth), told), self.fill(self.pick(death), told)

    def knotted(self, n_knots):
        """(text, person) with knots; what a knot tells is left out of, or told wrongly by, the ordinary sentence."""
        person = self.person()
        told = dict(person)
        early, late = [], []
        for kind in self._knots(n_knots, person):
            sentences = early if kind.startswith("birth") or kind == "kin" else late
            if kind in CORRECTED:
                wrong = self.near(person[kind]) if kind.endswith("date") else self.other_place(person[kind])
                told[kind] = wrong if self.chance(MISLEADING_SHARE) else None
                sentences.append(self.fill(self.pick(CORRECTED[kind]), person, wrong))
            elif kind in TRAPS:
                for fact in (f"{kind}_date", f"{kind}_place"):
                    person[fact] = told[fact] = None
                sentences.append(self.fill(self.pick(TRAPS[kind]), person))
            else:
                sentences.append(self.fill(self.pick(KIN), person))
        asides = [self.fill(aside, person) for aside in self.random.sample(ASIDES, self.pick((0, 1, 1, 2)))]
        birth, death = self._fact_sentences(told)
        return " ".join(part for part in (birth, *early, *asides, death, *late) if part), person

    def _knots(self, n_knots, person):
        """Distinct kinds that do not contradict each other: no correction of a fact that a trap removes."""
        while True:
            kinds = self.random.sample(("kin", "kin_late", *CORRECTED, *TRAPS), n_knots)
            corrected = [kind for kind in kinds if kind in CORRECTED]
            if all(person[kind] is not None and kind.split("_")[0] not in kinds for kind in corrected):
                return kinds

    def near(self, date):
        """Another date at most a year away that contradicts this one (1831 does not contradict 7 May 1831)."""
        while True:
            other = self.date(date[0] - 1, date[0] + 1)
            if any(here != there for here, there in zip(date, other, strict=False)):
                return other


def documents(n, seed, place_noise=0.0):
    """n documents: dicts with id, text, the five fields (str or None) and `verified` (bool).

    Persons are distinct within a call, and between calls whose seeds differ modulo 16. `place_noise` is the share of
    the n documents with one wrong place label (another place of the text, or one it does not name); exactly those have
    `verified` False. The noise has its own random stream: texts and other labels do not depend on it.
    Raises ValueError for a share outside [0, 1] or above the share of documents with a place label.
    """
    if not 0 <= place_noise <= 1:
        raise ValueError(f"place_noise is a share of documents between 0 and 1, got {place_noise!r}")
    writer = Writer(f"documents-{seed}", rest=seed % 16, use_reserved=True)
    shortest, longest = WORDS
    found, names = [], set()
    while len(found) < n:
        if writer.chance(KNOT_SHARE):
            text, person = writer.knotted(2 if writer.chance(SECOND_KNOT_SHARE) else 1)
        else:
            text, person = writer.plain(writer.pick((2, 3, 3, 4)))
        if person["name"] in names or text.count(person["name"]) > 1 or not shortest <= len(text.split()) <= longest:
            continue  # a name that stands twice is a relative's too
        names.add(person["name"])
        facts = {fact: iso(person[fact]) if fact.endswith("date") else person[fact] for fact in FACTS}
        found.append(
            {"id": f"syn-{seed}-{len(found):06d}", "text": text, "name": person["name"], **facts, "verified": True}
        )
    _mislabel_places(found, round(place_noise * n), random.Random(f"noise-{seed}"))
    return found


def _mislabel_places(found, n_noisy, rng):
    with_place = [document for document in found if document["birth_place"] or document["death_place"]]
    if n_noisy > len(with_place):
        raise ValueError(f"place_noise asks for {n_noisy} wrong labels; {len(with_place)} documents have a place label")
    for document in rng.sample(with_place, n_noisy):
        field = rng.choice([field for field in ("birth_place", "death_place") if document[field]])
        others = [place for place in places_in(document["text"]) if place != document[field]]
        document[field] = rng.choice(others or [place for place in PLACES if place != document[field]])
        document["verified"] = False


def places_in(text):
    """Every place the text names, in order, longest form ("Great Almford", not "Almford"), repeats included."""
    return re.findall(rf"\b(?:(?:{'|'.join(TOWN_START)}) )?(?:{'|'.join(PLACES)})\b", text)
