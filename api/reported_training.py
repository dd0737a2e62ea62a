"""Training with a report of the run, for ``colonnade.train`` and ``colonnade train``."""
from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from mmengine.runner import Runner

from colonnade.configs import find_config
from colonnade.engine.training import TrainOptions, prepare_runner
from colonnade.engine.work_dir import Run
from colonnade.engine.work_dir.last_checkpoint import find_checkpoint_hook
from colonnade.visualization.run_report.recorder import RunRecord


def prepare_training(options: TrainOptions) -> AbstractContextManager[Runner]:
    """Return :func:`~colonnade.engine.training.prepare_runner` with a report of the run."""
    return prepare_runner(options, RunRecord)


def train(config: str | Path, **options: Any) -> Path | None:
    """Train a detector or segmenter, as ``colonnade train`` does.

    Args:
        config: Config file, or name of a shipped config.
        **options: Attributes of :class:`TrainOptions`.

    Returns:
        Path of the last checkpoint; None if the config saves none.

    Raises:
        OSError: If a file or folder does not exist or cannot be written, or the work dir contains
            an earlier run.
        FloatingPointError: If losses or gradients of too many steps in a row are NaN or infinite.
        TypeError: If an option does not exist.
        ValueError: If config, options, data and weights contradict each other.
    """
    with prepare_training(TrainOptions(find_config(config), **options)) as runner:
        runner.train()
    latest = Run(runner.work_dir).last if find_checkpoint_hook(runner) is not None else ''
    return Path(latest) if latest else None
