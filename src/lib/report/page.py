"""The interactive page: controls, charts and numbers of one GRPO set-up, for a browser without a network.

Charts and controls are Vega-Lite's (BSD licence, shipped in book/_static/vega). What they compute are the formulas of
lib.sizing and lib.report.steptime, written down by lib.report.expressions; a test compares page and Python.
"""

import html
import json

import numpy as np

from lib import sizing
from lib.report import sizes, steptime
from lib.report.expressions import Expression, choose, text
from lib.sizing import GIB

CARDS_GIB = (24, 48, 80, 141)
UPDATES, CHECKPOINTING, ENGINE = ("lora", "full"), (True, False), ("colocated", "separate")
# name -> (label, lowest, highest, step, at first); an input of choices has their words in place of the numbers
RANGES = {
    "x_prompt": ("Prompt, tokens", 16, 8192, 1, 327),
    "x_completion": ("Completion, mean, tokens", 8, 8192, 1, 44),
    "x_prompts": ("Prompts a step", 1, 128, 1, 16),
    "x_group": ("Rollouts a prompt (G)", 2, 64, 1, 8),
    "x_rows": ("Rollouts in a micro-batch", 1, 128, 1, 16),
    "x_dead": ("Zero-variance groups, share", 0, 0.99, 0.01, 0),
    "x_price": ("Price of a GPU-hour, $", 0.5, 15, 0.01, 4.41),
}
OF_TIME = ("x_dead", "x_price")  # inputs that memory does not depend on
MEMORY = (
    "weights",
    "optimizer",
    "gradients, activations, output layer",
    "engine's weights",
    "rollouts' cache",
    "reserve",
)
# parts of `steptime.PARTS` -> what the chart calls them
TIME = {
    "training": "training",
    "generation": "generation",
    "sync": "weights to the engine",
    "fixed": "rest, the same at any length",
}
WAYS = {"TRL's trainer": False, "all savings": True}
BEYOND = "beyond what was measured"


def inputs(names: list[str]) -> dict[str, tuple]:
    """The inputs of choices: name -> (label, words)."""
    return {
        "x_model": ("Model", names),
        "x_update": ("Update", ["LoRA, rank 16", "full, 16 bytes a parameter"]),
        "x_checkpointing": ("Activations (memory)", ["recomputed", "kept"]),
        "x_engine": ("Engine (memory)", ["on the same card", "on other cards"]),
        "x_card": ("Card", [f"{card} GiB" for card in CARDS_GIB]),
    }


def memory(s: sizing.Shape, update: str, checkpointing: bool, engine: str, x: dict, constants: dict) -> dict:
    """GiB on one card by part (MEMORY) and `used`, their sum: what the driver would report. x: values of RANGES.

    A micro-batch of more rollouts than a step has is the whole step.
    """
    rows = np.minimum(x["x_rows"], x["x_prompts"] * x["x_group"])
    work = sizing.batch("grpo", rows, x["x_prompt"], x["x_completion"])
    how = dict(states="16", checkpointing=checkpointing, constants=constants)
    parts, moving = sizing.moments(s, "grpo", update, *work, **how)
    peak = 0.0
    for moment in moving.values():
        peak = np.maximum(peak, sum(moment))
    kv = sizing.kv_cache(s, x["x_prompts"], x["x_group"], x["x_prompt"], x["x_completion"])
    here = engine == "colocated"
    trained = parts | {"allocated": sum(parts.values()) + peak}
    used = sizing.in_use(trained, s, engine, kv=kv, constants=constants)
    shown = [parts["weights"], parts["optimizer"], peak]
    shown += [2.0 * sizing.parameters(s)["total"] * here, kv * here]
    shown.append(used - sum(shown))
    return {name: value / GIB for name, value in zip((*MEMORY, "used"), (*shown, used), strict=True)}


def time(s: sizing.Shape, update: str, lean: bool, x: dict, rates: dict) -> dict:
    """Seconds of a step by part (TIME) and `step`; `usd` of a thousand steps; `half`, `discriminant`: steptime's."""
    how = dict(
        prompts=x["x_prompts"], group=x["x_group"], rows=x["x_rows"], dead=x["x_dead"], lean=lean, full=update == "full"
    )
    found = steptime.step(s, rates, x["x_prompt"], x["x_completion"], **how)
    discriminant, root = steptime.half(s, rates, x["x_prompt"], **how)
    usd = found["step"] * 1000.0 / 3600.0 * x["x_price"]
    return found | {"usd": usd, "half": root, "discriminant": discriminant}


