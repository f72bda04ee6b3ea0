"""The interactive page computes what Python computes, in a browser without a network, and its controls are native."""

import json
import random
import re
import shutil
import subprocess

import pytest
from test_steptime import RATES

from lib import sizing
from lib.paths import BOOK
from lib.report import page, quiz, steptime
from lib.report.expressions import Expression

MODELS = {name: sizing.models()[name] for name in ("Qwen3-1.7B", "Qwen2.5-7B")}
CONSTANTS = {"activation": 1.1, "overhead": 0.2, "reserved": 1.05, "context": 0.7}
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def opened(folder):
    """What the element `answer` of page.html in a folder holds, opened without a network."""
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000", "--dump-dom"]
    command += ["--proxy-server=127.0.0.1:9", f"--user-data-dir={folder / 'profile'}", f"file://{folder}/page.html"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return re.search(r"<pre id=.answer.>(.*?)</pre>", done.stdout, re.S)[1]


MEASURED = {"models": ["Qwen3-1.7B"], "prompt": (71, 407), "completion": (40, 348), "prompts": (16, 16)}
MEASURED |= {"group": (8, 8), "rows": (16, 32)}


def browse(folder, rates, script):
    """The page's answer to a script."""
    shutil.copytree(BOOK / "_static" / "vega", folder / "vega")
    body = page.render(MODELS, CONSTANTS, rates, rates and MEASURED, static="vega")
    tail = f'<pre id="answer"></pre><script>sizingView.runAsync().then(() => {{ {script} }});</script>'
    (folder / "page.html").write_text(f"<!doctype html><meta charset='utf-8'><body>{body}{tail}</body>")
    return json.loads(opened(folder))


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
    at_first = {name: first for name, (*_, first) in page.RANGES.items()}
    inputs = [*grid(), at_first | dict.fromkeys(page.inputs([]), 0)]
    script = f"""const found = [];
      for (const values of {json.dumps(inputs)}) {{
        for (const [name, value] of Object.entries(values)) sizingView.signal(name, value);
        sizingView.run();
        const row = {{}};
        for (const name of {json.dumps(list(page.outputs(list(MODELS.values()), CONSTANTS, RATES)) + ["w_step0"])})
          row[name] = sizingView.signal(name);
        found.push(row);
      }}
      document.getElementById("answer").textContent = JSON.stringify(found);"""
    for x, row in zip(inputs, browse(tmp_path, RATES, script), strict=True):
        shape, update = list(MODELS.values())[x["x_model"]], page.UPDATES[x["x_update"]]
        how = page.CHECKPOINTING[x["x_checkpointing"]], page.ENGINE[x["x_engine"]]
        memory = page.memory(shape, update, *how, x, CONSTANTS)
        said = {k: row[f"m_{k if k == 'used' else page.MEMORY.index(k)}"] for k in memory}
        assert said == pytest.approx(memory, rel=1e-3, abs=1e-6)
        for number, lean in enumerate(page.WAYS.values()):
            time = page.time(shape, update, lean, x, RATES)
            said = {k: row[f"t{number}_{list(page.TIME).index(k) if k in page.TIME else k}"] for k in time}
            assert said == pytest.approx(time, rel=1e-3, abs=1e-9)
        within = all(ends[0] <= x[f"x_{name}"] <= ends[1] for name, ends in MEASURED.items() if name != "models")
        within = within and (x["x_model"], update) == (0, "lora")
        assert row["w_step0"].endswith(" s" if within else f" ({page.BEYOND})")


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
    found = browse(tmp_path, None, script)
    x = {name: first for name, (*_, first) in page.RANGES.items()} | {"x_prompt": 1000}
    used = page.memory(MODELS["Qwen3-1.7B"], "lora", True, "colocated", x, CONSTANTS)["used"]
    assert found["prompt"] == 1000 and found["memory"] == f"{used:,.1f} of 80 GiB: fits"
    controls = len(page.RANGES) - len(page.OF_TIME) + len(page.inputs([]))  # no rates, so no bill
    assert found["controls"] == controls == found["labelled"] and found["reachable"]
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


def test_a_micro_batch_larger_than_the_step_is_the_step():
    """Both sliders can be at such ends; neither memory nor seconds may count rollouts that are not there."""
    x = {name: first for name, (*_, first) in page.RANGES.items()} | {"x_prompts": 1, "x_group": 2}
    shape = MODELS["Qwen3-1.7B"]
    for of in (
        lambda x: page.memory(shape, "lora", False, "separate", x, CONSTANTS),
        lambda x: page.time(shape, "lora", False, x, RATES),
    ):
        assert of(x | {"x_rows": 128}) == of(x | {"x_rows": 2})


@pytest.mark.parametrize("how, expected", [(dict(gpu="H300"), "gpu: got 'H300'"), (dict(dead=1.5), "dead: got 1.5")])
def test_a_step_of_an_unknown_kind_is_refused(how, expected):
    with pytest.raises(ValueError, match=expected):
        steptime.step(MODELS["Qwen3-1.7B"], RATES, 327, 44, **how)


def test_a_formula_that_branches_cannot_be_written_down():
    a = Expression("a")
    assert str((a + 1) * 2 - a / 3) == "(((a + 1.0) * 2.0) - (a / 3.0))"
    with pytest.raises(TypeError, match="branches on"):
        bool(a > 1)


def test_answers_by_hand():
    state, memory, cache = quiz.exercises(sizing.models(), CONSTANTS)
    assert state["answer"] == pytest.approx(16 * 7.615616512)
    assert cache["answer"] == pytest.approx((16 * 327 + 128 * 44) * 112 / 2**20)  # 112 KiB a token
    assert memory["answer"] == pytest.approx(sum(value for name, value in memory["rows"] if "used" not in name))


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium to open the page with")
def test_a_figure_unlocks_with_the_first_prediction_which_is_scored(tmp_path):
    (tmp_path / "page.html").write_text(
        f"<!doctype html><body>{quiz.render(quiz.exercises(sizing.models(), CONSTANTS))}<pre id='answer'></pre><script>"
        """const forms = [...document.querySelectorAll("form.exercise")], found = [];
        const look = () => found.push([forms.map(f => f.querySelector(".unlocked").hidden),
                                       document.getElementById("exercise-score").textContent]);
        look();
        // of each answer: 9% below it, 1.9 times it (and then it itself, which counts no more), a third of it
        for (const [form, factor] of [[0, 0.92], [1, 1.9], [1, 1], [2, 0.33]]) {
          forms[form].querySelector("input").value = forms[form].dataset.answer * factor;
          forms[form].requestSubmit();
          look();
        }
        document.getElementById("answer").textContent = JSON.stringify(found);</script></body>"""
    )
    hidden, shown = True, False
    assert json.loads(opened(tmp_path)) == [
        [[hidden, hidden, hidden], "0"],
        [[shown, hidden, hidden], "2"],
        [[shown, shown, hidden], "3"],
        [[shown, shown, hidden], "3"],
        [[shown, shown, shown], "3"],
    ]
