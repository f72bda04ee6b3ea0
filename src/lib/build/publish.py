"""Writes the book: `python -m lib.build.publish --profile laptop --seeds 0 1` scrubs, builds, checks.

A built book is there only when every check passed: it is built apart and moved to _build/html at the end.
"""

import argparse
import html
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import yaml

from lib import written
from lib.build import pages, params
from lib.paths import BOOK, ROOT, RUNS

HTML = ROOT / "_build" / "html"


class BookError(RuntimeError):
    """What keeps the book from being published, one problem a line."""


# ------------------------------------------------------------------------------------------------- stage pages


def scrub(notebook, root=ROOT):
    """A copy of an executed notebook (nbformat dict) with the same bytes on every machine: no cell ids, times, counters
    of papermill, standard error, widgets, or absolute paths. Raises BookError for a cell with an error in it."""
    cells = []
    for cell in notebook["cells"]:
        kept = {"cell_type": cell["cell_type"], "metadata": {}, "source": _text(cell["source"])}
        tags = [tag for tag in cell["metadata"].get("tags", []) if tag != "injected-parameters"]
        if tags:
            kept["metadata"]["tags"] = tags
        kept["metadata"].update({k: v for k, v in cell["metadata"].items() if k in ("mystnb", "editable", "slideshow")})
        if cell["cell_type"] == "code":
            kept["execution_count"] = cell["execution_count"]
            kept["outputs"] = [done for output in cell["outputs"] if (done := _scrub_output(output, root))]
        cells.append(kept)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python", "pygments_lexer": "ipython3"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 4}  # 4.5 would ask for cell ids


def _scrub_output(output, root):
    kind = output["output_type"]
    if kind == "error":
        raise BookError(f"a cell ended with {output['ename']}: {output['evalue']}")
    if kind == "stream":
        if output["name"] == "stderr":
            return None
        # of lines that overwrite each other, a terminal shows the last
        text = re.sub(r"[^\n]*\r(?!\n)", "", _text(output["text"]))
        return {"name": output["name"], "output_type": kind, "text": _clean(text, root)} if text else None
    data = {
        mime: _clean(_text(value), root) if mime.startswith("text/") else value
        for mime, value in sorted(output["data"].items())
        if "widget" not in mime
    }
    if not data:
        return None
    kept = {"data": data, "metadata": output["metadata"], "output_type": kind}
    if kind == "execute_result":
        kept["execution_count"] = output["execution_count"]
    return kept


def _clean(text, root):
    for place, shown in (
        (str(root), "."),
        (sys.prefix, "<env>"),
        (sys.base_prefix, "<python>"),
        (str(Path.home()), "~"),
    ):
        if len(place) > 1:
            text = text.replace(place, shown)
    text = re.sub(r"/tmp/ipykernel_\d+/\d+\.py", "<cell>", text)
    return re.sub(r"\bat 0x[0-9a-f]{6,}", "at 0x…", text)


def _text(value):
    return "".join(value) if isinstance(value, list) else value


def banner(runs, source_sha256=None):
    """Markdown note that says where the numbers of a page come from.

    `runs`: run.json contents. `source_sha256`: the code of this copy, as a function of a run's stage, to compare with.
    """
    lines = []
    for info in runs:
        versions = ", ".join(
            f"{p} {v}" for p in ("torch", "transformers", "trl", "vllm") if (v := info["versions"].get(p))
        )
        commit = f"commit `{_short(info['commit'])}`" if _noted(info) else "no commit noted"
        lines.append(
            f"- `{info['run']}` ({info['profile']}): {_device(info)}, finished {_date(info)}, {commit}"
            + (f"; {versions}" if versions else "")
            + ("; the code of this copy has changed since" if _changed(info, source_sha256) else "")
        )
    return ":::{admonition} Where these numbers come from\n:class: note\n" + "\n".join(lines) + "\n:::"


def _noted(info):
    return info["commit"] not in (None, "unknown")


def _changed(info, source_sha256):
    return source_sha256 is not None and source_sha256(info.get("stage")) != info["source_sha256"]


def _device(info):
    device = info["device"]
    return device["name"] if device.get("count", 1) == 1 else f"{device['count']} × {device['name']}"


def _date(info):
    ends = [attempt["end_utc"] for attempt in info["attempts"] if attempt.get("end_utc")]
    return max(ends)[:10] if ends else "at an unknown date"


def _short(commit):
    head, _, mark = commit.partition("-")
    return head[:10] + (f"-{mark}" if mark else "")


