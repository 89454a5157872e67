"""What quantizing costs: perplexity on held-out text, or the questions of the model's plugin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from math import exp

from pymllm.config import Config
from pymllm.errors import ConfigError
from pymllm.evaluation import Accuracy, evaluate, evaluation_set
from pymllm.interfaces import Question
from pymllm.llm import LLM
from pymllm.quantize.calibration import default_texts
from pymllm.sampling import SamplingParams


@dataclass(frozen=True)
class Figure:
    """One measurement of the original and of the quantized model. name: what it is, with its unit."""

    name: str
    original: float
    quantized: float

    def __str__(self) -> str:
        return f"{self.name}: {self.original:.4g} before, {self.quantized:.4g} after"


def judge(original: Config, quantized: Config, *, tokens: int, questions: int | None) -> list[Figure]:
    """tokens: of text to read. questions: how many of the plugin's evaluation set, None for all; they take the place of
    text where the model takes pictures and its plugin has such a set.

    Raises PymllmError.
    """
    before, after = (_measured(config, tokens, questions) for config in (original, quantized))
    return [Figure(name, before[name], after[name]) for name in before]


def _measured(config: Config, tokens: int, questions: int | None) -> dict[str, float]:
    with LLM.from_config(config, progress=False) as llm:
        asked = _questions(config, questions) if llm.info.max_media_tokens else []
        if not asked:
            return {"perplexity of held-out text": perplexity(llm, default_texts(held_out=True), tokens)}
        judged = list(evaluate(llm, asked, batch_size=128, max_tokens=16))
        return {f"right answers to {len(judged)} questions, %": 100 * Accuracy.of(judged).accuracy}


def _questions(config: Config, count: int | None) -> list[Question]:
    try:
        return list(islice(evaluation_set(config.model), count))
    except ConfigError:  # the plugin has none
        return []


def perplexity(llm: LLM, texts: Sequence[str], tokens: int) -> float:
    """exp of the mean negative log-likelihood of each token but the first, over windows that do not overlap. tokens: of
    the texts, at most. Raises ConfigError without a tokenizer."""
    length = min(512, llm.info.max_request_tokens - 1)
    tokenizer = llm.tokenizer
    if tokenizer is None:
        raise ConfigError("the checkpoint has no tokenizer: its perplexity cannot be measured, use --no-eval")
    ids = [token for text in texts for token in tokenizer(text)["input_ids"]][:tokens]
    windows = [ids[first : first + length] for first in range(0, len(ids), length)]
    windows = [window for window in windows if len(window) > 1]
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    total, count = 0.0, 0
    for out in llm.generate([{"prompt_token_ids": window} for window in windows], params):
        for token, entry in zip(out.prompt_token_ids, out.prompt_logprobs or []):
            if entry is not None:
                total, count = total - entry[token], count + 1
    return exp(total / count)
