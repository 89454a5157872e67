"""The engine process: ``python -m pymllm.engine.worker COMMANDS RESULTS`` with two ZeroMQ addresses.

It ends when it is told to, or when its standard input closes: the parent holds the other end, so no engine
outlives a parent that was killed.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import zmq

from pymllm.engine import wire
from pymllm.errors import PymllmError

if TYPE_CHECKING:  # importing them takes a while, in which Ctrl-C would end this process
    from pymllm.config import Config
    from pymllm.engine.engine import Engine
    from pymllm.engine.profiler import StepProfiler

log = logging.getLogger(__name__)

Build = Callable[["Config", bool], "Engine"]

PROFILE_SECONDS = 600.0
"""How long starting a profile, or writing its trace, may take before the process counts as hung."""


def main(commands_address: str, results_address: str, build: Build | None = None) -> int:
    """Build the engine that the first message describes, say so, and step it until told to stop.

    build: makes the engine of a configuration, with progress bars or without; default: the real one.
    """
    for number in (signal.SIGINT, signal.SIGTERM):  # Ctrl-C and service managers reach the whole group:
        signal.signal(number, signal.SIG_IGN)  # the parent decides, and may want to drain first
    threading.Thread(target=_die_with_parent, daemon=True).start()
    context = zmq.Context()
    commands, results = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    for socket in (commands, results):
        socket.set_hwm(0)
        socket.linger = 2000
    commands.connect(commands_address)
    results.connect(results_address)
    try:
        engine = _build(commands, results, build)
        if engine is None:
            return 1
        _serve(engine, commands, results)
    except Exception as error:
        log.exception("the engine failed")
        _send(results, wire.Failed("EngineDeadError", f"the engine failed: {type(error).__name__}: {error}"))
        return 1
    finally:
        context.destroy()
    return 0


def _die_with_parent() -> None:
    while os.read(0, 1024):
        pass
    os._exit(0)


def _send(socket: zmq.Socket[bytes], message: wire.FromEngine) -> None:
    socket.send(wire.encoder.encode(message))


def _build(commands: zmq.Socket[bytes], results: zmq.Socket[bytes], build: Build | None) -> Engine | None:
    """The engine, or None when it could not be built and the reason was sent."""
    start = wire.to_engine.decode(commands.recv())
    assert isinstance(start, wire.Start), "the first message starts the engine"
    try:
        from pymllm.compose import compose
        from pymllm.engine.assemble import assemble
        from pymllm.log import setup_logging

        config = compose(start.config)
        setup_logging(config.log.level)
        engine = build(config, start.progress) if build else assemble(config, progress=start.progress)
    except PymllmError as error:
        _send(results, wire.Failed(type(error).__name__, str(error)))
        return None
    gc.collect()
    gc.freeze()  # or the garbage collector goes through all of torch now and then, in the middle of a step
    _send(results, wire.Stepped([], engine.stats()))
    _send(results, wire.Ready(engine.info))
    return engine


def _serve(engine: Engine, commands: zmq.Socket[bytes], results: zmq.Socket[bytes]) -> None:
    from pymllm.engine.profiler import StepProfiler

    profiler = StepProfiler(engine.info.device, lambda: _send(results, wire.Busy(PROFILE_SECONDS)))
    while True:
        while not engine.has_work or commands.poll(0):
            message = wire.to_engine.decode(commands.recv())
            if isinstance(message, wire.Stop):
                profiler.close()
                return
            _obey(message, engine, profiler, results)
        _send(results, wire.Stepped(engine.step(), engine.stats()))
        profiler.stepped()


def _obey(message: wire.ToEngine, engine: Engine, profiler: StepProfiler, results: zmq.Socket[bytes]) -> None:
    if isinstance(message, wire.Submit):
        engine.submit(message.request)
    elif isinstance(message, wire.Abort):
        engine.abort(message.id)
    elif isinstance(message, wire.ResetCache):
        dropped = engine.reset_cache()
        _send(results, wire.Stepped([], engine.stats()))
        _send(results, wire.CacheReset(dropped))
    elif isinstance(message, (wire.StartProfile, wire.StopProfile)):
        try:
            profile = profiler.start(message.wanted) if isinstance(message, wire.StartProfile) else profiler.stop()
            _send(results, wire.Profiled(profile))
        except PymllmError as error:
            _send(results, wire.Refused(type(error).__name__, str(error)))


if __name__ == "__main__":
    status = main(sys.argv[1], sys.argv[2])
    logging.shutdown()
    sys.stderr.flush()
    os._exit(status)  # nothing is left to save, and tearing down torch would take seconds
