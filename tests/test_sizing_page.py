"""The interactive page computes what Python computes, in a browser without a network, and its controls are native."""

import json
import random
import shutil
import subprocess

import pytest

from lib import sizing
from lib.paths import BOOK
from lib.report import page, steptime
from lib.report.expressions import Expression

MODELS = {name: sizing.models()[name] for name in ("Qwen3-1.7B", "Qwen2.5-7B")}
RATES = {"arithmetic": 3.0, "layer": 2e-3, "decode": 1.5e-4, "sync": 1e-3, "fixed": 0.2}
CONSTANTS = {"activation": 1.1, "overhead": 0.2, "reserved": 1.05, "context": 0.7}
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def browse(tmp_path, rates, script):
    """What the page's `answer` holds after a script ran on it, without a network."""
    shutil.copytree(BOOK / "_static" / "vega", tmp_path / "vega")
    body = page.render(MODELS, CONSTANTS, rates, static="vega")
    tail = f'<pre id="answer"></pre><script>sizingView.runAsync().then(() => {{ {script} }});</script>'
    (tmp_path / "page.html").write_text(f"<!doctype html><meta charset='utf-8'><body>{body}{tail}</body>")
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000", "--dump-dom"]
    command += ["--proxy-server=127.0.0.1:9", f"--user-data-dir={tmp_path / 'profile'}", f"file://{tmp_path}/page.html"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return done.stdout.split('<pre id="answer">')[1].split("</pre>")[0], done.stdout


def grid(n=60):
    """Inputs: each at its ends, and drawn between them."""
    draw = random.Random(0)
    choices = {name: len(words) for name, (_, words) in page.inputs(list(MODELS)).items()}
    for k in range(n):
        values = {name: draw.randrange(size) for name, size in choices.items()}
        for name, (_, low, high, step, _) in page.RANGES.items():
            at = {0: 0.0, 1: 1.0}.get(k, draw.random())
            values[name] = low + round(at * (high - low) / step) * step
        yield values


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium to open the page with")
def test_the_page_computes_what_python_computes(tmp_path):
    inputs = list(grid())
    script = f"""const found = [];
      for (const values of {json.dumps(inputs)}) {{
        for (const [name, value] of Object.entries(values)) sizingView.signal(name, value);
        sizingView.run();
        const row = {{}};
        for (const name of {json.dumps(list(page.outputs(list(MODELS.values()), CONSTANTS, RATES)))})
          row[name] = sizingView.signal(name);
        found.push(row);
      }}
      document.getElementById("answer").textContent = JSON.stringify(found);"""
    answer, _ = browse(tmp_path, RATES, script)
    for x, row in zip(inputs, json.loads(answer), strict=True):
        shape, update = list(MODELS.values())[x["x_model"]], page.UPDATES[x["x_update"]]
        how = page.CHECKPOINTING[x["x_checkpointing"]], page.ENGINE[x["x_engine"]]
        memory = page.memory(shape, update, *how, x, CONSTANTS)
        said = {k: row[f"m_{k if k == 'used' else page.MEMORY.index(k)}"] for k in memory}
        assert said == pytest.approx(memory, rel=1e-3, abs=1e-6)
        for number, lean in enumerate(page.WAYS.values()):
            time = page.time(shape, update, lean, x, RATES)
            said = {k: row[f"t{number}_{page.TIME.index(k) if k in page.TIME else k}"] for k in time}
            assert said == pytest.approx(time, rel=1e-3, abs=1e-9)


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium to open the page with")
def test_numbers_are_text_and_controls_answer_to_keys(tmp_path):
    script = """const slider = document.querySelector("#sizing-controls input[type=range]");
      slider.value = 1000; slider.dispatchEvent(new Event("input"));
      sizingView.runAsync().then(() => { document.getElementById("answer").textContent = JSON.stringify({
        prompt: sizingView.signal("x_prompt"), memory: document.getElementById("w_memory").textContent,
        controls: document.querySelectorAll("#sizing-controls input, #sizing-controls select").length,
        labelled: document.querySelectorAll("#sizing-controls label").length,
        reachable: [...document.querySelectorAll("#sizing-controls input")].every(e => e.tabIndex >= 0),
        bars: document.querySelectorAll("#sizing-charts svg .mark-rect path").length}); });"""
    answer, _ = browse(tmp_path, None, script)
    found = json.loads(answer)
    x = {name: first for name, (*_, first) in page.RANGES.items()} | {"x_prompt": 1000}
    used = page.memory(MODELS["Qwen3-1.7B"], "lora", True, "colocated", x, CONSTANTS)["used"]
    assert found["prompt"] == 1000 and found["memory"] == f"{used:,.1f} of 80 GiB: fits"
    assert found["controls"] == len(page.RANGES) + len(page.inputs([])) == found["labelled"] and found["reachable"]
    assert found["bars"] == len(page.MEMORY)


def test_the_page_s_formulas_are_those_of_the_chapter():
    x = {name: first for name, (*_, first) in page.RANGES.items()}
    shape = MODELS["Qwen3-1.7B"]
    trained = sizing.training(
        shape, "grpo", "lora", *sizing.batch("grpo", 16, 327, 44), states="16", constants=CONSTANTS
    )
    kv = sizing.kv_cache(shape, 16, 8, 327, 44)
    used = sizing.in_use(trained, shape, "colocated", kv=kv, constants=CONSTANTS) / sizing.GIB
    assert page.memory(shape, "lora", True, "colocated", x, CONSTANTS)["used"] == pytest.approx(used)
    step = steptime.step(shape, RATES, 327, 44, dead=0, lean=True)
    assert page.time(shape, "lora", True, x, RATES)["step"] == pytest.approx(step["step"])


def test_a_formula_that_branches_cannot_be_written_down():
    a = Expression("a")
    assert str((a + 1) * 2 - a / 3) == "(((a + 1.0) * 2.0) - (a / 3.0))"
    with pytest.raises(TypeError, match="branches on"):
        max(a, 1)
