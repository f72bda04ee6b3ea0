"""The colocated vLLM engine, asked and loaded the short way, in the place of methods of TRL's `VLLMGeneration`."""

import itertools
import math

from lib.lean import adapters


def load_weights(engine, weights: list, everything: bool) -> None:
    """Instead of `VLLMGeneration.sync_weights`: one call; without `everything`, only what training can have changed.

    weights: of `adapters.weights`.
    """
    loaded = engine.llm.llm_engine.model_executor.driver_worker.model_runner.model
    loaded.load_weights(adapters.for_engine(weights, everything))
    engine.llm.reset_prefix_cache()  # cached keys and values are the old weights'


def generate(engine, prompts, images, num_generations, profiler=None) -> tuple:
    """Instead of `VLLMGeneration.generate`: equal neighbouring prompts are one request of several samples.

    Text is not decoded (TRL decodes the token ids itself), and log-probabilities come as lists of numbers, the sampled
    token's first at each position, not as an object a token.
    """
    from vllm import SamplingParams

    if images is not None or engine.structured_outputs_regex or engine.generation_kwargs.keys() & {"stop", "n"}:
        return type(engine).generate(engine, prompts, images, num_generations, profiler)
    settings = dict(
        temperature=engine.temperature, top_p=engine.top_p, top_k=engine.top_k, min_p=engine.min_p or 0.0,
        repetition_penalty=engine.repetition_penalty, max_tokens=engine.max_completion_length, logprobs=0,
        flat_logprobs=True, detokenize=False,
    )  # fmt: skip
    runs = [(ids, sum(1 for _ in run)) for ids, run in itertools.groupby(prompts)]
    outputs = engine.llm.generate(
        [{"prompt_token_ids": ids} for ids, _ in runs],
        [SamplingParams(**settings | engine.generation_kwargs | {"n": n}) for _, n in runs],
        use_tqdm=False,
    )
    rollouts = [o for request in outputs for o in request.outputs]
    logps = [[o.logprobs.logprobs[first] for first in o.logprobs.start_indices] for o in rollouts]
    logps = [[[None if math.isnan(p) else p] for p in row] for row in logps]  # TRL's mark of a missing one
    return prompts, [list(o.token_ids) for o in rollouts], logps, None
