"""Training with a report of the run: what ``colonnade.train`` and ``colonnade train`` do."""
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


def prepared_training(options: TrainOptions) -> AbstractContextManager[Runner]:
    """Return :func:`~colonnade.engine.training.prepare_runner` with a report of the run."""
    return prepare_runner(options, RunRecord)


def train(config: str | Path, **options: Any) -> Path | None:
    """Train a detector or segmenter, as ``tools/train.py`` does.

    Args:
        config: A config file, or the name of a shipped config.
        **options: The attributes of :class:`TrainOptions`.

    Returns:
        The last checkpoint; None if the config saves none.

    Raises:
        OSError: If a file or folder is missing, or cannot be written, or the work dir has an
            earlier run.
        FloatingPointError: If too many steps in a row had a loss or gradient that is not finite.
        TypeError: If there is no such option.
        ValueError: If the config, the options, the data and the weights do not fit each other.
    """
    with prepared_training(TrainOptions(find_config(config), **options)) as runner:
        runner.train()
    latest = Run(runner.work_dir).last if find_checkpoint_hook(runner) is not None else ''
    return Path(latest) if latest else None
