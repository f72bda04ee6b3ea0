"""Parameters are checked before anything runs; an execution is whole or it is a failure."""

import json
import os
import signal
import subprocess
import sys
import time
import types

import pytest

from lib import provenance
from lib.build import execute, params
from lib.paths import ROOT

DECLARED = """profile: str = "p"  # name
seed: int = 0  # seed
rate: float = 0.1  # per second
limit: int | None = None  # steps"""


@pytest.fixture
def folders(tmp_path, write_notebook):
    write_notebook("01_one", DECLARED)
    write_notebook("02_two", 'profile: str = "p"\nbudget_hours: float = 1.0  # hours\nquick: bool = False  # yes or no')
    profiles = tmp_path / "profiles"
    profiles.mkdir()
    return {"notebooks": tmp_path / "notebooks", "profiles": profiles}


def profile(folders, text):
    (folders["profiles"] / "p.yaml").write_text(text)


# ------------------------------------------------------------------------------------------------- parameters


def test_declared(folders):
    assert params.declared("01_one", folders["notebooks"]) == {
        "profile": ("str", "p"), "seed": ("int", 0), "rate": ("float", 0.1), "limit": ("int | None", None),
    }  # fmt: skip


@pytest.mark.parametrize(
    "name, text, expected",
    [("rate", "0", "above 0"), ("rate", "nan", "above 0"), ("rate", "inf", "above 0"), ("seed", "-1", "of 0 or more")],
)
def test_a_number_out_of_range_is_named(folders, name, text, expected):
    profile(folders, "")
    with pytest.raises(params.ParameterError, match=f"-p {name}: got .*, expected a number {expected}"):
        params.effective("01_one", "p", overrides=[(name, text)], **folders)
    profile(folders, f"{name}: {'-' if name == 'seed' else ''}{0 if name == 'rate' else 1}")
    with pytest.raises(params.ParameterError, match=rf"p.yaml: {name} \(of notebooks/01_one.py\): got .*{expected}"):
        params.effective("01_one", "p", **folders)


def test_a_notebook_gets_the_keys_it_declares(folders):
    profile(folders, "seeds: [0, 1]\nrate: 2\nbudget_hours: 0.5\nlimit: 3\n")
    assert params.effective("01_one", "p", seed=1, **folders) == {"profile": "p", "seed": 1, "rate": 2, "limit": 3}
    assert params.effective("02_two", "p", seed=1, **folders) == {"profile": "p", "budget_hours": 0.5}


def test_overrides_are_read_as_the_declared_type(folders):
    profile(folders, "seeds: [0]\n")
    overrides = [("rate", "2e-5"), ("limit", "none")]
    assert params.effective("01_one", "p", None, overrides, **folders) == {"profile": "p", "rate": 2e-5, "limit": None}
    assert params.effective("02_two", "p", None, [("quick", "true")], **folders)["quick"] is True


def error(folders, stage="02_two", overrides=()):
    with pytest.raises(params.ParameterError) as caught:
        params.effective(stage, "p", None, overrides, **folders)
    return str(caught.value)


def test_mistyped_parameter_names_the_nearest_and_lists_all(folders):
    profile(folders, "seeds: [0]\n")
    message = error(folders, overrides=[("budget_hourz", "5")])
    assert "budget_hourz" in message and "did you mean budget_hours?" in message
    assert "02_two: profile, budget_hours, quick" in message and "01_one: profile, seed, rate, limit" in message


def test_unknown_profile_key_of_any_notebook(folders):
    profile(folders, "seeds: [0]\nratee: 0.1\n")
    message = error(folders)  # though 02_two has no such parameter itself
    assert "p.yaml: no notebook has a parameter ratee; did you mean rate?" in message


