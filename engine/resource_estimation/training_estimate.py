"""Estimate of a full training: schedule, memory, time and disk space."""
from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.device import get_device

from colonnade.common.distributed import VARIABLES
from colonnade.common.errors import UserError
from colonnade.models.half_precision import TYPES, get_half_type
from colonnade.settings.checks.all_checks import check_config
from colonnade.settings.reading import load_config

from ..optim.batch_size import get_batch_size
from ..runner.hooks import remove_null_hooks
from ..training import TrainOptions, set_batch_size
from ..work_dir import configure_run
from ..work_dir.best_metric import get_checkpoint_settings
from .images import BatchSizes, DataCounts, Size, compute_batch_sizes, count_data
from .step_estimate import (GIB, USABLE_FRACTION, StepEstimate, estimate_step, get_host_memory,
                            measure_imports)
from .trial_steps import HALF_TYPES, Setting, compute_padded_size

NUM_TIMED = 3  # steps at each size
COCO_OBJECTS = 7  # per image of COCO 2017: 860,001 in 118,287


@dataclass(frozen=True)
class EstimateOptions:
    """Hardware and images that a training is estimated for.

    Attributes:
        image_size: Height and width of the largest images. Defaults to what the pipeline makes.
    """
    num_processes: int = 1  # number of processes, each on its own GPU if there are GPUs
    gpu_memory: float | None = None  # memory in GiB of a GPU that need not be present
    image_size: Size | None = None

    def __post_init__(self) -> None:
        if self.num_processes < 1:
            raise UserError(f'--num-processes must be at least 1, got {self.num_processes}')
        if self.gpu_memory is not None and not self.gpu_memory > 0:
            raise UserError(f'--gpu-memory must be positive, got {self.gpu_memory}')
        if self.image_size is not None and min(self.image_size) < 1:
            raise UserError('--image-size must be two positive numbers of pixels, got '
                            f'{self.image_size[0]} {self.image_size[1]}')

    @property
    def here(self) -> str:
        """Type of the device that measures."""
        return 'cuda' if get_device() == 'cuda' else 'cpu'

    @property
    def device(self) -> str:
        """Type of the device that trains: a GPU if its memory is set."""
        return 'cuda' if self.gpu_memory else self.here

    @property
    def usable_memory(self) -> float:
        """Bytes that a process may take."""
        if self.device == 'cpu':  # all processes are on this host
            return get_host_memory() / self.num_processes
        total = self.gpu_memory * GIB if self.gpu_memory else \
            torch.cuda.get_device_properties(0).total_memory
        return total * USABLE_FRACTION


