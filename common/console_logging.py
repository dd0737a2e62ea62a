"""Output of other libraries on a terminal, shortened, and tracebacks of user code."""
from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from types import ModuleType
from typing import Any, TextIO

from colonnade.runtime.sanitize import printable

from .errors import UserCodeError

#: lines that pycocotools and faster-coco-eval print for each of their steps
COCO_MESSAGES = ('loading annotations into memory...', 'Done (t=', 'creating index...',
                 'index created!', 'Loading and preparing results...', 'DONE (t=')


def print_traceback(error: Exception | None) -> None:
    """Print the traceback of a UserCodeError that does not stop a tool; nothing for other errors.
    """
    if isinstance(error, UserCodeError):
        print(printable(error.format_traceback()), end='', file=sys.stderr, flush=True)


def import_without_warnings(name: str) -> ModuleType:
    """Import a module without its messages about a package that is not needed."""
    output = io.StringIO()
    with redirect_stdout(output):
        module = import_module(name)
    for line in output.getvalue().splitlines():
        if not line.startswith('Could not import OneDL'):
            print(line)
    return module


@contextmanager
def log_errors_only(logger: logging.Logger) -> Iterator[None]:
    """Context manager that makes a logger ignore everything below errors."""
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


class CocoOutputFilter(io.TextIOBase):
    """A stream that drops the lines that COCO readers print for each of their steps."""

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.line = stream, ''

    def write(self, text: str) -> int:
        """Write other lines; one that may become such a line is kept until it is complete."""
        *lines, self.line = (self.line + text).split('\n')
        for line in lines:
            if not line.startswith(COCO_MESSAGES):
                self.stream.write(f'{line}\n')
        if not any(message.startswith(self.line[:len(message)]) for message in COCO_MESSAGES):
            self.stream.write(self.line)
            self.line = ''
        return len(text)

    def flush(self) -> None:
        self.stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextmanager
def hide_coco_output() -> Iterator[None]:
    """Context manager that hides the lines of COCO readers on a terminal."""
    if not sys.stdout.isatty():
        yield
        return
    filtered = CocoOutputFilter(sys.stdout)
    with redirect_stdout(filtered):
        yield
    filtered.stream.write(filtered.line)
