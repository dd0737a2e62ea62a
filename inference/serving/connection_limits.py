"""Connections of the server: so many at a time, and none that waits for ever."""
from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_CONNECTIONS = 512  # half of the files that a process may commonly open
CHECK_SECONDS = 20.
FULL = (b'HTTP/1.1 503 Service Unavailable\r\nRetry-After: 2\r\nContent-Length: 0\r\n'
        b'Connection: close\r\n\r\n')


class CountingTransport:
    """A transport that counts what is written to it.

    Attributes:
        num_written: Bytes that were written.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport, self.num_written = transport, 0

    def write(self, data: bytes) -> None:
        """Write as the transport does."""
        self.num_written += len(data)
        self.transport.write(data)

    def num_sent(self) -> int:
        """Return how many bytes have left this process."""
        return self.num_written - self.transport.get_write_buffer_size()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transport, name)


class LimitedProtocol(H11Protocol):
    """An HTTP connection that is closed if its client neither sends a request nor reads.

    Bodies of requests have a deadline in :mod:`.middleware`.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection, or answer 503 if there are too many."""
        self.counting = CountingTransport(transport)
        super().connection_made(self.counting)  # type: ignore[arg-type]
        self.num_answers = 0
        self.seen = (-1, -1)
        self.check_timer = self.loop.call_later(CHECK_SECONDS, self.check)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.write(FULL)
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self.check_timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Count an answer."""
        self.num_answers += 1
        super().on_response_complete()

    def check(self) -> None:
        """Close the connection if nothing happened since the last check that its client owes."""
        in_request = self.cycle is not None and not self.cycle.response_complete
        num_sent = self.counting.num_sent()
        answers, num_sent_before = self.seen
        is_stuck = num_sent == num_sent_before and num_sent < self.counting.num_written
        if (not in_request and answers == self.num_answers) or is_stuck:
            self.transport.abort()
            return
        self.seen = (-1 if in_request else self.num_answers, num_sent)
        self.check_timer = self.loop.call_later(CHECK_SECONDS, self.check)
