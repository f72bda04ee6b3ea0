"""GRPO with TRL's gradient for less: the trainer and what it is made of."""
