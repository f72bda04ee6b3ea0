"""The places of this working copy. Everything else builds its paths from these."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "notebooks"  # what a person edits
PROFILES = NOTEBOOKS / "profiles"  # one yaml a profile
VARIANTS = NOTEBOOKS / "variants"  # one yaml a variant of an arm
BOOK = ROOT / "book"
RESULTS = BOOK / "results"  # recorded runs, committed
RUNS = ROOT / "runs"  # live runs and executed notebooks of this copy, git-ignored
BASE = ROOT / "src" / "lib" / "tiny"  # the tiny base model that the laptop profile trains
