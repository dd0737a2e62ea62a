"""What a training takes in memory and time, estimated from steps on random images."""
from __future__ import annotations

from dataclasses import dataclass, replace
from importlib import import_module
from math import prod

import torch
from mmengine.config import Config

from colonnade.common.errors import UserError
from colonnade.models.meta_device import build_without_memory

from ..runner.hooks import averages_weights, hooks_of
from .extrapolation import Extrapolation, measure_sizes, products_at
from .image_sizes import Size
from .measured_steps import TIMED, Trial
from .memory import (GIB, KEPT, LIBRARIES, Memory, Units, host_memory, over_processes,
                     peak_of_process, size_of, with_outside)

STEP = 5  # times the weights: gradients, AdamW's states, and room to build
PART = 0.7  # of this machine's memory that steps may take


@dataclass(frozen=True)
class Setting:
    """What is computed.

    Attributes:
        cfg: With its batch settled.
        device: That trains.
        here: That measures.
        half: The type of mixed precision, if any.
        images: Of one process in an iteration.
        objects: Of an image.
        processes: Of the training.
        fsdp: Whether they share out weights.
    """
    cfg: Config
    device: str
    here: str
    half: torch.dtype | None
    images: int
    objects: int
    processes: int
    fsdp: bool


@dataclass(frozen=True)
class Estimate:
    """Memory of a process, at the largest size of its images.

    Attributes:
        setting: What is computed.
        size: Of the largest images.
        mean: Of an image in the mean.
        steps: What was measured.
        alone: Memory of one process that trains alone, without what is not in tensors.
        units: Of FSDP.
        imports: Bytes of the host before any model was built.
    """
    setting: Setting
    size: Size
    mean: Size
    steps: Extrapolation
    alone: Memory
    units: Units
    imports: int

    @property
    def memory(self) -> Memory:
        """Of one of the processes."""
        units = self.units if self.setting.fsdp else None
        shared = over_processes(self.alone, self.setting.processes, units)
        return with_outside(shared, self.setting.device, self.imports)

    @property
    def seconds(self) -> float:
        """Of an iteration on images of the mean size."""
        return self.steps.seconds(self.mean)

    def changed(self, setting: Setting) -> Estimate:
        """Of another computation at the same sizes, measured anew."""
        trial, units = trial_of(setting, self.imports)
        steps = replace(
            self.steps, measured=tuple(trial.measure(m.size, timed=0) for m in self.steps.measured))
        return replace(
            self,
            setting=setting,
            steps=steps,
            alone=memory_alone(trial, steps.memory(self.size)),
            units=units)

    def with_images(self, images: int) -> Estimate:
        """Of another batch: activations grow with it."""
        activations = self.alone.activations * images / self.setting.images
        return replace(
            self,
            setting=replace(self.setting, images=images),
            alone=replace(self.alone, activations=activations))

    def over(self, processes: int) -> Estimate:
        """With weights shared out by FSDP."""
        return replace(self, setting=replace(self.setting, processes=processes, fsdp=True))

    def at(self, size: Size) -> Estimate:
        """At another size: activations are those of that size, in proportion."""
        part = self.steps.memory(size) - self.fixed
        whole = max(self.steps.memory(self.size) - self.fixed, 1)
        activations = self.alone.activations * max(part, 0) / whole
        return replace(self, size=size, alone=replace(self.alone, activations=activations))

    @property
    def fixed(self) -> float:
        """Bytes that do not depend on images."""
        return self.alone.weights + self.alone.gradients + self.alone.states


def estimate(setting: Setting, size: Size, mean: Size, imports: int) -> Estimate:
    """Take steps on random images, as large as they can be afforded.

    Raises:
        ValueError: If no step can be taken on this machine.
    """
    trial, units = trial_of(setting, imports)
    timed = TIMED if setting.here == setting.device else 0
    measured = measure_sizes(trial, size, room_here(setting.here, imports), timed)
    products = products_at(setting.cfg, {size, mean, *(m.size for m in measured)})
    steps = Extrapolation(measured, products)
    alone = memory_alone(trial, steps.memory(size))
    return Estimate(setting, size, mean, steps, alone, units, imports)


def trial_of(setting: Setting, imports: int) -> tuple[Trial, Units]:
    """The model in training, and the units that FSDP would make of it.

    Raises:
        ValueError: If this machine is too small for it.
    """
    bare = build_without_memory(setting.cfg.model)
    weights, room = size_of(bare), room_here(setting.here, imports)
    if STEP * weights > room:
        raise UserError(f'a step of this model takes {STEP * weights / GIB:.1f} GiB without '
                        f'images, of which {room / GIB:.1f} are free here: plan it on a larger '
                        'machine')
    trial = Trial(setting.cfg, setting.here, setting.half, setting.images, setting.objects,
                  setting.device)
    return trial, Units.of(bare)


def memory_alone(trial: Trial, peak: float) -> Memory:
    """The parts of a process that trains alone, whose tensors take ``peak`` bytes in a step."""
    weights = size_of(trial.model)
    gradients = sum(p.nbytes for p in trial.model.parameters() if p.requires_grad)
    states = sum(state.nbytes for state in trial.states())
    averaged = weights if any(map(averages_weights, hooks_of(trial.cfg))) else 0
    return Memory(weights, gradients, states, averaged, max(0, peak - weights - gradients - states))


def room_here(device: str, imports: int) -> float:
    """Bytes that tensors of steps may take on this machine."""
    if device == 'cuda':
        return PART * torch.cuda.mem_get_info()[0]
    return (PART * host_memory() - imports - LIBRARIES) / (1 + KEPT)


def peak_of_imports(library: str) -> int:
    """Bytes of the host with all that models of mmdet or mmseg import."""
    for name in ('models', 'testing') if library == 'mmdet' else ('models', ):
        import_module(f'{library}.{name}')
    return peak_of_process()


def mean_size(largest: Size, mean_pixels: float) -> Size:
    """The shape of the largest images with as many pixels as images have in the mean."""
    factor = min(1., (mean_pixels / prod(largest))**0.5)
    height, width = (max(1, round(side * factor / 32) * 32) for side in largest)
    return (height, width) if factor < 0.97 else largest