@pytest.mark.parametrize(
    "text, expected",
    [
        ("rate: fast", "rate (of notebooks/01_one.py): got 'fast' (str), expected float"),
        ("rate: 2e-5", "write 2.0e-5"),
        ("seed: 1.0", "got 1.0 (float), expected int"),
        ("seed: true", "got True (bool), expected int"),
        ("limit: many", "expected int | None"),
        ("seeds: 3", "expected a list of different whole numbers"),
        ("seeds: [0, 0]", "expected a list of different whole numbers"),
        ("rate: 1\nrate: 2", "p.yaml: cannot be read: rate comes twice"),
        ("rate:\n  a: 1", "p.yaml: rate has keys of its own"),
        ("- rate", "expected lines `name: value`"),
        ("rate: [", "p.yaml"),
        ("seeds: [-1]", "expected a list of different whole numbers"),
        ("1: rate", "p.yaml: got the key 1, expected the name of a parameter"),
        ("rate: " + "[" * 5000, "p.yaml: cannot be read: maximum recursion depth exceeded"),
    ],
)
def test_wrong_profiles(folders, text, expected):
    profile(folders, text + "\n")
    assert expected in error(folders)


def test_a_profile_in_another_encoding(folders):
    (folders["profiles"] / "p.yaml").write_bytes("rate: 1  # \u00e9\n".encode("latin1"))
    assert "p.yaml: cannot be read: 'utf-8' codec can't decode byte 0xe9" in error(folders)


@pytest.mark.parametrize("text", ["noise: 1.01", "goals: [0.5, 2]", "goals: [half]", "noise: .nan"])
def test_a_share_is_at_most_one(folders, write_notebook, text):
    write_notebook("03_three", "noise: float = 0.0  # labels changed (share)\ngoals: list = []  # (share of documents)")
    profile(folders, text)
    assert "from 0 to 1" in error(folders)
    profile(folders, "noise: 1\ngoals: [0, 0.5, 1]\nrate: 2")  # a rate is no share
    assert params.effective("03_three", "p", **folders) == {"noise": 1, "goals": [0, 0.5, 1]}
    with pytest.raises(params.ParameterError, match="-p noise: got 1.5, expected a share, from 0 to 1"):
        params.effective("03_three", "p", overrides=[("noise", "1.5")], **folders)


CHECKS = """if hard and not labels:
    raise ValueError(f"got hard {hard} and labels {labels}, expected labels True, or hard 0")
if rate > given["rate"]:
    raise ValueError(f"rate: got {rate}, expected at most the first notebook's, {given['rate']}")"""


@pytest.mark.parametrize("text, overrides", [("hard: 4\nlabels: false", []), ("hard: 4", [("labels", "false")])])
def test_what_a_checks_cell_refuses_is_refused_before_the_first_stage(folders, write_notebook, text, overrides):
    declared = "labels: bool = True  # yes or no\nhard: int = 0  # samples\nrate: float = 0.1  # per second"
    path = write_notebook("03_three", declared, CHECKS)
    path.write_text(path.read_text().replace(f"# %%\n{CHECKS}", f'# %% tags=["checks"]\n{CHECKS}'))
    profile(folders, text)
    message = error(folders, "03_three" if overrides else "01_one", overrides)  # a profile's, before the first stage
    assert "p.yaml" in message and ("-p" in message) == bool(overrides)
    assert "got hard 4 and labels False, expected labels True, or hard 0 (of notebooks/03_three.py)" in message
    with pytest.raises(params.ParameterError, match="-p: rate: got 0.2, expected at most the first notebook's, 0.1"):
        params.effective("03_three", "p", overrides=[("labels", "true"), ("rate", "0.2")], **folders)
    profile(folders, "hard: 4" if not overrides else "labels: false")
    assert params.effective("03_three", "p", **folders)  # either one alone


def test_seeds_asked_for(folders):
    profile(folders, "")
    for asked in ({"seeds": [0, 0]}, {"seed": -1}, {"seed": 2**32}):
        with pytest.raises(params.ParameterError, match="seeds?: got .*, expected a list of different whole numbers"):
            params.effective("01_one", "p", **asked, **folders)


def test_all_problems_in_one_error(folders):
    profile(folders, "ratee: 1\nseed: x\n")
    message = error(folders, overrides=[("quick", "maybe")])
    assert all(part in message for part in ("ratee", "seed", "'maybe'"))


