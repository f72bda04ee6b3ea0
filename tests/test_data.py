import gzip
import json
import random
import sys
import types
import zipfile

import pytest

from lib import bioguide, data, wikibio
from lib.paths import ROOT

REAL_TEXT = ROOT.parent / "shared" / "data"
real_text = pytest.mark.skipif(not REAL_TEXT.exists(), reason="the real texts are not part of the repository")


def document(identity="a", **changed):
    given = {
        "id": identity,
        "text": f"Ada {identity} was born in 1815.",
        "name": f"Ada {identity}",
        "birth_date": "1815",
        "birth_place": None,
        "death_date": None,
        "death_place": None,
    }
    return given | changed


def write_jsonl(path, rows):
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    with (gzip.open if path.suffix == ".gz" else open)(path, "wt", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    return path


def people(n, **changed):
    return [document(f"p{number:03d}", **changed) for number in range(n)]


# --- reading and checking


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz"])
def test_jsonl_is_read_and_other_keys_are_counted(tmp_path, name):
    rows = [document("a", source="x", verified=True), document("b", source="y", note=1)]
    path = write_jsonl(tmp_path / name, rows)
    documents, ignored = data.read_jsonl(path)
    assert documents == [document("a", verified=True), document("b")]
    assert ignored == {"source": 2, "note": 1}
    assert data.load("jsonl", path, n_documents=1) == documents[:1]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (document(name=7), "name: got 7, expected a non-empty string or null"),
        (document(birth_place=["Rome"]), "birth_place: got ['Rome']"),
        ({k: v for k, v in document().items() if k != "death_date"}, "death_date: missing"),
        (document(text=" \n"), "text: got ' \\n', expected a non-empty string"),
        (document("first"), "id: got 'first' again (first in line 1)"),
        (document(birth_date="10 December 1815"), "birth_date: got '10 December 1815', expected YYYY-MM-DD"),
        (document(birth_date="1815-02-30"), "birth_date: got '1815-02-30'"),
        (document(verified="yes"), "verified: got 'yes', expected true or false"),
        ('{"id": "a",', "expected a JSON object"),
        ("[1]", "expected a JSON object, got a list"),
        ("[" * 100_000, "expected a JSON object, got maximum recursion depth exceeded"),
        (json.dumps(document("b"))[:-1] + ', "name": "Twice"}', "got the key 'name' twice"),
        (document("b", text="half \ud800 of a pair"), "text: got half of a surrogate pair in 'half \\ud800 of a pair'"),
        (document("b", death_place="\udfff"), "death_place: got half of a surrogate pair"),
    ],
)
def test_a_bad_line_is_named_with_its_file_and_field(tmp_path, row, expected):
    path = write_jsonl(tmp_path / "rows.jsonl", [document("first"), row])
    with pytest.raises(ValueError) as error:
        data.load("jsonl", path)
    assert str(path) in str(error.value)
    assert "line 2" in str(error.value)
    assert expected in str(error.value)


def test_a_damaged_gzip_file_is_named(tmp_path):
    whole = gzip.compress((json.dumps(document()) + "\n").encode() * 2000)
    path = tmp_path / "rows.jsonl.gz"
    for content in (whole[:60], whole[:15] + bytes(45) + whole[60:], whole[:-6] + bytes(6), b"plain text"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"rows.jsonl.gz, line \d+: expected a JSON object, got"):
            data.read_jsonl(path)


def test_many_problems_come_as_one_short_error(tmp_path):
    path = write_jsonl(tmp_path / "rows.jsonl", people(8, text=""))
    with pytest.raises(ValueError, match="line 5, text(.|\n)*and 3 more") as error:
        data.load("jsonl", path)
    assert "line 6" not in str(error.value)


