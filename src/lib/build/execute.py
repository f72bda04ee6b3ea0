"""Executes one notebook: `python -m lib.build.execute 02_dpo --profile laptop --seed 1 [-p name value] --out FILE`.

With -p, the profile's own runs stay as they are: what the notebook trains goes to runs/<profile>-aside.

Beside FILE.ipynb it leaves two small files for the Makefile: FILE.d, the modules that the notebook imports, and
FILE.used, the sha256 of every record file that it showed. FILE.ipynb is there only after a whole, clean execution.
"""

import argparse
import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

from lib import clock, provenance
from lib.build import params
from lib.paths import NOTEBOOKS, ROOT, RUNS


class NotebookError(RuntimeError):
    """A notebook that did not run to its end. The message names notebook, cell, its first line, and the error."""


def execute(stage, parameters, out, notebooks=NOTEBOOKS, until=None):
    """Run notebooks/<stage>.py with these parameters in its own folder and write `out` (.ipynb); returns the notebook.

    until: heading, as it stands there, of the first cell that is left out with all after it; ValueError without one.
    Raises NotebookError for a cell that raises, sys.exit in a cell, a kernel that dies, or a cell left unexecuted.
    """
    import jupytext
    import nbformat

    source, out = notebooks / f"{stage}.py", Path(out).resolve()
    text = source.read_text(encoding="utf8")
    notebook = jupytext.reads(text, fmt="py:percent")
    if until is not None:
        headings = [cell.source.split("\n")[0] for cell in notebook.cells]
        notebook.cells = notebook.cells[: headings.index(until)]
    out.parent.mkdir(parents=True, exist_ok=True)
    leftovers = [out, out.with_suffix(".used"), *out.parent.glob(f".{out.stem}.*.part")]
    for path in leftovers:  # what an earlier, failed or killed, execution left must never pass for this one's result
        path.unlink(missing_ok=True)
    started_ns = time.time_ns()
    part = out.with_name(f".{out.stem}.{os.getpid()}.part")
    try:
        with tempfile.TemporaryDirectory(prefix="notebook-") as scratch:
            notebook = _run(notebook, parameters, Path(scratch), stage, text, notebooks)
        profile = str(parameters.get("profile", ""))
        notebook.metadata["runs"] = _runs_shown(profile, started_ns)
        nbformat.write(notebook, part)
        out.with_suffix(".d").write_text(_dependencies(out, source), encoding="utf8")
        out.with_suffix(".used").write_text(_used(profile, notebook.metadata["runs"]), encoding="utf8")
        os.utime(part, ns=(started_ns, started_ns))  # an edit made while it ran is newer than the result
        os.replace(part, out)
    finally:
        part.unlink(missing_ok=True)
    return notebook


def _run(notebook, parameters, scratch, stage, text, notebooks):
    import nbformat
    import papermill

    logging.getLogger("papermill").setLevel(logging.ERROR)  # its warnings: `lib.build.params` checks better
    before, after = scratch / "in.ipynb", scratch / "out.ipynb"
    nbformat.write(notebook, before)
    with _kernel_environment(scratch), _progress(scratch / "progress"):
        failure = None
        try:
            papermill.execute_notebook(
                before,
                after,
                parameters,
                kernel_name="python3",
                language="python",
                progress_bar=False,
                cwd=str(notebooks),
            )
        except Exception as error:  # a raising cell, a dead kernel: told apart below, from the notebook itself
            failure = error
        done = nbformat.read(after, as_version=4) if after.exists() else notebook
    # papermill puts its own message cells on top of a failed notebook
    done.cells = [cell for cell in done.cells if "papermill-error-cell-tag" not in cell.metadata.get("tags", [])]
    _raise_if_incomplete(done, stage, text, failure)
    return done


def _raise_if_incomplete(notebook, stage, text, failure):
    number = 0
    for cell in notebook.cells:
        if cell.cell_type != "code" or not cell.source.strip():
            continue
        number += "injected-parameters" not in cell.metadata.get("tags", [])  # that one is not in the source
        errors = [output for output in cell.outputs if output.output_type == "error"]
        if errors:
            error = errors[0]
            what = f"{error.ename}: {error.evalue}"
            trace = re.sub(r"\x1b\[[\d;]*m", "", "\n".join(error.traceback))
            raise NotebookError(f"{_place(stage, number, cell, text)}\n{trace if what in trace else trace + what}")
        # a cell in which the kernel died may have a count, but never its reply
        if cell.execution_count is None or "shell.execute_reply" not in cell.metadata.get("execution", {}):
            what = f"{type(failure).__name__}: {failure}" if failure else "it was never executed"
            raise NotebookError(f"{_place(stage, number, cell, text)}\n{what}")
    if failure:
        raise NotebookError(f"notebooks/{stage}.py failed outside its cells\n{type(failure).__name__}: {failure}")


def _place(stage, number, cell, text):
    """Where a cell stands, for an error message: the notebook, the line of its source, and the cell's first line."""
    lines = cell.source.strip().splitlines()
    position = text.find(cell.source.strip())
    line = f":{text.count(chr(10), 0, position) + 1}" if position >= 0 else " (the injected parameters)"
    return f"notebooks/{stage}.py{line} failed in code cell {number}: {lines[0]}"