def outputs(shapes: list[sizing.Shape], constants: dict, rates: dict | None) -> dict[str, str]:
    """Every number of the page as an expression of its inputs: {`m_0` ... `m_used`, `t0_0` ... `t1_usd`: text}."""
    x = {name: Expression(name) for name in RANGES}

    def each(of, *choices):
        """One expression a number, choosing by model, update and what else differs."""
        if not choices:
            return of()
        name, values = choices[0]
        found = [each(lambda *rest, v=v: of(v, *rest), *choices[1:]) for v in values]
        return {key: Expression(choose(name, [one[key] for one in found])) for key in found[0]}

    models, updates = ("x_model", shapes), ("x_update", UPDATES)
    more = ("x_checkpointing", CHECKPOINTING), ("x_engine", ENGINE)
    told = each(lambda s, u, c, e: memory(s, u, c, e, x, constants), models, updates, *more)
    found = {f"m_{k if k == 'used' else MEMORY.index(k)}": text(v) for k, v in told.items()}
    for number, lean in enumerate(WAYS.values() if rates else ()):
        told = each(lambda s, u, lean=lean: time(s, u, lean, x, rates), models, updates)
        found |= {f"t{number}_{list(TIME).index(k) if k in TIME else k}": text(v) for k, v in told.items()}
    return found


def beyond(names: list[str], measured: dict) -> str:
    """Inputs outside `measured`, each with what was measured, as an expression of a text: empty where none is.

    measured: of `steptime.measured`, whose steps all trained an adapter, on the models named there.
    """
    known = [names.index(name) for name in measured["models"] if name in names]
    found = [
        (f"indexof({known}, x_model) < 0", f"model (measured: {' and '.join(measured['models'])})"),
        (f"x_update != {UPDATES.index('lora')}", "update (measured: LoRA)"),
    ]
    for name, (label, *_) in RANGES.items():
        if name[2:] in measured:
            low, high = measured[name[2:]]
            span = f"{label[0].lower()}{label[1:]} (measured: {low}{'' if low == high else f' to {high}'})"
            found.append((f"x_{name[2:]} < {low} || x_{name[2:]} > {high}", span))
    return " + ".join(f"(({outside}) ? {json.dumps(f'; {what}')} : '')" for outside, what in found)


def phrases(measured: dict | None) -> dict[str, tuple[str, str]]:
    """The numbers as text: name -> (label, expression of a text). measured: as for `beyond`, None without rates."""
    card = f"[{', '.join(map(str, CARDS_GIB))}][x_card]"
    verdict = f"m_used <= {sizes.ROOM} * {card} ? ': fits' : ': does not fit'"
    parts = [f"{json.dumps(f'{part} ')} + format(m_{k}, ',.1f')" for k, part in enumerate(MEMORY)]
    found = {
        "w_memory": ("Memory in use on the card", f"format(m_used, ',.1f') + ' of ' + {card} + ' GiB' + ({verdict})"),
        "w_parts": ("Of it (GiB)", " + '; ' + ".join(parts)),
    }
    if measured:
        gpu = f"of the {steptime.MEASURED_ON} that was measured, whatever card is chosen"
        inputs_told = f"left ? '{BEYOND}: ' + slice(left, 2) : 'each input within what was measured'"
        found["w_measured"] = ("Seconds and prices", f"'{gpu}; ' + ({inputs_told})")
        mark = f"(left ? ' ({BEYOND})' : '')"
        low, high = measured["completion"]
        for number, way in enumerate(WAYS):
            t = f"t{number}"
            found[f"w_step{number}"] = (f"A step, {way}", f"format({t}_step, ',.2r') + ' s' + {mark}")
            found[f"w_usd{number}"] = (f"A thousand steps, {way}", f"'$' + format({t}_usd, ',.2r') + {mark}")
            never = f"{t}_discriminant < 0 || {t}_half < 0"
            half = f"'from ' + format({t}_half, ',.2r') + ' tokens a completion on'"
            outside = f"left || {never} || {t}_half < {low} || {t}_half > {high}"
            half = f"({never} ? 'never' : {half}) + ({outside} ? ' ({BEYOND})' : '')"
            found[f"w_half{number}"] = (f"Generation is half of a step, {way}", half)
        steps = f"format(t0_step / t1_step, ',.2r') + ' steps with all savings' + {mark}"
        found["w_multiple"] = ("One step of TRL's trainer costs as much as", steps)
    return found


