"""The invented biographies, the exercises, and the tiny base model that is shipped."""

import json
import re

import pytest

from lib import base, exercises, synthetic
from lib.paths import BASE
from lib.sentences import CORRECTED, MONTHS

FIELDS = ["name", "birth_date", "birth_place", "death_date", "death_place"]
PLACES = ["birth_place", "death_place"]


@pytest.fixture(scope="module")
def documents():
    return synthetic.documents(600, seed=3)


@pytest.fixture(scope="module")
def tokenizer():
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(BASE)


def dates_in(text):
    """ISO form of every date a text mentions, read apart from the code that wrote it."""
    month = f"(?P<month>{'|'.join(MONTHS)})"
    patterns = (
        rf"(?:the )?(?P<day>\d{{1,2}})(?:st|nd|rd|th)?(?: of)? {month} (?P<year>\d{{4}})",
        rf"{month} (?P<day>\d{{1,2}}), (?P<year>\d{{4}})",
        rf"{month} (?P<year>\d{{4}})",
        r"(?P<year>\d{4})",
    )
    found = set()
    for pattern in patterns:
        for match in re.finditer(rf"\b{pattern}\b", text):
            parts = match.groupdict()
            date = parts["year"]
            if "month" in parts:
                date += f"-{MONTHS.index(parts['month']) + 1:02d}"
            if "day" in parts:
                date += f"-{int(parts['day']):02d}"
            found.add(date)
    return found


def supported(document, field):
    value = document[field]
    return value in (dates_in(document["text"]) if field.endswith("date") else document["text"])


def test_same_seed_same_documents(documents):
    assert synthetic.documents(600, seed=3) == documents
    assert synthetic.documents(50, seed=3) == documents[:50]


def test_other_seeds_are_about_other_persons(documents):
    names = [document["name"] for document in documents]
    assert len(set(names)) == len(names)
    assert not set(names) & {document["name"] for document in synthetic.documents(600, seed=4)}


def test_documents_have_the_agreed_shape(documents):
    assert [document["id"] for document in documents[:2]] == ["syn-3-000000", "syn-3-000001"]
    for document in documents:
        assert list(document) == ["id", "text", *FIELDS, "verified"]
        assert 35 <= len(document["text"].split()) <= 60
        assert "{" not in document["text"] and "None" not in document["text"]


def test_every_value_is_in_the_text(documents):
    unsupported = [(d["id"], f) for d in documents for f in FIELDS if d[f] is not None and not supported(d, f)]
    assert unsupported == []


def test_dates_come_in_three_precisions(documents):
    lengths = {len(d[f]) for d in documents for f in ("birth_date", "death_date") if d[f]}
    assert lengths == {4, 7, 10}


def test_every_fact_is_missing_from_some_texts_that_still_tempt(documents):
    for field in FIELDS[1:]:
        silent = [d for d in documents if d[field] is None]
        assert 0.15 < len(silent) / len(documents) < 0.4
        assert all(synthetic.places_in(d["text"]) or dates_in(d["text"]) for d in silent)


@pytest.mark.parametrize("fact", FIELDS[1:])
def test_a_correction_states_the_label_and_a_value_that_contradicts_it(fact):
    writer = synthetic.Writer("corrections", rest=0, use_reserved=True)
    for template in CORRECTED[fact] * 20:
        person = writer.person() | {fact: (1834, 3, 12) if fact.endswith("date") else "Foxborg"}
        wrong = writer.near(person[fact]) if fact.endswith("date") else "Great Foxleigh"
        text = writer.fill(template, person, wrong)
        if fact.endswith("date"):
            assert dates_in(text) >= {"1834-03-12", synthetic.iso(wrong)}
            assert not "1834-03-12".startswith(synthetic.iso(wrong))
        else:
            assert set(synthetic.places_in(text)) == {"Foxborg", "Great Foxleigh"}


def test_place_noise_is_a_known_share_of_wrong_places(documents):
    noisy = synthetic.documents(600, seed=3, place_noise=0.15)
    changed = [(clean, wrong) for clean, wrong in zip(documents, noisy, strict=True) if clean != wrong]
    assert len(changed) == 90 == sum(not document["verified"] for document in noisy)
    for clean, wrong in changed:
        fields = [field for field in clean if clean[field] != wrong[field] and field != "verified"]
        assert len(fields) == 1 and fields[0] in PLACES and wrong[fields[0]]
        assert not wrong["verified"]


@pytest.mark.parametrize("share", [-0.1, 1.5])
def test_a_noise_share_outside_0_to_1_is_refused(share):
    with pytest.raises(ValueError, match="place_noise"):
        synthetic.documents(10, seed=0, place_noise=share)


def test_more_noise_than_places_is_refused():
    with pytest.raises(ValueError, match="have a place label"):
        synthetic.documents(200, seed=0, place_noise=1.0)


