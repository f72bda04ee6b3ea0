"""Exercises that check themselves on a page: predict first, then the figure unlocks, and the prediction is scored."""

import html
import json

from lib import sizing
from lib.report import page
from lib.sizing import GB, GIB

CLOSE, NEAR = 0.1, 1.0  # relative errors either way: two points within the first, one within the second


def exercises(models: dict[str, sizing.Shape], constants: dict) -> list[dict]:
    """Three of them: `question`, `unit`, `answer`, `why` (one sentence), and `rows` of the figure: (part, value)."""
    seven, small = models["Qwen2.5-7B"], models["Qwen3-1.7B"]
    total = sizing.parameters(seven)["total"]
    x = {name: first for name, (*_, first) in page.RANGES.items()}
    kept, recomputed = (page.memory(seven, "lora", c, "separate", x, constants) for c in (False, True))
    cache = {
        "with shared prompts": sizing.kv_cache(small, 16, 8, 327, 44) / GIB,
        "each rollout with its own": sizing.kv_cache(small, 16, 8, 327, 44, shared=False) / GIB,
    }
    names = ("weights", "gradients", "master copy", "moments")
    state = [(name, size * total / GB) for name, size in zip(names, sizing.STATES["16"], strict=True)]
    return [
        {
            "question": "How much state does a full update of Qwen2.5-7B keep in ZeRO's mixed precision?",
            "unit": "GB", "answer": sum(value for _, value in state), "rows": state,
            "why": "Sixteen bytes a parameter, and its name rounds the parameters down.",
        },
        {
            "question": "The same model with LoRA, 16 rollouts of 327 + 44 tokens in a micro-batch, nothing "
            "recomputed, the engine elsewhere: how much is in use on the card?",
            "unit": "GiB", "answer": kept["used"],
            "rows": [*kept.items(), ("used, with recomputation", recomputed["used"])],
            "why": "An adapter spares gradients and optimizer, not what the backward pass keeps of every layer.",
        },
        {
            "question": "Qwen3-1.7B writes 16 x 8 rollouts of 44 tokens to prompts of 327: how large are their keys "
            "and values, if the rollouts of a prompt share its part?",
            "unit": "GiB", "answer": cache["with shared prompts"], "rows": list(cache.items()),
            "why": "Two bytes of a key and of a value, for every layer and every key-value head, a token.",
        },
    ]  # fmt: skip


def render(found: list[dict]) -> str:
    """HTML of the exercises: each a form with a number, and a figure that stays hidden until one was given."""
    forms = []
    for number, task in enumerate(found):
        rows = "".join(f"<tr><th scope='row'>{html.escape(k)}</th><td>{v:,.2f}</td></tr>" for k, v in task["rows"])
        forms.append(
            f'<form class="exercise" data-answer="{float(task["answer"])!r}"><p><label for="guess-{number}">'
            f"{number + 1}. {html.escape(task['question'])}</label> "
            f'<input id="guess-{number}" type="number" step="any" min="0" required> {task["unit"]} '
            f'<button type="submit">Check</button></p><div aria-live="polite"><p class="verdict"></p></div>'
            f'<div class="unlocked" hidden><p>{html.escape(task["why"])}</p>'
            f'<table class="table"><caption>{task["unit"]}</caption><tbody>{rows}</tbody></table></div></form>'
        )
    rule = json.dumps({"close": CLOSE, "near": NEAR})
    return f"""{"".join(forms)}<p>Score: <output id="exercise-score">0</output> of {2 * len(found)}</p>
<script>
for (const form of document.querySelectorAll("form.exercise")) {{
  form.addEventListener("submit", event => {{
    event.preventDefault();
    if (form.dataset.points !== undefined) return;  // the first prediction counts
    const rule = {rule}, answer = Number(form.dataset.answer), guess = Number(form.querySelector("input").value);
    const off = guess > 0 ? Math.max(guess / answer, answer / guess) - 1 : Infinity;
    form.dataset.points = off <= rule.close ? 2 : off <= rule.near ? 1 : 0;
    form.querySelector(".verdict").textContent =
      `You said ${{guess}}; it is ${{answer.toFixed(2)}}. Points: ${{form.dataset.points}} of 2.`;
    form.querySelector(".unlocked").hidden = false;
    document.getElementById("exercise-score").textContent =
      [...document.querySelectorAll("form.exercise")].reduce((sum, f) => sum + Number(f.dataset.points || 0), 0);
  }});
}}
</script>"""
