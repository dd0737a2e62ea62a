"""A terminal's one line of progress, with what else is printed above it."""
from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from mmengine.hooks import Hook, LoggerHook
from mmengine.runner import Runner
from rich.console import Console
from rich.live import Live
from rich.text import Text

from colonnade.common.console_logging import without_steps
from colonnade.common.progress import FLICKER

#: methods of mmengine's LoggerHook whose lines the line of progress takes the place of
OF_ITERATIONS = (LoggerHook.after_train_iter.__name__, LoggerHook.after_val_iter.__name__)


class WithoutIterations(logging.Filter):
    """Leaves lines about iterations out; warnings among them stay."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is printed."""
        return record.levelno > logging.INFO or record.funcName not in OF_ITERATIONS


class ProgressLine(Hook):
    """Writes how far a training is: iteration, loss, time to go, and the last evaluation.

    Args:
        live: Where to write.
        metric: Which number of evaluations is shown.
    """

    priority = 'LOWEST'  # behind what measures times

    def __init__(self, live: Live, metric: str | None) -> None:
        self.live, self.metric = live, metric
        self.evaluated, self.shown = '', 0.

    def after_train_iter(self, runner: Runner, batch_idx: int, *_: object, **__: object) -> None:
        """Show the iteration that is done."""
        done, hub = runner.iter + 1, runner.message_hub
        if not self.is_due(done == runner.max_iters):
            return
        parts = [f'iteration {done:>{len(str(runner.max_iters))}} of {runner.max_iters}']
        if 'train/loss' in hub.log_scalars:
            parts.append(f'loss {hub.get_scalar("train/loss").current():.3f}')
        if (eta := hub.get_info('eta')) is not None:
            parts.append(f'{timedelta(seconds=int(eta))} to go')
        self.show(parts)

    def after_val_iter(self, runner: Runner, batch_idx: int, *_: object, **__: object) -> None:
        """Show how far an evaluation is."""
        total = len(runner.val_dataloader)
        if self.is_due(batch_idx + 1 == total):
            self.show([f'iteration {runner.iter} of {runner.max_iters}',
                       f'evaluation: batch {batch_idx + 1} of {total}'])  # yapf: disable

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        """Remember what was found."""
        if metrics and self.metric in metrics:
            self.evaluated = f'{self.metric} {metrics[self.metric]:.4g}'

    def after_train(self, runner: Runner) -> None:
        """Show where training ended."""
        self.show([f'iteration {runner.iter} of {runner.max_iters}'])

    def is_due(self, is_last: bool) -> bool:
        """Whether so much time has passed that the line is written anew."""
        now = time.monotonic()
        if now - self.shown < FLICKER and not is_last:
            return False
        self.shown = now
        return True

    def show(self, parts: list[str]) -> None:
        """Write the line, cut at the terminal's width."""
        text = '  ' + ', '.join(filter(None, [*parts, self.evaluated]))
        self.live.update(Text(text, no_wrap=True, overflow='ellipsis'), refresh=True)


@contextmanager
def progress_line(runner: Runner, metric: str | None) -> Iterator[None]:
    """While open, a terminal shows one line; the log's lines about iterations go to files alone.

    Nothing changes without a terminal, and in processes but the first.

    Args:
        runner: That trains.
        metric: Which number of evaluations the line shows.
    """
    console = Console(soft_wrap=True, highlight=False)
    if runner.rank or not sys.stdout.isatty() or not console.is_terminal or \
            console.is_dumb_terminal:
        yield
        return
    handlers = [each for each in runner.logger.handlers if type(each) is logging.StreamHandler]
    without = WithoutIterations()
    live = Live(console=console, auto_refresh=False, redirect_stderr=sys.stderr.isatty())
    runner.register_hook(ProgressLine(live, metric))
    streams = [handler.stream for handler in handlers]
    with live, without_steps():
        for handler in handlers:
            handler.addFilter(without)
            handler.setStream(sys.stdout)  # which is printed above the line now
        try:
            yield
        finally:
            for handler, stream in zip(handlers, streams, strict=True):
                handler.setStream(stream)
                handler.removeFilter(without)
