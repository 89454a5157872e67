"""The memory budget: measured, not guessed. Weights, then the peak of a worst-case step; of the rest,
what ``engine.memory_fraction`` allows for weights and KV together becomes pages."""

from __future__ import annotations

from dataclasses import dataclass

from pymllm.errors import CapacityError

GIB = 1 << 30


@dataclass(frozen=True)
class Budget:
    """Bytes, measured after the weights were loaded.

    total: of the device. available: free now. weights: of the model. step_peak: of a worst-case step.
    fraction: share of ``total`` that weights and KV may take together.
    """

    total: int
    available: int
    weights: int
    step_peak: int
    fraction: float

    @property
    def kv_bytes(self) -> int:
        """What is left for KV pages; negative when there is nothing."""
        allowed = int(self.total * self.fraction) - self.weights
        return min(allowed, self.available - self.step_peak)


def kv_pages(
    budget: Budget, *, page_bytes: int, page_size: int, max_total_tokens: int | None, useful_tokens: int, least: int
) -> int:
    """How many pages the pool gets, scrap page not counted.

    useful_tokens: more than this many could never be used at once. least: tokens that must fit.
    Raises CapacityError, with the numbers and the setting to change, when ``least`` tokens do not.
    """
    by_memory = budget.kv_bytes // page_bytes - 1
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
        raise CapacityError(_too_little(budget, page_bytes / page_size, least))
    return pages


def _too_little(budget: Budget, token_bytes: float, least: int) -> str:
    """The sentence for a budget that is too small, with the setting to change and to what."""
    need = int(least * token_bytes)
    numbers = (
        f"KV for {least} tokens takes {need / GIB:.2f} GiB, but of {budget.total / GIB:.2f} GiB in all "
        f"({budget.available / GIB:.2f} free), {budget.weights / GIB:.2f} hold weights, {budget.step_peak / GIB:.2f} "
        f"are needed by a step, and {max(0, budget.kv_bytes) / GIB:.2f} remain within memory_fraction {budget.fraction:g}"
    )
    fraction = (budget.weights + need) / budget.total + 0.01
    if fraction <= 0.95 and need + budget.step_peak <= budget.available:
        return f"{numbers}; set engine.memory_fraction to at least {fraction:.2f}"
    fits = max(0, int(budget.kv_bytes / token_bytes))
    if fits >= 16:
        return f"{numbers}; set model.max_context to at most {fits}, or lower engine.max_batch_tokens"
    return f"{numbers}; use a smaller or quantized model, lower engine.max_batch_tokens, or free memory"