def test_load_names_the_parameter(tmp_path):
    with pytest.raises(ValueError, match="source: got 'wikpedia', expected one of synthetic, jsonl"):
        data.load("wikpedia")
    with pytest.raises(ValueError, match="path: got None"):
        data.load("jsonl")
    with pytest.raises(FileNotFoundError, match="nowhere.jsonl"):
        data.load("jsonl", tmp_path / "nowhere.jsonl")
    (tmp_path / "plain.jsonl.gz").write_text("{}\n")
    with pytest.raises(ValueError, match="plain.jsonl.gz"):
        data.load("jsonl", tmp_path / "plain.jsonl.gz")
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(ValueError, match="empty.jsonl: expected documents, got none"):
        data.load("jsonl", tmp_path / "empty.jsonl")


def test_synthetic_documents_come_checked(monkeypatch):
    fake = types.SimpleNamespace(documents=lambda n, seed, place_noise: people(n, birth_date="May 1815"))
    monkeypatch.setitem(sys.modules, "lib.synthetic", fake)
    monkeypatch.setattr("lib.synthetic", fake, raising=False)
    with pytest.raises(ValueError, match=r"synthetic: (.|\n)*document 1 \(id 'p000'\), birth_date: got 'May 1815'"):
        data.load("synthetic", n_documents=2)
    with pytest.raises(ValueError, match="n_documents: got None"):
        data.load("synthetic")


# --- splits


SIZES = {"start": 10, "pool": 20, "dev": 5, "heldout": 15}


def test_splits_are_disjoint_and_do_not_depend_on_the_order():
    documents = people(60)
    splits = data.split(documents, SIZES, seed=3)
    assert {name: len(part) for name, part in splits.items()} == SIZES
    ids = [row["id"] for part in splits.values() for row in part]
    assert len(set(ids)) == len(ids)

    shuffled = random.Random(0).sample(documents, k=60)
    assert data.split(shuffled, SIZES, seed=3) == splits
    assert data.split(documents, SIZES, seed=4) != splits
    assert data.split(documents, SIZES | {"pool": 25}, seed=3)["heldout"] == splits["heldout"]


def test_a_person_is_in_one_split_only():
    # The same name composed and decomposed, with the same birth date: one person in 30 documents.
    documents = people(30) + [document(f"q{n}", name="Jose\u0301" if n % 2 else "Jos\u00e9") for n in range(30)]
    splits = data.split(documents, {"start": 10, "pool": 11, "dev": 0, "heldout": 10}, seed=0)
    assert sum(row["id"].startswith("q") for part in splits.values() for row in part) == 1


def test_a_text_is_in_one_split_only():
    documents = people(30) + [document(f"q{n}", text="One text of two\u0301 people.") for n in range(30)]
    documents[-1]["text"] = "One  text of tw\u00f3 people."  # the same, but for spaces and composition
    splits = data.split(documents, {"start": 10, "pool": 11, "dev": 0, "heldout": 10}, seed=0)
    assert [row["id"] for part in splits.values() for row in part if row["id"].startswith("q")] == ["q0"]
    with pytest.raises(ValueError, match="got 12 for pool, expected at most 11: of 60 documents 31 are"):
        data.split(documents, {"start": 10, "pool": 12, "dev": 0, "heldout": 10}, seed=0)


def test_heldout_and_dev_take_verified_documents_only():
    documents = [document(f"p{n:03d}", verified=n % 2 == 0) for n in range(60)]
    splits = data.split(documents, SIZES, seed=0)
    assert all(row["verified"] for row in splits["heldout"] + splits["dev"])
    assert not all(row["verified"] for row in splits["pool"])
    assert any(row["verified"] for row in splits["start"])  # not only what was passed over before
    with pytest.raises(ValueError, match="got 31 for heldout, expected at most 30.*only verified"):
        data.split(documents, SIZES | {"heldout": 31}, seed=0)


def test_too_few_documents_say_what_there_is():
    with pytest.raises(ValueError, match="sizes: got 20 for pool, expected at most 10: of 40 documents 40 are of"):
        data.split(people(40), SIZES, seed=0)
    with pytest.raises(ValueError, match="sizes: .* for each of start, pool, dev, heldout"):
        data.split(people(40), {"start": 10, "held_out": 10}, seed=0)


