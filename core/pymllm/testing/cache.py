"""The conformance kit of cache policies. Subclass it, build your policy in ``make_policy``, and run pytest::

    class TestMyPolicy(CachePolicyConformance):
        @pytest.fixture
        def make_policy(self):
            return lambda page_size, pages: MyPolicy(MyOptions(), CacheContext(page_size, pages))

It holds hand-worked cases and a random test against a naive model (:mod:`pymllm.testing.cache_machine`).
It needs pytest and hypothesis. A policy with ``reuses = False`` skips the cases that are about hits.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from pymllm.interfaces import CacheKey, CachePolicy, CacheStats, Hit, InsertInfo, MediaSpan
from pymllm.testing.cache_machine import MakePolicy, cache_machine

CAT, DOG = b"\1" * 32, b"\2" * 32


def key(*tokens: int, media: tuple[MediaSpan, ...] = (), namespace: str = "") -> CacheKey:
    """A key of the given tokens."""
    return CacheKey(tokens, media, namespace)


def insert(policy: CachePolicy, cache_key: CacheKey, pages: Sequence[int]) -> Hit:
    """Insert without metadata, then check the policy's bookkeeping."""
    hit = policy.insert(cache_key, pages, InsertInfo())
    policy.check_integrity()
    return hit


def evict(policy: CachePolicy, pages: int) -> list[int]:
    """Evict, then check the policy's bookkeeping."""
    dropped = policy.evict(pages)
    policy.check_integrity()
    return dropped


