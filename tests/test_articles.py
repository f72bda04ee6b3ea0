"""The articles follow the records: verdicts flip, numbers move, and no result is typed.

The comparing notebook is executed on made-up records (tests/fake_records.py); what it glues is what the pages print.
"""

import functools
import re
import tempfile
from pathlib import Path

import fake_records
import jupytext
import nbformat
import pytest
import yaml
from fake_records import ARMS, CPU, GRPO_STEP, swapped
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from lib.paths import BOOK, NOTEBOOKS, ROOT

ARTICLES = ("cost_curves", "grpo_bill")


def execute(runs, **parameters):
    """Texts and HTML that 04_compare glues, by key, reading the runs in `runs`."""
    notebook = jupytext.read(NOTEBOOKS / "04_compare.py")
    at = next(i for i, cell in enumerate(notebook.cells) if "parameters" in cell.metadata.get("tags", []))
    lines = [f"{name} = {value!r}" for name, value in ({"profile": "fake"} | parameters).items()]
    lines += ["import sys", f"sys.path.insert(0, {str(ROOT / 'src')!r})"]
    lines += ["import pathlib", "import lib.records", f"lib.records.RUNS = pathlib.Path({str(runs)!r})"]
    notebook.cells.insert(at + 1, nbformat.v4.new_code_cell("\n".join(lines)))
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    NotebookClient(notebook, timeout=120).execute()
    glued = {}
    for output in (output for cell in notebook.cells for output in cell.get("outputs", [])):
        if "scrapbook" in output.get("metadata", {}):
            key, data = output["metadata"]["scrapbook"]["name"], output["data"]
            assert key not in glued, f"{key} is glued twice"
            glued[key] = data.get("text/html") or data["application/papermill.record/text/plain"].strip("'\"")
    return glued


@functools.cache
def study(which):
    """The glued values of one made-up study."""
    variants = {
        "base": {},
        "swapped": {"arms": swapped(ARMS, "sft", "grpo")},
        # twice the generation, at the cost of the final save; and another last accuracy of DPO
        "perturbed": {
            "grpo_step": GRPO_STEP | {"generation": 8.0},
            "arms": ARMS | {"dpo": [*ARMS["dpo"][:-1], (150, 0.50)]},
        },
        # one arm with one seed, no GPU, nothing that GRPO logs, and an A that never gets where C ends
        "small": {
            "device": CPU,
            "seeds": {"sft": [0, 1], "dpo": [0], "grpo": [0]},
            "arms": ARMS | {"sft": [(40, 0.62), (80, 0.61)]},
            "drop_steps": ("grpo-s0", "dpo-s0"),
        },
    }
    with tempfile.TemporaryDirectory() as folder:
        fake_records.write(Path(folder), **variants[which])
        return execute(folder)


def test_swapping_two_arms_flips_headline_and_title_figure():
    base, other = study("base"), study("swapped")
    assert base["headline"] == "At equal spend continued SFT beats GRPO, in 2 of 2 seeds"
    assert other["headline"] == "At equal spend GRPO beats continued SFT, in 2 of 2 seeds"
    assert base["figure_cost_curves"] != other["figure_cost_curves"]
    assert base["claims_cost_curves"] == "of 7, 7 held"
    assert "wrong" in other["claims_cost_curves"]
    # what the two arms have, they exchange
    values = re.compile(r"0\.\d{4}")
    assert values.findall(base["last_sft"])[0] == values.findall(other["last_grpo"])[0] == "0.8700"
    assert base["reach_a"] != other["reach_a"]


def test_a_changed_number_moves_what_depends_on_it_and_nothing_else():
    base, other = study("base"), study("perturbed")
    moved = {key for key in base if base[key] != other[key]}
    of_generation = {"bill_generation", "bill_most", "figure_bill", "table_bill"}
    of_dpo = {"last_dpo", "gain_dpo", "dpo_task", "table_final", "table_equal_spend", "table_pairs", "table_errors"}
    assert moved == of_generation | of_dpo | {"figure_cost_curves", "places_share"}


