"""Services and programs that show the curves of runs, by mmengine's backends."""
from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mmengine.registry import VISBACKENDS
from mmengine.runner import Runner
from mmengine.visualization import BaseVisBackend

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
            raise ValueError(f'--tracker {name} is not known: there are {", ".join(TRACKERS)}')
        missing = [package for package in TRACKERS[name][1] if find_spec(package) is None]
        if missing:
            raise ValueError(f'--tracker {name} needs a package that is not installed: '
                             f'pip install {" ".join(missing)}')


def add_trackers(runner: Runner, names: Sequence[str]) -> None:
    """Let a runner report to trackers, but for those that its config reports to anyway."""
    for name in dict.fromkeys(names):
        kind, _, settings = TRACKERS[name]
        if all(type(backend).__name__ != kind for backend in backends_of(runner).values()):
            backend = VISBACKENDS.build(dict(type=kind, **settings(Path(runner.work_dir))))
            add_backend(runner, kind, backend)
            if runner.rank == 0:
                backend.add_config(runner.cfg)


def add_backend(runner: Runner, name: str, backend: BaseVisBackend) -> None:
    """Let the runner's visualizer hand what is logged to one more backend."""
    backends_of(runner)[name] = backend


def backends_of(runner: Runner) -> dict[str, BaseVisBackend]:
    """What a runner's visualizer writes to."""
    return runner.visualizer._vis_backends
