"""Documents: loading, checking, splitting, and the text that the model sees.

A document is a dict: `id` and `text` (non-empty strings), the five FIELDS (a string, or None where the text does not
say), and, in some sources, `verified` (bool: the labels were confirmed by a second source).
"""

import gzip
import hashlib
import json
import re
import unicodedata
import zlib
from collections import Counter
from datetime import date
from pathlib import Path

FIELDS = ("name", "birth_date", "birth_place", "death_date", "death_place")
SPLITS = ("start", "pool", "dev", "heldout")
SOURCES = ("synthetic", "jsonl", "bioguide", "wikibio")

# The conventions are spelled out so that a policy can find them by trial, not only from labels.
INSTRUCTION = (
    "Read the biography below and write down five facts about its subject as one JSON object, with exactly these keys "
    'in this order: "name", "birth_date", "birth_place", "death_date", "death_place". '
    "Copy the name and the places from the text. "
    "Write dates as YYYY-MM-DD, or YYYY-MM or YYYY when only that much is known. "
    "Write null where the text does not say. Write nothing but the JSON object."
)

# Passed to every chat template, in training and in decoding: templates that know no such switch ignore it.
CHAT = {"enable_thinking": False}

SHOWN_PROBLEMS = 5  # one error lists this many problems and counts the rest


def load(
    source: str, path: str | Path | None = None, n_documents: int | None = None, seed: int = 0, place_noise: float = 0.0
) -> list[dict]:
    """Loads and checks the documents of one source.

    source: "synthetic" (needs n_documents; seed and place_noise, a share of 0 to 1, are for it alone),
        "jsonl" (path to .jsonl or .jsonl.gz, see `read_jsonl`), "bioguide" (path to the bulk download of the directory
        of Congress, see the module `bioguide`) or "wikibio" (path to a .box file or to a copy that `datasets` reads,
        see the module `wikibio`).
    n_documents: for the other sources, the first so many documents; None for all.

    Raises ValueError, naming the parameter or the file, line and field, and FileNotFoundError for a missing path.
    """
    if source not in SOURCES:
        raise ValueError(f"source: got {source!r}, expected one of {', '.join(SOURCES)}")
    if n_documents is not None and n_documents < 1:
        raise ValueError(f"n_documents: got {n_documents}, expected at least 1, or None for all")
    if source == "synthetic":
        if n_documents is None:
            raise ValueError("n_documents: got None, expected a number for the source synthetic")
        from lib import synthetic

        documents = synthetic.documents(n_documents, seed, place_noise=place_noise)
        check(documents, "synthetic")
        return documents
    if path is None:
        raise ValueError(f"path: got None, expected the file of the source {source}")
    if place_noise:
        raise ValueError(f"place_noise: got {place_noise}, expected 0 for the source {source} (its labels are its own)")
    if source == "jsonl":
        return read_jsonl(path)[0][:n_documents]
    if source == "bioguide":
        from lib import bioguide

        documents = bioguide.documents(_existing(path))[:n_documents]
    else:
        from lib import wikibio

        documents = wikibio.documents(path, n_documents)
    check(documents, str(path))
    return documents


def read_jsonl(path: str | Path) -> tuple[list[dict], dict[str, int]]:
    """Reads documents from .jsonl or .jsonl.gz, one JSON object a line.

    Returns the documents and, for each key that is no part of a document, the number of lines that have it (these keys
    are ignored). Raises ValueError naming file, line and field: malformed JSON, a missing field, a wrong type, an empty
    text, an id that came before, a date that is not ISO.
    """
    rows, lines = [], []
    for line, row in read_json_lines(path):
        rows.append(row)
        lines.append(line)
    check(rows, str(path), lines)
    known = ("id", "text", *FIELDS, "verified")
    ignored = Counter(key for row in rows for key in row if key not in known)
    return [{key: row[key] for key in known if key in row} for row in rows], dict(ignored)


def read_json_lines(path: str | Path):
    """Yields (line number from 1, object) of a .jsonl or .jsonl.gz file; empty lines are skipped.

    Raises ValueError naming file and line where a line is no JSON object, has a key twice, or the file is not gzip.
    """
    path = _existing(path)
    if path.is_dir():
        raise ValueError(f"path: {path} is a folder, expected a file of one JSON object a line")
    with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
        line = 0
        try:
            for line, content in enumerate(file, start=1):
                if not content.strip():
                    continue
                row = json.loads(content, object_pairs_hook=_without_twins)
                if not isinstance(row, dict):
                    raise ValueError(f"a {type(row).__name__}")
                yield line, row
        except (ValueError, EOFError, OSError, zlib.error, RecursionError) as error:
            raise ValueError(f"{path}, line {max(line, 1)}: expected a JSON object, got {error}") from None


