"""The server around the application: who may hold a connection, and for how long without asking for anything.

    connected → headers within `headers` seconds → request (the application's own time limit) → answered → again

A connection that holds no request gives way, the oldest first, when a new one comes and all are taken, so that clients
who never finish their headers cannot keep others out.
"""

import asyncio
import importlib.util
import json
import socket
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from .limits import Limits

SPARE_FILES = 64
"""Files that the process needs beside its connections: weights, logs, decoders."""


class Guarded(H11Protocol):
    """One connection, closed when its next request does not come in time."""

    limits = Limits()
    waiting: asyncio.TimerHandle | None = None
    """The timer while no request is being worked on."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        others = [each for each in self.connections if isinstance(each, Guarded)]
        super().connection_made(transport)
        self._wait()
        if len(others) < most_connections(self.limits):
            return
        idle = [each for each in others if each.waiting is not None]
        if idle:
            min(idle, key=lambda each: each.waiting.when()).transport.abort()  # type: ignore[union-attr]
        else:
            self.refuse(503, "as many connections are open as may be", "retry-after: 1\r\n")

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Take what has come; a request that is whole up to its body ends the waiting."""
        super().handle_events()
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._wait()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are no HTTP, unless an answer is under way already."""
        self.refuse(400, msg)

    def refuse(self, status: int, reason: str, headers: str = "") -> None:
        """Answer with a status and close; just close where an answer has begun or the client takes none."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # the application may go on, but there is nobody to tell
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE) and not self.transport.get_write_buffer_size():
            body = json.dumps({"detail": reason})
            self.transport.write(
                f"HTTP/1.1 {status} \r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
                f"{headers}connection: close\r\n\r\n{body}".encode()
            )
            self.transport.close()
        else:
            self.transport.abort()

    def _wait(self) -> None:
        self._stop_waiting()
        self.waiting = self.loop.call_later(self.limits.headers, self._late)

    def _stop_waiting(self) -> None:
        if self.waiting is not None:
            self.waiting.cancel()
            self.waiting = None

    def _late(self) -> None:
        self.waiting = None
        if not self.transport.is_closing():
            self.refuse(408, f"no whole request came within {self.limits.headers:g} s")


def most_connections(limits: Limits) -> int:
    """How many connections may be open: the limit, or what the system's limit of open files leaves.

    >>> most_connections(Limits(connections=4))
    4
    """
    if importlib.util.find_spec("resource") is None:  # not on Windows
        return limits.connections
    import resource

    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        limits.connections if files == resource.RLIM_INFINITY else max(1, min(limits.connections, files - SPARE_FILES))
    )


def server_options(limits: Limits) -> dict[str, Any]:
    """The options of `uvicorn.run` for a server with guarded connections.

    >>> sorted(server_options(Limits()))
    ['access_log', 'http', 'log_level', 'timeout_graceful_shutdown', 'ws']
    """
    return {
        "http": type("GuardedConnection", (Guarded,), {"limits": limits}),
        "ws": "none",
        "log_level": "error",
        "access_log": False,
        # on SIGTERM no new connection is taken, and requests in flight get the time that every request has
        "timeout_graceful_shutdown": int(limits.seconds) + 1,
    }


def listen(app: ASGIApp, limits: Limits, host: str, port: int) -> None:
    """Serve until a signal comes; a `ValueError` where nothing can listen on the address.

    Args:
        app: The ASGI application.
        limits: What connections may cost.
        host: An address or name of this machine.
        port: 1 to 65535, or 0 for any that is free.
    """
    bound(host, port).close()  # an address that cannot be had is told before the server starts
    uvicorn.run(app, host=host, port=port, **server_options(limits))


def bound(host: str, port: int) -> socket.socket:
    """A socket bound to an address.

    >>> bound("127.0.0.1", 99999)
    Traceback (most recent call last):
    ValueError: the port 99999 does not exist; give 1 to 65535
    """
    if not 0 <= port <= 65_535:
        raise ValueError(f"the port {port} does not exist; give 1 to 65535")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        opened = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise ValueError(f"cannot listen on {host}: {error}") from error
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
    except OSError as error:
        opened.close()
        raise ValueError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    return opened
