"""What a terminal need not show of a run: hundreds of lines that stand in the log's file."""
from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any, TextIO

from mmengine.runner import Runner

from colonnade.runtime.sanitize import printable

from .errors import UserCodeError

#: what pycocotools and faster-coco-eval print of each of their steps
STEPS_OF_COCO = ('loading annotations into memory...', 'Done (t=', 'creating index...',
                 'index created!', 'Loading and preparing results...', 'DONE (t=')
OF_THE_START = Runner._log_env.__name__, 'Hooks will be executed'  # a function, a text


def print_traceback(error: Exception | None) -> None:
    """Print the traceback of somebody's own code that failed, where a tool goes on.

    Args:
        error: Error that is reported by its message; only a UserCodeError has a traceback to print.
    """
    if isinstance(error, UserCodeError):
        print(printable(error.format_traceback()), end='', file=sys.stderr, flush=True)


@contextmanager
def errors_alone(logger: logging.Logger) -> Iterator[None]:
    """While open, a logger passes on errors and nothing less."""
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


class WithoutStart(logging.Filter):
    """Leaves the environment, the config and the list of hooks out."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is shown."""
        function, text = OF_THE_START
        return record.funcName != function and not str(record.msg).startswith(text)


class Printable(logging.Filter):
    """Writes out the control characters of a record, which names of files may hold.

    A record whose text and values do not fit together is shown with both, and where it comes from.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Change the record; all are shown."""
        try:
            text = record.getMessage()
        except Exception:  # a mistake in a line of the log must not end a training
            text = (f'{record.msg} {record.args} (this text and these values do not fit together: '
                    f'{record.pathname}:{record.lineno})')
            record.msg, record.args = text, ()
        if (plain := printable(text)) != text:
            record.msg, record.args = plain, ()
        return True


def shorten_start(logger: logging.Logger, log_file: str | None) -> None:
    """Keep what a run begins with off the terminal, and say where it is."""
    if not sys.stdout.isatty():
        return
    for handler in logger.handlers:
        if type(handler) is logging.StreamHandler:
            handler.addFilter(WithoutStart())
    logger.info(f'environment, config and hooks are in {log_file}')


class WithoutSteps(io.TextIOBase):
    """A stream that leaves out what COCO's readers print of their steps.

    Args:
        stream: Takes the rest.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.line = stream, ''

    def write(self, text: str) -> int:
        """Write what is none of these lines; the begin of one waits for its end."""
        *lines, self.line = (self.line + text).split('\n')
        for line in lines:
            if not line.startswith(STEPS_OF_COCO):
                self.stream.write(f'{line}\n')
        if not any(step.startswith(self.line[:len(step)]) for step in STEPS_OF_COCO):
            self.stream.write(self.line)
            self.line = ''
        return len(text)

    def flush(self) -> None:
        """As the stream's."""
        self.stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextmanager
def without_steps() -> Iterator[None]:
    """While open, a terminal shows nothing of the steps of COCO's readers."""
    if not sys.stdout.isatty():
        yield
        return
    shown = WithoutSteps(sys.stdout)
    with redirect_stdout(shown):
        yield
    shown.stream.write(shown.line)
