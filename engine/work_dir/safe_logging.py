"""Logs and curves of a training, which goes on where they cannot be written."""
from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from mmengine.runner import Runner

from .trackers import backends_of


@contextmanager
def outlived(runner: Runner) -> Iterator[None]:
    """While open, a full disk costs lines of logs and curves, and not the training.

    The first line that is missing is told.
    """
    backends = list(backends_of(runner).values())
    files = [each for each in runner.logger.handlers if isinstance(each, logging.FileHandler)]
    for backend in backends:
        backend.add_scalars = partial(try_to_write, backend.add_scalars, set(),
                                      type(backend).__name__, runner.logger)
    for file in files:
        file.handleError = partial(say_once, file, set())  # type: ignore[method-assign]
    try:
        yield
    finally:
        for backend in backends:
            del backend.add_scalars
        for file in files:
            del file.handleError


def try_to_write(write: Callable[..., None], told: set[str], name: str, logger: logging.Logger,
                 *values: Any, **options: Any) -> None:
    """Hand numbers to a backend; an OSError is a warning."""
    try:
        write(*values, **options)
    except OSError as error:
        if not told:
            logger.warning(f'{name} cannot write, and lacks numbers until it can: {error}')
        told.add(name)


def say_once(file: logging.FileHandler, told: set[str], record: logging.LogRecord) -> None:
    """What a log's file does with an error, in place of printing a traceback for each line."""
    error = sys.exc_info()[1]
    if not isinstance(error, OSError):
        type(file).handleError(file, record)
    elif not told:
        told.add(file.baseFilename)
        print(f'{file.baseFilename} cannot be written, and lacks lines until it can: {error}',
              file=sys.stderr)  # yapf: disable
