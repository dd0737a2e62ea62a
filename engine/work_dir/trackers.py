"""Experiment trackers by mmengine's backends, and logs that tolerate a full disk."""
from __future__ import annotations

import logging
import os
import secrets
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.registry import VISBACKENDS
from mmengine.runner import Runner
from mmengine.visualization import BaseVisBackend

from colonnade.common.distributed import VARIABLES
from colonnade.common.errors import UserError
from colonnade.settings.pipeline_steps import get_type_name

from ..options import TRACKERS
from ..upstream import get_backends
from .run import Run


def check_trackers(names: Sequence[str]) -> None:
    """Check that trackers are known and their packages installed."""
    for name in names:
        if name not in TRACKERS:
            raise UserError(f'--tracker must be one of {", ".join(TRACKERS)}, got {name!r}')
        missing = [package for package in TRACKERS[name].packages if find_spec(package) is None]
        if missing:
            raise UserError(f'--tracker {name} needs a package that is not installed: '
                            f'pip install {" ".join(missing)}')


def add_trackers(runner: Runner, names: Sequence[str]) -> None:
    """Make a runner report to trackers, except those in its config."""
    for name in dict.fromkeys(names):
        tracker = TRACKERS[name]
        if all(type(each).__name__ != tracker.backend for each in get_backends(runner).values()):
            settings = tracker.get_settings(Path(runner.work_dir))
            backend = VISBACKENDS.build(dict(type=tracker.backend, **settings))
            get_backends(runner)[tracker.backend] = backend
            if runner.rank == 0:
                backend.add_config(runner.cfg)


@contextmanager
def resume_wandb_run(cfg: Config, trackers: Sequence[str]) -> Iterator[None]:
    """Context manager that makes Weights & Biases continue the run of a resumed training.

    The ID of the run is in the work dir. ``WANDB_RUN_ID`` and an ``id`` in the config come first.
    """
    backends = (cfg.get('visualizer') or {}).get('vis_backends') or []
    is_used = 'wandb' in trackers or any(
        isinstance(each, dict) and get_type_name(each.get('type')) == 'WandbVisBackend'
        for each in backends)
    is_first = not int(os.environ.get(VARIABLES.get(cfg.launcher, ('', ))[0], 0))
    if not is_used or not is_first or 'WANDB_RUN_ID' in os.environ:
        yield
        return
    run = Run(cfg.work_dir)
    run_id = cfg.resume and run.read(run.TRACKER) or secrets.token_hex(4)
    run.write(run.TRACKER, run_id)
    # Variables, not settings of the backend, because the config is copied to other work dirs.
    variables = {'WANDB_RUN_ID': run_id, 'WANDB_RESUME': 'allow'}
    added = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


class TolerantBackend:
    """A visualizer backend that drops numbers while it cannot be written, and warns once."""

    def __init__(self, backend: BaseVisBackend, logger: logging.Logger) -> None:
        self.backend, self.logger = backend, logger
        self.has_warned = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    def add_scalars(self, *values: Any, **options: Any) -> None:
        """Pass numbers to the backend."""
        try:
            self.backend.add_scalars(*values, **options)
        except OSError as error:
            if not self.has_warned:
                self.logger.warning(f'{type(self.backend).__name__} cannot write, so its '
                                    f'curves will have gaps: {error}')
            self.has_warned = True


class TolerantLogFile(logging.FileHandler):
    """A log file that prints one line when it cannot be written, not a traceback for each line."""

    def __init__(self, handler: logging.FileHandler) -> None:
        # It is open from the start, because mmengine writes to the stream itself.
        super().__init__(handler.baseFilename, encoding=handler.encoding)
        self.setFormatter(handler.formatter)
        self.setLevel(handler.level)
        self.filters = list(handler.filters)
        self.has_warned = False

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self.has_warned:
            self.has_warned = True
            print(f'cannot write {self.baseFilename}: {error}. Lines will be missing until it can '
                  'be written again',
                  file=sys.stderr)  # yapf: disable


@contextmanager
def tolerate_full_disk(runner: Runner) -> Iterator[None]:
    """Context manager in which a full disk costs lines of logs and curves, not the training."""
    backends, logger = get_backends(runner), runner.logger
    before = dict(backends)
    backends.update({name: TolerantBackend(each, logger) for name, each in before.items()})
    for handler in [each for each in logger.handlers if type(each) is logging.FileHandler]:
        logger.removeHandler(handler)
        handler.close()
        logger.addHandler(TolerantLogFile(handler))
    try:
        yield
    finally:
        backends.update(before)
