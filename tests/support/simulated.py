"""A runner whose "KV" is a table of hashes, so that the scheduler can be tested for what it must guarantee.

Writing the KV of a token stores, in the token's slot, a hash of everything up to that token. Before a token
is drawn, every slot of its context is checked to hold the hash that belongs there. A page that was shared
wrongly, reused too early, overwritten or never computed is therefore seen at once. The next token is a
function of the prefix alone, which gives each request's only right answer in one line (``answer``).
"""

from __future__ import annotations

from collections.abc import Callable

from pymllm.engine.messages import EngineInfo, EngineRequest
from pymllm.engine.plan import ItemResult, StepItem, StepPlan
from pymllm.sampling import SamplingParams

VOCAB = 5


def prefix_hashes(tokens: list[int]) -> list[int]:
    """One hash per position, of all tokens up to it."""
    hashes, value = [], 17
    for token in tokens:
        value = hash((value, token))
        hashes.append(value)
    return hashes


def next_token(tokens: list[int]) -> int:
    return prefix_hashes(tokens)[-1] % VOCAB


def answer(prompt: list[int], count: int) -> list[int]:
    """The only right answer to a prompt."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


class SimulatedRunner:
    """Stands where :class:`pymllm.engine.runner.Runner` does. Like a device, it computes steps in the order of
    their launch, and knows the tokens it sampled before the host does."""

    def __init__(self, page_size: int, budget: int) -> None:
        self._page_size = page_size
        self._budget = budget
        self._kv: dict[int, int] = {}
        self._sampled: dict[tuple[str, int], int] = {}
        self.steps: list[StepPlan] = []

    def launch(self, plan: StepPlan) -> Callable[[], list[ItemResult]]:
        assert plan.tokens <= self._budget, "a step exceeds its budget"
        ids = [item.request.spec.id for item in plan.items]
        assert len(ids) == len(set(ids)), "a request is twice in one step"
        self.steps.append(plan)
        tokens = [self._tokens(item) for item in plan.items]
        for item, known in zip(plan.items, tokens):
            hashes = prefix_hashes(known)
            for position in range(item.start, item.start + item.count):
                self._kv[self._slot(item.request.pages, position)] = hashes[position]
        results = [ItemResult(token=self._check(item, known)) for item, known in zip(plan.items, tokens)]
        return lambda: results

    def healthy(self) -> bool:
        return True

    def _tokens(self, item: StepItem) -> list[int]:
        """The request's tokens, with the one that it sampled and that the host has not read yet."""
        tokens, end = item.request.tokens, item.start + item.count
        if end <= len(tokens):
            return tokens
        assert end == len(tokens) + 1, "a step may be at most one token ahead of the host"
        return [*tokens, self._sampled[item.request.spec.id, len(tokens)]]

    def _check(self, item: StepItem, tokens: list[int]) -> int | None:
        request, end = item.request, item.start + item.count
        for position, expected in enumerate(prefix_hashes(tokens)[:end]):
            found = self._kv.get(self._slot(request.pages, position))
            assert found == expected, f"request {request.spec.id} attends to KV that is not its own at {position}"
        assert item.samples == (end == len(tokens)), "an item samples exactly when it reaches the last token"
        if not item.samples:
            return None
        token = self._sampled[request.spec.id, end] = next_token(tokens)
        return token

    def _slot(self, pages: list[int], position: int) -> int:
        page = pages[position // self._page_size]
        assert page > 0, "page 0 is scrap"
        return page * self._page_size + position % self._page_size


def info(*, pages: int, page_size: int, budget: int, max_running: int) -> EngineInfo:
    """An engine's facts for a pool of this size."""
    return EngineInfo(
        model="simulated", architecture="none", dtype="none", kv_dtype="none", device="none", vocab_size=VOCAB,
        max_context=10_000, max_request_tokens=min(10_000, pages * page_size), capacity_tokens=pages * page_size,
        page_size=page_size, pages=pages, page_bytes=0, weight_bytes=0, step_peak_bytes=0,
        max_batch_tokens=budget, max_running_requests=max_running, parameters=0, choices=[],
    )  # fmt: skip


def request(name: str, prompt: list[int], count: int, **more) -> EngineRequest:
    sampling = SamplingParams(max_tokens=count, temperature=0.0, ignore_eos=True).with_defaults({})
    return EngineRequest(id=name, token_ids=prompt, sampling=sampling, **more)
