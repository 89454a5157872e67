"""One answer while it grows: engine outputs in, deltas out."""

from __future__ import annotations

from pymllm.engine.messages import TokenOutput
from pymllm.frontend.detokenizer import TokenStream
from pymllm.frontend.generation import Delta
from pymllm.frontend.stop import StopMatcher


class Answer:
    """The frontend's state of one engine request.

    id: the engine request's. finished: the last delta was made; later outputs must be ignored.
    """

    def __init__(
        self, id: str, index: int, stream: TokenStream | None, matcher: StopMatcher | None, min_tokens: int
    ) -> None:
        """stream: None without a tokenizer (the text stays empty). matcher: None without stop strings."""
        self.id = id
        self.index = index
        self.finished = False
        self._stream = stream
        self._matcher = matcher
        self._min_tokens = min_tokens
        self._count = 0

    def take(self, output: TokenOutput) -> Delta:
        """The news in an engine output. Tokens after a stop string are cut off, however they were grouped."""
        if self._matcher is not None:
            return self._take_until_match(output, self._matcher)
        tokens = output.token_ids
        ends = output.finish_reason is not None
        text = ""
        if self._stream is not None:
            for token in tokens if output.stop_token is None else tokens[:-1]:
                text += self._stream.feed(token)
            if ends:
                text += self._stream.finish()
        self.finished = ends
        return Delta(
            self.index,
            text,
            tokens,
            output.logprobs,
            output.prompt_logprobs,
            output.finish_reason,
            output.stop_token,
            output.cached_tokens,
            output.queue_seconds,
            output.error,
        )

    def _take_until_match(self, output: TokenOutput, matcher: StopMatcher) -> Delta:
        pieces: list[str] = []
        taken = 0
        for token in output.token_ids:
            taken += 1
            ends = output.stop_token is not None and taken == len(output.token_ids)
            pieces.append(self._feed(None if ends else token, matcher))
            if matcher.matched is not None:
                break
        if output.finish_reason is not None and matcher.matched is None:
            pieces.append(self._flush(matcher))
        delta = Delta(
            self.index,
            "".join(pieces),
            output.token_ids[:taken],
            output.logprobs[:taken] if output.logprobs is not None else None,
            output.prompt_logprobs,
            cached_tokens=output.cached_tokens,
            queue_seconds=output.queue_seconds,
        )
        if matcher.matched is not None:
            delta.finish_reason, delta.stop_reason = "stop", matcher.matched
        else:
            delta.finish_reason, delta.stop_reason = output.finish_reason, output.stop_token
            delta.error = output.error
        self.finished = delta.finish_reason is not None
        return delta

    def fail(self, sentence: str) -> Delta:
        """The last delta of an answer that could not be made."""
        self.finished = True
        return Delta(self.index, finish_reason="error", error=sentence)

    def _feed(self, token: int | None, matcher: StopMatcher) -> str:
        """Text of one more token; None is the end token, which counts and has no text."""
        self._count += 1
        text = self._stream.feed(token) if self._stream is not None and token is not None else ""
        return matcher.feed(text, armed=self._count >= self._min_tokens)

    def _flush(self, matcher: StopMatcher) -> str:
        rest = self._stream.finish() if self._stream is not None else ""
        return matcher.feed(rest, armed=self._count >= self._min_tokens) + matcher.finish()