def test_unknown_profile_and_notebook(folders):
    profile(folders, "")
    with pytest.raises(params.ParameterError, match="did you mean p"):
        params.effective("01_one", "pp", **folders)
    with pytest.raises(params.ParameterError, match="did you mean 02_two"):
        params.effective("02_tow", "p", **folders)


@pytest.mark.parametrize(
    "cell, expected",
    [
        ("seed = 0", "expected `name: type = literal`"),
        ("seed: int = int(0)", "expected `name: type = literal`"),
        ("seed: int = 'x'", "default of seed"),
        ("seed: number = 0", "type number of seed"),
        ("seed: int = 0\nseed: int = 1", "declared twice"),
    ],
)
def test_wrong_parameter_cells(folders, write_notebook, cell, expected):
    path = write_notebook("03_three", cell)
    line = len(path.read_text().split(cell)[0].splitlines()) + cell.count("\n") + 1
    with pytest.raises(params.ParameterError, match="03_three.py:") as caught:
        params.declared("03_three", folders["notebooks"])
    assert expected in str(caught.value) and f":{line}:" in str(caught.value)


@pytest.mark.parametrize("name", [p.stem for p in (ROOT / "notebooks" / "profiles").glob("*.yaml")])
def test_profiles_of_the_project_fit_its_notebooks(name):
    for stage in params.stages():
        assert params.effective(stage, name)["profile"] == name


def test_command_runs_nothing_on_a_wrong_parameter(tmp_path):
    out = tmp_path / "out.ipynb"
    out.write_text("stale")
    command = ["-m", "lib.build.execute", "04_compare", "--profile", "smoke", "-p", "alpa", "0.1", "--out", str(out)]
    done = subprocess.run([sys.executable, *command], env=environment(), capture_output=True, text=True)
    assert done.returncode != 0 and "did you mean alpha?" in done.stderr and "nothing was run" in done.stderr
    assert not out.exists()


def test_seeds_of_the_study(folders, write_notebook):
    write_notebook("03_all", 'profile: str = "p"\nseeds: list = [0]')
    profile(folders, "seeds: [0, 1]\n")
    assert params.effective("03_all", "p", **folders)["seeds"] == [0, 1]
    assert params.effective("03_all", "p", seeds=[2], **folders)["seeds"] == [2]
    assert "seeds" not in params.effective("02_two", "p", seeds=[2], **folders)


# ------------------------------------------------------------------------------------------------- other parameters


@pytest.fixture
def finished(tmp_path, monkeypatch):
    """Folder `runs`, in which profile `smoke` has two pinned runs, and what the executor was called with."""
    runs, calls = tmp_path / "runs", []
    monkeypatch.setattr(execute, "RUNS", runs)
    monkeypatch.setattr(execute, "execute", lambda stage, parameters, out: calls.append((stage, parameters)))
    (runs / "smoke" / "pins").mkdir(parents=True)
    for name in ("setup", "start-s0"):
        (runs / "smoke" / "pins" / f"{name}.json").write_text(name)
    return runs, calls


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_other_parameters_leave_the_profile_alone(finished, tmp_path):
    runs, calls = finished
    before = contents(runs / "smoke")
    stale = runs / "smoke-aside" / "pins" / "start-s0.json"
    stale.parent.mkdir(parents=True)
    stale.write_text("of an earlier execution")
    command = ["02_dpo", "--profile", "smoke", "--seed", "0", "--out", str(tmp_path / "out.ipynb")]
    execute.main([*command, "-p", "dpo_beta", "0.3"])
    (stage, parameters), name = calls[0], "smoke-aside"
    assert (stage, parameters["profile"], parameters["dpo_beta"]) == ("02_dpo", name, 0.3)
    assert contents(runs / name / "pins") == contents(runs / "smoke" / "pins")
    assert contents(runs / "smoke") == before
    execute.main(command)
    assert calls[1][1]["profile"] == "smoke"


