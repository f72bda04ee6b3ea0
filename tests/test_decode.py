"""The vLLM process, with a stand-in for vLLM: what it is asked, what comes back, and how its failure is told."""

import json
import textwrap

import pytest

pytest.importorskip("transformers", reason="training is not installed (extra `train`)")

from lib import data, decode
from lib.paths import BASE

FAKE_VLLM = """
    import types

    class SamplingParams:
        def __init__(self, **kwargs):
            self.__dict__ = kwargs

    class LLM:
        def __init__(self, **kwargs):
            assert kwargs["enable_lora"] and kwargs["max_lora_rank"] == 8 and kwargs["max_model_len"] == 200

        def generate(self, prompts, sampling, lora_request, use_tqdm):
            if lora_request and "broken" in lora_request.path:
                raise RuntimeError("this adapter is broken")
            answer = [5 + (lora_request.number if lora_request else 0)]
            output = types.SimpleNamespace(outputs=[types.SimpleNamespace(token_ids=answer)] * sampling.n)
            assert all(prompt["prompt_token_ids"] for prompt in prompts)
            return [output for _ in prompts]
"""
FAKE_LORA = """
    class LoRARequest:
        def __init__(self, name, number, path):
            self.name, self.number, self.path = name, number, path
"""


@pytest.fixture
def job(tmp_path, monkeypatch):
    package = tmp_path / "site" / "vllm"
    (package / "lora").mkdir(parents=True)
    (package / "__init__.py").write_text(textwrap.dedent(FAKE_VLLM))
    (package / "lora" / "__init__.py").write_text("")
    (package / "lora" / "request.py").write_text(textwrap.dedent(FAKE_LORA))
    src = str(decode.ROOT / "src")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'site'}:{src}")
    monkeypatch.setattr(decode, "require", lambda engine: None)
    prompts = [data.messages(d) for d in data.load("synthetic", n_documents=3, seed=1)]
    settings = dict(engine="vllm", base=BASE, dtype="float32", max_completion_tokens=8, context_tokens=200)

    def run(checkpoints, **changes):
        return decode.complete(prompts, checkpoints, work=tmp_path / "work", **settings, **changes)

    return run


def adapter(folder, name):
    (folder / name).mkdir()
    (folder / name / "adapter_config.json").write_text(json.dumps({"r": 4}))
    return folder / name


def test_every_checkpoint_comes_back_in_order(job, tmp_path):
    found = dict(job({0: None, 7: adapter(tmp_path, "a"), 9: adapter(tmp_path, "b")}, n=2, temperature=1.0))
    assert list(found) == ["0", "7", "9"]
    assert all(len(completions) == 3 and all(len(c) == 2 for c in completions) for completions in found.values())
    assert found["0"] != found["7"] != found["9"]  # each was decoded with its own adapter


def test_a_failure_shows_the_end_of_its_log_and_keeps_what_was_done(job, tmp_path):
    done = []
    with pytest.raises(RuntimeError, match="this adapter is broken"):
        for key, _ in job({7: adapter(tmp_path, "a"), 9: adapter(tmp_path, "broken")}):
            done.append(key)
    assert done == ["7"]


def test_full_weights_are_refused_before_the_engine_starts(job, tmp_path):
    (tmp_path / "full").mkdir()
    with pytest.raises(RuntimeError, match="found no adapter_config.json"):
        list(job({1: tmp_path / "full"}))


def test_an_engine_that_is_none():
    with pytest.raises(ValueError, match="engine is 'vlm'; expected"):
        decode.require("vlm")
