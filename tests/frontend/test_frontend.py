"""From token ids to deltas: validation, fan-out, text, stop strings, aborts; each answer ends exactly once."""

from __future__ import annotations

import pytest

from pymllm.engine.messages import TokenLogprobs
from pymllm.errors import QueueFullError, RequestError
from pymllm.frontend.frontend import Frontend
from pymllm.sampling import SamplingParams

END = 287


@pytest.fixture
def tokenizer(tokenizers):
    return tokenizers["byte_level"]


@pytest.fixture
def frontend(client, tokenizer):
    return Frontend(client, tokenizer, generation_defaults={"top_k": 20}, eos_token_ids=[END], model_name="toy")


class Sink(list):
    """Collects deltas."""

    def __call__(self, delta):
        self.append(delta)

    def text(self, index=0):
        return "".join(d.text for d in self if d.index == index)

    def ends(self, index=0):
        return [(d.finish_reason, d.stop_reason) for d in self if d.index == index and d.finish_reason]


def start(frontend, sink, prompt=(1, 2, 3), **params):
    return frontend.start(list(prompt), SamplingParams(**params), sink, request_id="r")


def test_tokens_become_text_and_the_end_token_has_none(client, frontend, tokenizer):
    sink = Sink()
    start(frontend, sink, skip_special_tokens=False)
    first, *rest = frontend.encode("é🎉 the end")
    client.say("r-0", [first], cached_tokens=2, queue_seconds=0.5)
    client.say("r-0", rest)
    client.say("r-0", [END], finish_reason="stop", stop_token=END)
    assert sink.text() == "é🎉 the end"
    assert [token for delta in sink for token in delta.token_ids] == [first, *rest, END]
    assert sink.ends() == [("stop", END)]
    assert (sink[0].cached_tokens, sink[0].queue_seconds) == (2, 0.5)
    assert client.aborted == []


def test_what_the_engine_is_asked(client, frontend):
    start(frontend, Sink(), n=3, seed=2**64 - 2, temperature=0.5, prompt_logprobs=0)
    requests = [client.requests[f"r-{index}"] for index in range(3)]
    assert [r.sampling.seed for r in requests] == [2**64 - 2, 2**64 - 1, 0]
    assert [r.sampling.prompt_logprobs for r in requests] == [0, None, None]
    assert {(r.sampling.temperature, r.sampling.top_k, r.sampling.top_p) for r in requests} == {(0.5, 20, 1.0)}
    assert all(r.eos_token_ids == [END] and r.token_ids == [1, 2, 3] for r in requests)


def test_no_seed_stays_none_and_ignore_eos_takes_the_end_tokens_away(client, frontend):
    start(frontend, Sink(), ignore_eos=True)
    assert client.requests["r-0"].sampling.seed is None
    assert client.requests["r-0"].eos_token_ids == []


def test_answers_do_not_share_state(client, frontend):
    sink = Sink()
    start(frontend, sink, n=2, stop="END")
    half, rest = (ids := frontend.encode("🎉"))[:2], ids[2:]
    client.say("r-0", half)
    client.say("r-1", frontend.encode("E"))
    client.say("r-0", frontend.encode("N"))
    client.say("r-1", frontend.encode("ND"))
    client.say("r-0", [*half, *rest], finish_reason="length")
    assert sink.text(0) == "\ufffdN🎉"
    assert sink.text(1) == ""
    assert sink.ends(0) == [("length", None)]
    assert sink.ends(1) == [("stop", "END")]
    assert client.aborted == ["r-1"]


@pytest.mark.parametrize("group", [1, 2, 100])
def test_a_stop_string_ends_the_answer_once_and_aborts_the_engine(client, frontend, group):
    sink = Sink()
    start(frontend, sink, stop=["zz", "END"], logprobs=0)
    tokens = frontend.encode("abc END def END")
    for at in range(0, len(tokens), group):
        part = tokens[at : at + group]
        client.say("r-0", part, logprobs=[TokenLogprobs(-1.0, {}) for _ in part])
    client.say("r-0", finish_reason="abort")
    assert sink.text() == "abc "
    assert sink.ends() == [("stop", "END")]
    assert sink[-1].finish_reason == "stop", "nothing is delivered after the end"
    kept = [token for delta in sink for token in delta.token_ids]
    assert kept == tokens[: len(frontend.encode("abc END"))]
    assert sum(len(delta.logprobs) for delta in sink) == len(kept)
    assert client.aborted == ["r-0"]


def test_a_stop_string_in_the_last_output_needs_no_abort(client, frontend):
    sink = Sink()
    start(frontend, sink, stop="END", include_stop_str_in_output=True)
    client.say("r-0", frontend.encode("x END y"), finish_reason="length")
    assert sink.text() == "x END"
    assert sink.ends() == [("stop", "END")]
    assert client.aborted == []


