"""Memory and time of a training step, extrapolated from steps on random images."""
from __future__ import annotations

import os
import resource
import sys
from dataclasses import astuple, dataclass
from importlib import import_module
from math import prod
from pathlib import Path

import torch
from torch import nn

from colonnade.backbones import ColumnarBackbone
from colonnade.common.errors import UserCodeError, UserError
from colonnade.models.building import build_on_meta

from ..runner.hooks import is_ema_hook, iter_hook_configs
from .image_sizes import Size
from .trial_steps import Measurement, Setting, Trial

GIB = 2**30
#: memory of the C library for freed blocks, as a fraction of the tensors, and of the libraries of a
#: run that models do not import; tests/test_estimated_memory.py compares them
FREED_FRACTION, LIBRARIES = 0.35, 105 * 2**20
CUDA_CONTEXT = 0.6 * GIB  # CUDA and its libraries, on a GPU
USABLE_FRACTION = 0.95  # fraction of a GPU's memory; the rest is lost between blocks
TRIAL_FRACTION = 0.7  # fraction of the memory of this host for steps
STEP_FACTOR = 5  # memory of a step relative to the weights, without images
SCALES = (1 / 4, 1 / 2, 1.)  # factors of the largest images, until a step takes too much
SMALL = 2**19  # pixels of a batch that any host can compute
MAX_SECONDS = 60.  # time of the steps at one size
CGROUPS = ('/sys/fs/cgroup/memory.max', '/sys/fs/cgroup/memory/memory.limit_in_bytes')


@dataclass(frozen=True)
class Memory:
    """Bytes of one process at the peak of a step."""
    weights: float  # parameters and buffers
    gradients: float
    states: float
    averaged: float  # EMA weights
    activations: float  # all other tensors
    shared: float = 0.  # buffers for communication between processes
    outside: float = 0.  # memory outside of tensors

    @property
    def total(self) -> float:
        """Bytes of the process."""
        return sum(astuple(self))


@dataclass(frozen=True)
class ModelMemory:
    """Bytes that do not depend on images, for a single process.

    Attributes:
        weights, gradients, states, averaged: See :class:`Memory`.
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
class StepEstimate:
    """Memory of a process for its largest images, and time of an iteration for mean images."""
    setting: Setting
    size: Size  # largest images
    mean_pixels: float  # per image
    steps: tuple[Measurement, ...]  # measurements, by increasing number of pixels
    measured_images: int  # images per measured iteration
    model: ModelMemory  # memory that does not depend on images
    imports: int  # bytes of the host before any model was built

    @property
    def memory(self) -> Memory:
        """Memory of one process.

        DDP copies gradients into buckets. FSDP shards weights, gradients, states and EMA weights,
        and gathers what computes.
        """
        setting, model = self.setting, self.model
        peak = extrapolate([(prod(m.size), m.memory) for m in self.steps], prod(self.size))
        activations = max(0., peak - model.weights - model.gradients - model.states)
        activations *= setting.images / self.measured_images
        shards = setting.processes if setting.fsdp else 1
        sharded = (model.weights / shards, model.gradients / shards, model.states / shards,
                   model.averaged / shards)
        shared = model.gathered if setting.fsdp else model.gradients
        shared = shared if setting.processes > 1 else 0.
        outside = CUDA_CONTEXT if setting.device == 'cuda' else \
            self.imports + LIBRARIES + FREED_FRACTION * (sum(sharded) + activations + shared)
        return Memory(*sharded, activations, shared, outside)

    @property
    def seconds(self) -> float:
        """Seconds of an iteration on images of the mean size."""
        return extrapolate([(prod(m.size), m.seconds) for m in self.steps], self.mean_pixels)

    @property
    def smaller_sizes(self) -> str:
        """Sizes that were measured, or an empty string if the largest was."""
        if self.steps[-1].size == self.size:
            return ''
        return ' and '.join(f'{m.size[0]} x {m.size[1]}' for m in self.steps)


def estimate_step(setting: Setting, size: Size, mean_pixels: float, imports: int, *,
                  num_timed: int) -> StepEstimate:
    """Take steps on random images, as large as this host can compute, and extrapolate."""
    weights = _count_bytes(build_on_meta(setting.cfg.model))
    if setting.here == 'cuda':
        room = TRIAL_FRACTION * torch.cuda.mem_get_info()[0]
    else:
        room = (TRIAL_FRACTION * get_host_memory() - imports - LIBRARIES) / (1 + FREED_FRACTION)
    if STEP_FACTOR * weights > room:
        raise UserError(
            f'a step of this model takes {STEP_FACTOR * weights / GIB:.1f} GiB even '
            f'without images, but only {room / GIB:.1f} GiB are free: use a larger machine')
    trial = Trial(setting)
    steps = measure_sizes(trial, size, room, num_timed)
    return StepEstimate(setting, size, mean_pixels, steps, setting.images,
                        ModelMemory.measure(trial), imports)


def measure_sizes(trial: Trial, size: Size, room: float, num_timed: int) -> tuple[Measurement, ...]:
    """Take steps at increasing sizes, up to the largest one that this host can compute.

    Heads with queries cannot take steps on images with few pixels.
    """
    steps: list[Measurement] = []
    error: Exception | None = None
    for scale in SCALES if trial.setting.images * prod(size) > SMALL else (1., ):
        scaled = scale_size(size, scale)
        if steps:
            growth = prod(scaled) / prod(steps[-1].size)
            seconds = steps[-1].seconds * trial.iterations * (num_timed + 2)
            if growth * steps[-1].memory > room or growth * seconds > MAX_SECONDS:
                break
        try:
            steps.append(trial.measure(scaled, num_timed=num_timed))
        except (RuntimeError, IndexError, ValueError, AssertionError) as failure:
            error = failure
    if not steps:
        raise UserCodeError('the model cannot take a step on random images: '
                            f'{type(error).__name__}: {error}') from error
    return tuple(steps)


def scale_size(size: Size, scale: float) -> Size:
    """Return a size with scaled sides, in multiples of 32 pixels if they were."""
    step = 32 if all(side % 32 == 0 for side in size) else 1
    height, width = (max(step, round(side * scale / step) * step) for side in size)
    return height, width


def extrapolate(points: list[tuple[int, float]], x: float) -> float:
    """Return the value at x on the line through the first and last point, or zero and the only one.

    A falling line, from disturbed measurements, is replaced by one through zero.
    """
    (left, low), (right, high) = points[0], points[-1]
    if left == right or low >= high:
        return high * x / right
    return high + (high - low) / (right - left) * (x - right)


def _count_bytes(model: nn.Module) -> int:
    return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))


def measure_imports(library: str) -> int:
    """Return the peak bytes of this process after importing the models of mmdet or mmseg."""
    for name in ('models', 'testing') if library == 'mmdet' else ('models', ):
        import_module(f'{library}.{name}')
    return get_peak_memory()


def get_peak_memory() -> int:
    """Return the peak of this process so far, in bytes."""
    unit = 1 if sys.platform == 'darwin' else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def get_host_memory() -> int:
    """Return the bytes of this host, or the limit of its cgroup."""
    limits = [os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')]
    for path in map(Path, CGROUPS):
        if path.exists() and (text := path.read_text(encoding='utf-8').strip()).isdigit():
            limits.append(int(text))
    return min(limits)
