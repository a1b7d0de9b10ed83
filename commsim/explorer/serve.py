"""Runs the server of the page until it is interrupted."""

from __future__ import annotations

import socket
import sys
import threading
import webbrowser
from collections.abc import Callable
from pathlib import Path

import uvicorn

from commsim.explorer.pool import AnswerPool
from commsim.explorer.server import application, new_token
from commsim.explorer.state import State
from commsim.memory import limit_bytes
from commsim.processes import usable_cores

MOST_PROCESSES = 4
MOST_CONNECTIONS = 128
"""More are answered with 503: a browser opens six."""


class _Server(uvicorn.Server):
    """Who waits for an answer is told before connections are closed."""

    pool: AnswerPool | None = None

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends the processes, then the server."""
        if self.pool is not None:
            self.pool.close()
        await super().shutdown(sockets)


def serve(
    listening: socket.socket,
    start: State,
    folder: Path,
    say: Callable[[str], None],
    *,
    browser: bool = False,
    framed: bool = False,
) -> None:
    """Serves on a bound socket and says the address; returns after Ctrl-C."""
    port, token = listening.getsockname()[1], new_token()
    address = f"http://127.0.0.1:{port}/{token}/"
    if query := start.query():
        address += f"#{query}"
    count = max(2, min(MOST_PROCESSES, usable_cores()))
    limit = limit_bytes()
    pool = AnswerPool(count, folder, limit and limit // count)
    config = uvicorn.Config(
        application(pool, token, port, start, framed=framed),
        log_level="warning",
        access_log=False,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_graceful_shutdown=1,
        ws="none",
        server_header=False,
    )
    server = _Server(config)
    server.pool = pool
    listening.listen()  # who comes early waits
    say(f"commsim explore: {address}")
    say("Only this machine can open it, with this address alone. Ctrl-C ends it.")
    sys.stdout.flush()
    if browser:
        threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
    try:
        server.run(sockets=[listening])
    except KeyboardInterrupt:
        pass
    finally:
        listening.close()
