"""Seconds and peak memory of contestants, for ``tools/benchmark.py``."""
from __future__ import annotations

import ctypes
import gc
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from colonnade.backbones.kernels.layers import linear

from ..half_precision import compute_in
from .contestants import build_contestant, build_trunk

MIB = 2**20


@dataclass(frozen=True)
class Job:
    """What is measured."""
    trunk: str  # CLASS:ARCH or CLASS:ARCH:ARGUMENT=VALUE
    size: tuple[int, int]  # height, width
    batch_size: int
    train: bool
    pyramid: bool
    device: str
    threads: int
    dtype: str = 'float32'
    amp: str = ''  # the type of autocast; without it, whole models are in dtype

    def build(self, name: str) -> nn.Module:
        """A contestant, and with half precision its weights in it.

        Under autocast, those of trunks stay as they are.
        """
        model = build_contestant(
            name, self.trunk, self.size, train=self.train, pyramid=self.pyramid,
            device=self.device).to(getattr(torch, self.dtype))
        if self.amp and not self.train:
            compute_in(model, getattr(torch, self.amp))
        return model

    def images(self) -> Tensor:
        return torch.rand(
            self.batch_size, 3, *self.size, device=self.device, dtype=getattr(torch, self.dtype))

    def autocast(self) -> AbstractContextManager:
        """That of training; models that are evaluated bring their own."""
        if not self.amp or not self.train:
            return nullcontext()
        return torch.autocast(self.device, getattr(torch, self.amp))

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
    with freed_memory_given_back(), ProcessPoolExecutor(1, mp_context=get_context('spawn')) as pool:
        return pool.submit(peak_memory_here, job, name).result()


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
    return (peak - gradients) / MIB, weights / MIB


def peak_while(run: Callable[[], object], device: str = 'cpu') -> int:
    """Peak bytes above what is held before, while ``run`` runs.

    On a CPU it is that of the process, see :func:`freed_memory_given_back`.
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
    Path('/proc/self/clear_refs').write_text('5')  # the peak starts from here
    before = process_memory('VmRSS')
    run()
    return process_memory('VmHWM') - before


def process_memory(field: str) -> int:
    """A field of Linux's ``/proc/self/status``, in bytes."""
    for line in Path('/proc/self/status').read_text().splitlines():
        if line.startswith(f'{field}:'):
            return 1024 * int(line.split()[1])
    raise ValueError(f'/proc/self/status has no {field}')


def work_of(job: Job) -> float:
    """Operations of our trunk's forward pass on one image in the paper's form, in billions."""
    with torch.device('meta'):
        trunk = build_trunk(job.trunk).eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        trunk(torch.empty(1, 3, *job.size, device='meta'))
    return counter.get_total_flops() / 1e9


def matmul_peak(job: Job) -> float:
    """GFLOP/s of the fastest product of matrices that we know on this machine."""
    torch.set_num_threads(job.threads)
    side = 2048 if job.device == 'cpu' else 8192
    dtype = getattr(torch, job.amp or job.dtype)
    x = torch.randn(1, side, side, device=job.device, dtype=dtype)
    best = 0.
    for product in (torch.matmul, linear):
        for _ in range(4):
            started = time.perf_counter()
            product(x, x[0])
            if job.device != 'cpu':
                torch.cuda.synchronize()
            best = max(best, 2 * side**3 / (time.perf_counter() - started) / 1e9)
    return best


@contextmanager
def freed_memory_given_back() -> Iterator[None]:
    """Processes that start while it is open return what they free to the system at once (glibc)."""
    os.environ['MALLOC_MMAP_THRESHOLD_'] = str(MIB // 4)
    try:
        yield
    finally:
        del os.environ['MALLOC_MMAP_THRESHOLD_']