def test_the_fingerprint_follows_every_field_and_the_split():
    splits = data.split(people(60), SIZES, seed=0)
    before = data.fingerprint(splits)
    assert data.split_table(splits)[0][:2] == ("start", splits["start"][0]["id"])
    for key in ("text", *data.FIELDS):
        changed = {**splits, "dev": [splits["dev"][0] | {key: "other"}, *splits["dev"][1:]]}
        assert data.fingerprint(changed) != before
    assert data.fingerprint({**splits, "dev": splits["pool"], "pool": splits["dev"]}) != before
    # `verified` steers the split; the same rows without it, rebuilt from the source, are the same documents.
    marked = {name: [row | {"verified": True} for row in part] for name, part in splits.items()}
    assert data.fingerprint(marked) == before


# --- prompts


class WordTokenizer:
    """Counts words; the template adds one token, the generation prompt another."""

    def __call__(self, texts, add_special_tokens):
        return {"input_ids": [text.split() for text in texts]}

    def apply_chat_template(self, conversations, add_generation_prompt, **_):
        return [["<user>", *conversation[0]["content"].split()] + ["<assistant>"] * add_generation_prompt
                for conversation in conversations]  # fmt: skip


def test_prompt_and_answer():
    row = document(name="Zoë", birth_place="Åbo")
    assert data.messages(row, "Do it.") == [{"role": "user", "content": f"Do it.\n\n{row['text']}"}]
    assert data.answer(row) == (
        '{"name": "Zoë", "birth_date": "1815", "birth_place": "Åbo", "death_date": null, "death_place": null}'
    )
    assert all(f'"{field}"' in data.INSTRUCTION for field in data.FIELDS)


def test_documents_longer_than_the_context_are_returned_by_id():
    rows = [document("short", text="one two"), document("edge", text="1 2 3"), document("long", text="1 2 3 4")]
    # 2 template tokens + 2 words of instruction + 3 words + 12 new tokens = 19
    kept, too_long_ids = data.fits(rows, WordTokenizer(), 19, 12, instruction="Do it.")
    assert [row["id"] for row in kept] == ["short", "edge"]
    assert too_long_ids == ["long"]


def test_documents_whose_answer_cannot_be_written_are_returned_by_id():
    rows = [document("fits", name="Ada"), document("long", name="Ada King")]
    assert [len(data.answer(row).split()) for row in rows] == [10, 11]
    # one more for the end token
    assert data.fits(rows, WordTokenizer(), 100, 12)[1] == []
    assert data.fits(rows, WordTokenizer(), 100, 11)[1] == ["long"]
    assert data.fits(rows, WordTokenizer(), 100, 10)[1] == ["fits", "long"]


# --- the directory of Congress


def profile(body, **changed):
    filler = "; attended the common schools" * 12
    given = {
        "usCongressBioId": "X000001",
        "givenName": "Jane",
        "middleName": "Q.",
        "familyName": "Doe",
        "profileText": body + filler,
        "birthDate": "1850",
        "deathDate": "1920-02-03",
    }
    return given | changed


@pytest.mark.parametrize(
    ("body", "birth", "death"),
    [
        (
            "A Senator; born near Troy, Miami County, Ohio, May 4, 1850; died in Troy, N.Y., on February 3, 1920",
            ("1850-05-04", "Troy, Miami County, Ohio"),
            ("1920-02-03", "Troy, N.Y."),
        ),
        (
            "A Senator; born in 1850; served until her death in New York City February 3, 1920",
            ("1850", None),
            ("1920-02-03", "New York City"),
        ),
        (
            "A Senator; born on a farm in Rice County, Minn., in 1850; died on February 3, 1920, in Fargo, N.Dak.",
            ("1850", "Rice County, Minn."),
            ("1920-02-03", "Fargo, N.Dak."),
        ),
    ],
)
def test_bioguide_clauses(body, birth, death):
    row = bioguide.convert(profile(body))
    assert row["name"] == "Jane Q. Doe" and row["text"].startswith("Jane Q. Doe, a Senator")
    assert (row["birth_date"], row["birth_place"]) == birth
    assert (row["death_date"], row["death_place"]) == death


