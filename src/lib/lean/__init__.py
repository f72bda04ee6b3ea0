"""GRPO, SFT and DPO with TRL's gradient for less: the trainers and what they are made of."""
