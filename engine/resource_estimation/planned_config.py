"""The config of a training that is planned: as it would be, without its data and processes."""
from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from mmengine.config import Config
from mmengine.device import get_device

from colonnade.common.distributed import VARIABLES
from colonnade.common.errors import UserError
from colonnade.models.half_precision import TYPES, half_type
from colonnade.settings.checks.all_checks import check_config
from colonnade.settings.reading import load_config

from ..runner.hooks import drop_absent_hooks
from ..training import TrainOptions, set_batch_size, set_total_batch
from ..work_dir import settle
from .image_sizes import Size
from .measured_steps import HALF_TYPES
from .memory import GIB


@dataclass(frozen=True)
class PlanOptions:
    """What is planned for.

    Attributes:
        processes: Of the training, each on its own GPU where there are GPUs.
        memory: GiB of a GPU that is not here.
        size: Height and width of the largest images, if not what the pipeline makes.
    """
    processes: int = 1
    memory: float | None = None
    size: Size | None = None

    def __post_init__(self) -> None:
        if self.processes < 1:
            raise UserError(f'--processes must be at least 1, got {self.processes}')
        if self.memory is not None and not self.memory > 0:
            raise UserError(f'--plan-memory must be positive, got {self.memory}')
        if self.size is not None and min(self.size) < 1:
            raise UserError('--plan-size must be two positive numbers of pixels, got '
                            f'{self.size[0]} {self.size[1]}')

    @property
    def here(self) -> str:
        """The device that measures."""
        return 'cuda' if get_device() == 'cuda' else 'cpu'

    @property
    def device(self) -> str:
        """The device that trains: a GPU if its memory is given."""
        return 'cuda' if self.memory else self.here

    @property
    def given_bytes(self) -> float | None:
        """Of the GPU that is not here."""
        return None if self.memory is None else self.memory * GIB


def planned_config(options: TrainOptions, plan: PlanOptions) -> Config:
    """The config that a training would have; no data are looked for.

    Raises:
        OSError: If a file is missing.
        ValueError: If config and options do not fit each other.
    """
    if options.launcher != 'none' or 'TORCHELASTIC_RUN_ID' in os.environ:
        raise UserError('--plan runs in one process: leave out torchrun and --launcher, and say '
                        'how many there will be with --processes N')
    cfg = load_config(options)
    for key in ('train_cfg', 'train_dataloader', 'optim_wrapper'):
        if not cfg.get(key):
            raise UserError(f'--plan needs a config that trains, and {options.config} has no '
                            f'{key}')
    if not cfg.train_dataloader.get('batch_size'):
        raise UserError('--plan needs train_dataloader.batch_size')
    check_config(cfg, ())
    drop_absent_hooks(cfg)
    with as_if_started(cfg, plan.processes):
        set_total_batch(cfg, options)
        set_batch_size(cfg, options.auto_scale_lr, options.accumulate)
    settle(cfg, options.patience, options.min_delta, options.tracker)
    return cfg


@contextmanager
def as_if_started(cfg: Config, processes: int) -> Iterator[None]:
    """While open, a config is that of a run of so many processes."""
    name = VARIABLES['pytorch'][1]
    before, launcher = os.environ.get(name), cfg.launcher
    os.environ[name], cfg.launcher = str(processes), 'pytorch'
    try:
        yield
    finally:
        cfg.launcher = launcher
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


def planned_half(cfg: Config, options: TrainOptions, plan: PlanOptions) -> torch.dtype | None:
    """The type of mixed precision of a training; a GPU that is not here has any.

    Raises:
        ValueError: If this machine would gain nothing by it.
    """
    if options.amp is False:
        return HALF_TYPES.get(cfg.optim_wrapper.get('type', ''))
    if plan.device != plan.here:
        return torch.float16 if options.amp is True else TYPES[options.amp]
    return half_type(options.amp, plan.device)