def _without_twins(pairs):
    """A JSON object as a dict; ValueError where a key comes twice, of which a dict would keep the last alone."""
    twice = [key for key, n in Counter(key for key, _ in pairs).items() if n > 1]
    if twice:
        raise ValueError(f"the key {twice[0]!r} twice")
    return dict(pairs)


def check(documents: list[dict], where: str, lines: list[int] | None = None) -> None:
    """Raises one ValueError that lists the first problems of `documents`, each with its line (or number) and field."""
    if not documents:
        raise ValueError(f"{where}: expected documents, got none")
    problems = []
    first_line = {}
    for number, document in enumerate(documents):
        line = lines[number] if lines else number + 1
        place = f"line {line}" if lines else f"document {line} (id {document.get('id')!r})"
        problems += [f"{place}, {problem}" for problem in _problems(document)]
        identity = document.get("id")
        if isinstance(identity, str):
            if identity in first_line:
                problems.append(f"{place}, id: got {identity!r} again (first in {first_line[identity]}), expected once")
            first_line.setdefault(identity, place)
    if problems:
        rest = len(problems) - SHOWN_PROBLEMS
        more = f"\n  and {rest} more" if rest > 0 else ""
        raise ValueError(f"{where}: not usable\n  " + "\n  ".join(problems[:SHOWN_PROBLEMS]) + more)


def _problems(document: dict) -> list[str]:
    found = []
    for key in ("id", "text"):
        if key not in document:
            found.append(f"{key}: missing, expected a string")
        elif not isinstance(document[key], str) or not document[key].strip():
            found.append(f"{key}: got {_short(document[key])}, expected a non-empty string")
        elif _half(document[key]):
            found.append(f"{key}: got half of a surrogate pair in {_short(document[key])}, expected Unicode text")
    for key in FIELDS:
        if key not in document:
            found.append(f"{key}: missing, expected a string or null")
            continue
        value = document[key]
        if value is None:
            continue
        if not isinstance(value, str) or not value.strip():
            found.append(f"{key}: got {_short(value)}, expected a non-empty string or null")
        elif key.endswith("_date") and not is_iso_date(value):
            found.append(f"{key}: got {_short(value)}, expected YYYY-MM-DD, YYYY-MM, YYYY or null")
        elif _half(value):
            found.append(f"{key}: got half of a surrogate pair in {_short(value)}, expected Unicode text")
    if "verified" in document and not isinstance(document["verified"], bool):
        found.append(f"verified: got {_short(document['verified'])}, expected true or false")
    return found


def _half(value: str) -> bool:
    """Whether half of a surrogate pair stands in a text (JSON can write it; UTF-8 and a tokenizer cannot)."""
    return re.search("[\ud800-\udfff]", value) is not None


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."


def is_iso_date(value: str) -> bool:
    """True for a calendar date as YYYY-MM-DD, YYYY-MM or YYYY."""
    if not re.fullmatch(r"[0-9]{4}(-[0-9]{2}){0,2}", value):
        return False
    try:
        date.fromisoformat(value + "-01-01"[len(value) - 4 :])
    except ValueError:
        return False
    return True


def _existing(path: str | Path) -> Path:
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"path: {path} is not there, expected the data file")
    return path


