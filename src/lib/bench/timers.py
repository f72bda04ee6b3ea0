"""What the timers cost: continued SFT of a profile with and without them, in turn, in one process.

    python -m lib.bench.timers PROFILE SEED [STEPS]

Writes a row a step to book/results/bench/timer.csv: `profile`, `device`, `commit`, `timers` (on or off), `turn`,
`step`, `wall_s` (from step to step, the device waited for at both ends). The first steps of a turn are left out.
"""

import sys
import tempfile
import time
from pathlib import Path

import pandas as pd

from lib import clock, data, decode, provenance, records, runs
from lib.paths import RESULTS, ROOT

TURNS = ("on", "off", "off", "on", "on", "off")  # in turn, so that a drift of the machine hits both
WARM_UP = 3


def turn(setup, start, config: dict, rows: list, steps: int, timers: bool, folder: Path) -> list[float]:
    """Seconds of each optimizer step of one short run behind its warm-up."""
    import torch
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import SFTConfig, SFTTrainer

    given, on_gpu = setup.info["parameters"], torch.cuda.is_available()
    run = runs.Run("01_sft", "timer", folder.name, "sft", 0, {}, "", {}, folder)
    folder.mkdir()
    run.start_clock()
    config = config | {"max_steps": steps + WARM_UP, "save_steps": 100_000, **run.machine(given["dtype"])}
    trainer = SFTTrainer(
        model=decode.load_policy(ROOT / given["base"], start.weights, given["dtype"], trainable=True),
        args=SFTConfig(**config),
        train_dataset=Dataset.from_list(rows),
        processing_class=decode.load_tokenizer(ROOT / given["base"]),
    )
    if timers:
        run.watch(trainer, {"compute_loss": "forward_grad"})
    moments = []

    class Moments(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if on_gpu:
                torch.cuda.synchronize()
            moments.append(time.perf_counter())

    trainer.add_callback(Moments())
    trainer.train()
    return [later - earlier for earlier, later in zip(moments[WARM_UP:], moments[WARM_UP + 1 :], strict=False)]


def main(profile: str, seed: int, steps: int) -> None:
    setup, start, sft = (records.load(RESULTS / profile / run) for run in ("setup", f"start-s{seed}", f"sft-s{seed}"))
    instruction = setup.info["parameters"]["instruction"]
    rows = [
        {
            "prompt": data.messages(d, instruction),
            "completion": [{"role": "assistant", "content": data.answer(d)}],
            "chat_template_kwargs": data.CHAT,
        }
        for d in records.splits(setup)["pool"]
    ]
    found = []
    with tempfile.TemporaryDirectory() as scratch:
        for number, timers in enumerate(TURNS):
            seconds = turn(setup, start, sft.info["trainer"], rows, steps, timers == "on", Path(scratch) / str(number))
            found += [{"timers": timers, "turn": number, "step": k, "wall_s": s} for k, s in enumerate(seconds, 1)]
            print(f"timers {timers}: {1e3 * pd.Series(seconds).median():.1f} ms a step", flush=True)
    table = pd.DataFrame(found)
    table.insert(0, "commit", provenance.commit())
    table.insert(0, "device", provenance.device()["name"])
    table.insert(0, "profile", profile)
    target = RESULTS / "bench" / "timer.csv"
    target.parent.mkdir(parents=True, exist_ok=True)
    kept = records.read_table(target) if target.exists() else table.head(0)
    kept = kept[(kept["profile"] != profile) | (kept["device"] != provenance.device()["name"])]
    temporary = target.with_name(target.name + ".part")
    pd.concat([kept, table], ignore_index=True).to_csv(temporary, index=False)
    temporary.replace(target)
    print(clock.now_utc(), records.shown(target))


if __name__ == "__main__":
    match sys.argv[1:]:
        case [profile, seed] if seed.isdigit():
            main(profile, int(seed), 20)
        case [profile, seed, steps] if seed.isdigit() and steps.isdigit() and int(steps) > 0:
            main(profile, int(seed), int(steps))
        case _:
            sys.exit(
                f"got {' '.join(sys.argv[1:])!r}, expected PROFILE SEED [STEPS], with whole numbers for SEED and STEPS"
            )
