"""Seconds and peak memory of contestants, for ``tools/benchmark.py``."""
from __future__ import annotations

import ctypes
import gc
import os
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from colonnade.backbones.kernels.packed import Packed
from colonnade.common.errors import UserError

from .candidates import build_contestant

MIB = 2**20
Result = TypeVar('Result')


@dataclass(frozen=True)
class Job:
    """What is measured."""
    backbone: str  # CLASS:ARCH or CLASS:ARCH:ARGUMENT=VALUE
    size: tuple[int, int]  # height, width
    batch_size: int
    train: bool
    pyramid: bool
    device: str
    threads: int
    dtype: torch.dtype = torch.float32
    amp: torch.dtype | None = None  # the type of autocast; without it, whole models are in dtype

    def build(self, name: str) -> nn.Module:
        """Return a contestant, and with half precision its weights in it.

        Random weights are the same each time: detectors have as many proposals.
        """
        torch.manual_seed(0)
        return build_contestant(
            name,
            self.backbone,
            self.size,
            train=self.train,
            pyramid=self.pyramid,
            device=self.device,
            amp=self.amp).to(self.dtype)

    def images(self) -> Tensor:
        return torch.rand(self.batch_size, 3, *self.size, device=self.device, dtype=self.dtype)

    def autocast(self) -> AbstractContextManager:
        """That of training; models that are evaluated bring their own."""
        if self.amp is None or not self.train:
            return nullcontext()
        return torch.autocast(self.device, self.amp)

    def run(self, model: nn.Module, images: Tensor) -> None:
        """One forward pass, in training also the backward pass."""
        with torch.set_grad_enabled(self.train):
            with self.autocast():
                maps = model(images)
            if self.train:
                model.zero_grad()
                sum(m.float().square().mean() for m in maps).backward()
        if self.device != 'cpu':
            torch.cuda.synchronize()


def time_in_turns(job: Job, names: list[str], rounds: int) -> dict[str, list[float]]:
    """Seconds of each round of each contestant, after a round to warm up."""
    torch.set_num_threads(job.threads)
    models = {name: job.build(name) for name in names}
    images = job.images()
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for index in range(rounds + 1):
        for name, model in models.items():
            started = time.perf_counter()
            job.run(model, images)
            if index:
                seconds[name].append(time.perf_counter() - started)
    return seconds


def peak_memory(job: Job, name: str) -> tuple[float, float]:
    """Peak MiB above weights and gradients, and of weights, in a fresh process."""
    return in_fresh_process(peak_memory_here, job, name)


def peak_memory_here(job: Job, name: str) -> tuple[float, float]:
    """As :func:`peak_memory`, in this process."""
    torch.set_num_threads(job.threads)
    model, images = job.build(name), job.images()
    if name.endswith('-compiled'):
        job.run(model, images)  # the compiler's own memory is not the model's
        model.zero_grad()
    peak = peak_while(partial(job.run, model, images), job.device)
    gradients = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
    weights = sum(p.nbytes for p in model.parameters())
    weights += sum(layer.nbytes for layer in model.modules() if isinstance(layer, Packed))
    return (peak - gradients) / MIB, weights / MIB


def peak_while(run: Callable[[], object], device: str = 'cpu') -> int:
    """Peak bytes above what is held before, while ``run`` runs.

    On a CPU it is that of the process, see :func:`in_fresh_process`.
    """
    if device != 'cpu':
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return torch.cuda.max_memory_allocated() - before
    small = torch.rand(64, 64, requires_grad=True)
    (small @ small).sum().backward()  # what torch and its libraries allocate once
    nn.Conv2d(64, 64, 1)(small[None, :, None]).sum().backward()
    gc.collect()
    if trim := getattr(ctypes.CDLL(None), 'malloc_trim', None):
        trim(0)  # what was freed before, which glibc keeps
    Path('/proc/self/clear_refs').write_text('5', encoding='utf-8')  # the peak starts from here
    before = process_memory('VmRSS')
    run()
    return process_memory('VmHWM') - before


def process_memory(field: str) -> int:
    """A field of Linux's ``/proc/self/status``, in bytes."""
    for line in Path('/proc/self/status').read_text(encoding='utf-8').splitlines():
        if line.startswith(f'{field}:'):
            return 1024 * int(line.split()[1])
    raise UserError(f'/proc/self/status has no {field}')


def work_of(job: Job, name: str) -> float:
    """Operations of a contestant's forward pass on one image in the plain form, in billions.

    Our backbone counts as the paper writes it, whoever computes it. The rest of a detector is counted
    as it runs on a random image.

    Args:
        job: Its batch size does not count.
        name: Of the contestant.
    """
    kind = name.partition('-')[0]
    if kind in ('ours', 'timm'):
        return count(job, 'ours', 'meta').get_total_flops() / 1e9
    counter = count(job, kind, 'cpu')
    operations = counter.get_total_flops()
    if kind == 'detector':
        operations -= sum(counter.get_flop_counts()['Detect.detector.backbone'].values())
        operations += count(replace(job, pyramid=False), 'ours', 'meta').get_total_flops()
    return operations / 1e9


def count(job: Job, name: str, device: str) -> FlopCounterMode:
    """What one forward pass of a contestant computes."""
    torch.manual_seed(0)
    with torch.device(device):
        images = torch.rand(1, 3, *job.size)
        model = build_contestant(
            name, job.backbone, job.size, train=False, pyramid=job.pyramid, device=device)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(images)
    return counter


def in_fresh_process(function: Callable[..., Result], *args: Any) -> Result:
    """Return what a function gives in a process of its own.

    That process returns what it frees to the system at once (glibc), so its peak is that of what it
    uses.
    """
    os.environ['MALLOC_MMAP_THRESHOLD_'] = str(MIB // 4)
    try:
        with ProcessPoolExecutor(1, mp_context=get_context('spawn')) as pool:
            return pool.submit(function, *args).result()
    finally:
        del os.environ['MALLOC_MMAP_THRESHOLD_']


def middle_and_spread(seconds: Sequence[float]) -> tuple[float, float]:
    """Return the median, and half the range."""
    return statistics.median(seconds), (max(seconds) - min(seconds)) / 2