@dataclass(frozen=True)
class Schedule:
    """Length of a training; None where it depends on an unknown number of images."""
    images: int  # images of all processes in an optimizer step
    iterations: int | None
    steps: int | None
    epochs: float | None
    checkpoints: int | None  # maximum number of full checkpoints on the disk

    @classmethod
    def from_config(cls, cfg: Config, num_images: int | None, num_processes: int) -> Schedule:
        """Return the schedule of a config with its final batch size."""
        with simulate_world_size(cfg, num_processes):
            batch_size = get_batch_size(cfg)
        accumulated = cfg.optim_wrapper.get('accumulative_counts', 1)
        iterations, epochs = cfg.train_cfg.get('max_iters'), cfg.train_cfg.get('max_epochs')
        if epochs and num_images:
            iterations = epochs * -(-num_images // batch_size)
        elif iterations and num_images:
            epochs = iterations * batch_size / num_images
        steps = None if iterations is None else -(-iterations // accumulated)
        return cls(batch_size * accumulated, iterations, steps, epochs,
                   _count_checkpoints(cfg, iterations))


def _count_checkpoints(cfg: Config, iterations: int | None) -> int | None:
    """Return the maximum number of full checkpoints; the oldest is deleted after the next."""
    hook = get_checkpoint_settings(cfg)
    if hook is None:
        return 0
    length = cfg.train_cfg.get('max_epochs') if hook.get('by_epoch', True) else iterations
    kept = hook.get('max_keep_ckpts', -1)
    saved = None if length is None else max(1, int(length) // max(1, hook.get('interval', 1)))
    return saved if kept < 1 or saved is None else min(saved, kept + 1)


@dataclass(frozen=True)
class TrainingEstimate:
    """Estimate of a training."""
    cfg: Config
    options: EstimateOptions
    num_images: int | None  # number of training images, or None if not known
    schedule: Schedule
    step: StepEstimate

    @property
    def checkpoint(self) -> float:
        """Bytes of a checkpoint with training state."""
        model = self.step.model
        return model.weights + model.states + model.averaged

    @property
    def disk(self) -> float | None:
        """Maximum bytes of all checkpoints on the disk, or None if not known."""
        if self.schedule.checkpoints is None:
            return None
        has_best = (get_checkpoint_settings(self.cfg) or {}).get('save_best')
        best = self.step.model.weights + self.step.model.averaged if has_best else 0
        return self.schedule.checkpoints * self.checkpoint + best

    @property
    def fits_memory(self) -> bool:
        """True if a process has enough memory."""
        return self.step.memory.total <= self.options.usable_memory

    @property
    def fits_disk(self) -> bool:
        """True if checkpoints fit on the disk, or if that is not known."""
        free = get_free_disk(self.cfg.work_dir)
        return self.disk is None or free is None or self.disk <= free


def estimate_training(train: TrainOptions, options: EstimateOptions) -> TrainingEstimate:
    """Estimate a training from its config, without loading data or weights."""
    cfg = load_estimated_config(train, options)
    imports = measure_imports(cfg.default_scope)
    counts = count_data(cfg)
    sizes = compute_model_sizes(cfg, counts, options.image_size)
    if train.amp is False:
        half = HALF_TYPES.get(cfg.optim_wrapper.get('type', ''))
    elif options.device != options.here:  # any GPU supports any type
        half = torch.float16 if train.amp is True else TYPES[train.amp]
    else:
        half = get_half_type(train.amp, options.device)
    setting = Setting(
        cfg=cfg,
        device=options.device,
        here=options.here,
        half=half,
        images=cfg.train_dataloader.batch_size,
        objects=round(counts.objects or COCO_OBJECTS),
        processes=options.num_processes,
        fsdp=train.fsdp)
    num_timed = NUM_TIMED if options.here == options.device else 0
    step = estimate_step(setting, sizes.largest, sizes.mean_pixels, imports, num_timed=num_timed)
    schedule = Schedule.from_config(cfg, counts.images, options.num_processes)
    return TrainingEstimate(cfg, options, counts.images, schedule, step)


def load_estimated_config(train: TrainOptions, options: EstimateOptions) -> Config:
    """Return the config that a training would have; its data need not exist."""
    if train.launcher != 'none' or 'TORCHELASTIC_RUN_ID' in os.environ:
        raise UserError('--estimate runs in one process: remove torchrun and --launcher, and pass '
                        'the number of processes with --num-processes N')
    cfg = load_config(train)
    for key in ('train_cfg', 'train_dataloader', 'optim_wrapper'):
        if not cfg.get(key):
            raise UserError(f'--estimate needs a config that trains, and {train.config} has no '
                            f'{key}')
    if not cfg.train_dataloader.get('batch_size'):
        raise UserError('--estimate needs train_dataloader.batch_size')
    check_config(cfg, ())
    remove_null_hooks(cfg)
    with simulate_world_size(cfg, options.num_processes):
        set_batch_size(cfg, train)
    configure_run(cfg, train.patience, train.min_delta, train.tracker)
    return cfg


@contextmanager
def simulate_world_size(cfg: Config, num_processes: int) -> Iterator[None]:
    """Context manager in which a config appears to be launched in several processes."""
    name = VARIABLES['pytorch'][1]
    before, launcher = os.environ.get(name), cfg.launcher
    os.environ[name], cfg.launcher = str(num_processes), 'pytorch'
    try:
        yield
    finally:
        cfg.launcher = launcher
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


def compute_model_sizes(cfg: Config, counts: DataCounts, image_size: Size | None) -> BatchSizes:
    """Return the sizes of images as the model pads them; all are ``image_size`` if it is set."""
    if image_size:
        sizes = BatchSizes(image_size, image_size[0] * image_size[1])
    else:
        sizes = compute_batch_sizes(cfg, counts.sizes)
    height, width = compute_padded_size(cfg, sizes.largest)
    is_fixed = image_size or cfg.model.get('data_preprocessor', {}).get('size')
    return BatchSizes((height, width), height * width if is_fixed else sizes.mean_pixels)


def get_free_disk(work_dir: str | Path) -> int | None:
    """Return the free bytes where a work dir is or will be, or None if it is remote."""
    if '://' in str(work_dir):
        return None
    path = Path(work_dir).absolute()
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free
