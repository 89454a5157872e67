"""The messages between a process client and its engine process: msgspec's msgpack over ZeroMQ."""

from __future__ import annotations

from typing import Any

import msgspec

from pymllm.engine.messages import EngineInfo, EngineRequest, EngineStats, TokenOutput


class Start(msgspec.Struct, tag=True):
    """First message to the engine process: the whole configuration, and whether to draw progress bars."""

    config: dict[str, Any]
    progress: bool


class Submit(msgspec.Struct, tag=True):
    """Requests to queue."""

    request: EngineRequest


class Abort(msgspec.Struct, tag=True):
    """A request to end."""

    id: str


class ResetCache(msgspec.Struct, tag=True):
    """Drop the prefix cache; answered by CacheReset."""


class Stop(msgspec.Struct, tag=True):
    """End the process."""


class Ready(msgspec.Struct, tag=True):
    """The engine is loaded."""

    info: EngineInfo


class Failed(msgspec.Struct, tag=True):
    """The engine could not be built (``kind`` is an error class of pymllm.errors) or died."""

    kind: str
    message: str


class Stepped(msgspec.Struct, tag=True):
    """What a step brought for everybody."""

    outputs: list[TokenOutput]
    stats: EngineStats


class CacheReset(msgspec.Struct, tag=True):
    """Pages dropped by ResetCache."""

    pages: int


ToEngine = Start | Submit | Abort | ResetCache | Stop
FromEngine = Ready | Failed | Stepped | CacheReset

encoder = msgspec.msgpack.Encoder()
to_engine = msgspec.msgpack.Decoder(ToEngine)
from_engine = msgspec.msgpack.Decoder(FromEngine)
