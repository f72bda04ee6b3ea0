"""pyproject.toml (ranges) and environment.yml (tested pins) name the same packages and agree."""

import re
import tomllib

import pytest
import yaml
from packaging.requirements import Requirement

from lib.paths import ROOT

# Both sets are in use: the first on users' machines, the second on the GPU host of the recorded runs.
TESTED = [
    {"torch": "2.13.0", "transformers": "5.24.0", "vllm": "0.30.0"},
    {"torch": "2.11.0", "transformers": "5.17.0", "vllm": "0.24.0"},
]
EXACT = {"jupyter-book": "1.0.4.post1", "trl": "1.16.0"}


def ranges():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    found = [Requirement(line) for lines in extras.values() for line in lines]
    return {r.name: r for r in found if r.name != "post-training-cost"}


def pins():
    """{package: version} of environment.yml; vllm stands in a comment, because conda users rarely have its GPU."""
    text = (ROOT / "environment.yml").read_text()
    lines = next(entry["pip"] for entry in yaml.safe_load(text)["dependencies"] if isinstance(entry, dict))
    lines += re.findall(r"pip install (vllm==\S+)", text)
    return dict(line.split("==") for line in lines)


def test_same_packages():
    assert sorted(ranges()) == sorted(pins())


def test_every_pin_lies_in_its_range():
    for name, version in pins().items():
        assert ranges()[name].specifier.contains(version), f"{name} {version} is outside {ranges()[name].specifier}"


@pytest.mark.parametrize("tested", TESTED, ids=["users", "gpu-host"])
def test_tested_sets_lie_in_the_ranges(tested):
    for name, version in tested.items():
        assert ranges()[name].specifier.contains(version), f"{name} {version} is outside {ranges()[name].specifier}"


def test_first_tested_set_is_what_environment_pins():
    assert {name: pins()[name] for name in TESTED[0]} == TESTED[0]


def test_exact_pins():
    for name, version in EXACT.items():
        assert str(ranges()[name].specifier) == f"=={version}"


def test_python_versions_agree():
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert requires == ">=3.11,<3.14"
    conda = [d for d in yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"] if isinstance(d, str)]
    assert [d.split("=")[1] for d in conda if d.startswith("python=")] == ["3.12"]


def test_library_folder_is_not_ignored():
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert not {"lib", "lib/", "lib64/"} & set(ignored)
    for needed in ("/runs/", "/_build/", "/.venv/", "/book/stages/"):
        assert needed in ignored
