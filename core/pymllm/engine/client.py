"""How the rest of pymllm talks to an engine, wherever it runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from pymllm.engine.messages import EngineInfo, EngineRequest, EngineStats, Profile, ProfileRequest, TokenOutput

Deliver = Callable[[TokenOutput], None]
"""Receives a request's outputs, in order, on a thread of the client. It must be quick and must not raise."""


class EngineClient(ABC):
    """A started engine: in a thread (:class:`pymllm.engine.thread.ThreadClient`) or in a process of its
    own (:class:`pymllm.engine.process.ProcessClient`). All methods may be called from any thread."""

    info: EngineInfo

    @abstractmethod
    def submit(self, request: EngineRequest, deliver: Deliver) -> None:
        """Queue a request. ``deliver`` gets its outputs; the last one has a finish_reason, always exactly
        one. Raises EngineDeadError if the engine is gone, RequestError if the request can never fit, its
        id is in use, or a token id is outside the vocabulary."""

    def together(self) -> AbstractContextManager[None]:
        """Requests submitted inside should reach the engine at once, so that its next step can compute them together.
        A hint: a client may ignore it, and none waits long for the end of the block."""
        return nullcontext()

    @abstractmethod
    def abort(self, request_id: str) -> None:
        """End a request: its last output has finish_reason "abort". Unknown ids are ignored."""

    @abstractmethod
    def stats(self) -> EngineStats:
        """The latest snapshot."""

    @abstractmethod
    def reset_cache(self) -> int:
        """Drop every unlocked page of the prefix cache; returns how many."""

    @abstractmethod
    def start_profile(self, wanted: ProfileRequest) -> Profile:
        """Record the engine's steps from now on. Raises ConflictError while a profile runs, RequestError for a folder
        that cannot be written to."""

    @abstractmethod
    def stop_profile(self) -> Profile:
        """End the profile and write its trace, which may take seconds, in which no step is computed. Raises
        ConflictError if none runs (it may have ended by itself), RequestError if the file cannot be written."""

    @property
    @abstractmethod
    def alive(self) -> bool:
        """False once the engine can no longer answer; open requests have then ended with an error."""

    @abstractmethod
    def close(self) -> None:
        """Abort what is open, stop the engine and free its memory. Idempotent."""