def stage_pages(profile, seeds, notebooks, out, source_sha256=None):
    """Write <out>/<stage>.ipynb for every executed notebook (first seed of each stage), scrubbed, with a banner.

    Returns {run: (run.json content, folder)} of all runs used, over all seeds. Raises BookError: a notebook is missing,
    or shows a run whose record is gone or changed.
    """
    from lib.records import Record

    used = {}
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    for stage in params.stages():
        names = [f"{stage}-s{seed}" for seed in seeds] if "seed" in params.declared(stage) else [stage]
        for number, name in enumerate(names):
            path = notebooks / f"{name}.ipynb"
            if not path.exists():
                raise BookError(f"{path} is missing: this stage has not been executed")
            notebook = json.loads(path.read_text(encoding="utf8"))
            shown = []
            for run, folder in sorted(notebook["metadata"].get("runs", {}).items()):
                try:
                    used[run] = (Record(ROOT / folder).info, folder)
                except FileNotFoundError as error:
                    raise BookError(f"{path} shows run {run}: {error}") from None
                shown.append(used[run][0])
            if number > 0:
                continue
            try:
                page = scrub(notebook)
            except BookError as error:
                raise BookError(f"{path}: {error}") from None
            if shown:
                note = {"cell_type": "markdown", "metadata": {}, "source": banner(shown, source_sha256)}
                page["cells"].insert(1, note)
            text = json.dumps(page, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
            (out / f"{stage}.ipynb").write_text(text, encoding="utf8")
    return used


# ------------------------------------------------------------------------------------------------- build


def build(book, config, out, announcement=None):
    """Build the book folder with jupyter-book, warnings as errors, check every page, and move the result to `out`.

    `announcement`: a line of HTML for the top of every page. Raises BookError; `out` is then absent, so that a failed
    build never passes for a book.
    """
    started_ns = time.time_ns()
    shutil.rmtree(out, ignore_errors=True)
    work = out.parent / f".{out.name}-work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        settings, names = written.read(config, dict), pages.toc(book / "_toc.yml")
    except ValueError as error:
        raise BookError(str(error)) from None
    try:
        if announcement:
            settings.setdefault("html", {})["announcement"] = announcement
        (work / "_config.yml").write_text(yaml.safe_dump(settings), encoding="utf8")
        command = [sys.executable, "-c", "from jupyter_book.cli.main import main; main()", "build", str(book)]
        command += ["--path-output", str(work), "--config", str(work / "_config.yml")]
        command += ["--warningiserror", "--keep-going", "--quiet"]
        environment = {**os.environ, "PYTHONHASHSEED": "0", "SOURCE_DATE_EPOCH": "0", "PYTHONWARNINGS": "ignore"}
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
        done = subprocess.run(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        built = work / "_build" / "html"
        (built / ".buildinfo").unlink(missing_ok=True)  # a hash of absolute paths
        if done.returncode or "WARNING:" in done.stdout:
            raise BookError("jupyter-book:\n" + _report(done.stdout))
        problems = pages.check(built, names)
        if problems:
            raise BookError("\n".join(problems))
        os.utime(built / "index.html", ns=(started_ns, started_ns))  # an edit made during the build is newer than it
        os.replace(built, out)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _report(output):
    """The lines of jupyter-book's output that tell what is wrong, or its end."""
    plain = re.sub(r"\x1b\[[\d;]*m", "", output)
    telling = [line for line in plain.splitlines() if re.search(r"WARNING|ERROR|error:|Error", line)]
    return "\n".join(telling or plain.splitlines()[-20:])


# ------------------------------------------------------------------------------------------------- command


def announce(profile, used, source_sha256=None):
    """The line on top of every page: which profile, on which device, when, from which commit, and whether the code of
    this copy (`source_sha256`, as for `banner`) has changed since."""
    infos = [info for info, _ in used.values()]
    devices = sorted({_device(info) for info in infos})
    dates = sorted({_date(info) for info in infos})
    commits = sorted({_short(info["commit"]) for info in infos if _noted(info)})
    without = [info["run"] for info in infos if not _noted(info)]
    changed = [info for info in infos if _changed(info, source_sha256)]
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    told = f"Profile {profile}: {len(infos)} runs on {', '.join(devices)}, {when}"
    told += f", commit {' and '.join(commits)}" if commits else ""
    told += f" (no commit noted: {', '.join(without)})" if without else ""
    of = "" if len(changed) == len(infos) else f" {len(changed)} of them"
    return told + (f". The code of this copy has changed since{of}" if changed else "")


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python -m lib.build.publish", description="Write the book from executed notebooks."
    )
    parser.add_argument("--profile", required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    options = parser.parse_args(arguments)
    from lib import provenance

    try:
        shutil.rmtree(HTML, ignore_errors=True)
        used = stage_pages(
            options.profile,
            options.seeds,
            RUNS / options.profile / "notebooks",
            BOOK / "stages",
            provenance.source_sha256,
        )
        line = html.escape(announce(options.profile, used, provenance.source_sha256)) if used else None
        build(BOOK, ROOT / "_config.yml", HTML, line)
    except BookError as error:
        sys.exit(f"The book was not published.\n{error}")
    print(f"\nRuns behind the book (profile {options.profile}):")
    for run, (info, folder) in sorted(used.items()):
        kind = "recorded" if folder.startswith("book/") else "trained in this copy"
        print(
            f"  {run:12} {kind}: {folder}; {_device(info)}, {_date(info)}, commit {_short(info['commit'] or 'unknown')}"
        )
    print(
        f"Content sha256 {pages.content_hash(HTML)[:16]}. Open {HTML / 'index.html'} in a browser, or run `make serve`."
    )


if __name__ == "__main__":
    main()