@contextlib.contextmanager
def _kernel_environment(scratch):
    """What the kernel inherits: this interpreter, this copy's src, and none of the user's Jupyter set-up."""
    spec = scratch / "jupyter" / "kernels" / "python3"
    spec.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "--log-level=50", "-f", "{connection_file}"]
    (spec / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "Python 3", "language": "python"}))
    src = str(ROOT / "src")
    changes = {
        "JUPYTER_PATH": str(scratch / "jupyter"),
        "IPYTHONDIR": str(scratch / "ipython"),
        "PYTHONPATH": os.pathsep.join([src, *filter(None, [os.environ.get("PYTHONPATH")])]),
        "PROGRESS_FILE": str(scratch / "progress"),
        "TQDM_DISABLE": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TRANSFORMERS_VERBOSITY": os.environ.get("TRANSFORMERS_VERBOSITY", "warning"),
    }
    old = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in old.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


@contextlib.contextmanager
def _progress(path):
    """Show what the kernel appends to the file, in the terminal, while it runs; it never becomes cell output."""
    path.touch()
    over = threading.Event()

    def follow():
        with path.open(encoding="utf8", errors="replace") as file:
            while True:
                last = over.is_set()
                for line in file:
                    sys.stderr.write(line)
                sys.stderr.flush()
                if last:
                    return
                over.wait(0.3)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _runs_shown(profile, started_ns):
    """Records that the notebook used, {run: folder}: those that it pinned or, if it pinned none, all pinned ones."""
    pins = sorted((RUNS / profile / "pins").glob("*.json")) if profile else []
    # a file's time comes from a clock that ticks every few milliseconds
    own = [pin for pin in pins if pin.stat().st_mtime_ns >= started_ns - 20_000_000]
    folders = {pin.stem: clock.read_json(pin, "folder")["folder"] for pin in own or pins}
    return {name: folder for name, folder in folders.items() if (ROOT / folder).exists()}  # a variant may be removed


def _used(profile, runs):
    """Lines for `sha256sum --check`, run from ROOT: the pins and record files behind a notebook, weights excepted."""
    files = [RUNS / profile / "pins" / f"{name}.json" for name in runs]
    files += [path for folder in runs.values() for path in sorted((ROOT / folder).iterdir()) if path.is_file()]
    return "".join(f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {_relative(p)}\n" for p in files)


def _dependencies(out, source):
    """A Makefile rule: the executed notebook depends on every module of src/lib that it imports, directly or not."""
    modules = [_relative(path) for path in provenance.modules(source)]
    missing_ok = "".join(f"{module}:\n" for module in modules)  # a module removed later is no error
    return f"{_relative(out)}: {' '.join(modules)}\n{missing_ok}"


def aside(stage, profile):
    """Name of the scratch profile for runs under other parameters, <profile>-aside, with a copy of the profile's pins.

    So a stage finds what it starts from (setup, shared start) where the profile has it, and trains in a folder apart.
    Raises params.ParameterError when the profile has nothing to start from.
    """
    name = f"{profile}-aside"
    source, target = RUNS / profile / "pins", RUNS / name / "pins"
    if stage != params.stages()[0] and not any(source.glob("*.json")):
        raise params.ParameterError(
            f"profile {profile} has no finished runs to start from in this copy: make 01_sft PROFILE={profile} first"
        )
    shutil.rmtree(target, ignore_errors=True)
    if source.exists():
        shutil.copytree(source, target)
    return name


def _relative(path):
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m lib.build.execute", description="Execute one notebook.")
    parser.add_argument("stage", help="name of a notebook, such as 02_dpo")
    parser.add_argument("--profile", required=True, help="name of a file in notebooks/profiles")
    parser.add_argument("--seed", type=int, help="random seed, for the notebooks that have one")
    parser.add_argument(
        "--seeds", type=int, nargs="+", help="all seeds of the study, for the notebook that compares them"
    )
    parser.add_argument(
        "-p",
        nargs=2,
        action="append",
        default=[],
        metavar=("NAME", "VALUE"),
        help="set a parameter; its runs go to runs/PROFILE-aside",
    )
    parser.add_argument("--out", required=True, type=Path, help="where to write the executed notebook")
    options = parser.parse_args(arguments)
    if options.p and options.out.resolve().is_relative_to(RUNS / options.profile):
        parser.error(f"--out {options.out}: with -p, write outside runs/{options.profile}, which the book reads")
    label = options.stage if options.seed is None else f"{options.stage}, seed {options.seed}"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the kernel is ended too
    started = time.monotonic()
    try:
        parameters = params.effective(options.stage, options.profile, options.seed, options.p, options.seeds)
        if options.p and "profile" in parameters:
            parameters["profile"] = aside(options.stage, options.profile)
        print(f"{label}: executing (profile {parameters.get('profile', options.profile)})", file=sys.stderr)
        execute(options.stage, parameters, options.out)
    except params.ParameterError as error:
        options.out.unlink(missing_ok=True)
        sys.exit(f"Wrong parameters; nothing was run.\n{error}")
    except NotebookError as error:
        sys.exit(f"{error}\nNo output was written: {_relative(options.out.resolve())}")
    except KeyboardInterrupt:
        sys.exit(f"{label}: interrupted; `make` goes on from the last checkpoint")
    print(f"{label}: done in {time.monotonic() - started:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