def test_held_text_is_flushed_at_the_end(client, frontend):
    sink = Sink()
    start(frontend, sink, stop="END")
    client.say("r-0", frontend.encode("x EN"))
    assert sink.text() == "x "
    client.say("r-0", frontend.encode("🎉")[:1], finish_reason="length")
    assert sink.text() == "x EN\ufffd"
    assert sink.ends() == [("length", None)]


def test_min_tokens_comes_before_stop_strings(client, frontend):
    sink = Sink()
    start(frontend, sink, stop="N", min_tokens=3)
    for letter in "NNaNb":
        client.say("r-0", frontend.encode(letter))
    assert sink.text() == "NNa"
    assert sum(len(delta.token_ids) for delta in sink) == 4


def test_abort_in_every_phase(client, frontend):
    sink = Sink()
    generation = start(frontend, sink, n=2)
    client.say("r-0", frontend.encode("a"), finish_reason="length")
    generation.abort()
    generation.abort()
    assert set(client.aborted) == {"r-1"}
    client.say("r-1", finish_reason="abort")
    before = len(sink)
    generation.abort()
    client.say("r-1", finish_reason="abort")
    assert client.aborted == ["r-1", "r-1"]
    assert len(sink) == before
    assert sink.ends(1) == [("abort", None)]


def test_an_engine_error_reaches_the_sink(client, frontend):
    sink = Sink()
    start(frontend, sink)
    client.say("r-0", finish_reason="error", error="out of memory")
    assert (sink[0].finish_reason, sink[0].error) == ("error", "out of memory")


def test_a_refused_answer_takes_the_earlier_ones_back(full_client, tokenizer):
    frontend = Frontend(full_client, tokenizer, generation_defaults={}, eos_token_ids=[], model_name="toy")
    sink = Sink()
    with pytest.raises(QueueFullError):
        start(frontend, sink, n=3)
    assert full_client.aborted == ["r-0", "r-1"]
    full_client.say("r-0", finish_reason="abort")
    assert sink == []


@pytest.mark.parametrize(
    "prompt, params, field, sentence",
    [
        ([], {}, "prompt", "empty"),
        ([1, -1], {}, "prompt", "token id -1 is outside the vocabulary"),
        ([288], {}, "prompt", "token id 288 is outside the vocabulary"),
        ([True], {}, "prompt", "integers"),
        ("abc", {}, "prompt", "list of token ids"),
        ([1] * 64, {}, "prompt", "64 tokens"),
        ([1] * 60, {"max_tokens": 5}, "max_tokens", "at most 4"),
        ([1], {"stop_token_ids": [288]}, "stop_token_ids", "288"),
        ([1], {"logit_bias": {300: 1.0}}, "logit_bias", "300"),
        ([1], {"stop": [str(n) for n in range(100)]}, "stop", "at most 64"),
    ],
)
def test_what_can_never_be_answered_is_refused_at_the_door(client, frontend, prompt, params, field, sentence):
    for call in (frontend.prepare, lambda p, s: frontend.start(p, s, Sink())):
        with pytest.raises(RequestError) as caught:
            call(prompt, SamplingParams(**params))
        assert caught.value.field == field
        assert sentence in str(caught.value)
    assert client.requests == {}


def test_without_a_tokenizer_token_ids_work_and_texts_are_refused(client):
    frontend = Frontend(client, None, generation_defaults={}, eos_token_ids=[END], model_name="toy")
    sink = Sink()
    start(frontend, sink)
    client.say("r-0", [5, 6], finish_reason="length")
    assert (sink[0].text, sink[0].token_ids) == ("", [5, 6])
    with pytest.raises(RequestError, match="list of token ids"):
        frontend.encode("hello")
    with pytest.raises(RequestError, match="no text"):
        frontend.decode([1])
    with pytest.raises(RequestError, match="stop strings can never match"):
        start(frontend, sink, stop="x")


def test_encode_and_decode(frontend, tokenizer):
    assert frontend.encode("hello <|im_end|>") == tokenizer("hello <|im_end|>")["input_ids"]
    assert frontend.decode(frontend.encode("é <|im_end|>")) == "é <|im_end|>"
    assert frontend.decode([END], skip_special_tokens=True) == ""
    with pytest.raises(RequestError, match="lone surrogate"):
        frontend.encode("\udc00")
    for wrong in ([-1], [288], [2**40], ["a"], [None]):
        with pytest.raises(RequestError):
            frontend.decode(wrong)


def test_a_failure_in_one_answer_ends_that_answer_alone(client, frontend):
    sink = Sink()
    start(frontend, sink, n=2)
    client.say("r-0", ["not a token"])
    client.say("r-0", [1], finish_reason="length")
    client.say("r-1", frontend.encode("a"), finish_reason="length")
    assert sink.ends(0) == [("error", None)]
    assert sink.text(1) == "a"
    assert client.aborted == ["r-0"]
