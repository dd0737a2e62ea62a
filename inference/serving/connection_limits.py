"""Limits of HTTP connections: their number, and the time that they can be idle."""
from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_CONNECTIONS = 512  # half of the usual limit of open files
CHECK_SECONDS = 20.
BUSY_RESPONSE = (b'HTTP/1.1 503 Service Unavailable\r\nRetry-After: 2\r\nContent-Length: 0\r\n'
                 b'Connection: close\r\n\r\n')


class CountingTransport:
    """A transport that counts written bytes in ``num_written``."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport, self.num_written = transport, 0

    def write(self, data: bytes) -> None:
        """Count and write data."""
        self.num_written += len(data)
        self.transport.write(data)

    def count_sent(self) -> int:
        """Return the number of bytes that have left this process."""
        return self.num_written - self.transport.get_write_buffer_size()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transport, name)


class LimitedProtocol(H11Protocol):
    """An HTTP connection that is closed if its client neither sends a request nor reads.

    The time limits of request bodies are in :mod:`.middleware`.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection, or respond 503 if there are too many."""
        self.counting = CountingTransport(transport)
        super().connection_made(self.counting)  # type: ignore[arg-type]
        self.num_responses = 0
        self.last_state = (-1, -1)
        self.check_timer = self.loop.call_later(CHECK_SECONDS, self.check)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.write(BUSY_RESPONSE)
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timer."""
        self.check_timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Count a response."""
        self.num_responses += 1
        super().on_response_complete()

    def check(self) -> None:
        """Close the connection if the client did nothing since the last check."""
        in_request = self.cycle is not None and not self.cycle.response_complete
        num_sent = self.counting.count_sent()
        last_responses, last_sent = self.last_state
        is_stuck = num_sent == last_sent and num_sent < self.counting.num_written
        if (not in_request and last_responses == self.num_responses) or is_stuck:
            self.transport.abort()
            return
        self.last_state = (-1 if in_request else self.num_responses, num_sent)
        self.check_timer = self.loop.call_later(CHECK_SECONDS, self.check)
