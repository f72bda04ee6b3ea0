"""A wrong value in a yaml file of the book is one error that names file and field."""

import pytest
import yaml

from lib import sizing, written
from lib.paths import BOOK
from lib.report import phrases, show, study

READ = {
    "published": (study, study.published),
    "captions": (show, show.words.__wrapped__),
    "claims": (phrases, lambda: phrases.claims({}, {})),
    "models": (sizing, sizing.models),
}


@pytest.mark.parametrize(
    "name, keys, value, expected",
    [
        ("published", ["setup", "usd_per_hour"], [4.41], r"setup: usd_per_hour: got \[4.41\], expected a number"),
        ("published", ["setup", "n"], "2000", "setup: n: got '2000', expected a whole number"),
        ("published", ["setup"], "an H100", "setup: got 'an H100', expected lines `name: value`"),
        ("published", ["setup", "learning_rates"], 2e-4, "setup: learning_rates: got 0.0002, expected lines"),
        ("published", ["bill", "rows"], {}, "bill: rows: got {}, expected a list of one or more"),
        ("published", ["bill", "rows", 1, "seconds"], None, "bill: rows: 2: seconds: got None, expected a number"),
        ("published", ["final", "rows", 0, "last"], True, "final: rows: 1: last: got True, expected a number or null"),
        ("published", ["nulls"], {"rows": [{"checkpoint": "last"}]}, "nulls: got .*, expected the key gold"),
        ("captions", ["tables", "final"], 3, "tables: final: got 3, expected a text"),
        (
            "captions",
            ["figures", "cost_curves"],
            {"alt": "a"},
            "figures: cost_curves: got .*, expected the key caption",
        ),
        ("claims", ["Cost"], "tuning", "Cost: got 'tuning', expected a list of one or more"),
        ("claims", ["At equal spend", 0, 2], 5, "At equal spend: 1: 3: got 5, expected a text or null"),
        ("claims", ["At equal spend", 0], ["headline"], "At equal spend: got .*, expected the key of a text glued"),
        ("models", ["SmolLM2-135M", "config"], [], r"SmolLM2-135M: config: got \[\], expected lines"),
        ("models", ["SmolLM2-135M"], {}, "SmolLM2-135M: got {}, expected the key config"),
    ],
)
def test_a_wrong_value_is_named_with_its_file(name, keys, value, expected, tmp_path, monkeypatch):
    content = yaml.safe_load((BOOK / f"{name}.yaml").read_text())
    place = content
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(content))
    module, read = READ[name]
    monkeypatch.setattr(module, "BOOK", tmp_path)
    with pytest.raises(ValueError, match=f"{name}.yaml: {expected}"):
        read()


@pytest.mark.parametrize("text", ["a: [", "a: 1\na: 2", "\udce9"])
def test_a_broken_file_is_named(text, tmp_path):
    (tmp_path / "own.yaml").write_bytes(text.encode("utf8", "surrogateescape"))
    with pytest.raises(ValueError, match="own.yaml: cannot be read: "):
        written.read(tmp_path / "own.yaml")
