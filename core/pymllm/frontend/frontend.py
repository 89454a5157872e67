"""Prompts in, text out: what stands between whoever asks (server, offline API) and an engine client."""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from pymllm.engine import admission
from pymllm.engine.client import EngineClient
from pymllm.engine.messages import EngineRequest, TokenOutput
from pymllm.errors import EngineDeadError, RequestError
from pymllm.frontend.answer import Answer
from pymllm.frontend.chat import Message, render_chat
from pymllm.frontend.detokenizer import Detokenizer
from pymllm.frontend.generation import DeltaSink, PlacedPrompt, UnplacedPrompt
from pymllm.frontend.parts import Parts, check_text
from pymllm.frontend.stop import StopMatcher, StopStrings
from pymllm.sampling import SamplingParams

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from pymllm.frontend.media import MediaPlacer

logger = logging.getLogger(__name__)


class Generation:
    """A prompt that is being answered (``n`` times). Its deltas go to the sink it was started with."""

    def __init__(self, client: EngineClient, id: str, token_ids: list[int], answers: list[Answer], sink: DeltaSink):
        self.id = id
        self.prompt_token_ids = token_ids
        self._client = client
        self._answers = answers
        self._sink = sink
        self._dropped = False

    def abort(self) -> None:
        """End what is still open: each open answer gets a last delta with finish_reason "abort". Idempotent."""
        for answer in self._answers:
            if not answer.finished:
                self._abort(answer)

    def submit(self, requests: Sequence[EngineRequest]) -> None:
        """Queue one request an answer. If one is refused, the earlier ones are aborted, the sink hears
        nothing more, and the error is raised."""
        for count, (answer, request) in enumerate(zip(self._answers, requests)):
            try:
                self._client.submit(request, self._receiver(answer))
            except BaseException:
                self._dropped = True
                for earlier in self._answers[:count]:
                    self._abort(earlier)
                raise

    def _receiver(self, answer: Answer) -> Callable[[TokenOutput], None]:
        return lambda output: self._receive(answer, output)

    def _receive(self, answer: Answer, output: TokenOutput) -> None:
        if answer.finished or self._dropped:
            return
        try:
            delta = answer.take(output)
        except Exception as error:  # one answer's failure must not reach the engine's thread and the others
            logger.exception("request %s failed in the frontend", answer.id)
            delta = answer.fail(f"the answer could not be decoded: {error}")
        if answer.finished and output.finish_reason is None:
            self._abort(answer)
        self._sink(delta)

    def _abort(self, answer: Answer) -> None:
        with contextlib.suppress(EngineDeadError):  # a dead engine has ended all its requests
            self._client.abort(answer.id)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A prompt that passed all checks, ready to be started; made by :meth:`Frontend.prepare`."""

    id: str
    token_ids: list[int]
    params: SamplingParams
    requests: list[EngineRequest]
    stops: StopStrings | None


class Frontend:
    """Tokenizes, validates, fans out, detokenizes and stops. All methods may be called from any thread."""

    def __init__(
        self,
        client: EngineClient,
        tokenizer: PreTrainedTokenizerBase | None,
        *,
        generation_defaults: Mapping[str, Any],
        eos_token_ids: list[int],
        model_name: str,
        media: MediaPlacer | None = None,
    ) -> None:
        """tokenizer: None serves token ids only; the text of every answer is empty.
        generation_defaults: the checkpoint's generation_config.json. eos_token_ids: the model's end tokens.
        media: for a model that takes images and videos.
        """
        self.client = client
        self.tokenizer = tokenizer
        self.media = media
        self.model_name = model_name
        self.eos_token_ids = list(eos_token_ids)
        self._defaults = dict(generation_defaults)
        self._detokenizer = Detokenizer(tokenizer) if tokenizer is not None else None
        if tokenizer is not None:
            # The first call undoes truncation and padding that a tokenizer.json may carry; from then on
            # calls change nothing, so threads may share the tokenizer.
            tokenizer("", verbose=False)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text. Raises RequestError without a tokenizer or for text that is not Unicode."""
        if self.tokenizer is None:
            raise RequestError("this model has no tokenizer, so a prompt must be a list of token ids", "prompt")
        if not isinstance(text, str):
            raise RequestError("a prompt must be a string or a list of token ids", "prompt")
        check_text(text, "prompt")
        return list(self.tokenizer(text, add_special_tokens=add_special_tokens, verbose=False)["input_ids"])

    def decode(self, ids: list[int], *, skip_special_tokens: bool = False) -> str:
        """Text of token ids. Raises RequestError without a tokenizer or for ids outside the vocabulary."""
        if self._detokenizer is None:
            raise RequestError("this model has no tokenizer, so token ids have no text", "tokens")
        ids = _integers(ids, "tokens")
        self._check_vocabulary(ids, "tokens")
        return self._detokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    def read_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
        chat_template: str | None = None,
        offline: bool = False,
    ) -> UnplacedPrompt:
        """The prompt of a conversation; see :func:`pymllm.frontend.chat.render_chat`. offline: its media may be what a
        Python caller gives (:func:`pymllm.media.parse_part`)."""
        parts = Parts(media=self.media is not None, offline=offline)
        token_ids = render_chat(
            self.tokenizer,
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            template_kwargs=template_kwargs,
            chat_template=chat_template,
            parts=parts,
        )
        return UnplacedPrompt(token_ids, parts.references)

    async def place(self, prompt: UnplacedPrompt) -> PlacedPrompt:
        """The prompt with its media, ready for :meth:`prepare`; all calls must be of one event loop.

        Raises RequestError; see :meth:`pymllm.frontend.media.MediaPlacer.place`.
        """
        if not prompt.references:
            return PlacedPrompt(prompt.token_ids)
        if self.media is None:
            where = prompt.references[0].where
            raise RequestError(f"{where}: this model takes text only", where)
        token_ids = _integers(prompt.token_ids, "prompt")
        self._check_vocabulary(token_ids, "prompt")
        return await self.media.place(UnplacedPrompt(token_ids, prompt.references))

    def close(self) -> None:
        """End the engine. Idempotent."""
        if self.media is not None:
            self.media.close()
        self.client.close()

    def start(
        self,
        prompt: list[int] | PlacedPrompt,
        params: SamplingParams,
        sink: DeltaSink,
        *,
        request_id: str | None = None,
        priority: int = 0,
        namespace: str = "",
    ) -> Generation:
        """``start_prepared`` of :meth:`prepare`."""
        prepared = self.prepare(prompt, params, request_id=request_id, priority=priority, namespace=namespace)
        return self.start_prepared(prepared, sink)

    def start_prepared(self, prepared: Prepared, sink: DeltaSink) -> Generation:
        """Answer a prompt as often as its parameters ask; answer i is the engine request "<id>-<i>" with seed + i.

        sink: gets the deltas, each answer's last one with a finish_reason; it may be called before this
        returns. Raises QueueFullError and EngineDeadError as the client does; then nothing of the prompt runs and
        the sink hears nothing. A prepared prompt is started once at most.
        """
        answers = [
            self._answer(request.id, index, prepared.params, prepared.stops)
            for index, request in enumerate(prepared.requests)
        ]
        generation = Generation(self.client, prepared.id, prepared.token_ids, answers, sink)
        generation.submit(prepared.requests)
        return generation

    def prepare(
        self,
        prompt: list[int] | PlacedPrompt,
        params: SamplingParams,
        *,
        request_id: str | None = None,
        priority: int = 0,
        namespace: str = "",
    ) -> Prepared:
        """Check a prompt without starting anything. Raises RequestError for what can never be answered, with the
        numbers."""
        id = request_id or uuid.uuid4().hex
        placed = prompt if isinstance(prompt, PlacedPrompt) else PlacedPrompt(prompt)
        token_ids = _integers(placed.token_ids, "prompt")
        stops = StopStrings(params.stop_strings) if params.stop_strings else None
        if stops is not None and self.tokenizer is None:
            raise RequestError("this model has no tokenizer, so stop strings can never match", "stop")
        filled = params.with_defaults(self._defaults)
        requests = [
            EngineRequest(
                id=f"{id}-{index}",
                token_ids=list(token_ids),
                sampling=_nth(filled, index),
                eos_token_ids=[] if params.ignore_eos else list(self.eos_token_ids),
                media=placed.media,
                inputs=placed.inputs,
                positions=placed.positions,
                position_delta=placed.position_delta,
                namespace=namespace,
                priority=priority,
                arrival=time.monotonic(),
            )
            for index in range(params.n)
        ]
        admission.check(requests[0], self.client.info)
        if self.media is not None and not placed.media:
            self.media.check_text(token_ids)
        return Prepared(id, token_ids, params, requests, stops)

    def _check_vocabulary(self, ids: list[int], field: str) -> None:
        vocab = self.client.info.vocab_size
        if ids and not 0 <= min(ids) <= max(ids) < vocab:
            raise RequestError(f"the token ids of {field} must be from 0 to {vocab - 1}", field)

    def _answer(self, id: str, index: int, params: SamplingParams, stops: StopStrings | None) -> Answer:
        stream = None
        if self._detokenizer is not None:
            stream = self._detokenizer.stream(skip_special_tokens=params.skip_special_tokens)
        matcher = None
        if stops is not None:
            matcher = StopMatcher(stops, include=params.include_stop_str_in_output)
        return Answer(id, index, stream, matcher, params.min_tokens)


def _nth(params: SamplingParams, index: int) -> SamplingParams:
    """Answer ``index``'s share: its own seed, and the prompt's log-probabilities once only."""
    if index == 0:
        return params
    seed = params.seed
    if seed is not None:
        seed = seed + index if seed + index < 2**64 else seed + index - 2**64
    return msgspec.structs.replace(params, seed=seed, prompt_logprobs=None)


def _integers(ids: object, field: str) -> list[int]:
    """A copy of token ids that a client gave. Raises RequestError for anything but integers."""
    try:
        if isinstance(ids, list):
            return msgspec.convert(ids, list[int])
    except msgspec.ValidationError:
        pass
    raise RequestError(f"{field} must be a list of token ids (integers)", field)
