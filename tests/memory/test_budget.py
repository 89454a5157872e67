"""The division of memory, worked by hand; and every refusal proposes a setting with which it really works."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymllm.errors import CapacityError
from pymllm.memory.budget import Budget, kv_pages

GIB = 1 << 30
MIB = 1 << 20

ORIN = Budget(total=8 * GIB, available=6 * GIB, weights=2 * GIB, step_peak=1 * GIB, fraction=0.5)


def pages(budget: Budget, **changes) -> int:
    sizes = {"page_bytes": MIB, "page_size": 16, "max_total_tokens": None, "useful_tokens": 10**9, "least": 512}
    return kv_pages(budget, **{**sizes, **changes})


def refusal(budget: Budget, **changes) -> str:
    with pytest.raises(CapacityError) as caught:
        pages(budget, **changes)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_the_fraction_binds() -> None:
    assert ORIN.kv_bytes == 2 * GIB  # 8 x 0.5 - 2, and 6 - 1 are free beside a step
    assert pages(ORIN) == 2047  # 2048 MiB less the scrap page


def test_the_free_memory_binds() -> None:
    tight = replace(ORIN, fraction=0.9)
    assert tight.kv_bytes == 5 * GIB  # 8 x 0.9 - 2 = 5.2, but 6 - 1 = 5
    assert pages(tight) == 5 * 1024 - 1


def test_graphs_bind_with_the_free_memory() -> None:
    tight = replace(ORIN, fraction=0.9, graphs=GIB // 2)
    assert tight.kv_bytes == 9 * GIB // 2  # 6 - 1 - 0.5
    assert replace(ORIN, graphs=GIB // 2).kv_bytes == 2 * GIB  # the fraction binds


def test_a_part_of_a_page_is_no_page() -> None:
    assert pages(replace(ORIN, available=3 * GIB + MIB - 1, fraction=0.9)) == 2047


def test_no_more_than_could_be_used() -> None:
    assert pages(ORIN, useful_tokens=1000) == 63  # 62.5 pages of 16 tokens


@pytest.mark.parametrize("tokens, expected", [(1600, 100), (1615, 100), (16, 1), (10**9, 2047)])
def test_no_more_than_the_setting(tokens: int, expected: int) -> None:
    assert pages(ORIN, max_total_tokens=tokens) == expected


def test_a_setting_below_one_page() -> None:
    assert refusal(ORIN, max_total_tokens=15) == (
        "engine.max_total_tokens 15 is less than one page; set it to at least cache.page_size (16)"
    )
    assert pages(ORIN, max_total_tokens=16) == 1


def test_a_higher_fraction_is_proposed_where_that_helps() -> None:
    # 2 GiB of weights take 0.25; 40,000 tokens are 2500 pages and a scrap page: 2.4424 GiB, 0.3053 more
    message = refusal(ORIN, least=40_000)
    assert message == (
        "KV for 40000 tokens takes 2.44 GiB, but of 8.00 GiB in all (6.00 free), 2.00 hold weights, 1.00 are needed "
        "by steps, and 2.00 remain within engine.memory_fraction 0.5; set engine.memory_fraction to at least 0.56"
    )
    assert pages(replace(ORIN, fraction=0.56), least=40_000) >= 2500
    assert "memory_fraction to at least 0.56" in refusal(replace(ORIN, fraction=0.55), least=40_000)


def test_a_shorter_context_is_proposed_where_a_higher_fraction_does_not_help() -> None:
    full = replace(ORIN, available=2 * GIB)  # 1 GiB beside a step: 1023 pages, whatever the fraction
    message = refusal(full, least=40_000)
    assert message.endswith("1.00 remain within engine.memory_fraction 0.5; set model.max_context to at most 16368")
    assert pages(full, least=16_368) == 1023


def test_nothing_left_asks_for_a_smaller_model() -> None:
    full = replace(ORIN, weights=7 * GIB, available=GIB // 2)
    assert refusal(full).endswith("use a smaller or quantized model, lower engine.max_batch_tokens, or free memory")


@given(
    total=st.integers(1, 64 * GIB),
    free=st.floats(0, 1),
    weights=st.floats(0, 1),
    peak=st.floats(0, 0.5),
    percent=st.integers(1, 100),
    page_bytes=st.integers(1, 64 * MIB),
    page_size=st.integers(1, 256),
    least=st.integers(1, 100_000),
)
def test_what_is_proposed_works(total, free, weights, peak, percent, page_bytes, page_size, least) -> None:
    budget = Budget(total, int(total * free), int(total * weights), int(total * peak), percent / 100)
    sizes = {"page_bytes": page_bytes, "page_size": page_size}
    try:
        found = pages(budget, least=least, **sizes)
    except CapacityError as error:
        fraction = re.search(r"memory_fraction to at least ([\d.]+)", str(error))
        context = re.search(r"max_context to at most (\d+)", str(error))
        if fraction:
            assert float(fraction[1]) > budget.fraction
            found = pages(replace(budget, fraction=float(fraction[1])), least=least, **sizes)
            assert found * page_size >= least
        elif context:
            least = int(context[1])
            found = pages(budget, least=least, **sizes)
            with pytest.raises(CapacityError):
                pages(budget, least=least + 1, **sizes)
        else:
            return
    assert found * page_size >= least
    assert (found + 1) * page_bytes <= budget.available - budget.step_peak
