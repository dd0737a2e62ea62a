"""Memory and time of a training, estimated from steps on random images."""
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
from colonnade.models.meta_device import build_on_meta

from ..runner.hooks import averages_weights, hooks_of
from .images import Size
from .trial import Measured, Setting, Trial

GIB = 2**30
#: what the C library keeps of freed blocks, as a fraction of the tensors, and what libraries of a
#: run hold beyond those of models; tests/test_planning_measured.py compares
KEPT, LIBRARIES = 0.35, 105 * 2**20
CONTEXT = 0.6 * GIB  # CUDA and its libraries, on a GPU
USABLE = 0.95  # fraction of a GPU: the rest is lost between blocks
ROOM = 0.7  # fraction of this machine's memory that steps may take
STEP = 5  # times the weights: gradients, AdamW's states, and room to build
FACTORS = (1 / 4, 1 / 2, 1.)  # of the sides of the largest images, until they take too much
SMALL = 2**19  # pixels of a batch that any machine can afford
BUDGET = 60.  # seconds of the steps at one size
CGROUPS = ('/sys/fs/cgroup/memory.max', '/sys/fs/cgroup/memory/memory.limit_in_bytes')


@dataclass(frozen=True)
class Memory:
    """Bytes of one process at the peak of a step.

    Attributes:
        weights: Parameters and buffers.
        gradients: Gradients of what is trained.
        states: States of the optimizer.
        averaged: Averaged copy of the weights.
        activations: All other tensors.
        shared: What several processes need for each other.
        outside: What is not in tensors.
    """
    weights: float
    gradients: float
    states: float
    averaged: float
    activations: float
    shared: float = 0.
    outside: float = 0.

    @property
    def total(self) -> float:
        """Bytes of the process."""
        return sum(astuple(self))


@dataclass(frozen=True)
class Parts:
    """Bytes that do not depend on images, of a process that trains alone.

    Attributes:
        weights, gradients, states, averaged: See :class:`Memory`.
        gathered: What FSDP gathers at a time: the block that computes, the next one, and all that
            is in no block.
    """
    weights: float
    gradients: float
    states: float
    averaged: float
    gathered: float

    @classmethod
    def of(cls, trial: Trial) -> Parts:
        """Return those of a model that has taken a step."""
        weights = num_bytes(trial.model)
        gradients = sum(p.nbytes for p in trial.model.parameters() if p.requires_grad)
        blocks = [
            num_bytes(block) for module in trial.model.modules()
            if isinstance(module, ColumnarBackbone) for block in module.blocks
        ]
        block, rest = max(blocks, default=0), weights - sum(blocks)
        return cls(
            weights=weights,
            gradients=gradients,
            states=sum(state.nbytes for state in trial.states()),
            averaged=weights if any(map(averages_weights, hooks_of(trial.setting.cfg))) else 0,
            gathered=2 * block + rest + gradients / max(weights, 1) * (block + rest))


@dataclass(frozen=True)
class Estimate:
    """Memory of a process at the largest size of its images, and its time at their mean.

    Attributes:
        setting: What is computed.
        size: Size of the largest images.
        mean_pixels: Mean number of pixels of an image.
        steps: What was measured, in the order of pixels.
        measured_images: Images of an iteration that was measured.
        parts: Bytes that do not depend on images.
        imports: Bytes of the host before any model was built.
    """
    setting: Setting
    size: Size
    mean_pixels: float
    steps: tuple[Measured, ...]
    measured_images: int
    parts: Parts
    imports: int

    @property
    def memory(self) -> Memory:
        """Memory of one of the processes.

        DDP copies gradients into buckets. FSDP keeps a fraction of weights, gradients, states and
        averages, and gathers what computes.
        """
        setting, parts = self.setting, self.parts
        peak = on_line([(prod(m.size), m.memory) for m in self.steps], prod(self.size))
        activations = max(0., peak - parts.weights - parts.gradients - parts.states)
        activations *= setting.images / self.measured_images
        shards = setting.processes if setting.fsdp else 1
        kept = (parts.weights / shards, parts.gradients / shards, parts.states / shards,
                parts.averaged / shards)
        shared = parts.gathered if setting.fsdp else parts.gradients
        shared = shared if setting.processes > 1 else 0.
        outside = CONTEXT if setting.device == 'cuda' else \
            self.imports + LIBRARIES + KEPT * (sum(kept) + activations + shared)
        return Memory(*kept, activations, shared, outside)

    @property
    def seconds(self) -> float:
        """Seconds of an iteration on images of the mean size."""
        return on_line([(prod(m.size), m.seconds) for m in self.steps], self.mean_pixels)

    @property
    def smaller_sizes(self) -> str:
        """Sizes that numbers are extrapolated from; empty if the largest was measured."""
        if self.steps[-1].size == self.size:
            return ''
        return ' and '.join(f'{m.size[0]} x {m.size[1]}' for m in self.steps)