def test_some_surnames_and_places_are_kept_from_pretraining(documents):
    for words in (synthetic.SURNAMES, synthetic.PLACES):
        assert 0.08 < sum(map(synthetic.reserved, words)) / len(words) < 0.16
    writer = exercises.exercise_writer("test")
    seen = " ".join(part for _ in range(2000) for part in exercises.exercise(writer, 0.3))
    words = set(re.findall(r"\w+", seen))
    assert not words & set(filter(synthetic.reserved, synthetic.SURNAMES + synthetic.PLACES))
    used = [d["name"].split()[-1] for d in documents] + [p for d in documents for p in synthetic.places_in(d["text"])]
    assert 0.05 < sum(synthetic.reserved(word.split()[-1]) for word in used) / len(used) < 0.2


def test_no_exercise_shows_the_five_keys_in_their_order():
    writer = exercises.exercise_writer("test")
    in_order = re.compile(".*".join(FIELDS), re.DOTALL)
    kinds = set()
    for _ in range(5000):
        prompt, answer = exercises.exercise(writer, 0.2)
        assert not in_order.search(prompt) and not in_order.search(answer)
        kinds.add("json" if answer.startswith("{") else prompt.split()[0])
        if answer.startswith("{"):
            assert len(json.loads(answer)) <= 4
    assert {"json", "Copy"} <= kinds


def test_the_shipped_model_was_made_from_these_exercises():
    made = json.loads((BASE / "made.json").read_text(encoding="utf-8"))
    assert made["exercises_sha256"] == exercises.fingerprint(made["seed"])
    assert made["tokens"] >= 1_000_000


def test_the_shipped_tokenizer_is_the_one_that_base_makes(tokenizer):
    made = base.make_tokenizer()
    assert made.get_vocab() == tokenizer.get_vocab()
    assert made.chat_template == tokenizer.chat_template


def test_the_tokenizer_gives_every_text_back(tokenizer, documents):
    for document in documents[:200]:
        for text in (document["text"], json.dumps({f: document[f] for f in FIELDS}, ensure_ascii=False)):
            assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert tokenizer.decode(tokenizer("naïve — 東京\t!")["input_ids"]) == "naïve — 東京\t!"


def test_instruction_and_keys_are_cheap(tokenizer):
    assert len(tokenizer(synthetic.INSTRUCTION)["input_ids"]) <= 20
    for key in ('{"name": ', *(f'", "{field}": ' for field in FIELDS[1:]), *(f', "{field}": ' for field in FIELDS[2:])):
        assert len(tokenizer(key)["input_ids"]) == 1, key


def test_a_name_has_the_same_tokens_in_text_and_record(tokenizer, documents):
    for document in documents[:100]:
        name = tokenizer(document["name"])["input_ids"]
        for text in (document["text"], f'{{"name": "{document["name"]}"}}'):
            ids = tokenizer(text)["input_ids"]
            assert any(ids[i : i + len(name)] == name for i in range(len(ids)))


def test_the_chat_template_is_prefix_exact_and_ends_the_turn(tokenizer):
    user = [{"role": "user", "content": f"{synthetic.INSTRUCTION}\n\nSome text."}]
    whole = [*user, {"role": "assistant", "content": '{"name": null}'}]
    prompt = tokenizer.apply_chat_template(user, add_generation_prompt=True, return_dict=False)
    masked = tokenizer.apply_chat_template(whole, return_dict=True, return_assistant_tokens_mask=True)
    ids = masked["input_ids"]
    assert ids[: len(prompt)] == prompt
    assert ids[-1] == tokenizer.eos_token_id == tokenizer.convert_tokens_to_ids("<|end|>")
    assert masked["assistant_masks"] == [0] * len(prompt) + [1] * (len(ids) - len(prompt))
    assert tokenizer.pad_token_id != tokenizer.eos_token_id


def test_the_shipped_model_is_small_and_agrees_with_its_tokenizer(tokenizer):
    assert (BASE / "model.safetensors").stat().st_size < 10 * 2**20
    assert sum(file.stat().st_size for file in BASE.iterdir()) < 10 * 2**20
    for file in ("config.json", "generation_config.json"):
        config = json.loads((BASE / file).read_text(encoding="utf-8"))
        assert config["eos_token_id"] == tokenizer.eos_token_id
        assert config["pad_token_id"] == tokenizer.pad_token_id


def test_the_shipped_model_can_copy(tokenizer):
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(BASE)
    prompt = [{"role": "user", "content": "Copy this.\n\nGreat Kestwell; Foxborg; Paoilia Radholm"}]
    ids = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_tensors="pt", return_dict=False)
    with torch.no_grad():
        out = model.generate(ids, max_new_tokens=40, do_sample=False)
    assert tokenizer.decode(out[0, ids.shape[1] :]) == "Great Kestwell; Foxborg; Paoilia Radholm<|end|>"