def test_other_parameters_need_finished_runs_and_another_place(finished, tmp_path, capsys):
    runs, calls = finished
    command = ["02_dpo", "--profile", "smoke", "-p", "dpo_beta", "0.3", "--out"]
    kept = runs / "smoke" / "notebooks" / "02_dpo-s0.ipynb"
    kept.parent.mkdir()
    kept.write_text("the book's")
    with pytest.raises(SystemExit):
        execute.main([*command, str(kept)])
    assert "write outside runs/smoke" in capsys.readouterr().err and kept.exists()
    for pin in (runs / "smoke" / "pins").iterdir():
        pin.unlink()
    with pytest.raises(SystemExit, match="make 01_sft PROFILE=smoke first"):
        execute.main([*command, str(tmp_path / "out.ipynb")])
    assert calls == []


# ------------------------------------------------------------------------------------------------- execution


def environment():
    return {**os.environ, "PYTHONPATH": str(ROOT / "src")}


def test_whole_execution(tmp_path, write_notebook, capfd):
    progress = (
        'import os, lib\nopen(os.environ["PROGRESS_FILE"], "a").write("step 1 of 2\\n")\nprint(seed, rate, os.getcwd())'
    )
    path = write_notebook("01_one", DECLARED, progress, "print(lib.__file__)")
    notebook = execute.execute("01_one", {"seed": 7, "limit": 3}, tmp_path / "out.ipynb", path.parent)
    outputs = json.dumps([cell.get("outputs") for cell in notebook.cells])
    assert f"7 0.1 {path.parent}" in outputs and str(ROOT / "src" / "lib") in outputs
    assert "step 1 of 2" in capfd.readouterr().err and "step 1 of 2" not in outputs
    assert (tmp_path / "out.ipynb").exists() and list(tmp_path.glob(".*part")) == []


def test_an_execution_may_end_before_a_heading(tmp_path, write_notebook):
    cells = '\n# %%\nprint("first")\n\n# %% [markdown]\n# ## Second part\n# text\n\n# %%\nraise ValueError("run")\n'
    write_notebook("01_one", DECLARED + "\n" + cells)
    notebook = execute.execute("01_one", {}, tmp_path / "one.ipynb", tmp_path / "notebooks", until="## Second part")
    assert notebook.cells[-1].source == 'print("first")' and notebook.cells[-1].outputs[0].text == "first\n"
    with pytest.raises(ValueError, match="## Third part"):
        execute.execute("01_one", {}, tmp_path / "one.ipynb", tmp_path / "notebooks", until="## Third part")


def test_modules_that_a_notebook_depends_on(tmp_path, write_notebook):
    path = write_notebook("01_one", DECLARED, "from lib.build import params\nfrom lib.nothing import x")
    rule, *empty = execute._dependencies(tmp_path / "out.ipynb", path).splitlines()
    modules = ["src/lib/build/params.py", "src/lib/paths.py", "src/lib/written.py"]  # the last two: imported by params
    assert rule == f"{tmp_path / 'out.ipynb'}: {' '.join(modules)}"
    assert empty == [f"{module}:" for module in modules]


@pytest.fixture
def library(tmp_path, write_notebook, monkeypatch):
    """A library of four modules, and a stage that imports them: data through runs, a helper through report/plots."""
    modules = {"data": "", "runs": "def f():\n    from lib import data", "paint": "", "unused": ""}
    for name, text in {**modules, "report/plots": "import lib.paint"}.items():
        (tmp_path / f"{name}.py").parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.py").write_text(text)
    write_notebook("01_one", DECLARED, "from lib import runs\nfrom lib.report import plots")
    monkeypatch.setattr(provenance, "LIBRARY", tmp_path)
    monkeypatch.setattr(provenance, "NOTEBOOKS", tmp_path / "notebooks")
    provenance.source_sha256.cache_clear()
    yield tmp_path
    provenance.source_sha256.cache_clear()