def test_a_small_study_on_a_cpu_says_what_it_has_not():
    glued = study("small")
    assert glued["unit"] == "CPU-hours"
    assert "$" not in glued["last_grpo"] + glued["total_cost"] + glued["price"]
    assert "continued SFT never" in glued["reach_c"]
    assert "(seed 1)" in glued["last_sft"] and "(seed 1)" not in glued["last_grpo"]
    assert "not run" not in glued["headline"] and "the one seed" in glued["headline"]
    assert "were not measured" in glued["figure_groups"] + glued["figure_nulls"]
    assert "not measured" in glued["figure_dpo"]
    assert glued["zero_variance"].startswith("not measured")


def test_every_table_has_its_csv_and_every_figure_its_alt_text():
    for key, value in study("base").items():
        if key.startswith("table_") and "absent" not in value:
            assert re.search(r'download="\w+\.csv" href="data:text/csv', value), key
        if key.startswith("figure_"):
            assert re.search(r'<img alt="[^"]{40,}"', value), key


def test_the_published_figures_stand_beside_ours():
    tables = study("base")
    for key, texts in {
        "table_equal_spend": ("83 / 54", "117 / 66", "131 / 75", "0.8905", "ended"),
        "table_reach_hold": ("$0.59", "$10.58", "18x", "5.1x", "never", "28x"),
        "table_bill": ("4,360", "49.3%", "1,861"),
        "table_dpo": ("-1.69 to -3.73", "0.58 to 0.69"),
        "table_nulls": ("131 of 136", "13 of 1158"),
    }.items():
        for text in texts:
            assert text in tables[key], f"{text} is not in {key}"


def test_a_missing_run_is_one_error_that_names_it(tmp_path):
    fake_records.write(tmp_path, skip=("dpo-s1",))
    with pytest.raises(CellExecutionError, match="run dpo-s1 of profile fake"):
        execute(tmp_path, seeds=[0, 1])


# ------------------------------------------------------------------------------------------------- the pages' text


def prose(text):
    """What an article's author typed as prose: without directives, roles, code, link targets and addresses."""
    text = re.sub(r"^(```|:::).*?^\1\s*$", "", text, flags=re.S | re.M)
    text = re.sub(r"\{[\w:-]+\}`[^`]*`", "", text)
    text = re.sub(r"`[^`]*`", "", text)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    return re.sub(r"https?://\S+", "", text)


def typed_numbers(text):
    """Numbers in typed prose. Allowed: years 1900 to 2099, and digits inside a name (H100, v2)."""
    return re.findall(r"(?<![\w.])(?!(?:19|20)\d\d\b)\d+(?:[.,]\d+)*", prose(text))


JUDGING = r"\b(beats?|leads?|wins?|won|loses|ahead of|behind|outperform\w*|(better|worse|cheaper|faster) than)\b"


@pytest.mark.parametrize("article", ARTICLES)
def test_no_result_is_typed(article):
    text = (BOOK / f"{article}.md").read_text()
    assert typed_numbers(text) == []
    assert re.search(JUDGING, prose(text)) is None


def test_the_scan_sees_what_it_should():
    assert typed_numbers("A gets 0.89 for $0.59, 18x less, or 4.4%.") == ["0.89", "0.59", "18", "4.4"]
    assert typed_numbers("In 2026 on an H100, `x = 3`, [v2](https://a.b/7), {cite}`fan2026`.") == []


@pytest.mark.parametrize("article", ARTICLES)
def test_the_pages_ask_only_for_what_the_notebook_gives(article):
    text, glued = (BOOK / f"{article}.md").read_text(), study("base")
    roles = re.findall(r"\{glue:text\}`([^`]*)`", text)
    # without a format code MyST-NB takes the file name for the key
    assert all(re.fullmatch(r"stages/04_compare\.ipynb::\w+:s", role) for role in roles)
    directives = re.findall(r"^```\{glue\} (\w+)\n:doc: stages/04_compare\.ipynb\n```$", text, flags=re.M)
    asked = {role.split(":")[2] for role in roles} | set(directives)
    assert len(directives) == text.count("{glue} ")
    assert asked <= set(glued), sorted(asked - set(glued))


def test_published_figures_name_their_source():
    published = yaml.safe_load((BOOK / "published.yaml").read_text())
    assert published["repository"].endswith("iambigmomma/post-training-cost-curves-v2")
    for section, content in published.items():
        assert section == "repository" or "article" in content["source"], section
