"""Shared by all tests: no variable of the caller's shell steers them, and tiny notebooks to execute."""

import shutil

import pytest
import yaml

from lib.paths import ROOT

HEADER = """# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

"""


# A profile whose runs take seconds.
SMALL = dict(
    seeds=[0], n_documents=120, n_start=32, n_dev=4, n_heldout=8, start_epochs=1.0, start_batch_documents=8,
    sft_batch_documents=8, sft_save_steps=2, prompts_per_step=2, group_size=4, micro_batch_rollouts=8,
    grpo_save_steps=2, context_tokens=512, max_completion_tokens=48,
)  # fmt: skip


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


@pytest.fixture(scope="session")
def copy_project():
    """copy(folder, **parameters): the project's code in a folder, with a profile `small` that has these, too."""

    def copy(folder, **parameters):
        for part in ("src", "notebooks"):
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        (folder / "notebooks" / "profiles" / "small.yaml").write_text(yaml.safe_dump(SMALL | parameters))

    return copy