@pytest.mark.parametrize(
    "edited, changes",
    [
        ("notebooks/01_one.py", True),
        ("runs.py", True),
        ("data.py", True),
        ("report/plots.py", False),  # draws only
        ("paint.py", False),  # imported by plots alone
        ("unused.py", False),
    ],
)
def test_source_of_a_stage(library, edited, changes):
    names = [path.name for path in provenance.modules(library / "notebooks" / "01_one.py")]
    assert names == ["data.py", "paint.py", "plots.py", "runs.py"]
    stage, whole = provenance.source_sha256("01_one"), provenance.source_sha256()
    (library / edited).write_text((library / edited).read_text() + "\n# edited\n")
    provenance.source_sha256.cache_clear()
    assert (provenance.source_sha256("01_one") != stage) is changes
    assert provenance.source_sha256() != whole
    with pytest.raises(FileNotFoundError):
        provenance.source_sha256("02_two")


def test_device_counts_the_visible_ones_and_names_the_first(monkeypatch):
    cuda = types.SimpleNamespace(
        is_available=lambda: True,
        device_count=lambda: 2,
        get_device_name=lambda number: f"GPU {number}",
        get_device_properties=lambda number: types.SimpleNamespace(uuid=f"0000-{number}"),
    )
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(provenance, "_driver", lambda: "1.2")
    expected = {"kind": "cuda", "name": "GPU 0", "count": 2, "uuid": "GPU-0000-0", "driver": "1.2"}
    assert provenance.device.__wrapped__() == expected
    cuda.get_device_properties = lambda number: types.SimpleNamespace()  # an older torch
    assert provenance.device.__wrapped__()["uuid"] is None


FAILURES = {
    "raise": ("# a comment\nvalue = 1\nraise KeyError('gone')", "# a comment", "KeyError: 'gone'"),
    "exit": ("import sys\nsys.exit(0)", "import sys", "SystemExit: 0"),
    "dead": ("import os; os._exit(0)", "import os; os._exit(0)", "DeadKernelError"),
}


@pytest.mark.parametrize("kind", FAILURES)
def test_failures_name_the_cell_and_leave_nothing(tmp_path, write_notebook, kind):
    code, first_line, what = FAILURES[kind]
    path = write_notebook("01_one", DECLARED, "print('fine')", code, "print('never')")
    out = tmp_path / "out.ipynb"
    out.write_text("of an earlier run")
    line = path.read_text().split(code)[0].count("\n") + 1
    with pytest.raises(execute.NotebookError) as caught:
        execute.execute("01_one", {"seed": 1}, out, path.parent)
    assert f"notebooks/01_one.py:{line} failed in code cell 3: {first_line}" in str(caught.value)
    assert what in str(caught.value)
    assert not out.exists() and list(tmp_path.glob(".*part")) == []


def test_tolerated_errors_are_failures_too(tmp_path, write_notebook):
    path = write_notebook("01_one", DECLARED, "1 / 0")
    path.write_text(path.read_text().replace("# %%\n1 / 0", '# %% tags=["raises-exception"]\n1 / 0'))
    with pytest.raises(execute.NotebookError, match="ZeroDivisionError"):
        execute.execute("01_one", {}, tmp_path / "out.ipynb", path.parent)


def test_killed_execution_leaves_no_result_and_no_kernel(tmp_path, write_notebook):
    code = f"import os, time\nopen({str(tmp_path / 'kernel')!r}, 'w').write(str(os.getpid()))\ntime.sleep(60)"
    path = write_notebook("01_one", DECLARED, code)
    out = tmp_path / "out.ipynb"
    script = (
        "import sys; from pathlib import Path; from lib.build import execute; "
        "execute.execute('01_one', {}, Path(sys.argv[1]), Path(sys.argv[2]))"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(out), str(path.parent)], env=environment())
    wait_for(lambda: (tmp_path / "kernel").exists() and (tmp_path / "kernel").read_text())
    kernel = int((tmp_path / "kernel").read_text())
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_for(lambda: not running(kernel))
    assert not out.exists()


def wait_for(condition, limit_s=30):
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.1)


def running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