def spec(names: list[str], found: dict[str, str], measured: dict | None) -> dict:
    """The Vega-Lite specification: inputs, what is computed from them, and the charts."""
    params = []
    for name, (label, words) in inputs(names).items():
        bound = {"input": "select", "options": list(range(len(words))), "labels": words, "name": label}
        params.append({"name": name, "value": 2 if name == "x_card" else 0, "bind": bound})
    for name, (label, low, high, step, first) in RANGES.items():
        if name in OF_TIME and not measured:
            continue
        bound = {"input": "range", "min": low, "max": high, "step": step, "name": label}
        params.append({"name": name, "value": first, "bind": bound})
    params += [{"name": name, "expr": expression} for name, expression in found.items()]
    params += [{"name": "left", "expr": beyond(names, measured)}] if measured else []
    params += [{"name": name, "expr": expression} for name, (_, expression) in phrases(measured).items()]

    def bars(title, rows, value, field, y):
        colour = {"field": "part", "sort": None, "scale": {"scheme": "tableau10"}, "legend": {"title": None}}
        colour["legend"] |= {"orient": "bottom", "columns": 3, "labelLimit": 260}
        encoding = {"x": {"field": "value", "type": "quantitative", "title": title}, "color": colour}
        encoding |= {"order": {"field": "order"}, "tooltip": [{"field": "part"}, {"field": "value", "format": ",.2r"}]}
        encoding["y"] = {"field": field, "type": "nominal", "title": None, "sort": None, "axis": None if not y else {}}
        return {
            "data": {"values": rows}, "transform": [{"calculate": value, "as": "value"}],
            "mark": {"type": "bar", "height": 28}, "encoding": encoding,
        }  # fmt: skip

    of_memory = [{"part": part, "order": k, "where": "card"} for k, part in enumerate(MEMORY)]
    values = ", ".join(f"m_{k}" for k in range(len(MEMORY)))
    card = {"calculate": f"[{', '.join(map(str, CARDS_GIB))}][x_card]", "as": "card"}
    limit = {"data": {"values": [{}]}, "transform": [card], "mark": {"type": "rule", "strokeDash": [4, 3], "size": 2}}
    limit["encoding"] = {"x": {"field": "card", "type": "quantitative"}}
    layers = [bars("GiB on the card (dashed: the card)", of_memory, f"[{values}][datum.order]", "where", False), limit]
    charts = [{"width": 560, "height": 60, "layer": layers}]
    if measured:
        of_time = [
            {"part": part, "order": k, "way": way, "at": at}
            for at, way in enumerate(WAYS)
            for k, part in enumerate(TIME.values())
        ]
        rows = [", ".join(f"t{at}_{k}" for k in range(len(TIME))) for at in range(len(WAYS))]
        value = f"datum.at == 0 ? [{rows[0]}][datum.order] : [{rows[1]}][datum.order]"
        title = f"seconds a step on the {steptime.MEASURED_ON}"
        charts.append({"width": 560, "height": 110, **bars(title, of_time, value, "way", True)})
    return {"params": params, "vconcat": charts, "resolve": {"scale": {"color": "independent"}}}


def render(
    models: dict[str, sizing.Shape],
    constants: dict,
    rates: dict | None,
    measured: dict | None,
    static: str = "_static/vega",
) -> str:
    """The page's HTML: a form, a table of numbers that follows it, and the charts.

    measured: of `steptime.measured`, None where there are no rates. static: where Vega's files lie.
    """
    names = list(models)
    found = outputs(list(models.values()), constants, rates)
    rows = "".join(
        f'<tr><th scope="row">{html.escape(label)}</th><td><output id="{name}"></output></td></tr>'
        for name, (label, _) in phrases(measured).items()
    )
    if rates is None:
        rows += '<tr><th scope="row">Seconds and price of a step</th><td>not given: no rates were fitted</td></tr>'
    drawn = json.dumps(spec(names, found, measured)).replace("</", "<\\/")
    drawings = "Bars of memory" if rates is None else "Bars of memory and of seconds"
    return f"""<form class="sizing" aria-label="Set-up" id="sizing-controls" onsubmit="return false"></form>
<table class="table" aria-live="polite"><tbody>{rows}</tbody></table>
<div id="sizing-charts" role="img" aria-label="{drawings}; the table above has their numbers"></div>
<noscript><p>This page computes in the browser and needs JavaScript; the chapter on sizing has tables.</p></noscript>
<script src="{static}/vega.mjs"></script>
<script src="{static}/vega-lite.mjs"></script>
<script>
const sizingView = new vega.View(vega.parse(vegaLite.compile({drawn}).spec),
  {{renderer: "svg", container: "#sizing-charts", bind: "#sizing-controls"}});
for (const output of document.querySelectorAll("output[id^=w_]")) {{
  sizingView.addSignalListener(output.id, (name, value) => {{ output.textContent = value; }});
}}
sizingView.runAsync().then(() => {{
  for (const output of document.querySelectorAll("output[id^=w_]")) {{
    output.textContent = sizingView.signal(output.id);
  }}
}});
</script>"""
