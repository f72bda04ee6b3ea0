"""WikiBio (Lebret, Grangier and Auli 2016; CC BY-SA 3.0): Wikipedia biographies with their infoboxes, to documents.

The data set comes lower-cased and tokenised, in three files a split: `.box` has one infobox a line, as tab-separated
`field_position:token` pairs (`<none>` for an empty field); `.sent` has one sentence a line; `.nb` has one number a
line, how many sentences the document has. Hub copies hold the same as a table. A document is made so:

- text: brackets (-lrb-) and spacing before punctuation restored; kept when it has 40 to 300 words.
- name: the longest of name, full name and article title that the text has, else the birth name.
- dates: ISO, cut to what the text has (2001-02-03, 2001-02 or 2001).
- places: the infobox's place, without its last comma-separated parts as far as the text lacks them.
- A value that the text does not have is null; a document whose text has none of the names is left out.
"""

import itertools
import re
from pathlib import Path

from lib.bioguide import MAX_WORDS, MIN_WORDS, MONTHS
from lib.rewards import normalise, supported

_KEYS = {
    "name": ("name", "fullname", "full_name", "article_title"),
    "birth_name": ("birth_name", "birthname"),
    "birth_date": ("birth_date", "birthdate", "date_of_birth", "dateofbirth"),
    "birth_place": ("birth_place", "birthplace", "place_of_birth", "placeofbirth"),
    "death_date": ("death_date", "deathdate", "date_of_death", "dateofdeath"),
    "death_place": ("death_place", "deathplace", "place_of_death", "placeofdeath"),
}
# The hub's wiki_bio is a loading script, which datasets no longer runs; this branch has its rows as parquet files.
HUB_REVISION = "refs/convert/parquet"

_MONTHS = {month.lower(): number for number, month in enumerate(MONTHS, start=1)}
_MONTH = "|".join(_MONTHS)
_DATES = [
    re.compile(rf"(?P<day>\d{{1,2}}) (?P<month>{_MONTH}),? (?P<year>\d{{3,4}})\b", re.I),
    re.compile(rf"(?P<month>{_MONTH}) (?P<day>\d{{1,2}}),? (?P<year>\d{{3,4}})\b", re.I),
    re.compile(r"(?P<year>\d{4})[ -](?P<month>\d{1,2})[ -](?P<day>\d{1,2})\b"),
    re.compile(rf"(?P<month>{_MONTH}),? (?P<year>\d{{3,4}})\b", re.I),
    re.compile(r"(?P<year>\d{3,4})\b"),
]


def documents(path: str | Path, n_documents: int | None = None) -> list[dict]:
    """The first `n_documents` documents (all where None).

    path: a `.box` file, with its `.sent` and `.nb` beside it; or what `datasets` loads: a .parquet file, a folder of
    them, or a hub name, of which the hub's own conversion to parquet is read. The second way follows the published
    schema of the hub's `wiki_bio` (its train split); it has never been run by the authors on the real copy.

    Raises FileNotFoundError for a missing file and ValueError where the three files disagree.
    """
    examples = read_files(path) if str(path).endswith(".box") else read_hub(path)
    found = (convert(*example) for example in examples)
    return list(itertools.islice((document for document in found if document), n_documents))


def read_files(box: str | Path):
    """Yields (id, infobox, text) from the data set's own files; ids are `train:12` for line 12 of train.box."""
    box = Path(box)
    paths = [box, box.with_suffix(".sent"), box.with_suffix(".nb")]
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"path: {path} is not there, expected .box, .sent and .nb of one split")
    with (
        open(paths[0], encoding="utf-8", newline="\n") as boxes,
        open(paths[1], encoding="utf-8", newline="\n") as sentences,
        open(paths[2], encoding="utf-8") as numbers,
    ):
        for line, (row, number) in enumerate(itertools.zip_longest(boxes, numbers), start=1):
            if row is None or number is None:
                short, other = (box, paths[2]) if row is None else (paths[2], box)
                raise ValueError(f"{short}: ends before line {line}, expected as many lines as in {other.name}")
            if not number.strip().isdigit():
                raise ValueError(f"{paths[2]}, line {line}: got {number.strip()!r}, expected a number of sentences")
            text = list(itertools.islice(sentences, int(number)))
            if len(text) < int(number):
                raise ValueError(f"{paths[1]}: ends within document {line}, expected {int(number)} sentences of it")
            yield f"{box.stem}:{line}", parse_box(row), " ".join(text)
        if sentences.readline():
            raise ValueError(f"{paths[1]}: has more sentences than {paths[2].name} counts")


def parse_box(line: str) -> dict[str, str]:
    """{field: tokens joined by spaces} of one line of a `.box` file, without empty fields.

    A token can be anything, with colons too; the position is missing where the field is empty.
    """
    infobox = {}
    for pair in line.rstrip("\n").split("\t"):
        key, _, token = pair.partition(":")
        if token and token != "<none>":
            infobox.setdefault(re.sub(r"_\d+$", "", key).lstrip("|"), []).append(token)
    return {key: " ".join(tokens) for key, tokens in infobox.items()}