@pytest.mark.parametrize(
    "body",
    [
        "A Senator; born in Troy, Ohio, in 1850; moved to Ames, Iowa, where she died on February 3, 1920",  # implied
        "A Senator; born in Troy, Ohio, in 1850; lived in Ames until her death there February 3, 1920",
        "A Senator; born in Troy (now Paris), Ohio, in 1850; died in Ames, Iowa, February 3, 1920",  # unclear
        "A Senator; born in Troy, Ohio, in May 1850; died in Ames, Iowa, February 3, 1920",  # no day
        "A Senator; born in Troy, Ohio, in 1851; died in Ames, Iowa, February 3, 1920",  # not the profile's year
        "A Senator; born in Troy, Ohio, in 1850; died in Ames, Iowa, February 4, 1920",  # not the profile's day
        "A Senator; born in Troy, Ohio, in 1850",  # the profile has a death, the text has none
    ],
)
def test_bioguide_leaves_out_what_is_not_plain(body):
    assert bioguide.convert(profile(body)) is None


def test_bioguide_reads_zip_folder_and_lines(tmp_path):
    body = (
        "(Sister of &quot;A&quot;), a <i>Senator</i>; born in Troy, Ohio, in 1850; died in Ames, Iowa, February 3, 1920"
    )
    given = [profile(body), profile(body, usCongressBioId="X000002", familyName="Roe")]
    (tmp_path / "folder").mkdir()
    with zipfile.ZipFile(tmp_path / "bulk.zip", "w") as archive:
        for row in given:
            content = json.dumps({"data": row})
            archive.writestr(f"{row['usCongressBioId']}.json", content)
            (tmp_path / "folder" / f"{row['usCongressBioId']}.json").write_text(content)
    write_jsonl(tmp_path / "profiles.jsonl.gz", given)

    documents = data.load("bioguide", tmp_path / "bulk.zip")
    assert [row["id"] for row in documents] == ["X000001", "X000002"]
    assert documents[0]["text"].startswith('Jane Q. Doe (sister of "A"), a Senator; born')
    assert data.load("bioguide", tmp_path / "folder") == documents
    assert data.load("bioguide", tmp_path / "profiles.jsonl.gz") == documents


def test_bioguide_writes_what_jsonl_reads(tmp_path):
    body = "A Senator; born in Troy, Ohio, in 1850; died in Ames, Iowa, February 3, 1920"
    bulk = write_jsonl(tmp_path / "profiles.jsonl", [profile(body, familyName="Doé")])
    out = tmp_path / "data" / "congress.jsonl.gz"
    assert bioguide.write(bulk, out) == 1
    assert data.load("jsonl", out) == data.load("bioguide", bulk)
    first = out.read_bytes()
    bioguide.write(bulk, out)
    assert out.read_bytes() == first
    with pytest.raises(ValueError, match="expected a name that ends in .jsonl.gz"):
        bioguide.write(bulk, tmp_path / "congress.json")
    with pytest.raises(FileNotFoundError, match="nowhere.zip"):
        bioguide.write(tmp_path / "nowhere.zip", out)


@real_text
def test_bioguide_gives_the_rows_of_the_recorded_documents():
    wanted = {row["id"]: row for row in data.load("jsonl", REAL_TEXT / "congress.jsonl.gz")}
    made = data.load("bioguide", REAL_TEXT / "bioguide_raw.jsonl.gz")
    both = [row for row in made if row["id"] in wanted]
    fields = [(row, field) for row in both for field in ("text", *data.FIELDS)]
    same = sum(row[field] == wanted[row["id"]][field] for row, field in fields)
    assert len(both) >= 270 and len(made) - len(both) <= 3
    assert same >= 0.99 * len(fields)


# --- WikiBio


