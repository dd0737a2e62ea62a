"""What shows the curves of runs, by mmengine's backends, and goes on where it cannot be written."""
from __future__ import annotations

import logging
import os
import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
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
from colonnade.settings.pipeline_steps import name_of

from ..upstream import get_backends
from .run import Run

PROJECT = 'colonnade'  # where no environment variable names another
Settings = Callable[[Path], dict[str, Any]]


def of_neptune(run: Path) -> dict[str, Any]:
    """Settings of Neptune, which needs a token to send anything."""
    mode = 'async' if os.environ.get('NEPTUNE_API_TOKEN') else 'offline'
    return dict(init_kwargs=dict(name=run.name, mode=mode))


#: name -> mmengine's backend, packages that it needs, its settings for a run's folder
TRACKERS: dict[str, tuple[str, tuple[str, ...], Settings]] = {
    'tensorboard': ('TensorboardVisBackend', ('tensorboard', ),
                    lambda run: dict(save_dir=str(run / 'tensorboard'))),
    'wandb': ('WandbVisBackend', ('wandb', ), lambda run: dict(
        save_dir=str(run), init_kwargs=dict(
            project=os.environ.get('WANDB_PROJECT', PROJECT), name=run.name))),
    'mlflow': ('MLflowVisBackend', ('mlflow', ), lambda run: dict(
        save_dir=str(run / 'mlflow'), exp_name=os.environ.get('MLFLOW_EXPERIMENT_NAME', PROJECT),
        run_name=run.name, tracking_uri=os.environ.get('MLFLOW_TRACKING_URI'))),
    'clearml': ('ClearMLVisBackend', ('clearml', ), lambda run: dict(
        init_kwargs=dict(project_name=PROJECT, task_name=run.name), artifact_suffix=('.py', ))),
    'neptune': ('NeptuneVisBackend', ('neptune', ), of_neptune),
    'aim': ('AimVisBackend', ('aim', ), lambda run: dict(
        save_dir=str(run), init_kwargs=dict(repo=str(run), experiment=run.name))),
    'dvclive': ('DVCLiveVisBackend', ('dvclive', 'pygit2'),
                lambda run: dict(save_dir=str(run / 'dvclive'))),
}  # yapf: disable


def check_trackers(names: Sequence[str]) -> None:
    """Raise a ValueError for a tracker that is not known, or whose package is not installed."""
    for name in names:
        if name not in TRACKERS:
            raise UserError(f'--tracker {name} is not known: there are {", ".join(TRACKERS)}')
        missing = [package for package in TRACKERS[name][1] if find_spec(package) is None]
        if missing:
            raise UserError(f'--tracker {name} needs a package that is not installed: '
                            f'pip install {" ".join(missing)}')


def add_trackers(runner: Runner, names: Sequence[str]) -> None:
    """Let a runner report to trackers, but for those that its config reports to anyway."""
    for name in dict.fromkeys(names):
        kind, _, settings = TRACKERS[name]
        if all(type(backend).__name__ != kind for backend in get_backends(runner).values()):
            backend = VISBACKENDS.build(dict(type=kind, **settings(Path(runner.work_dir))))
            get_backends(runner)[kind] = backend
            if runner.rank == 0:
                backend.add_config(runner.cfg)


@contextmanager
def same_wandb_run(cfg: Config, trackers: Sequence[str]) -> Iterator[None]:
    """Context manager that makes Weights & Biases continue the run of a resumed training.

    The ID of the run is in the work dir. ``WANDB_RUN_ID`` and an ``id`` in the config come first.

    Args:
        cfg: Config of a training, whose ``resume`` is known.
        trackers: Names from the command line.
    """
    backends = (cfg.get('visualizer') or {}).get('vis_backends') or []
    used = 'wandb' in trackers or any(
        isinstance(each, dict) and name_of(each.get('type')) == 'WandbVisBackend'
        for each in backends)
    is_first = not int(os.environ.get(VARIABLES.get(cfg.launcher, ('', ))[0], 0))
    if not used or not is_first or 'WANDB_RUN_ID' in os.environ:
        yield
        return
    run = Run(cfg.work_dir)
    run_id = cfg.resume and run.read(run.TRACKER) or secrets.token_hex(4)
    run.write(run.TRACKER, run_id)
    # the variables, and not settings of the backend, as the config is copied to other work dirs
    variables = {'WANDB_RUN_ID': run_id, 'WANDB_RESUME': 'allow'}
    added = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


class PatientBackend:
    """A backend that loses numbers while it cannot be written, and warns of the first.

    Args:
        backend: Does everything else.
        logger: Gets the warning.
    """

    def __init__(self, backend: BaseVisBackend, logger: logging.Logger) -> None:
        self.backend, self.logger = backend, logger
        self.has_warned = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    def add_scalars(self, *values: Any, **options: Any) -> None:
        """Hand numbers to the backend."""
        try:
            self.backend.add_scalars(*values, **options)
        except OSError as error:
            if not self.has_warned:
                self.logger.warning(f'{type(self.backend).__name__} cannot write, and lacks '
                                    f'numbers until it can: {error}')
            self.has_warned = True


class PatientLog(logging.FileHandler):
    """The file of a log, which prints one line in place of a traceback for each line it lacks."""

    def __init__(self, handler: logging.FileHandler) -> None:
        # Open at once: mmengine writes to the stream itself.
        super().__init__(handler.baseFilename, encoding=handler.encoding)
        self.setFormatter(handler.formatter)
        self.setLevel(handler.level)
        self.filters = list(handler.filters)
        self.has_warned = False

    def handleError(self, record: logging.LogRecord) -> None:
        """Print that the log lacks lines, the first time."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self.has_warned:
            self.has_warned = True
            print(f'{self.baseFilename} cannot be written, and lacks lines until it can: {error}',
                  file=sys.stderr)  # yapf: disable


@contextmanager
def tolerate_full_disk(runner: Runner) -> Iterator[None]:
    """Context manager in which a full disk costs lines of logs and curves, not the training."""
    backends, logger = get_backends(runner), runner.logger
    before = dict(backends)
    backends.update({name: PatientBackend(each, logger) for name, each in before.items()})
    for handler in [each for each in logger.handlers if type(each) is logging.FileHandler]:
        logger.removeHandler(handler)
        handler.close()
        logger.addHandler(PatientLog(handler))
    try:
        yield
    finally:
        backends.update(before)
