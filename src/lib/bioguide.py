"""The Biographical Directory of the United States Congress, from its bulk download to documents.

`python -m lib.bioguide BULK.zip OUT.jsonl.gz` writes them to a file, one JSON object a line.

The directory offers every profile as one JSON file in a zip. A profile's `profileText` is one long sentence of clauses
separated by semicolons; it omits the name, which the printed directory shows as a headword. A document is made so:

- text: entities unescaped, tags dropped, spaces collapsed; given, middle and family name and suffix put in front;
  the profile's first letter made small. Kept when it has 40 to 300 words.
- name: what was put in front.
- birth and death: from the text's own clauses "born in PLACE, DATE", "died on DATE, in PLACE", "until his death in
  PLACE, DATE", which end at the next semicolon. "near X", "at X" and "on a farm in X" give X.
- left out: profiles whose clause is unclear (estates in quotation marks, "now X", a month without a day), implied
  ("died there", "where he died") or in conflict with another clause or with the profile's own `birthDate` or
  `deathDate` (often a bare year, compared as such; never one marked as "circa"); and a text that stood before.
"""

import gzip
import html
import json
import re
import sys
import zipfile
from pathlib import Path

from lib.data import load, read_json_lines

MIN_WORDS, MAX_WORDS = 40, 300

MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip

_DATE = rf"(?:(?P<month>{'|'.join(MONTHS)}) (?P<day>\d{{1,2}}),? (?P<year>\d{{4}})|(?P<year_only>\d{{4}}))"
_BIRTH = re.compile(r"\bborn\b(?P<rest>[^;]*)")
# "where he died on DATE" and "lived in PLACE until his death on DATE" imply the place: group `implied` tells them.
_DEATH = re.compile(r"(?:(?P<implied>\bwhere (?:he|she) died|\b(?:his|her) death)|\bdied)\b(?P<rest>[^;]*)")
# How a place is introduced; what stands before the place itself is no part of it.
_LEAD = r"(?:on (?:a|the family) farm )?(?:in|at|near)"
_PLACE = r"(?P<place>[A-Z].*?)"
_FORMS = [
    re.compile(rf"(?:on |in )?{_DATE}"),
    re.compile(rf"(?:on |in )?{_DATE},? {_LEAD} {_PLACE}"),
    re.compile(rf"{_LEAD} {_PLACE},?(?: on| in)? {_DATE}"),
]
_UNCLEAR = re.compile(
    r"[()\[\]\"`“”]|''|(?:^|\s)['‘]|\d"
    r"|\b(?:now|then|later|there|where|he|she|his|her|their|estate|about|around|in|unknown)\b"
    rf"|(?:^|, )(?:{'|'.join(MONTHS)})$"  # a month without a day
)
_STATES = re.compile(
    r"\b(?:Ala|Ariz|Ark|Calif|Colo|Conn|Del|Fla|Ga|Ill|Ind|Kans|Ky|La|Mass|Md|Mich|Minn|Miss|Mo|Mont|Nebr|Nev|Okla|Oreg"
    r"|Pa|Tenn|Tex|Va|Vt|Wash|Wis|Wyo|Dak)$"
)


def profiles(path: str | Path) -> list[dict]:
    """Reads the profiles: a .zip or a folder with one JSON file a person, or a .jsonl or .jsonl.gz with one a line.

    Raises ValueError naming the file (and line) that is not JSON, or the path that is none of these.
    """
    path = Path(path)
    if path.is_dir():
        return [_profile(file.read_bytes(), str(file)) for file in sorted(path.rglob("*.json"))]
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            names = sorted(name for name in archive.namelist() if name.endswith(".json"))
            return [_profile(archive.read(name), f"{path}: {name}") for name in names]
    if path.name.endswith((".jsonl", ".jsonl.gz")):
        return [profile.get("data", profile) for _, profile in read_json_lines(path)]
    raise ValueError(f"{path}: expected the bulk download as .zip, a folder of .json files, .jsonl or .jsonl.gz")


def documents(path: str | Path) -> list[dict]:
    """The documents (see the module's docstring) of all profiles in `path` that give one, in order of their id."""
    found, texts = [], set()
    for profile in sorted(profiles(path), key=lambda profile: str(profile.get("usCongressBioId"))):
        document = convert(profile)
        if document and document["text"] not in texts:
            texts.add(document["text"])
            found.append(document)
    return found