def test_wikibio_from_its_three_files(tmp_path):
    filler = "she wrote many letters and notes . " * 6
    sentences = [
        "ada b. lovelace -lrb- 10 december 1815 -- 27 november 1852 -rrb- , called `` the enchantress '' , wrote .",
        "she was born in london and died in marylebone , london in november 1852 . " + filler,
        "too short .",
    ]
    (tmp_path / "train.sent").write_text("\n".join(sentences) + "\n")
    (tmp_path / "train.nb").write_text("2\n1\n")
    box = {
        "name": "ada lovelace",
        "fullname": "ada b. lovelace -lrb- countess -rrb-",
        "birth_date": "10 december 1815",
        "birth_place": "london , england",
        "death_date": "1852 11 28",  # the text has another day, and the month
        "death_place": "paris , france",
    }
    line = "\t".join(f"{key}_{n}:{token}" for key, value in box.items() for n, token in enumerate(value.split(), 1))
    (tmp_path / "train.box").write_text(line + "\timage:<none>\nname_1:bob\n")

    (row,) = data.load("wikibio", tmp_path / "train.box")
    assert row.pop("text").startswith(
        'ada b. lovelace (10 december 1815 – 27 november 1852), called "the enchantress", wrote. she was'
    )
    assert row == {
        "id": "train:1",
        "name": "ada b. lovelace",
        "birth_date": "1815-12-10",
        "birth_place": "london",
        "death_date": "1852-11",
        "death_place": None,
    }
    (tmp_path / "train.nb").write_text("2\n5\n")
    with pytest.raises(ValueError, match=r"train.sent: ends within document 2, expected 5 sentences"):
        data.load("wikibio", tmp_path / "train.box")


def test_wikibio_keeps_40_to_300_words():
    kept = [n for n in (39, 40, 300, 301) if wikibio.convert("x:1", {"name": "bob"}, "bob " * n)]
    assert kept == [40, 300]


def test_wikibio_leaves_out_a_text_without_the_name():
    assert wikibio.convert("x:1", {"name": "alice"}, "bob " * 50) is None


def test_wikibio_dates():
    text = "born 3 may 1849, married june 1870, moved in 1875"
    given = ["3 may 1849", "may 3, 1849 (age 20)", "1849 5 3", "2 june 1870", "1875", "1 may 1876", "1875 bc"]
    dates = [wikibio.iso_date(value, text) for value in given]
    assert dates == ["1849-05-03", "1849-05-03", "1849-05-03", "1870-06", "1875", None, None]


def test_wikibio_hub_rows_read_as_box_lines():
    table = {"column_header": ["name", "image"], "row_number": [1, 1], "content": ["ada  lovelace\n", "<none>"]}
    row = {"input_text": {"context": "ada lovelace\n", "table": table}}
    assert wikibio.table_to_box(row) == {"name": "ada lovelace", "article_title": "ada lovelace"}


def test_wikibio_reads_the_parquet_branch_of_a_hub_name(monkeypatch):
    table = {"column_header": ["name"], "row_number": [1], "content": ["bob"]}
    row = {"input_text": {"context": "bob", "table": table}, "target_text": "bob " * 50}
    asked = []

    def load_dataset(*arguments, **options):
        asked.append((arguments, options))
        return [row]

    fake = types.SimpleNamespace(load_dataset=load_dataset, disable_progress_bars=lambda: None)
    monkeypatch.setitem(sys.modules, "datasets", fake)
    assert [document["id"] for document in wikibio.documents("somebody/wiki_bio")] == ["train:1"]
    assert asked == [(("somebody/wiki_bio",), {"revision": "refs/convert/parquet", "split": "train"})]


@real_text
def test_wikibio_parses_real_lines():
    folder = REAL_TEXT / "wikibio_sample"
    dates = found = 0
    for part in ("valid", "test"):
        boxes = (folder / f"{part}.box").read_text(encoding="utf-8").rstrip("\n").split("\n")
        texts = (folder / f"{part}.summary").read_text(encoding="utf-8").rstrip("\n").split("\n")
        assert len(boxes) == len(texts) == 100
        for line, tokens in zip(boxes, texts, strict=True):
            infobox, text = wikibio.parse_box(line), wikibio.detokenise(tokens)
            assert "article_title" in infobox and "-lrb-" not in text and " ," not in text
            dates += "birth_date" in infobox
            made = wikibio.iso_date(infobox.get("birth_date", ""), text)
            found += made is not None and data.is_iso_date(made)
    assert dates == 175 and found >= 0.8 * dates
