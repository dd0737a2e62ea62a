"""The progress line of a training on a terminal."""
from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from mmengine.hooks import Hook
from mmengine.runner import Runner
from rich.console import Console
from rich.live import Live
from rich.text import Text

from colonnade.common.console_logging import hide_coco_output
from colonnade.common.progress import FLICKER

from ..runner.log_filters import IterationFilter


class ProgressLine(Hook):
    """A hook that shows iteration, loss, remaining time and the latest evaluation."""

    priority = 'LOWEST'  # after the hook that measures times

    def __init__(self, live: Live, metric: str | None) -> None:
        self.live, self.metric = live, metric
        self.evaluated, self.updated_at = '', 0.

    def after_train_iter(self, runner: Runner, batch_idx: int, *_: object, **__: object) -> None:
        done, hub = runner.iter + 1, runner.message_hub
        if not self._is_due(done == runner.max_iters):
            return
        parts = [f'iteration {done:>{len(str(runner.max_iters))}} of {runner.max_iters}']
        if 'train/loss' in hub.log_scalars:
            parts.append(f'loss {hub.get_scalar("train/loss").current():.3f}')
        if (eta := hub.get_info('eta')) is not None:
            parts.append(f'{timedelta(seconds=int(eta))} to go')
        self._show(parts)

    def after_val_iter(self, runner: Runner, batch_idx: int, *_: object, **__: object) -> None:
        total = len(runner.val_dataloader)
        if self._is_due(batch_idx + 1 == total):
            self._show([f'iteration {runner.iter} of {runner.max_iters}',
                        f'evaluation: batch {batch_idx + 1} of {total}'])  # yapf: disable

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        if metrics and self.metric in metrics:
            self.evaluated = f'{self.metric} {metrics[self.metric]:.4g}'

    def after_train(self, runner: Runner) -> None:
        self._show([f'iteration {runner.iter} of {runner.max_iters}'])

    def _is_due(self, is_last: bool) -> bool:
        now = time.monotonic()
        if now - self.updated_at < FLICKER and not is_last:
            return False
        self.updated_at = now
        return True

    def _show(self, parts: list[str]) -> None:
        text = '  ' + ', '.join(filter(None, [*parts, self.evaluated]))
        self.live.update(Text(text, no_wrap=True, overflow='ellipsis'), refresh=True)


@contextmanager
def show_progress_line(runner: Runner, metric: str | None) -> Iterator[None]:
    """Context manager that shows a progress line instead of the log's lines about iterations.

    It does nothing without a terminal, and in all processes but the first.
    """
    console = Console(soft_wrap=True, highlight=False)
    if runner.rank or not sys.stdout.isatty() or not console.is_terminal or \
            console.is_dumb_terminal:
        yield
        return
    handlers = [each for each in runner.logger.handlers if type(each) is logging.StreamHandler]
    log_filter = IterationFilter()
    live = Live(console=console, auto_refresh=False, redirect_stderr=sys.stderr.isatty())
    runner.register_hook(ProgressLine(live, metric))
    streams = [handler.stream for handler in handlers]
    with live, hide_coco_output():
        for handler in handlers:
            handler.addFilter(log_filter)
            handler.setStream(sys.stdout)  # rich prints it above the line
        try:
            yield
        finally:
            for handler, stream in zip(handlers, streams, strict=True):
                handler.setStream(stream)
                handler.removeFilter(log_filter)