def convert(profile: dict) -> dict | None:
    """One document from one profile, or None where the profile is left out."""
    names = [profile.get(key) for key in ("givenName", "middleName", "familyName")]
    name = _clean(" ".join(part for part in names if part))
    if profile.get("honorificSuffix"):
        name += ", " + _clean(profile["honorificSuffix"])
    body = _clean(profile.get("profileText") or "")
    if not body or not profile.get("usCongressBioId"):
        return None
    # "(Son of X), a Representative" follows the name without a comma.
    at = 1 if body.startswith("(") else 0
    text = name + (" " if at else ", ") + body[:at] + body[at : at + 1].lower() + body[at + 1 :]
    if not MIN_WORDS <= len(text.split()) <= MAX_WORDS:
        return None
    if profile.get("birthCirca") or profile.get("deathCirca"):
        return None
    birth = _event(_BIRTH.finditer(body), profile.get("birthDate"))
    death = _event(_DEATH.finditer(body), profile.get("deathDate"))
    if birth is None or death is None:
        return None
    return {
        "id": profile["usCongressBioId"],
        "text": text,
        "name": name,
        "birth_date": birth[0],
        "birth_place": birth[1],
        "death_date": death[0],
        "death_place": death[1],
    }


def _event(clauses, recorded: str | None) -> tuple[str | None, str | None] | None:
    """(date, place) of a birth or a death; (None, None) where neither text nor profile has one; None where unclear."""
    found = set()
    for clause in clauses:
        rest = clause["rest"].strip().removeprefix(",").strip()
        if not rest:
            continue  # "served until his death; died in ...": the next clause says it
        parsed = _parse(rest)
        if parsed is None or (parsed[1] is None and clause.groupdict().get("implied")):
            return None
        found.add(parsed)
    if not found:
        return None if recorded else (None, None)
    if len(found) > 1:
        return None
    date, place = found.pop()
    if not recorded or date[:4] != recorded[:4] or len(date) == len(recorded) and date != recorded:
        return None
    return date, place


def _parse(rest: str) -> tuple[str, str | None] | None:
    """(date, place or None) from what follows "born" or "died" in a clause, None where that is not the whole of it."""
    for form in _FORMS:
        match = form.fullmatch(rest.rstrip(". "))
        if match:
            break
    else:
        return None
    if match["year_only"]:
        date = match["year_only"]
    else:
        date = f"{match['year']}-{MONTHS.index(match['month']) + 1:02d}-{int(match['day']):02d}"
    place = match.groupdict().get("place")
    if place is None:
        return date, None
    if _UNCLEAR.search(place):
        return None
    # The clause's own full stop went with rstrip; an abbreviation ("Va", "N.Dak") gets its one back. Initials ("N.Y")
    # do not: the documents of the recorded runs were made so, and a rebuilt one must have the same hash.
    if rest.endswith(".") and _STATES.search(place):
        place += "."
    return date, place


def _profile(content: bytes, where: str) -> dict:
    try:
        profile = json.loads(content)
    except ValueError as error:
        raise ValueError(f"{where}: expected one JSON profile, got {error}") from None
    # The bulk download wraps the profile in "data"; single profiles come bare.
    return profile.get("data", profile)


def _clean(text: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", "", html.unescape(text)).split())


def write(source: str | Path, out: str | Path) -> int:
    """Write the documents of a bulk download to `out` (.jsonl.gz), the same bytes each time; returns how many.

    Raises ValueError and FileNotFoundError as `lib.data.load`, and ValueError for another ending of `out`; then nothing
    is written.
    """
    out = Path(out)
    if not out.name.endswith(".jsonl.gz"):
        raise ValueError(f"{out}: expected a name that ends in .jsonl.gz")
    found = load("bioguide", source)
    out.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(document, ensure_ascii=False) + "\n" for document in found)
    out.write_bytes(gzip.compress(lines.encode(), mtime=0))
    return len(found)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(f"got {' '.join(sys.argv[1:])!r}, expected BULK.zip OUT.jsonl.gz")
    try:
        print(f"{write(*sys.argv[1:])} documents in {sys.argv[2]}")
    except (OSError, ValueError) as error:
        sys.exit(str(error))
