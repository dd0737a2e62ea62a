"""Estimate of a training before it starts: schedule, memory, time and disk space."""
from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.device import get_device
from torch import nn

from colonnade.backbones import ColumnarBackbone
from colonnade.common.distributed import VARIABLES
from colonnade.common.errors import UserError
from colonnade.models.building import build_on_meta
from colonnade.models.half_precision import TYPES, get_half_type
from colonnade.settings.backbone_config import set_trained_part
from colonnade.settings.checks.all_checks import check_config
from colonnade.settings.pipeline_steps import get_type_name
from colonnade.settings.reading import load_config

from ..runner.hooks import is_ema_hook, iter_hook_configs, remove_null_hooks
from ..training import TrainOptions, set_batch_size
from ..work_dir import configure_run
from ..work_dir.best_metric import get_checkpoint_settings
from .training_images import Size, compute_model_sizes, count_data
from .trial_steps import (HALF_TYPES, Measurement, Setting, Trial, extrapolate, get_host_memory,
                          measure_imports)

GIB = 2**30
NUM_TIMED = 3  # steps at each size
COCO_OBJECTS = 7  # per image of COCO 2017: 860,001 in 118,287
#: memory of the C library for freed blocks, as a fraction of the tensors, and in bytes, with that
#: of the libraries that models do not import; tests/test_estimated_memory.py compares them
FREED_FRACTION, LIBRARIES = 0.14, 160 * 2**20
CUDA_CONTEXT = 0.6 * GIB  # CUDA and its libraries, on a GPU
USABLE_FRACTION = 0.95  # fraction of a GPU's memory; the rest is lost between blocks
TRIAL_FRACTION = 0.7  # fraction of the memory of this host for steps
STEP_FACTOR = 5  # memory of a step relative to the weights, without images


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
            raise UserError('--image-size must be two positive integers, got '
                            f'{self.image_size[0]} {self.image_size[1]}')

    @property
    def usable_memory(self) -> float:
        """Bytes that a process may take."""
        if self.gpu_memory:
            return self.gpu_memory * GIB * USABLE_FRACTION
        if get_device() == 'cuda':
            return torch.cuda.get_device_properties(0).total_memory * USABLE_FRACTION
        return get_host_memory() / self.num_processes  # all processes are on this host


@dataclass(frozen=True)
class ModelMemory:
    """Bytes that do not depend on images, for a single process.

    Attributes:
        averaged: EMA weights.
        gathered: Parameters that FSDP gathers at a time: the block that computes, the next one,
            and those outside of blocks.
    """
    weights: float
    gradients: float
    states: float
    averaged: float
    gathered: float

    @classmethod
    def measure(cls, trial: Trial) -> ModelMemory:
        """Return the memory of a model that has taken a step."""
        weights = _count_bytes(trial.model)
        gradients = sum(p.nbytes for p in trial.model.parameters() if p.requires_grad)
        blocks = [
            _count_bytes(block) for module in trial.model.modules()
            if isinstance(module, ColumnarBackbone) for block in module.blocks
        ]
        block, rest = max(blocks, default=0), weights - sum(blocks)
        return cls(
            weights=weights,
            gradients=gradients,
            states=sum(state.nbytes for state in trial.states()),
            averaged=weights if any(map(is_ema_hook, iter_hook_configs(trial.setting.cfg))) else 0,
            gathered=2 * block + rest + gradients / max(weights, 1) * (block + rest))


