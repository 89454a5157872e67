"""How many questions of its plugin's evaluation set a model answers rightly."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from pymllm.errors import ConfigError, PymllmError
from pymllm.interfaces import Question
from pymllm.sampling import SamplingParams

if TYPE_CHECKING:
    from pymllm.config import ModelConfig
    from pymllm.llm import LLM


class EvaluationError(PymllmError):
    """A run whose accuracy would mean nothing, because an answer failed."""


@dataclass(frozen=True)
class Judged:
    """A question, and what the model answered."""

    kind: str
    text: str
    expected: str
    answer: str

    @property
    def right(self) -> bool:
        """Whether the answer is the expected one, white space around it aside."""
        return self.answer.strip() == self.expected


def evaluation_set(model: ModelConfig) -> Iterable[Question]:
    """The questions that the model's plugin offers. Reads the checkpoint's metadata, and loads no weights.

    Raises ConfigError where it offers none, and other PymllmErrors for a plugin or checkpoint that cannot be used.
    """
    from pymllm.checkpoint import open_checkpoint
    from pymllm.engine.choose import choose_model
    from pymllm.plugin import ModelSpec
    from pymllm.registry import Registry

    registry = Registry()
    name = choose_model(registry, model, open_checkpoint(model)).choice.name
    spec = registry.load("model", name)
    offered = registry.evaluation(name, spec) if isinstance(spec, ModelSpec) else None
    if offered is None:
        cure = "give a model whose plugin has one"
        raise ConfigError(f"model plugin '{name}' has no evaluation set: {cure}")
    return offered()


def evaluate(llm: LLM, questions: Iterable[Question], *, batch_size: int, max_tokens: int) -> Iterator[Judged]:
    """Answer questions greedily, ``batch_size`` at once; yields in their order, batch by batch.

    Raises ConfigError for pictures that the model does not take, EvaluationError for an answer that failed.
    """
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    remaining = iter(questions)
    while batch := list(islice(remaining, batch_size)):
        if any(question.images for question in batch) and not llm.info.max_media_tokens:
            raise ConfigError(f"{llm.info.model} takes no images, which the questions of its plugin show")
        for question, result in zip(batch, llm.chat([_conversation(question) for question in batch], params)):
            [output] = result.outputs
            if output.finish_reason == "error":
                raise EvaluationError(f"the answer to '{question.text}' failed: {output.error}")
            yield Judged(question.kind, question.text, question.answer, output.text)


def _conversation(question: Question) -> list[dict[str, Any]]:
    images = [{"type": "image", "image": image} for image in question.images]
    return [{"role": "user", "content": [*images, {"type": "text", "text": question.text}]}]


@dataclass(frozen=True)
class Accuracy:
    """Shares of right answers: of all, and by kind of question. questions, questions_by_kind: how many there were."""

    accuracy: float
    by_kind: dict[str, float]
    questions: int
    questions_by_kind: dict[str, int]

    @classmethod
    def of(cls, judged: Sequence[Judged]) -> Accuracy:
        """Kinds in alphabetical order. Raises EvaluationError when there is no question."""
        if not judged:
            raise EvaluationError("the evaluation set is empty")
        kinds = {kind: [one.right for one in judged if one.kind == kind] for kind in sorted({j.kind for j in judged})}
        return cls(
            accuracy=sum(one.right for one in judged) / len(judged),
            by_kind={kind: sum(right) / len(right) for kind, right in kinds.items()},
            questions=len(judged),
            questions_by_kind={kind: len(right) for kind, right in kinds.items()},
        )
