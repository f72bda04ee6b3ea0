"""GRPO groups without signal, as they happen: their seconds and price in the progress line, and when to stop.

A group whose rollouts all earn one reward has advantage 0 in each of them: it moves nothing. Of a step, the share of
such groups is booked as wasted; a step in which every group is so is dead.
"""

import time

from lib import clock
from lib.records import progress
from lib.report import cost


def constant_share(rewards_B, group_size: int) -> float:
    """Share of groups whose rewards are all equal (largest = smallest); B rollouts, group after group."""
    rewards_P_G = [rewards_B[at : at + group_size] for at in range(0, len(rewards_B), group_size)]
    return sum(min(rewards_G) == max(rewards_G) for rewards_G in rewards_P_G) / len(rewards_P_G)


def watch(trainer, run, stop_after_dead_steps: int = 0, price_per_hour: float = 0.0, trained: bool = True) -> None:
    """Add `wasted_s` and `dead_steps` to each logged step, and the sum of seconds so far to the progress line.

    wasted_s: the share of constant groups of the step's seconds (host clock, from the step's begin to its log), or,
    where such groups are left out of the trainer's passes (trained=False), of the seconds until the rewards are known.
    dead_steps: steps in a row, this one included, in which every group was constant. After `stop_after_dead_steps` of
    them the run is ended, with a checkpoint (0: never). price_per_hour: of a device, in USD; 0 shows no price.
    Call it before `run.watch`: a callback's columns reach the log only of callbacks that come later.
    """
    from transformers import TrainerCallback

    calculate, now = trainer._calculate_rewards, {"share": None, "begun": None, "rewarded": None}
    kind = "cuda" if trainer.accelerator.device.type == "cuda" else "cpu"

    def calculate_and_count(inputs, *args, **kwargs):
        rewards_B_F = calculate(inputs, *args, **kwargs)
        now["share"] = constant_share(rewards_B_F.nansum(-1).tolist(), trainer.num_generations)
        now["rewarded"] = now["rewarded"] or time.perf_counter()  # a trainer may ask for them twice a step
        return rewards_B_F

    trainer._calculate_rewards = calculate_and_count

    class Signal(TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            done = [row for row in clock.read_lines(run.folder / "steps.jsonl") if row["step"] <= state.global_step]
            by_step = {row["step"]: row for row in done}  # a step trained twice keeps its last row
            self.wasted_s = sum(row.get("wasted_s", 0.0) for row in by_step.values())
            self.dead_steps = by_step[state.global_step].get("dead_steps", 0) if state.global_step in by_step else 0

        def on_step_begin(self, args, state, control, **kwargs):
            now["begun"], now["rewarded"] = time.perf_counter(), None

        def on_step_end(self, args, state, control, **kwargs):
            self.dead_steps = self.dead_steps + 1 if now["share"] == 1 else 0
            if stop_after_dead_steps and self.dead_steps >= stop_after_dead_steps:
                progress(f"{run.name}: no signal in {self.dead_steps} steps in a row: ended at {state.global_step}")
                control.should_save = control.should_training_stop = True

        def on_log(self, args, state, control, logs=None, **kwargs):
            if logs and "loss" in logs:
                ended = time.perf_counter() if trained else now["rewarded"]
                logs["wasted_s"], logs["dead_steps"] = (ended - now["begun"]) * now["share"], self.dead_steps
                self.wasted_s += logs["wasted_s"]
                amount = cost.price(self.wasted_s / 3600, kind, price_per_hour) if price_per_hour else None
                price = "" if amount is None else f" ({cost.show_price(amount)})"
                run.remark = f"no signal {now['share']:.0%} of groups, wasted so far {self.wasted_s:.0f} s{price}"

    trainer.add_callback(Signal())


def sentence(steps, stop_after_dead_steps: int) -> str:
    """What a finished run wasted on groups without signal, from its step table, and whether the rule ended it."""
    if "wasted_s" not in steps:
        return "What groups without signal wasted was not measured in this run."
    text = f"Wasted on groups without signal: {steps['wasted_s'].sum():.1f} s"
    last = int(steps["dead_steps"].iloc[-1])
    if stop_after_dead_steps and last >= stop_after_dead_steps:
        text += f"; the run was ended at step {steps['step'].iloc[-1]}, after {last} steps in a row without any signal"
    return text + "."