class CachePolicyConformance:
    """What every cache policy must do. See :mod:`pymllm.interfaces.cache` for the rules it checks."""

    @pytest.fixture
    def make_policy(self) -> MakePolicy:
        """``make_policy(page_size, pages)`` builds the policy under test, empty. Override this fixture."""
        raise NotImplementedError("override the fixture make_policy in your subclass of CachePolicyConformance")

    @pytest.fixture
    def policy(self, make_policy: MakePolicy) -> CachePolicy:
        """The policy for 16 pages of 2 tokens; the test is skipped when it reuses nothing."""
        policy = make_policy(2, 16)
        if not policy.reuses:
            pytest.skip("the policy declares reuses = False")
        return policy

    # Any policy

    def test_a_new_policy_is_empty(self, make_policy: MakePolicy) -> None:
        policy = make_policy(2, 16)
        assert policy.match(key(1, 2, 3, 4)).pages == ()
        assert policy.stats() == CacheStats(0, 0, 0)
        assert policy.evict(3) == []
        assert policy.reset() == []
        policy.check_integrity()

    def test_it_hits_exactly_if_it_declares_reuse(self, make_policy: MakePolicy) -> None:
        policy = make_policy(2, 16)
        hit = insert(policy, key(1, 2, 3, 4), [7, 3])
        assert hit.pages == ((7, 3) if policy.reuses else ())
        assert policy.match(key(1, 2, 3, 4)).pages == hit.pages
        assert policy.stats() == CacheStats(len(hit.pages), len(hit.pages), 0)

    def test_an_empty_hit_can_be_locked_and_unlocked(self, make_policy: MakePolicy) -> None:
        policy = make_policy(2, 16)
        hit = policy.match(key(1, 2))
        policy.lock(hit)
        policy.lock(hit)
        policy.unlock(hit)
        policy.unlock(hit)
        policy.check_integrity()

    @pytest.mark.parametrize("tokens", [(), (1,)])
    def test_a_key_shorter_than_a_page_is_never_cached(self, make_policy: MakePolicy, tokens: tuple[int, ...]) -> None:
        policy = make_policy(2, 16)
        assert insert(policy, key(*tokens), []).pages == ()
        assert insert(policy, key(*tokens), [5] * len(tokens)).pages == ()
        assert policy.match(key(*tokens)).pages == ()
        assert policy.stats().cached_pages == 0

    def test_random_requests_agree_with_a_naive_model(self, make_policy: MakePolicy) -> None:
        run_state_machine_as_test(
            cache_machine(make_policy),
            settings=settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True),
        )

    # What is matched

    @pytest.mark.parametrize(
        ("tokens", "pages"),
        [
            ((1, 2, 3, 4, 5, 6), (4, 9, 2)),
            ((1, 2, 3, 4, 5), (4, 9)),
            ((1, 2, 3, 4), (4, 9)),
            ((1, 2, 3, 4, 5, 6, 7, 8), (4, 9, 2)),
            ((1, 2, 3, 0, 5, 6), (4,)),
            ((0, 2, 3, 4, 5, 6), ()),
            ((3, 4, 5, 6), ()),
            ((1,), ()),
        ],
    )
    def test_the_longest_cached_prefix_is_matched(
        self, policy: CachePolicy, tokens: tuple[int, ...], pages: tuple[int, ...]
    ) -> None:
        insert(policy, key(1, 2, 3, 4, 5, 6), [4, 9, 2])
        assert policy.match(key(*tokens)).pages == pages
        policy.check_integrity()

    def test_keys_that_branch_share_their_common_pages(self, policy: CachePolicy) -> None:
        insert(policy, key(1, 2, 3, 4, 5, 6), [1, 2, 3])
        assert insert(policy, key(1, 2, 3, 4, 7, 8), [1, 2, 4]).pages == (1, 2, 4)
        assert insert(policy, key(1, 2, 9, 9), [1, 5]).pages == (1, 5)
        assert policy.match(key(1, 2, 3, 4, 5, 6)).pages == (1, 2, 3)
        assert policy.match(key(1, 2, 3, 4, 7, 8)).pages == (1, 2, 4)
        assert policy.match(key(1, 2, 9, 9)).pages == (1, 5)
        assert policy.stats().cached_pages == 5

    def test_the_same_tokens_after_another_prefix_are_not_shared(self, policy: CachePolicy) -> None:
        insert(policy, key(1, 2, 5, 6), [1, 2])
        insert(policy, key(3, 4), [3])
        assert policy.match(key(3, 4, 5, 6)).pages == (3,)

    def test_another_image_shares_nothing_past_its_first_page(self, policy: CachePolicy) -> None:
        cat, dog = (MediaSpan(3, 3, CAT),), (MediaSpan(3, 3, DOG),)
        tokens = (1, 2, 3, 0, 0, 0, 7, 8)
        insert(policy, key(*tokens, media=cat), [1, 2, 3, 4])
        assert policy.match(key(*tokens, media=cat)).pages == (1, 2, 3, 4)
        assert policy.match(key(*tokens, media=dog)).pages == (1,)
        assert policy.match(key(*tokens)).pages == (1,)

    def test_the_same_image_one_token_later_is_not_shared(self, policy: CachePolicy) -> None:
        insert(policy, key(0, 0, 0, 0, 0, 0, media=(MediaSpan(0, 4, CAT),)), [1, 2, 3])
        assert policy.match(key(0, 0, 0, 0, 0, 0, media=(MediaSpan(1, 4, CAT),))).pages == ()

    def test_the_second_image_matters_too(self, policy: CachePolicy) -> None:
        insert(policy, key(0, 0, 0, 0, media=(MediaSpan(0, 2, CAT), MediaSpan(2, 2, CAT))), [1, 2])
        assert policy.match(key(0, 0, 0, 0, media=(MediaSpan(0, 2, CAT), MediaSpan(2, 2, DOG)))).pages == (1,)

    def test_namespaces_share_nothing(self, policy: CachePolicy) -> None:
        insert(policy, key(1, 2, 3, 4), [1, 2])
        insert(policy, key(1, 2, 3, 4, namespace="b"), [3, 4])
        assert policy.match(key(1, 2, 3, 4)).pages == (1, 2)
        assert policy.match(key(1, 2, 3, 4, namespace="b")).pages == (3, 4)
        assert policy.match(key(1, 2, 3, 4, namespace="c")).pages == ()

    # Who owns what

    def test_pages_that_are_cached_elsewhere_stay_the_callers(self, policy: CachePolicy) -> None:
        insert(policy, key(1, 2, 3, 4), [1, 2])
        assert insert(policy, key(1, 2, 3, 4, 5, 6), [7, 8, 9]).pages == (1, 2, 9)
        assert policy.stats().cached_pages == 3
        assert sorted(evict(policy, 16)) == [1, 2, 9]

    def test_inserting_the_canonical_pages_again_changes_nothing(self, policy: CachePolicy) -> None:
        for _ in range(2):
            assert insert(policy, key(1, 2, 3, 4), [1, 2]).pages == (1, 2)
        assert insert(policy, key(1, 2, 3, 4), [1]).pages == (1,)
        assert policy.stats() == CacheStats(2, 2, 0)

    def test_only_whole_pages_are_taken(self, policy: CachePolicy) -> None:
        assert insert(policy, key(1, 2, 3, 4, 5), [1, 2, 3]).pages == (1, 2)
        assert policy.stats().cached_pages == 2
        assert sorted(policy.reset()) == [1, 2]

    def test_only_the_given_pages_of_a_longer_key_are_taken(self, policy: CachePolicy) -> None:
        assert insert(policy, key(1, 2, 3, 4, 5, 6), [1]).pages == (1,)
        assert policy.match(key(1, 2, 3, 4, 5, 6)).pages == (1,)
        assert insert(policy, key(1, 2, 3, 4, 5, 6), [1, 2, 3]).pages == (1, 2, 3)
        assert policy.match(key(1, 2, 3, 4, 5, 6)).pages == (1, 2, 3)

    # Locks and eviction

    def test_a_locked_page_is_never_evicted(self, policy: CachePolicy) -> None:
        hit = insert(policy, key(1, 2, 3, 4), [1, 2])
        policy.lock(hit)
        assert policy.stats() == CacheStats(2, 0, 0)
        assert evict(policy, 16) == []
        assert policy.reset() == []
        policy.unlock(hit)
        assert policy.stats() == CacheStats(2, 2, 0)
        assert sorted(evict(policy, 16)) == [1, 2]

    def test_locks_nest(self, policy: CachePolicy) -> None:
        insert(policy, key(1, 2, 3, 4), [1, 2])
        first, second = policy.match(key(1, 2, 3, 4)), policy.match(key(1, 2, 3, 4))
        for hit in (first, first, second):
            policy.lock(hit)
        for hit in (first, second):
            policy.unlock(hit)
            assert evict(policy, 16) == []
        policy.unlock(first)
        assert sorted(evict(policy, 16)) == [1, 2]

    def test_a_lock_covers_its_prefix_and_no_more(self, policy: CachePolicy) -> None:
        insert(policy, key(1, 2, 3, 4, 5, 6), [1, 2, 3])
        insert(policy, key(1, 2, 7, 8), [1, 4])
        hit = policy.match(key(1, 2, 3, 4))
        policy.lock(hit)
        assert policy.stats() == CacheStats(4, 2, 0)
        assert sorted(evict(policy, 16)) == [3, 4]
        assert policy.match(key(1, 2, 3, 4, 5, 6)).pages == (1, 2)
        policy.unlock(hit)
        assert sorted(evict(policy, 16)) == [1, 2]

    @pytest.mark.parametrize("long_first", [True, False])
    def test_locks_of_a_prefix_and_of_its_extension_are_separate(self, policy: CachePolicy, long_first: bool) -> None:
        long = insert(policy, key(1, 2, 3, 4, 5, 6), [1, 2, 3])
        policy.lock(long)
        short = policy.match(key(1, 2, 3, 4))
        policy.lock(short)
        policy.unlock(long if long_first else short)
        assert sorted(evict(policy, 16)) == ([3] if long_first else [])
        policy.unlock(short if long_first else long)
        assert sorted(evict(policy, 16)) == ([1, 2] if long_first else [1, 2, 3])

    def test_a_lock_survives_branches_that_come_later(self, policy: CachePolicy) -> None:
        hit = insert(policy, key(1, 2, 3, 4, 5, 6, 7, 8), [1, 2, 3, 4])
        policy.lock(hit)
        insert(policy, key(1, 2, 3, 4, 9, 9), [1, 2, 5])
        insert(policy, key(1, 2, 8, 8), [1, 6])
        policy.match(key(1, 2, 3, 4, 5, 6))
        assert policy.stats() == CacheStats(6, 2, 0)
        assert sorted(evict(policy, 16)) == [5, 6]
        policy.unlock(hit)
        assert policy.stats() == CacheStats(4, 4, 2)
        assert sorted(evict(policy, 16)) == [1, 2, 3, 4]

    def test_a_hit_outlives_branches_that_come_before_its_lock(self, policy: CachePolicy) -> None:
        hit = insert(policy, key(1, 2, 3, 4, 5, 6), [1, 2, 3])
        insert(policy, key(1, 2, 9, 9), [1, 4])
        policy.match(key(1, 2, 3, 4))
        policy.lock(hit)
        assert sorted(evict(policy, 16)) == [4]
        assert policy.match(key(1, 2, 3, 4, 5, 6)).pages == (1, 2, 3)
        policy.unlock(hit)
        assert sorted(evict(policy, 16)) == [1, 2, 3]

    def test_at_least_as_many_pages_are_evicted_as_asked(self, policy: CachePolicy) -> None:
        insert(policy, key(1, 2, 3, 4, 5, 6), [1, 2, 3])
        insert(policy, key(7, 8, 9, 9), [4, 5])
        assert len(first := evict(policy, 2)) >= 2
        assert sorted(first + evict(policy, 16)) == [1, 2, 3, 4, 5]
        assert policy.stats() == CacheStats(0, 0, 5)

    def test_an_evicted_page_is_not_matched_and_may_come_back(self, policy: CachePolicy) -> None:
        insert(policy, key(1, 2, 3, 4), [1, 2])
        evict(policy, 16)
        assert policy.match(key(1, 2, 3, 4)).pages == ()
        assert insert(policy, key(1, 2, 3, 4), [2, 1]).pages == (2, 1)
        assert policy.match(key(1, 2, 3, 4)).pages == (2, 1)

    def test_reset_drops_all_but_the_locked_pages(self, policy: CachePolicy) -> None:
        insert(policy, key(1, 2, 3, 4), [1, 2])
        insert(policy, key(5, 6), [3])
        hit = policy.match(key(1, 2))
        policy.lock(hit)
        assert sorted(policy.reset()) == [2, 3]
        policy.check_integrity()
        assert policy.match(key(1, 2, 3, 4)).pages == (1,)
        policy.unlock(hit)
        assert policy.reset() == [1]
        assert policy.stats() == CacheStats(0, 0, 0)
