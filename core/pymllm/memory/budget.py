"""The memory budget: measured, not guessed. Weights, then the peak of a worst-case step; of the rest,
what ``engine.memory_fraction`` allows for weights and KV together becomes pages."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pymllm.errors import CapacityError

GIB = 1 << 30

MOST_PERCENT = 95
"""Highest memory_fraction that an error proposes; the rest is for what else the device does."""


@dataclass(frozen=True)
class Budget:
    """Bytes, measured after the weights were loaded.

    total: of the device. available: free now. weights: of the model. step_peak: of a worst-case step.
    graphs: of what will be captured. fraction: share of ``total`` that weights and KV may take together.
    """

    total: int
    available: int
    weights: int
    step_peak: int
    fraction: float
    graphs: int = 0

    @property
    def kv_bytes(self) -> int:
        """What is left for KV pages; negative when there is nothing."""
        allowed = int(self.total * self.fraction) - self.weights
        return min(allowed, self.available - self.step_peak - self.graphs)


def kv_pages(
    budget: Budget, *, page_bytes: int, page_size: int, max_total_tokens: int | None, useful_tokens: int, least: int
) -> int:
    """How many pages the pool gets, scrap page not counted.

    useful_tokens: more than this many could never be used at once. least: tokens that must fit.
    Raises CapacityError, with the numbers and the setting to change, when ``least`` tokens do not.
    """
    by_memory = _pages_in(budget, page_bytes)
    wanted = -(-useful_tokens // page_size)
    if max_total_tokens is not None:
        wanted = min(wanted, max_total_tokens // page_size)
        least = min(least, wanted * page_size)
        if wanted < 1:
            raise CapacityError(
                f"engine.max_total_tokens {max_total_tokens} is less than one page; "
                f"set it to at least cache.page_size ({page_size})"
            )
    pages = min(by_memory, wanted)
    if pages * page_size < least:
        raise CapacityError(_too_little(budget, page_bytes, page_size, least))
    return pages


def _pages_in(budget: Budget, page_bytes: int) -> int:
    """Pages that a budget pays for besides the scrap page; negative when it does not even pay for that."""
    return budget.kv_bytes // page_bytes - 1


def _too_little(budget: Budget, page_bytes: int, page_size: int, least: int) -> str:
    """The sentence for a budget that is too small, with the setting to change and to what."""
    pages = -(-least // page_size)
    numbers = (
        f"KV for {least} tokens takes {(pages + 1) * page_bytes / GIB:.2f} GiB, but of {budget.total / GIB:.2f} GiB "
        f"in all ({budget.available / GIB:.2f} free), {budget.weights / GIB:.2f} hold weights, "
        f"{(budget.step_peak + budget.graphs) / GIB:.2f} are needed by steps, and "
        f"{max(0, budget.kv_bytes) / GIB:.2f} remain within engine.memory_fraction {budget.fraction:g}"
    )
    for percent in range(int(budget.fraction * 100) + 1, MOST_PERCENT + 1):
        if _pages_in(replace(budget, fraction=percent / 100), page_bytes) >= pages:
            return f"{numbers}; set engine.memory_fraction to at least {percent / 100:.2f}"
    fits = _pages_in(budget, page_bytes) * page_size
    if fits >= 16:
        return f"{numbers}; set model.max_context to at most {fits}"
    return f"{numbers}; use a smaller or quantized model, lower engine.max_batch_tokens, or free memory"
