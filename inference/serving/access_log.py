"""Access log of the server: a line of JSON for each request."""
from __future__ import annotations

import json
import logging
import sys
from datetime import datetime, timezone
from logging.handlers import WatchedFileHandler
from pathlib import Path

from colonnade.common.errors import FileError


class FileHandler(WatchedFileHandler):
    """Handler whose errors of opening a renamed file again are reported, not raised."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record."""
        try:
            super().emit(record)
        except OSError:
            self.handleError(record)


class AccessLog:
    """Write a line of JSON for each request.

    A file that ``logrotate`` has renamed is created again. Errors of writing go to ``stderr``, and
    do not affect responses.

    Args:
        path: File to append to, or ``-`` for ``stdout``.

    Raises:
        FileError: If the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._handler: logging.Handler = (
                logging.StreamHandler(sys.stdout) if str(path) == '-' else FileHandler(
                    path, encoding='utf-8'))
        except OSError as error:
            raise FileError(f'cannot write the access log {path}: {error.strerror}') from error

    def add(self, *, client: str | None, method: str, path: str, status: int, num_bytes: int,
            seconds: float) -> None:
        """Write a line; ``num_bytes`` is the size of the body of the response."""
        line = json.dumps(
            dict(
                time=datetime.now(timezone.utc).isoformat(timespec='milliseconds'),
                client=client,
                method=method,
                path=path,
                status=status,
                bytes=num_bytes,
                seconds=round(seconds, 4)))
        self._handler.handle(logging.makeLogRecord(dict(msg=line)))

    def close(self) -> None:
        """Close the file."""
        self._handler.close()
