"""Training with a report of the run, for ``colonnade.train`` and ``colonnade train``."""
from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from mmengine.runner import Runner

from colonnade.common.errors import MissingFileError, UserError
from colonnade.configs import find_config
from colonnade.engine.training import TrainOptions, prepare_runner
from colonnade.visualization.run_report.recorder import RunRecord

from .custom_data import create_config
from .runs import Run

DATASETS = ('.yaml', '.yml', '.json')  # files that are datasets


def prepare_training(options: TrainOptions) -> AbstractContextManager[Runner]:
    """Return :func:`~colonnade.engine.training.prepare_runner` with a report of the run."""
    return prepare_runner(options, RunRecord)


def train(config: str | Path, *, base_config: str | Path | None = None, **options: Any) -> Run:
    """Train a detector or segmenter, as ``colonnade train`` does.

    Args:
        config: Config file, or name of a shipped config. With ``base_config``, a dataset in any
            supported format.
        base_config: Config to adapt to the dataset. The result is written to ``WORK_DIR.py``, or
            to ``BASE_CONFIG_own.py`` in the current folder without ``work_dir``. To train again,
            pass that file as ``config``. If the data need other options, such as ``classes`` or
            ``val_fraction``, call :func:`create_config` first.
        **options: Options of the command ``train``, with underscores.

    Returns:
        The run, with the paths of its checkpoints.

    Raises:
        OSError: If a file or folder does not exist or cannot be written, or the work dir contains
            an earlier run.
        FloatingPointError: If losses or gradients of too many steps in a row are NaN or infinite.
        TypeError: If an option does not exist.
        ValueError: If config, options, data and weights contradict each other.
    """
    settings = TrainOptions(Path(config), **options)  # checked before files are written
    if base_config is not None:
        if settings.launcher != 'none':
            raise UserError('base_config requires a single process: call create_config first, and '
                            'pass what it returns as config')
        settings.config = adapt_config(base_config, config, settings.work_dir)
    elif Path(config).is_dir() or Path(config).suffix in DATASETS:
        raise UserError(f'{config} is not a config: to train on a dataset, also pass base_config, '
                        "such as 'mask_rcnn/xcit_nano_12_p16_slim_coco'")
    else:
        settings.config = find_config(config)
    with prepare_training(settings) as runner:
        runner.train()
    return Run.from_config(runner.cfg)


def adapt_config(base_config: str | Path, data: str | Path, work_dir: str | Path | None) -> Path:
    """Return a new config for a dataset."""
    if not Path(data).exists():
        raise MissingFileError(f'no such dataset: {data}')
    out = Path(f'{Path(base_config).stem}_own.py')
    if work_dir is not None:
        out = Path(f'{Path(work_dir).resolve()}.py')
    if out.exists():
        raise UserError(f'{out} already exists: pass it as config, without base_config, to train '
                        'on the same data, or choose another work_dir')
    return create_config(base_config, data=data, out=out)