def read_hub(path: str | Path):
    """Yields (id, infobox, text) from a copy with the hub's schema. Never run on the real one: see `documents`."""
    import datasets

    datasets.disable_progress_bars()  # they would fill the pages of the book

    path = Path(path)
    if path.exists():
        files = [str(path)] if path.is_file() else [str(file) for file in sorted(path.rglob("*.parquet"))]
        rows = datasets.load_dataset("parquet", data_files=files, split="train")
    else:
        rows = datasets.load_dataset(str(path), revision=HUB_REVISION, split="train")
    for number, row in enumerate(rows, start=1):
        yield f"train:{number}", table_to_box(row), row["target_text"]


def table_to_box(row: dict) -> dict[str, str]:
    """The infobox of one row of the hub's schema; `input_text.context` is the article's title."""
    table = row["input_text"]["table"]
    infobox = {
        header: " ".join(content.split())
        for header, content in zip(table["column_header"], table["content"], strict=True)
        if content.strip() and content.strip() != "<none>"
    }
    infobox.setdefault("article_title", " ".join(row["input_text"]["context"].split()))
    return infobox


def convert(identity: str, infobox: dict[str, str], tokens: str) -> dict | None:
    """One document, or None where the text lacks the name or has less than 40 or more than 300 words."""
    text = detokenise(tokens)
    if not MIN_WORDS <= len(text.split()) <= MAX_WORDS:
        return None

    def values(field):
        return [detokenise(infobox[key]) for key in _KEYS[field] if key in infobox]

    # "john smith (footballer)": the title's bracket tells articles apart, it is no part of a name.
    names = [re.sub(r" \(.*\)$", "", name) for name in values("name")]
    names = sorted((name for name in names if supported("name", name, text)), key=len, reverse=True)
    names += [name for name in values("birth_name") if supported("name", name, text)]
    if not names:
        return None
    document = {"id": identity, "text": text, "name": names[0]}
    for event in ("birth", "death"):
        document[f"{event}_date"] = next((iso_date(value, text) for value in values(f"{event}_date")), None)
        document[f"{event}_place"] = next((place_in(value, text) for value in values(f"{event}_place")), None)
    return document


def iso_date(value: str, text: str) -> str | None:
    """The date of an infobox as ISO, as much of it as the text has; None where it has not even the year."""
    match = next(filter(None, (pattern.search(value) for pattern in _DATES)), None)
    if match is None or re.search(r"\bb\.?c\b", value, re.I):
        return None
    parts = match.groupdict()
    year = int(parts["year"])
    month = parts.get("month")
    month = int(month) if month and month.isdigit() else _MONTHS.get((month or "").lower())
    day = int(parts["day"]) if parts.get("day") else None
    if month and 1 <= month <= 12:
        name = MONTHS[month - 1]
        if day and 1 <= day <= 31:
            full = rf"\b(?:0?{day}(?:st|nd|rd|th)? (?:of )?{name}|{name} 0?{day}(?:st|nd|rd|th)?),? (?:of )?{year}\b"
            if re.search(full, text, re.I):
                return f"{year:04d}-{month:02d}-{day:02d}"
        if re.search(rf"\b{name},? (?:of )?{year}\b", text, re.I):
            return f"{year:04d}-{month:02d}"
    return f"{year:04d}" if supported("birth_date", f"{year:04d}", text) else None


def place_in(value: str, text: str) -> str | None:
    """The longest run of a place's comma-separated parts, from the first, that the text has; None where it has none."""
    parts = [part.strip() for part in value.split(",") if part.strip()]
    for end in range(len(parts), 0, -1):
        place = ", ".join(parts[:end])
        # A birth place of digits is a date in the wrong box.
        if not re.search(r"\d", place) and supported("birth_place", place, text):
            return place
    return None


def detokenise(tokens: str) -> str:
    """Undoes the tokenisation of the data set: -lrb- to "(", `` to a quotation mark, no space before punctuation."""
    text = normalise(tokens)
    for token, mark in {"-lrb-": "(", "-rrb-": ")", "-lsb-": "[", "-rsb-": "]", "--": "–"}.items():
        text = re.sub(rf"(?<!\S){token}(?!\S)", mark, text)
    text = re.sub(r"`` (.*?) ''", r'"\1"', text)
    text = text.replace("``", '"').replace("''", '"')
    text = re.sub(r"(?<!\S)` ", "'", text)
    text = re.sub(r" ([,.;:!?%)\]]|n't\b|'(?:s|re|ve|ll|d|m)\b|'(?= ))", r"\1", text)
    return re.sub(r"([(\[]) ", r"\1", text)
