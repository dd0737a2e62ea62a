"""Progress of a step and its remaining time."""
from __future__ import annotations

import sys
import time
from datetime import timedelta
from types import TracebackType

from colonnade.runtime.sanitize import one_line

LOG_INTERVAL = 10.  # seconds between two lines in a log
FLICKER = 0.2  # seconds between two updates of the line in a terminal


def no_progress(done: int) -> None:
    """Report nothing."""


class Progress:
    """A progress line: overwritten in a terminal, printed every ten seconds in a log."""

    def __init__(self, what: str, total: int) -> None:
        self.what, self.total = what, total
        self.started = self.shown = time.monotonic()
        self.is_open = False  # whether the cursor is at the end of a progress line

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if self.is_open:
            print(flush=True)

    def __call__(self, done: int) -> None:
        """Report the number of items that are done."""
        now, in_terminal = time.monotonic(), sys.stdout.isatty()
        is_last = self.is_open and done == self.total
        if now - self.shown < (FLICKER if in_terminal else LOG_INTERVAL) and not is_last:
            return
        self.shown = now
        seconds = (now - self.started) / done * max(self.total - done, 0)
        left = timedelta(seconds=round(seconds))
        text = f'  {self.what}: {done} of {self.total}, {left} to go'
        if in_terminal:
            print(f'\r{text:<70}', end='', flush=True)
            self.is_open = True
        else:
            print(text, flush=True)

    def note(self, text: str) -> None:
        """Print a line to stderr, above the progress line."""
        if self.is_open:
            print(f'\r{"":<70}\r', end='', flush=True)
            self.is_open = False
        print(one_line(text), file=sys.stderr, flush=True)
