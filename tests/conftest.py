"""Shared by all tests: no variable of the caller's shell steers them, and tiny notebooks to execute."""

import pytest

HEADER = """# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

"""


def notebook(folder, stage, parameters, *cells):
    """Write <folder>/<stage>.py with a title, a parameters cell and code cells; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = [f"# %% [markdown]\n# # {stage}", f'# %% tags=["parameters"]\n{parameters}', *(f"# %%\n{c}" for c in cells)]
    path = folder / f"{stage}.py"
    path.write_text(HEADER + "\n\n".join(parts) + "\n")
    return path


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for name in ("TRAIN", "SEEDS", "SEED", "PROFILE", "VENV", "REPLAY", "PROGRESS_FILE", "MAKEFLAGS", "MAKELEVEL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def write_notebook_in():
    return notebook


@pytest.fixture
def write_notebook(tmp_path):
    return lambda stage, parameters, *cells: notebook(tmp_path / "notebooks", stage, parameters, *cells)
