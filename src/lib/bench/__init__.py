"""Measurements aside from the study: python -m lib.bench.grpo_step, python -m lib.bench.timers."""
