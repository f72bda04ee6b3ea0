"""The README's figure is of the records that are there, and of the default profile."""

import pytest

from lib.paths import ROOT
from lib.report import headline


def test_the_readme_shows_the_recorded_runs_of_the_default_profile():
    profile = (ROOT / "Makefile").read_text().split("\n", 1)[0].removeprefix("PROFILE ?= ")
    found = headline.runs(profile)
    assert headline.noted() == headline.drawn_from(found), "the figure is of other records: make headline"
    assert headline.drawn_from(dict(list(found.items())[1:])) != headline.noted()
    assert "(book/headline.png)" in (ROOT / "README.md").read_text()


def test_a_profile_without_records_is_named():
    with pytest.raises(FileNotFoundError, match="no recorded run of an arm in book/results/smoke"):
        headline.runs("smoke")