@dataclass(frozen=True)
class TrainingEstimate:
    """Estimate of a training.

    Attributes:
        num_images: Number of training images, or None if not known.
        size: Height and width of the largest images.
        mean_pixels: Mean number of pixels of an image.
        steps: Measured steps, by increasing size.
        imports: Bytes of the host before any model was built.
        usable: Bytes that a process may take.
    """
    setting: Setting
    num_images: int | None
    size: Size
    mean_pixels: float
    steps: list[Measurement]
    model: ModelMemory
    imports: int
    usable: float

    @property
    def memory(self) -> dict[str, float]:
        """Bytes of one process at the peak of a step, by purpose.

        DDP copies gradients into buckets. FSDP shards weights, gradients, states and EMA weights,
        and gathers what computes.
        """
        setting, model = self.setting, self.model
        peak = extrapolate([(prod(m.size), m.memory) for m in self.steps], prod(self.size))
        shards = setting.processes if setting.fsdp else 1
        between = model.gathered if setting.fsdp else model.gradients
        memory = {
            'weights': model.weights / shards,
            'gradients': model.gradients / shards,
            'optimizer states': model.states / shards,
            'EMA weights': model.averaged / shards,
            'between processes': between if setting.processes > 1 else 0.,
            'activations': max(0., peak - model.weights - model.gradients - model.states),
        }
        if setting.device == 'cuda':
            return memory | {'CUDA': CUDA_CONTEXT}
        outside = self.imports + LIBRARIES + FREED_FRACTION * sum(memory.values())
        return memory | {'libraries and freed blocks': outside}

    @property
    def seconds(self) -> float:
        """Seconds of an iteration on images of the mean size."""
        return extrapolate([(prod(m.size), m.seconds) for m in self.steps], self.mean_pixels)

    @property
    def accumulated(self) -> int:
        """Number of iterations per optimizer step."""
        return self.setting.cfg.optim_wrapper.get('accumulative_counts', 1)

    @property
    def length(self) -> tuple[int | None, float | None]:
        """Numbers of iterations and epochs, None if they depend on an unknown number of images."""
        batch_size = self.setting.images * self.setting.processes
        train_cfg = self.setting.cfg.train_cfg
        iterations, epochs = train_cfg.get('max_iters'), train_cfg.get('max_epochs')
        if epochs and self.num_images:
            iterations = epochs * -(-self.num_images // batch_size)
        elif iterations and self.num_images:
            epochs = iterations * batch_size / self.num_images
        return iterations, epochs

    @property
    def num_checkpoints(self) -> int | None:
        """Maximum number of full checkpoints on the disk, or None if not known.

        The oldest is deleted after the next is saved.
        """
        hook = get_checkpoint_settings(self.setting.cfg)
        if hook is None:
            return 0
        by_epoch, kept = hook.get('by_epoch', True), hook.get('max_keep_ckpts', -1)
        length = self.setting.cfg.train_cfg.get('max_epochs') if by_epoch else self.length[0]
        if length is None:
            return None
        saved = max(1, int(length) // max(1, hook.get('interval', 1)))
        return saved if kept < 1 else min(saved, kept + 1)

    @property
    def checkpoint(self) -> float:
        """Bytes of a checkpoint with training state."""
        return self.model.weights + self.model.states + self.model.averaged

    @property
    def disk(self) -> float | None:
        """Maximum bytes of all checkpoints on the disk, or None if not known."""
        if self.num_checkpoints is None:
            return None
        has_best = (get_checkpoint_settings(self.setting.cfg) or {}).get('save_best')
        best = self.model.weights + self.model.averaged if has_best else 0
        return self.num_checkpoints * self.checkpoint + best

    @property
    def fits_memory(self) -> bool:
        """True if a process has enough memory."""
        return sum(self.memory.values()) <= self.usable

    @property
    def fits_disk(self) -> bool:
        """True if checkpoints fit on the disk, or if that is not known."""
        free = get_free_disk(self.setting.cfg.work_dir)
        return self.disk is None or free is None or self.disk <= free


def estimate_training(train: TrainOptions, options: EstimateOptions) -> TrainingEstimate:
    """Estimate a training from its config, without loading data or weights.

    Steps are taken on random images as large as this host can compute, and extrapolated.
    """
    cfg = load_estimated_config(train, options)
    imports = measure_imports(cfg.default_scope)
    counts = count_data(cfg)
    size, mean_pixels = compute_model_sizes(cfg, counts.sizes, options.image_size)
    here = 'cuda' if get_device() == 'cuda' else 'cpu'
    device = 'cuda' if options.gpu_memory else here
    if train.amp is False:
        half = HALF_TYPES.get(cfg.optim_wrapper.get('type', ''))
    elif device != here:  # any GPU supports any type
        half = torch.float16 if train.amp is True else TYPES[train.amp]
    else:
        half = get_half_type(train.amp, device)
    setting = Setting(
        cfg=cfg,
        device=device,
        here=here,
        half=half,
        images=cfg.train_dataloader.batch_size,
        objects=round(counts.objects or COCO_OBJECTS),
        processes=options.num_processes,
        fsdp=train.fsdp,
        unlabeled=sum(hook['dataloader'].get('batch_size', cfg.train_dataloader.batch_size)
                      for hook in iter_hook_configs(cfg)
                      if get_type_name(hook.get('type')) == 'PseudoLabelHook'))
    if here == 'cuda':
        room = TRIAL_FRACTION * torch.cuda.mem_get_info()[0]
    else:
        room = (TRIAL_FRACTION * get_host_memory() - imports - LIBRARIES) / (1 + FREED_FRACTION)
    needed = STEP_FACTOR * _count_bytes(build_on_meta(cfg.model))
    if needed > room:
        raise UserError(f'a step of this model takes {needed / GIB:.1f} GiB even without images, '
                        f'but only {room / GIB:.1f} GiB is free: use a machine with more memory')
    trial = Trial(setting)
    steps = trial.measure_sizes(size, room, num_timed=NUM_TIMED if here == device else 0)
    return TrainingEstimate(setting, counts.images, size, mean_pixels, steps,
                            ModelMemory.measure(trial), imports, options.usable_memory)


def load_estimated_config(train: TrainOptions, options: EstimateOptions) -> Config:
    """Return the config that a training would have; its data need not exist."""
    if train.launcher != 'none' or 'TORCHELASTIC_RUN_ID' in os.environ:
        raise UserError('--estimate runs in one process: remove torchrun and --launcher, and pass '
                        'the number of processes with --num-processes N')
    cfg = load_config(train)
    if train.tune is not None:
        set_trained_part(cfg.model, train.tune)
    for key in ('train_cfg', 'train_dataloader', 'optim_wrapper'):
        if not cfg.get(key):
            raise UserError(f'--estimate needs a training config, but {train.config} has no '
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


def get_free_disk(work_dir: str | Path) -> int | None:
    """Return the free bytes where a work dir is or will be, or None if it is remote."""
    if '://' in str(work_dir):
        return None
    path = Path(work_dir).absolute()
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def _count_bytes(model: nn.Module) -> int:
    return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
