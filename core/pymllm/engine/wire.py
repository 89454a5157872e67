"""The messages between a process client and its engine process: msgspec's msgpack over ZeroMQ."""

from __future__ import annotations

from typing import Any

import msgspec

from pymllm.engine.messages import EngineInfo, EngineRequest, EngineStats, Profile, ProfileRequest, TokenOutput


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


class StartProfile(msgspec.Struct, tag=True):
    """Record steps; answered by Profiled or Refused."""

    wanted: ProfileRequest


class StopProfile(msgspec.Struct, tag=True):
    """Write the trace; answered by Profiled or Refused."""


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


class Profiled(msgspec.Struct, tag=True):
    """A profile has started, or ended."""

    profile: Profile


class Refused(msgspec.Struct, tag=True):
    """What was asked cannot be done; ``kind`` is an error class of pymllm.errors."""

    kind: str
    message: str


class Busy(msgspec.Struct, tag=True):
    """No step will end for up to ``seconds``, and yet nothing is wrong."""

    seconds: float


ToEngine = Start | Submit | Abort | ResetCache | StartProfile | StopProfile | Stop
FromEngine = Ready | Failed | Stepped | CacheReset | Profiled | Refused | Busy

encoder = msgspec.msgpack.Encoder()
to_engine = msgspec.msgpack.Decoder(ToEngine)
from_engine = msgspec.msgpack.Decoder(FromEngine)
