"""Stop strings end the text in the same place however it was cut into pieces."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pymllm.errors import RequestError
from pymllm.frontend.stop import MAX_STOP_LENGTH, MAX_STOP_STRINGS, StopMatcher, StopStrings


def run(pieces, stops, include=False):
    """Feed pieces; returns (text, stop string or None, number of pieces that were taken)."""
    matcher = StopMatcher(StopStrings(stops), include=include)
    text = ""
    for count, piece in enumerate(pieces, 1):
        text += matcher.feed(piece)
        if matcher.matched is not None:
            return text, matcher.matched, count
    return text + matcher.finish(), None, len(pieces)


def expected(text, stops, include=False):
    """The definition, by search: of all occurrences the one that ends first; the longest if several do."""
    found = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    if not found:
        return text, None
    end, negative, stop = min(found)
    return text[: end if include else end + negative], stop


@given(
    st.text("abc", max_size=40),
    st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=4),
    st.booleans(),
    st.data(),
)
@settings(max_examples=500, deadline=None)
def test_any_cut_gives_the_first_stop_string(text, stops, include, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    bounds = [0, *cuts, len(text)]
    pieces = [text[low:high] for low, high in itertools.pairwise(bounds)]
    assert run(pieces, stops, include)[:2] == expected(text, stops, include)


@given(st.text("abc", max_size=40), st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=4))
@settings(max_examples=300, deadline=None)
def test_only_what_could_become_a_stop_string_is_held_back(text, stops):
    matcher = StopMatcher(StopStrings(stops))
    said = ""
    for position, character in enumerate(text, 1):
        said += matcher.feed(character)
        if matcher.matched is not None:
            return
        seen = text[:position]
        held = max((n for stop in stops for n in range(len(stop)) if seen.endswith(stop[:n])), default=0)
        assert said == seen[: len(seen) - held]


def test_hand_worked_cases():
    assert run(["hel", "lo EN", "D x"], ["END"]) == ("hello ", "END", 3)
    assert run(["hel", "lo EN", "D x"], ["END"], include=True) == ("hello END", "END", 3)
    assert run(["hello EN"], ["END"]) == ("hello EN", None, 1)
    assert run(["aab", "aac"], ["aabaac"]) == ("", "aabaac", 2)
    assert run(["abcd"], ["abcd", "bc"]) == ("a", "bc", 1), "the one complete first, as character by character"
    assert run(["xabc"], ["c", "abc"]) == ("x", "abc", 1), "of two that end together the longer"
    assert run(["a🎉", "b"], ["🎉b"]) == ("a", "🎉b", 2)


def test_unarmed_text_passes_and_later_text_stops():
    matcher = StopMatcher(StopStrings(["END"]))
    assert matcher.feed("a END", armed=False) == "a END"
    assert matcher.matched is None
    assert matcher.feed(" b EN") == " b "
    assert matcher.feed("D c") == ""
    assert matcher.matched == "END"
    assert matcher.feed("more") == ""
    assert matcher.finish() == ""


def test_a_stop_string_that_begins_unarmed_may_end_armed():
    matcher = StopMatcher(StopStrings(["END"]))
    assert matcher.feed("a E", armed=False) == "a "
    assert matcher.feed("ND") == ""
    assert matcher.matched == "END"


def test_too_many_or_too_long_stop_strings_are_refused_by_number():
    with pytest.raises(RequestError, match=f"at most {MAX_STOP_STRINGS} strings, not {MAX_STOP_STRINGS + 1}"):
        StopStrings([str(n) for n in range(MAX_STOP_STRINGS + 1)])
    with pytest.raises(RequestError, match=f"at most {MAX_STOP_LENGTH} characters"):
        StopStrings(["x" * (MAX_STOP_LENGTH + 1)])
