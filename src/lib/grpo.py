"""What a GRPO run is watched for: where a step's time goes, and what each rollout was and earned."""

from lib import clock
from lib.data import FIELDS
from lib.rewards import verdicts


def phases(trainer) -> dict:
    """The phase of each timed method of a GRPOTrainer, for `Run.watch`."""
    import torch

    def forward():
        if torch.is_grad_enabled():
            return "forward_grad"
        # One method serves both passes; the pass without gradients only feeds the importance-sampling correction. The
        # lean trainer answers for it without a pass: no row then, which is not the same as 0 seconds.
        return "score" if getattr(trainer, "skips_old_pass", False) else "forward_nograd"

    found = {
        "_generate": "generate_rest",
        "_tokenize_prompts": "tokenise",
        "processing_class.batch_decode": "detokenise",
        "_generate_and_score_completions": "score",  # what is left of it names no work: cost.REMAINDERS
        "_calculate_rewards": "reward",
        "_get_per_token_logps_and_entropies": forward,
        "compute_loss": "forward_grad",
    }
    if trainer.use_vllm:
        return found | {"vllm_generation.generate": "generation", "vllm_generation.sync_weights": "weight_sync"}
    return found | {"_generate_single_turn": "generation"}


def observe(trainer, run) -> None:
    """Write every rollout of every step to `rollouts.jsonl`: document, reward, advantage, parsed fields, verdicts.

    Wraps two methods of this one instance. The data set must have the columns `id` and `gold` (a dict of the fields).
    """
    score, calculate, seen = trainer._generate_and_score_completions, trainer._calculate_rewards, {}

    def calculate_and_keep(inputs, prompts, completions, completion_ids_list):
        seen["rewards_B_F"] = calculate(inputs, prompts, completions, completion_ids_list)
        seen["completions"] = [c[0]["content"] for c in completions]
        return seen["rewards_B_F"]

    def score_and_keep(inputs):
        output = score(inputs)
        with run.clock.phase("log"):
            rewards_B = seen["rewards_B_F"].sum(-1).tolist()
            lengths_B = output["completion_mask"].sum(-1).tolist()
            prompt_lengths_B = output["prompt_mask"].sum(-1).tolist()
            rows = []
            for i, (row, text) in enumerate(zip(inputs, seen["completions"], strict=True)):
                result = verdicts(text, row["gold"])
                rows.append(
                    {
                        "group": i // trainer.num_generations,
                        "rollout": i % trainer.num_generations,
                        "id": row["id"],
                        "reward": rewards_B[i],
                        "advantage": float(output["advantages"][i]),
                        "valid": result["valid"],
                        "prompt_tokens": prompt_lengths_B[i],
                        "completion_tokens": lengths_B[i],
                        **{f: result["values"][f] for f in FIELDS},
                        **{f"{f}_verdict": result["verdicts"][f] for f in FIELDS},
                        **{f"{f}_gold_null": row["gold"][f] is None for f in FIELDS},
                    }
                )
            clock.append(run.folder / "rollouts.jsonl", {"step": trainer.state.global_step + 1, "rows": rows})
        return output

    trainer._calculate_rewards, trainer._generate_and_score_completions = calculate_and_keep, score_and_keep


def hard(documents, samples_P_N):
    """The documents of which at least one sample is no exact record, in their order."""
    return [
        document
        for document, samples in zip(documents, samples_P_N, strict=True)
        if not all(verdicts(sample, document)["exact"] for sample in samples)
    ]


def rollouts(folder):
    """The rollouts table of a run, one row a rollout; a step rolled out twice (an interruption) keeps its last."""
    import pandas as pd

    last = clock.last_step(folder)  # steps behind the last checkpoint are no part of the run
    lines = clock.read_lines(folder / "rollouts.jsonl")
    by_step = {line["step"]: line["rows"] for line in lines if last is None or line["step"] <= last}
    if not by_step:
        raise ValueError(f"{folder / 'rollouts.jsonl'}: damaged: got no step, expected the rollouts of each")
    return pd.DataFrame([{"step": step, **row} for step, rows in sorted(by_step.items()) for row in rows])


def step_counts(rollouts):
    """What the rollouts of each step say: one row a step.

    Groups are constant by max == min of their rewards (a standard deviation computed in float32 misses some). One is
    all right, all wrong (no rollout exact; counted as between too where some field is right), or neither. live_rows:
    rollouts whose advantage is not 0. Counts a
    field: null_ (answered null in valid rollouts), null_expected_ (null in gold, all rollouts), wrong_, spurious_,
    missing_ (verdicts).
    """
    import pandas as pd

    rows = []
    for step, table in rollouts.groupby("step"):
        rewards = table.groupby("group")["reward"].agg(["min", "max"])
        constant = rewards["min"] == rewards["max"]
        right = table[[f"{f}_verdict" for f in FIELDS]] == "right"
        all_right = right.all(axis=1).groupby(table["group"]).agg(["min", "max"])
        some_right = right.any(axis=1).groupby(table["group"]).max()
        row = {
            "step": step,
            "rollouts": len(table),
            "groups": len(rewards),
            "zero_variance_groups": int(constant.sum()),
            "groups_all_right": int(all_right["min"].sum()),
            "groups_all_wrong": int((~all_right["max"]).sum()),
            "zero_variance_all_right": int((constant & all_right["min"]).sum()),
            "zero_variance_all_wrong": int((constant & ~all_right["max"]).sum()),
            "live_rows": int((table["advantage"] != 0).sum()),
            "zero_variance_between": int((constant & ~all_right["max"] & some_right).sum()),
            "prompt_tokens": int(table["prompt_tokens"].sum()),
            "completion_tokens": int(table["completion_tokens"].sum()),
        }
        for field in FIELDS:
            answered = table[table["valid"]]
            row[f"null_{field}"] = int(answered[field].isna().sum())
            row[f"null_expected_{field}"] = int(table[f"{field}_gold_null"].sum())
            for verdict in ("wrong", "spurious", "missing"):
                row[f"{verdict}_{field}"] = int((table[f"{field}_verdict"] == verdict).sum())
        rows.append(row)
    return pd.DataFrame(rows)


def check_seeds_differ(run, others) -> None:
    """Raise RuntimeError when the first rollouts of this run are those of a run with another seed.

    An engine that ignores the run's seed rolls out the same answers for all of them (TRL's colocated vLLM engine is
    always seeded with 0), and two seeds would then be one measurement shown twice.
    """
    columns = ["id", "rollout", *FIELDS]
    mine = rollouts(run.folder)
    mine = mine[mine["step"] == mine["step"].min()][columns].reset_index(drop=True)
    for other in others:
        if other.arm != run.arm or other.seed == run.seed:
            continue
        theirs = other.rollouts
        theirs = theirs[theirs["step"] == theirs["step"].min()][columns].reset_index(drop=True)
        if mine.equals(theirs):
            raise RuntimeError(
                f"{run.name} and {other.name} have the same first rollouts: the seed does not reach the sampler"
            )