def split(documents: list[dict], sizes: dict[str, int], seed: int) -> dict[str, list[dict]]:
    """Draws the splits, of `sizes` documents: {"start": [...], "pool": [...], "dev": [...], "heldout": [...]}.

    No id, no person (NFC name and birth date) and no text (NFC, white space collapsed) is in two splits: of documents
    that share one, only one is used (a verified one before others, then the smallest id). Where documents carry
    `verified`, dev and held-out take only verified ones. Depends on the ids and the seed, not on the order of
    `documents`; and since held-out is drawn first, then dev, start and pool, another size of a later split leaves the
    earlier ones as they are.

    Raises ValueError, naming what was asked for and what there is, when there are too few documents.
    """
    if set(sizes) != set(SPLITS) or any(type(size) is not int or size < 0 for size in sizes.values()):
        raise ValueError(f"sizes: got {sizes}, expected a number of documents for each of {', '.join(SPLITS)}")
    marked = any("verified" in document for document in documents)
    used, left = set(), []
    for document in sorted(documents, key=lambda document: (not document.get("verified"), document["id"])):
        marks = _marks(document)
        if not marks & used:
            used |= marks
            left.append(document)
    n_different = len(left)
    left.sort(key=lambda document: _sha256(f"{seed} {document['id']}"))

    splits = {}
    for name in ("heldout", "dev", "start", "pool"):
        only_verified = marked and name in ("heldout", "dev")
        fitting = [document for document in left if document.get("verified") or not only_verified]
        if len(fitting) < sizes[name]:
            drawn = ", ".join(f"{len(splits[other])} {other}" for other in splits) or "nothing"
            raise ValueError(
                f"sizes: got {sizes[name]} for {name}, expected at most {len(fitting)}: of {len(documents)} documents "
                f"{n_different} are of different persons and texts, and {drawn} was drawn before"
                + (f"; {name} takes only verified ones" if only_verified else "")
            )
        splits[name] = fitting[: sizes[name]]
        taken = {document["id"] for document in splits[name]}
        # The next split goes on behind the last one taken: what was passed over, not being verified, comes last, or the
        # shared start would be made of such documents alone.
        end = max((at + 1 for at, document in enumerate(left) if document["id"] in taken), default=0)
        left = left[end:] + [document for document in left[:end] if document["id"] not in taken]
    return {name: splits[name] for name in SPLITS}


def apart(documents: list[dict], others: list[dict]) -> list[dict]:
    """The documents of which neither the id nor the person nor the text is among `others` (as `split` has it)."""
    used = set().union(*map(_marks, others))
    return [document for document in documents if not _marks(document) & used]


def known(documents: list[dict]) -> dict[str, int]:
    """{field: how many documents have a label for it that is not null}."""
    return {field: sum(document[field] is not None for document in documents) for field in FIELDS}


def _marks(document: dict) -> set[tuple]:
    text = " ".join(unicodedata.normalize("NFC", document["text"]).split())
    return {("id", document["id"]), ("person", *_person(document)), ("text", _sha256(text))}


def _person(document: dict) -> tuple:
    if document["name"] is None:
        return (document["id"],)  # nobody can say who it is: a person of its own
    return unicodedata.normalize("NFC", document["name"]), document["birth_date"]


def split_table(splits: dict[str, list[dict]]) -> list[tuple[str, str, str]]:
    """(split, id, sha256 hex) of each document, in the order of the splits. The hash covers id, text and the FIELDS."""
    return [
        (name, document["id"], _sha256(json.dumps([document[key] for key in ("id", "text", *FIELDS)])))
        for name, documents in splits.items()
        for document in documents
    ]


def fingerprint(splits: dict[str, list[dict]]) -> str:
    """sha256 hex of `split_table`: it changes with any document, its split or its position."""
    return _sha256(json.dumps(split_table(splits)))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def messages(document: dict, instruction: str = INSTRUCTION) -> list[dict]:
    """The conversation that asks for the record of `document`: one user message, instruction first, then the text."""
    return [{"role": "user", "content": f"{instruction}\n\n{document['text']}"}]


def answer(document: dict) -> str:
    """The wanted completion: the five FIELDS as one JSON object, in order."""
    return json.dumps({field: document[field] for field in FIELDS}, ensure_ascii=False)


def fits(
    documents: list[dict], tokenizer, context_tokens: int, max_completion_tokens: int, instruction: str = INSTRUCTION
) -> tuple[list[dict], list[str]]:
    """(documents whose prompt and longest completion fit into the context, ids of the others).

    The prompt is counted as the model gets it: the tokenizer's chat template with the generation prompt, non-thinking.
    A document whose answer, with its end token, is longer than the longest completion does not fit either: no policy
    could ever get it right.
    """
    if not documents:
        return [], []
    prompts = tokenizer.apply_chat_template(
        [messages(document, instruction) for document in documents],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=False,
        **CHAT,
    )
    answers = tokenizer([answer(document) for document in documents], add_special_tokens=False)["input_ids"]
    kept, too_long_ids = [], []
    for document, prompt, wanted in zip(documents, prompts, answers, strict=True):
        if len(prompt) + max_completion_tokens <= context_tokens and len(wanted) + 1 <= max_completion_tokens:
            kept.append(document)
        else:
            too_long_ids.append(document["id"])
    return kept, too_long_ids
