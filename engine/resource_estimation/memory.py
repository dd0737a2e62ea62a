"""What a process of a training holds in memory, and what there is."""
from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from colonnade.backbones import ColumnarBackbone

GIB = 2**30
#: what the C library keeps of freed blocks, as a share of the tensors, and what the libraries of a
#: run hold for themselves, beyond those of models; tests/test_planning_measured.py compares
KEPT, LIBRARIES = 0.35, 105 * 2**20
CONTEXT = 0.6 * GIB  # of CUDA and its libraries, on a GPU
USABLE = 0.95  # of a GPU: the rest is lost between blocks
LIMITS = ('/sys/fs/cgroup/memory.max', '/sys/fs/cgroup/memory/memory.limit_in_bytes')


@dataclass(frozen=True)
class Memory:
    """Bytes of one process at the peak of a step.

    Attributes:
        weights: Parameters and buffers.
        gradients: Of what is trained.
        states: Of the optimizer.
        averaged: The copy of the weights that is averaged.
        shared: What several processes need for each other.
        activations: What else tensors take.
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
    def tensors(self) -> float:
        """Bytes of all tensors."""
        return (self.weights + self.gradients + self.states + self.averaged + self.shared
                + self.activations)  # yapf: disable

    @property
    def total(self) -> float:
        """Bytes of the process."""
        return self.tensors + self.outside

    def lines(self, outside: str) -> Iterator[str]:
        """A row for each part; ``outside`` names what is not in tensors."""
        for name, value in (('weights', self.weights), ('gradients', self.gradients),
                            ('optimizer states', self.states), ('averaged weights', self.averaged),
                            ('between processes', self.shared), ('activations', self.activations),
                            (outside, self.outside), ('sum', self.total)):
            if value:
                yield row(name, gib(value))


def row(name: str, value: str) -> str:
    """A line of the table."""
    return f'  {name:<30}{value}'


def gib(size: float) -> str:
    """Bytes in words."""
    return f'{size / GIB:8.2f} GiB'


@dataclass(frozen=True)
class Units:
    """What FSDP gathers at a time, in bytes of weights."""
    block: int  # the largest
    rest: int  # all that is in no block

    @classmethod
    def of(cls, model: nn.Module) -> Units:
        """A unit per block of a trunk of ours, and one for the rest."""
        blocks = [
            size_of(block) for module in model.modules() if isinstance(module, ColumnarBackbone)
            for block in module.blocks
        ]
        return cls(max(blocks, default=0), size_of(model) - sum(blocks))


def size_of(model: nn.Module) -> int:
    """Bytes of parameters and buffers."""
    return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))


def over_processes(memory: Memory, processes: int, units: Units | None) -> Memory:
    """The memory of one of several processes.

    DDP copies gradients into buckets. FSDP keeps a share of weights, gradients, states and
    averages, and gathers the block that computes, the next one, and the rest of the model.

    Args:
        memory: Of one process alone.
        processes: Their number.
        units: Of FSDP; None for DDP.
    """
    if processes == 1:
        return memory
    if units is None:
        return replace(memory, shared=memory.gradients)
    trained = memory.gradients / max(memory.weights, 1)
    gathered = 2 * units.block + units.rest + trained * (units.block + units.rest)
    return replace(
        memory,
        weights=memory.weights / processes,
        gradients=memory.gradients / processes,
        states=memory.states / processes,
        averaged=memory.averaged / processes,
        shared=gathered)


def with_outside(memory: Memory, device: str, imports: float) -> Memory:
    """Add what is not in tensors, for a device and the bytes that imports take in the host."""
    if device == 'cuda':
        return replace(memory, outside=CONTEXT)
    return replace(memory, outside=imports + LIBRARIES + KEPT * memory.tensors)


def peak_of_process() -> int:
    """The most bytes that this process has had so far."""
    unit = 1 if sys.platform == 'darwin' else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def host_memory() -> int:
    """Bytes of this machine, or what its cgroup may take."""
    found = [os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')]
    for path in map(Path, LIMITS):
        if path.exists() and (text := path.read_text(encoding='utf-8').strip()).isdigit():
            found.append(int(text))
    return min(found)


def usable_memory(device: str, given: float | None) -> float:
    """Bytes that a process may take: of a device of this machine, or of one that is given."""
    if device == 'cuda':
        total = given or torch.cuda.get_device_properties(0).total_memory
        return total * USABLE
    return given or host_memory()
