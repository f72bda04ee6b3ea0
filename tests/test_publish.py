"""Stage pages have the same bytes on every machine; the checks of the built book find what must not be published."""

import copy
import json
import sys
from pathlib import Path

import pytest

from lib.build import mathml, pages, publish

INFO = {
    "run": "dpo-s0",
    "profile": "p",
    "device": {"kind": "cuda", "name": "A GPU", "count": 1},
    "attempts": [
        {"end_utc": "2026-01-01T00:00:00+00:00"},
        {"end_utc": "2026-01-02T00:00:00+00:00"},
        {"status": "interrupted"},
    ],
    "commit": "0123456789abcdef-dirty",
    "versions": {"torch": "2.13.0", "trl": "1.16.0", "vllm": None},
    "stage": "02_dpo",
    "source_sha256": "old",
}


def code(source, *outputs, **metadata):
    return {
        "cell_type": "code",
        "id": "x1",
        "execution_count": 3,
        "metadata": metadata,
        "source": source,
        "outputs": list(outputs),
    }


def stream(text, name="stdout"):
    return {"output_type": "stream", "name": name, "text": text}


def shown(data, **metadata):
    return {"output_type": "display_data", "data": data, "metadata": metadata}


def notebook(*cells):
    title = {"cell_type": "markdown", "id": "x0", "metadata": {}, "source": ["# Title\n", "text"]}
    return {
        "cells": [title, *cells],
        "metadata": {"papermill": {"start_time": "now"}, "widgets": {}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def test_scrub_keeps_what_the_page_needs_and_nothing_else():
    image = {"image/png": "aWJt", "text/plain": "<Figure>"}
    glued = shown(
        {"application/papermill.record/text/plain": "'x'"},
        scrapbook={"name": "key", "mime_prefix": "application/papermill.record/"},
    )
    widget = shown({"application/vnd.jupyter.widget-view+json": {"model_id": "a"}})
    page = publish.scrub(
        notebook(
            code("seed = 1", tags=["injected-parameters"], papermill={"duration": 1}),
            code("plot()", shown(image), glued, widget, tags=["hide-input"], execution={"iopub.status.busy": "now"}),
        ),
        Path("/somewhere/else"),
    )
    assert page["nbformat_minor"] == 4 and "papermill" not in json.dumps(page["metadata"])
    assert page["cells"][0] == {"cell_type": "markdown", "metadata": {}, "source": "# Title\ntext"}
    assert page["cells"][1]["metadata"] == {}
    assert page["cells"][2]["metadata"] == {"tags": ["hide-input"]}
    assert page["cells"][2]["outputs"] == [shown(image), glued]


def test_scrub_drops_paths_progress_and_addresses():
    output = stream(
        f" 10%\r 50%\r100%\ndone in /home/me/copy/runs, {sys.prefix}/lib, <thing at 0x7f00deadbeef>\nand \r\n"
    )
    text = publish.scrub(notebook(code("x", output, stream("warning", "stderr"))), Path("/home/me/copy"))["cells"][1][
        "outputs"
    ]
    assert text == [stream("100%\ndone in ./runs, <env>/lib, <thing at 0x…>\nand \r\n")]


def test_scrub_is_deterministic_and_leaves_its_input_alone():
    one, two = (notebook(code("print(1)", stream("1\n"), papermill={"duration": d}, tags=["a"])) for d in (1, 2))
    two["cells"][1]["id"], two["cells"][0]["id"] = "other", "ids"
    before = copy.deepcopy(one)
    assert json.dumps(publish.scrub(one)) == json.dumps(publish.scrub(two))
    assert one == before


def test_scrub_refuses_an_error():
    error = {"output_type": "error", "ename": "ValueError", "evalue": "gone", "traceback": []}
    with pytest.raises(publish.BookError, match="ValueError: gone"):
        publish.scrub(notebook(code("x", error)))


def test_banner_names_device_date_commit_versions_and_changed_code():
    text = publish.banner([INFO], {"02_dpo": "new"}.get)
    for part in ("`dpo-s0`", "A GPU", "2026-01-02", "`0123456789-dirty`", "torch 2.13.0, trl 1.16.0", "changed since"):
        assert part in text
    assert "changed since" not in publish.banner([INFO], {"02_dpo": "old"}.get) and "vllm" not in text


def test_announcement():
    other = {**INFO, "commit": None, "device": {"kind": "cuda", "name": "A GPU", "count": 2}, "attempts": []}
    line = publish.announce("p", {"a": (INFO, ""), "b": (other, "")})
    assert "2 runs on 2 × A GPU, A GPU" in line and line.endswith("0123456789-dirty (no commit noted: dpo-s0)")
    line = publish.announce(
        "p", {"a": (INFO, ""), "b": (other | {"commit": "unknown", "source_sha256": "new"}, "")}, {"02_dpo": "new"}.get
    )
    assert line.endswith(". The code of this copy has changed since 1 of them")


def test_pages_of_a_table_of_contents(tmp_path):
    toc = tmp_path / "_toc.yml"
    parts = [{"caption": "x", "chapters": [{"file": "a.md", "sections": [{"file": "s/b"}]}]}]
    toc.write_text(json.dumps({"format": "jb-book", "root": "intro", "parts": parts}))
    assert pages.toc(toc) == ["intro", "a", "s/b"]


CLEAN = (
    '<a href="https://example.org">a link</a><link rel="canonical" href="https://example.org/"><img src="a.png">'
    '<script src="b.js"></script><svg xmlns="http://www.w3.org/2000/svg"></svg>'
    "<pre>{glue:text}`shown as code` Traceback</pre>"
)


def problems(tmp_path, body, names=("index",)):
    (tmp_path / "index.html").write_text(f"<html><body>{body}</body></html>")
    return pages.check(tmp_path, list(names))


def test_check_passes_a_clean_page(tmp_path):
    assert problems(tmp_path, CLEAN) == []


@pytest.mark.parametrize(
    "body, expected",
    [
        ('<script src="https://cdn.example/x.js"></script>', "asks another host for https://cdn.example/x.js"),
        ('<link rel="stylesheet" href="//fonts.example/x.css">', "asks another host for //fonts.example/x.css"),
        ('<link rel="preload" as="font" href="http://x.example/f.woff2">', "asks another host"),
        ('<img src="http://x.example/i.png">', "asks another host"),
        ('<img src="i.png" srcset="https://x.example/i.png 2x">', "asks another host"),
        ("<iframe src='https://x.example'></iframe>", "asks another host"),
        ("<style>@import url('https://x.example/x.css');</style>", "asks another host"),
        ('<p style="background: url(//x.example/i.png)">', "asks another host"),
        ('<script>import("https://cdn.example/lib.js")</script>', "asks another host for https://cdn.example/lib.js"),
        ("<p>the accuracy is {glue:text}`key`</p>", "unresolved '{glue:text}`key`'"),
        ('<span class="problematic">x</span>', "error(s) of the parser"),
        ("<span>An Exception was encountered at 'In [3]'</span>", "shows an execution error"),
    ],
)
def test_check_finds(tmp_path, body, expected):
    assert any(expected in problem for problem in problems(tmp_path, body))


def test_check_finds_missing_pages_and_remote_fonts(tmp_path):
    (tmp_path / "_static").mkdir()
    (tmp_path / "_static" / "x.css").write_text("@font-face { src: url(https://fonts.example/f.woff2) }")
    found = problems(tmp_path, CLEAN, names=("index", "method"))
    assert found == [
        "method.html: in the table of contents but not built",
        "_static/x.css: asks another host for https://fonts.example/f.woff2",
    ]


def test_mathml():
    assert "<mfrac>" in mathml.mathml(r"\frac{a}{b}") and "<mtable" in mathml.mathml(
        r"\begin{aligned} a &= b \\ c &= d \end{aligned}"
    )
    assert "mspace" in mathml.mathml(r"\log 2") and "mspace" not in mathml.mathml(r"\log(2)")
    for wrong in (r"\notacommand x", r"a \left( b", r"x_{"):
        with pytest.raises(ValueError, match="formula"):
            mathml.mathml(wrong)
