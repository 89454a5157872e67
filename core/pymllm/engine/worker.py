"""The engine process: ``python -m pymllm.engine.worker COMMANDS RESULTS`` with two ZeroMQ addresses.

It ends when it is told to, or when its standard input closes: the parent holds the other end, so no engine
outlives a parent that was killed.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

import zmq

from pymllm.engine import wire
from pymllm.errors import PymllmError

if TYPE_CHECKING:  # importing it takes a while, in which Ctrl-C would end this process
    from pymllm.engine.engine import Engine

log = logging.getLogger(__name__)


def main(commands_address: str, results_address: str) -> int:
    """Build the engine that the first message describes, say so, and step it until told to stop."""
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
        engine = _build(commands, results)
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


def _build(commands: zmq.Socket[bytes], results: zmq.Socket[bytes]) -> Engine | None:
    """The engine, or None when it could not be built and the reason was sent."""
    start = wire.to_engine.decode(commands.recv())
    assert isinstance(start, wire.Start), "the first message starts the engine"
    try:
        from pymllm.compose import compose
        from pymllm.engine.assemble import assemble
        from pymllm.log import setup_logging

        config = compose(start.config)
        setup_logging(config.log.level)
        engine = assemble(config, progress=start.progress)
    except PymllmError as error:
        _send(results, wire.Failed(type(error).__name__, str(error)))
        return None
    _send(results, wire.Stepped([], engine.stats()))
    _send(results, wire.Ready(engine.info))
    return engine


def _serve(engine: Engine, commands: zmq.Socket[bytes], results: zmq.Socket[bytes]) -> None:
    while True:
        while not engine.has_work or commands.poll(0):
            message = wire.to_engine.decode(commands.recv())
            if isinstance(message, wire.Submit):
                engine.submit(message.request)
            elif isinstance(message, wire.Abort):
                engine.abort(message.id)
            elif isinstance(message, wire.ResetCache):
                dropped = engine.reset_cache()
                _send(results, wire.Stepped([], engine.stats()))
                _send(results, wire.CacheReset(dropped))
            elif isinstance(message, wire.Stop):
                return
        _send(results, wire.Stepped(engine.step(), engine.stats()))


if __name__ == "__main__":
    status = main(*sys.argv[1:])
    logging.shutdown()
    sys.stderr.flush()
    os._exit(status)  # nothing is left to save, and tearing down torch would take seconds