def estimate(setting: Setting, size: Size, mean_pixels: float, imports: int, *,
             num_timed: int) -> Estimate:
    """Take steps on random images, as large as they can be afforded.

    Raises:
        ValueError: If no step can be taken on this machine.
    """
    weights, room = num_bytes(build_on_meta(setting.cfg.model)), free_memory(setting, imports)
    if STEP * weights > room:
        raise UserError(f'a step of this model takes {STEP * weights / GIB:.1f} GiB without '
                        f'images, of which {room / GIB:.1f} are free here: plan it on a larger '
                        'machine')
    trial = Trial(setting)
    steps = measure_sizes(trial, size, room, num_timed)
    return Estimate(setting, size, mean_pixels, steps, setting.images, Parts.of(trial), imports)


def measure_sizes(trial: Trial, size: Size, room: float, num_timed: int) -> tuple[Measured, ...]:
    """Take steps at growing sizes, up to the largest one that can be afforded.

    Args:
        trial: What takes steps. Heads with queries cannot take those with few pixels.
        size: Size of the largest images.
        room: Bytes that tensors may take here.
        num_timed: Number of steps at each size that are timed.

    Raises:
        ValueError: If no step can be taken.
    """
    steps: list[Measured] = []
    error: Exception | None = None
    for factor in FACTORS if trial.setting.images * prod(size) > SMALL else (1., ):
        scaled = scaled_size(size, factor)
        if steps:
            growth = prod(scaled) / prod(steps[-1].size)
            seconds = steps[-1].seconds * trial.iterations * (num_timed + 2)
            if growth * steps[-1].memory > room or growth * seconds > BUDGET:
                break
        try:
            steps.append(trial.measure(scaled, num_timed=num_timed))
        except (RuntimeError, IndexError, ValueError, AssertionError) as failure:
            error = failure
    if not steps:
        raise UserCodeError('the model cannot take a step on random images: '
                            f'{type(error).__name__}: {error}') from error
    return tuple(steps)


def scaled_size(size: Size, factor: float) -> Size:
    """Return a size with sides scaled, in multiples of 32 pixels if they were."""
    step = 32 if all(side % 32 == 0 for side in size) else 1
    height, width = (max(step, round(side * factor / step) * step) for side in size)
    return height, width


def on_line(points: list[tuple[int, float]], x: float) -> float:
    """Return the value at x of the line through the first and last point, or zero and the only one.

    A line that falls, of measurements that were disturbed, is taken to go through zero.
    """
    (left, low), (right, high) = points[0], points[-1]
    if left == right or low >= high:
        return high * x / right
    return high + (high - low) / (right - left) * (x - right)


def num_bytes(model: nn.Module) -> int:
    """Return the bytes of parameters and buffers."""
    return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))


def free_memory(setting: Setting, imports: int) -> float:
    """Return the bytes that tensors of steps may take on this machine."""
    if setting.here == 'cuda':
        return ROOM * torch.cuda.mem_get_info()[0]
    return (ROOM * host_memory() - imports - LIBRARIES) / (1 + KEPT)


def peak_of_imports(library: str) -> int:
    """Return the bytes of the host with all that models of mmdet or mmseg import."""
    for name in ('models', 'testing') if library == 'mmdet' else ('models', ):
        import_module(f'{library}.{name}')
    return peak_of_process()


def peak_of_process() -> int:
    """Return the peak of this process so far, in bytes."""
    unit = 1 if sys.platform == 'darwin' else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def host_memory() -> int:
    """Return the bytes of this machine, or the limit of its cgroup."""
    limits = [os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')]
    for path in map(Path, CGROUPS):
        if path.exists() and (text := path.read_text(encoding='utf-8').strip()).isdigit():
            limits.append(int(text))
    return min(limits)
