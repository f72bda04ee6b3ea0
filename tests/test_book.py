"""The Makefile and the book, end to end, on a small project: six tiny notebooks, three pages, one recorded run."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
import yaml

from lib.build import pages, publish
from lib.paths import BOOK, ROOT

RUN = {
    "run": "setup", "arm": "setup", "seed": None, "profile": "p", "id": "i", "identity": {}, "commit": "c" * 40,
    "source_sha256": "s", "versions": {"torch": "2.13.0"}, "device": {"kind": "cpu", "name": "A processor", "count": 1},
    "attempts": [{"end_utc": "2026-01-02T00:00:00+00:00"}], "billed_s": 1.0, "facts": {},
}  # fmt: skip

PIN = """import json
from lib.paths import RESULTS, RUNS
value = (RESULTS / profile / "setup" / "value.txt").read_text().strip()
pins = RUNS / profile / "pins"
pins.mkdir(parents=True, exist_ok=True)
(pins / "setup.json").write_text(json.dumps({"folder": f"book/results/{profile}/setup", "id": "i"}))"""
GLUE = """from myst_nb import glue
from lib.paths import RESULTS
glue("answer", (RESULTS / profile / "setup" / "value.txt").read_text().strip(), display=False)"""
SEEDED = 'profile: str = "p"\nseed: int = 0  # seed'


class Project:
    def __init__(self, root):
        self.root = root

    def make(self, *arguments):
        variables = ("MAKEFLAGS", "MAKELEVEL", "TRAIN", "SEEDS", "PROFILE")  # of a `make test` around this one
        environment = {key: value for key, value in os.environ.items() if key not in variables}
        command = ["make", f"VENV={self.root / 'env'}", "PROFILE=p", *arguments]
        both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
        done = subprocess.run(command, cwd=self.root, env=environment, text=True, **both)
        return done.returncode, done.stdout

    def book(self, *arguments):
        code, output = self.make("book", *arguments)
        assert code == 0, output
        return output

    def page(self, name):
        return (self.root / "_build" / "html" / f"{name}.html").read_text()

    def edit(self, path, old, new):
        path = self.root / path
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))


def executed(output):
    return re.findall(r"^(\w+)(?:, seed \d+)?: executing", output, re.M)


def words(page):
    return re.sub(r"<[^>]+>", "", page)


@pytest.fixture(scope="module")
def project(tmp_path_factory, write_notebook_in):
    root = tmp_path_factory.mktemp("project")
    for name in ("Makefile", "_config.yml", "pyproject.toml"):
        shutil.copy(ROOT / name, root)
    shutil.copytree(ROOT / "src" / "lib", root / "src" / "lib", ignore=shutil.ignore_patterns("tiny", "__pycache__"))
    # an environment that is there already: this interpreter, marked as complete
    (root / "env" / "bin").mkdir(parents=True)
    python = root / "env" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (root / "env" / ".ready-dev").touch()

    write, notebooks = write_notebook_in, root / "notebooks"
    write(notebooks, "00_setup", 'profile: str = "p"', PIN, "print('value', value)")
    for stage in ("01_sft", "02_dpo", "03_grpo"):
        write(notebooks, stage, SEEDED, f"print('{stage}', seed)")
    write(notebooks, "04_compare", 'profile: str = "p"\nseeds: list = []', GLUE, "print(seeds)")
    write(notebooks, "05_sizing", 'profile: str = "p"\nseeds: list = []', "print('sizes', seeds)")
    (notebooks / "profiles").mkdir()
    (notebooks / "profiles" / "p.yaml").write_text("seeds: [3]\n")
    recorded = root / "book" / "results" / "p" / "setup"
    recorded.mkdir(parents=True)
    (recorded / "run.json").write_text(json.dumps(RUN))
    (recorded / "value.txt").write_text("111\n")

    stages = ["00_setup", "01_sft", "02_dpo", "03_grpo", "04_compare", "05_sizing"]
    toc = {
        "format": "jb-book",
        "root": "intro",
        "chapters": [{"file": f"stages/{s}"} for s in stages] + [{"file": "money"}],
    }
    (root / "book" / "_toc.yml").write_text(yaml.safe_dump(toc))
    (root / "book" / "intro.md").write_text(
        "# Intro\n\nThe answer is {glue:text}`stages/04_compare.ipynb::answer:s`.\n"
    )
    (root / "book" / "money.md").write_text(
        "# Money\n\nFrom $2.10 to $17.40, and $a_1$.\n\n$$\n\\frac{1}{2}\n$$ (half)\n\nSee {eq}`half`.\n"
    )
    (root / "book" / "published.yaml").write_text("{}\n")
    (root / "book" / "references.bib").write_text("")
    project = Project(root)
    project.first = project.book()
    return project


def test_first_build(project):
    assert executed(project.first) == ["00_setup", "01_sft", "02_dpo", "03_grpo", "04_compare", "05_sizing"]
    assert (
        "_build/html/index.html" in project.first
        and "recorded: book/results/p/setup; A processor, 2026-01-02" in project.first
    )
    assert "The answer is 111." in words(project.page("intro"))
    assert "[3]" in project.page("stages/04_compare")
    setup = project.page("stages/00_setup")
    assert "Where these numbers come from" in setup and "cccccccccc" in setup
    assert all(
        "A processor, 2026-01-02" in project.page(name) for name in ("intro", "money")
    )  # the line on top of every page
    assert str(project.root) not in setup


def test_two_dollar_amounts_are_no_formula_and_formulas_need_no_script(project):
    page = project.page("money")
    assert "From $2.10 to $17.40" in page
    assert page.count("<math") == 2 and "MathJax" not in page and "cdn" not in page


def test_nothing_to_do_is_quick(project):
    started = time.monotonic()
    output = project.book()
    assert executed(output) == [] and "jupyter-book" not in output
    assert time.monotonic() - started < 5


def test_two_builds_are_the_same(project):
    first = pages.content_hash(project.root / "_build" / "html")
    (project.root / "_build" / "html" / "index.html").unlink()
    shutil.rmtree(project.root / "book" / "stages")
    project.book()
    assert pages.content_hash(project.root / "_build" / "html") == first


def test_a_build_killed_in_the_middle_leaves_no_book_and_the_next_one_is_whole(project):
    first = pages.content_hash(project.root / "_build" / "html")
    (project.root / "_build" / "html" / "index.html").unlink()
    work = project.root / "_build" / ".html-work"
    command = ["make", "book", f"VENV={project.root / 'env'}", "PROFILE=p"]
    environment = {**os.environ, "MAKEFLAGS": ""}
    process = subprocess.Popen(
        command, cwd=project.root, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    end = time.monotonic() + 60
    while not any(work.rglob("*.html")):  # until pages are being written
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)  # make, the publisher and jupyter-book: all of its own session
    process.wait()
    assert work.exists() and not (project.root / "_build" / "html").exists()
    assert executed(project.book()) == []
    assert pages.content_hash(project.root / "_build" / "html") == first
    assert not work.exists()


def test_editing_the_last_notebook_executes_it_alone(project):
    project.edit("notebooks/04_compare.py", "print(seeds)", "print(seeds, 'again')")
    assert executed(project.book()) == ["04_compare"]
    assert "again" in project.page("stages/04_compare")


def test_editing_a_page_executes_nothing(project):
    project.edit("book/money.md", "From", "Between")
    assert executed(project.book()) == []
    assert "Between $2.10" in project.page("money")


def test_a_table_that_a_page_includes_is_followed(project):
    table = project.root / "book" / "results" / "ledger.csv"
    table.write_text("run,status\nfirst,finished\n")
    project.edit("book/money.md", "See {eq}", "```{csv-table}\n:file: results/ledger.csv\n```\n\nSee {eq}")
    project.book()
    table.write_text("run,status\nfirst,stopped\n")
    assert executed(project.book()) == []
    assert "stopped" in words(project.page("money"))


def test_the_page_follows_a_changed_record(project):
    value = project.root / "book" / "results" / "p" / "setup" / "value.txt"
    old = value.stat()
    value.write_text("222\n")
    os.utime(value, ns=(old.st_atime_ns, old.st_mtime_ns))  # as rsync -t or an archive would leave it
    project.book()
    assert "The answer is 222." in words(project.page("intro"))


def test_another_mode_executes_again(project):
    code, output = project.make("00_setup", "TRAIN=never")
    assert code == 0 and executed(output) == ["00_setup"]
    assert executed(project.make("00_setup", "TRAIN=never")[1]) == []


def test_one_stage_with_another_seed(project):
    code, output = project.make("01_sft", "TRAIN=never", "SEED=7")
    assert code == 0 and "01_sft, seed 7: executing" in output
    assert (project.root / "runs" / "p" / "notebooks" / "01_sft-s7.ipynb").exists()


def test_a_raising_cell_fails_twice_and_is_named(project):
    project.edit("notebooks/00_setup.py", "print('value', value)", "print(missing_name)")
    for _ in range(2):
        code, output = project.make("book")
        assert code != 0
        line = (project.root / "notebooks" / "00_setup.py").read_text().split("print(missing_name)")[0].count("\n") + 1
        assert f"notebooks/00_setup.py:{line} failed in code cell 3: print(missing_name)" in output
        assert "NameError: name 'missing_name' is not defined" in output
        assert not (project.root / "runs" / "p" / "notebooks" / "00_setup.ipynb").exists()


def test_a_mistyped_profile_key_runs_nothing(project):
    (project.root / "notebooks" / "profiles" / "p.yaml").write_text("seeds: [3]\nsead: 1\n")
    code, output = project.make("book")
    assert code != 0 and "no notebook has a parameter sead; did you mean seed?" in output and executed(output) == []
    (project.root / "notebooks" / "profiles" / "p.yaml").write_text("seeds: [3]\n")


@pytest.fixture
def small_book(tmp_path):
    """build(text of the page) of a book of one page that takes a value from another document."""
    book = tmp_path / "book"
    book.mkdir()
    (book / "_toc.yml").write_text("format: jb-book\nroot: intro\nchapters:\n- file: values\n")
    (book / "references.bib").write_text("")
    glued = {"name": "answer", "mime_prefix": ""}
    output = {"output_type": "display_data", "data": {"text/plain": "'42'"}, "metadata": {"scrapbook": glued}}
    cells = [
        {"cell_type": "markdown", "metadata": {}, "source": "# Values"},
        {"cell_type": "code", "metadata": {}, "source": "glue()", "outputs": [output], "execution_count": 1},
    ]
    (book / "values.ipynb").write_text(json.dumps(publish.scrub({"cells": cells})))
    out = tmp_path / "_build" / "html"

    def build(text):
        (book / "intro.md").write_text(f"# Intro\n\n{text}\n")
        publish.build(book, ROOT / "_config.yml", out)
        return (out / "intro.html").read_text()

    build.out = out
    return build


def test_broken_pages_fail_as_often_as_they_are_built(small_book):
    assert "It is 42." in words(small_book("It is {glue:text}`values.ipynb::answer:s`."))
    for text, named in (
        ("It is {glue:text}`values.ipynb::anwser:s`.", "anwser"),
        ("It is {glue:text}`values.ipynb::anwser:s`.", "anwser"),
        ("See {doc}`nowhere`.", "nowhere"),
        (r"$x \notacommand y$", "notacommand"),
        ("![](https://example.org/i.png)", "asks another host for https://example.org/i.png"),
    ):
        with pytest.raises(publish.BookError, match=named):
            small_book(text)
        assert not small_book.out.exists() and list(small_book.out.parent.iterdir()) == []


@pytest.mark.parametrize("seeds", ["SEED=abc", "SEEDS=0 0", "SEEDS=0,1", "SEED=-1"])
def test_wrong_seeds_run_nothing(seeds):
    done = subprocess.run(["make", "help", seeds], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode and f'is "{seeds.split("=")[1]}"; expected different whole numbers' in done.stderr


def test_wrong_variables_are_errors(project):
    for arguments, expected in (
        (["PROFILE=q"], "no profile notebooks/profiles/q.yaml; there are: p"),
        (["TRAIN=sometimes"], "expected auto, always or never"),
        (["PROFILES=p"], "no variable PROFILES"),
        (["02_dpo", "SEEDS=0 1"], 'SEEDS is "0 1"; expected one seed for'),
    ):
        code, output = project.make("book", *arguments)
        assert code != 0 and expected in output


def test_an_environment_that_holds_more_will_do(project):
    env = project.root / "env2"
    (env / "bin").mkdir(parents=True)
    (env / "bin" / "python").touch()

    def installed(extra):
        output = project.make("book", f"VENV={env}", f"EXTRA={extra}", "--dry-run")[1]
        return re.findall(r"lists under '(\w+)'", output)

    assert installed("report") == ["report"] and installed("vllm") == ["vllm"]
    (env / ".ready-train").touch()
    assert installed("report") == installed("train") == [] and installed("vllm") == ["vllm"]
    (env / ".ready-vllm").touch()
    assert installed("vllm") == installed("train") == []
    for extra in ("train", "vllm"):  # older than pyproject.toml: a report needs no more than its own packages
        os.utime(env / f".ready-{extra}", (0, 0))
    assert installed("report") == ["report"] and installed("train") == ["train"]
    assert 'EXTRA is "vlm"; expected report, train, vllm or dev' in project.make("book", "EXTRA=vlm")[1]


def test_help_lists_every_target(project):
    code, output = project.make()
    assert code == 0
    for target in ("book", "test", "base", "record", "verify", "replay", "trial", "serve", "clean", "00_setup"):
        assert f"make {target} " in output


def test_toc_of_the_project_lists_every_page():
    names = pages.toc(BOOK / "_toc.yml")
    assert sorted(p.stem for p in BOOK.glob("*.md")) == sorted(name for name in names if "/" not in name)
    stages = sorted(name.removeprefix("stages/") for name in names if "/" in name)
    assert stages == sorted(p.stem for p in (ROOT / "notebooks").glob("*.py"))


def test_workflow_parses_and_runs_what_the_readme_says():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "book.yml").read_text())
    runs = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    assert runs == [".ci/run", "make book"]
    assert "make test" in (ROOT / ".ci" / "run").read_text() and "make test" in (ROOT / "README.md").read_text()
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_every_citation_is_in_the_bibliography():
    known = set(re.findall(r"^@\w+\{(\w+),", (BOOK / "references.bib").read_text(), re.M))
    for path in [*BOOK.glob("*.md"), *(ROOT / "notebooks").glob("*.py")]:
        for keys in re.findall(r"\{cite(?::\w+)?\}`([^`]+)`", path.read_text()):
            assert {key.strip() for key in keys.split(",")} <= known, path
