"""The plan of a training: its config without data and processes, memory, steps, time and disk."""
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

from ..optim.batch_size import batch_size
from ..runner.hooks import drop_absent_hooks
from ..training import TrainOptions, set_batch_size, set_total_batch
from ..work_dir import settle
from ..work_dir.best_metric import checkpoint_hook
from .estimate import GIB, USABLE, Estimate, estimate, host_memory, peak_of_imports
from .images import BatchSizes, DataCounts, Size, batch_sizes, count_data
from .trial import HALF_TYPES, Setting, padded_size

NUM_TIMED = 3  # steps at each size
USUAL_OBJECTS = 7  # of an image of COCO 2017: 860,001 in 118,287


@dataclass(frozen=True)
class PlanOptions:
    """What a training is planned for.

    Attributes:
        processes: Number of processes, each on its own GPU where there are GPUs.
        memory: GiB of a GPU that need not be in this machine.
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
        """Type of the device that measures."""
        return 'cuda' if get_device() == 'cuda' else 'cpu'

    @property
    def device(self) -> str:
        """Type of the device that trains: a GPU if its memory is given."""
        return 'cuda' if self.memory else self.here

    @property
    def usable_memory(self) -> float:
        """Bytes that a process may take."""
        if self.device == 'cpu':  # all processes are on this machine
            return host_memory() / self.processes
        total = self.memory * GIB if self.memory else \
            torch.cuda.get_device_properties(0).total_memory
        return total * USABLE


@dataclass(frozen=True)
class Schedule:
    """Length of a training; None where the number of images is needed and not known.

    Attributes:
        images: Images of all processes in a step of the optimizer.
        iterations: Number of iterations.
        steps: Number of steps of the optimizer.
        epochs: Number of epochs.
        checkpoints: Number of full checkpoints on the disk at once.
    """
    images: int
    iterations: int | None
    steps: int | None
    epochs: float | None
    checkpoints: int | None

    @classmethod
    def of(cls, cfg: Config, num_images: int | None, processes: int) -> Schedule:
        """Return that of a config whose batch is settled."""
        with simulate_processes(cfg, processes):
            at_once = batch_size(cfg)
        accumulated = cfg.optim_wrapper.get('accumulative_counts', 1)
        iterations, epochs = cfg.train_cfg.get('max_iters'), cfg.train_cfg.get('max_epochs')
        if epochs and num_images:
            iterations = epochs * -(-num_images // at_once)
        elif iterations and num_images:
            epochs = iterations * at_once / num_images
        steps = None if iterations is None else -(-iterations // accumulated)
        return cls(at_once * accumulated, iterations, steps, epochs,
                   count_checkpoints(cfg, iterations))


@dataclass(frozen=True)
class Plan:
    """What a training takes.

    Attributes:
        cfg: Config with its batch settled.
        options: What it is planned for.
        num_images: Number of images in the data; None if it is not known.
        schedule: Length of the training.
        estimate: Memory and time.
    """
    cfg: Config
    options: PlanOptions
    num_images: int | None
    schedule: Schedule
    estimate: Estimate

    @property
    def checkpoint(self) -> float:
        """Bytes of a checkpoint with the training state."""
        parts = self.estimate.parts
        return parts.weights + parts.states + parts.averaged

    @property
    def disk(self) -> float | None:
        """Bytes of all checkpoints that are on the disk at once; None if that is not known."""
        if self.schedule.checkpoints is None:
            return None
        parts, has_best = self.estimate.parts, (checkpoint_hook(self.cfg) or {}).get('save_best')
        best = parts.weights + parts.averaged if has_best else 0
        return self.schedule.checkpoints * self.checkpoint + best

    @property
    def fits_memory(self) -> bool:
        """Whether a process finds its memory."""
        return self.estimate.memory.total <= self.options.usable_memory

    @property
    def fits_disk(self) -> bool:
        """Whether checkpoints find their room, as far as it is known."""
        free = free_disk(self.cfg.work_dir)
        return self.disk is None or free is None or self.disk <= free


def plan_training(train: TrainOptions, options: PlanOptions) -> Plan:
    """Plan a training from its config, before data or weights are loaded.

    Args:
        train: As for the training.
        options: What it is planned for.

    Raises:
        OSError: If a file is missing.
        ValueError: If config and options do not fit each other, or sizes do not follow from them.
    """
    cfg = planned_config(train, options)
    imports = peak_of_imports(cfg.default_scope)
    counts = count_data(cfg)
    sizes = model_sizes(cfg, counts, options.size)
    setting = Setting(
        cfg=cfg,
        device=options.device,
        here=options.here,
        half=planned_half(cfg, train, options),
        images=cfg.train_dataloader.batch_size,
        objects=round(counts.objects or USUAL_OBJECTS),
        processes=options.processes,
        fsdp=train.fsdp)
    num_timed = NUM_TIMED if options.here == options.device else 0
    result = estimate(setting, sizes.largest, sizes.mean_pixels, imports, num_timed=num_timed)
    schedule = Schedule.of(cfg, counts.images, options.processes)
    return Plan(cfg, options, counts.images, schedule, result)


def planned_config(options: TrainOptions, plan: PlanOptions) -> Config:
    """Return the config that a training would have; no data are looked for.

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
            raise UserError(f'--plan needs a config that trains, and {options.config} has no {key}')
    if not cfg.train_dataloader.get('batch_size'):
        raise UserError('--plan needs train_dataloader.batch_size')
    check_config(cfg, ())
    drop_absent_hooks(cfg)
    with simulate_processes(cfg, plan.processes):
        set_total_batch(cfg, options)
        set_batch_size(cfg, options.auto_scale_lr, options.accumulate)
    settle(cfg, options.patience, options.min_delta, options.tracker)
    return cfg


@contextmanager
def simulate_processes(cfg: Config, processes: int) -> Iterator[None]:
    """Context manager that makes a config that of a run of this many processes."""
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
    """Return the type of mixed precision of a training; a GPU that is not here has any.

    Raises:
        ValueError: If this machine would gain nothing by it.
    """
    if options.amp is False:
        return HALF_TYPES.get(cfg.optim_wrapper.get('type', ''))
    if plan.device != plan.here:
        return torch.float16 if options.amp is True else TYPES[options.amp]
    return get_half_type(options.amp, plan.device)


def model_sizes(cfg: Config, counts: DataCounts, given: Size | None) -> BatchSizes:
    """Return the sizes of images as the model pads them; all are ``given`` if it is not None."""
    sizes = BatchSizes(given, given[0] * given[1]) if given else batch_sizes(cfg, counts.sizes)
    height, width = padded_size(cfg, sizes.largest)
    is_fixed = given or cfg.model.get('data_preprocessor', {}).get('size')
    return BatchSizes((height, width), height * width if is_fixed else sizes.mean_pixels)


def count_checkpoints(cfg: Config, iterations: int | None) -> int | None:
    """Return how many full checkpoints are on the disk at once; None if that is not known.

    The oldest is deleted when the next one is complete.
    """
    hook = checkpoint_hook(cfg)
    if hook is None:
        return 0
    length = cfg.train_cfg.get('max_epochs') if hook.get('by_epoch', True) else iterations
    kept = hook.get('max_keep_ckpts', -1)
    saved = None if length is None else max(1, int(length) // max(1, hook.get('interval', 1)))
    return saved if kept < 1 or saved is None else min(saved, kept + 1)


def free_disk(work_dir: str | Path) -> int | None:
    """Return the free bytes where a work dir is or will be; None if it is not on this machine."""
    if '://' in str(work_dir):
        return None
    path = Path(work_dir).absolute()
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free
