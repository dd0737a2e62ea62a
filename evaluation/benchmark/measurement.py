"""Time and peak memory of candidates."""
from __future__ import annotations

import ctypes
import gc
import os
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.utils.flop_counter import FlopCounterMode

from colonnade.backbones.kernels.packed import Packed
from colonnade.common.process_memory import read_process_memory

from .candidates import Exported, build_candidate

MIB = 2**20
TURN_SECONDS = 0.4  # shortest turn of a candidate
Result = TypeVar('Result')


@dataclass(frozen=True)
class Job:
    """Measurement of several candidates under equal conditions."""
    backbone: str  # CLASS:ARCH or CLASS:ARCH:ARGUMENT=VALUE
    size: tuple[int, int]  # height, width
    batch_size: int
    train: bool
    pyramid: bool
    device: str
    threads: int
    dtype: torch.dtype = torch.float32
    amp: torch.dtype | None = None  # type of autocast; without it, everything is in dtype

    def build(self, name: str) -> nn.Module:
        """Return a candidate with the same random weights each time."""
        torch.manual_seed(0)
        return build_candidate(
            name,
            self.backbone,
            self.size,
            train=self.train,
            pyramid=self.pyramid,
            device=self.device,
            amp=self.amp).to(self.dtype)

    def draw_images(self) -> Tensor:
        """Return random images."""
        return torch.rand(self.batch_size, 3, *self.size, device=self.device, dtype=self.dtype)

    def run(self, model: nn.Module, images: Tensor, optimizer: Optimizer | None = None) -> None:
        """Run a forward pass, and in training a backward pass and a step of the optimizer."""
        # Models in evaluation enable autocast themselves.
        uses_autocast = self.amp is not None and self.train
        autocast = torch.autocast(self.device, self.amp) if uses_autocast else nullcontext()
        with torch.set_grad_enabled(self.train):
            with autocast:
                maps = model(images)
            if self.train:
                model.zero_grad()
                sum(m.float().square().mean() for m in maps).backward()
            if optimizer is not None:
                optimizer.step()
        if self.device != 'cpu':
            torch.cuda.synchronize()


def build_optimizer(model: nn.Module, name: str) -> Optimizer:
    """Return AdamW as it is by default: fused in Colonnade's configs, not fused in torch."""
    return AdamW(model.parameters(), lr=1e-6, fused=True if name.startswith('ours') else None)


def time_in_turns(job: Job, names: list[str], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each round of each candidate, after a round to warm up."""
    torch.set_num_threads(job.threads)
    images, runs = job.draw_images(), dict[str, Callable[[], None]]()
    for name in names:
        model = job.build(name)
        optimizer = build_optimizer(model, name) if job.train else None
        runs[name] = partial(job.run, model, images, optimizer)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for index in range(rounds + 1):
        for name, run in runs.items():
            turn = take_turn(run)
            if index:
                seconds[name].append(turn)
    return seconds


def take_turn(run: Callable[[], object]) -> float:
    """Return the median seconds of a call, of as many as take :data:`TURN_SECONDS`.

    The first of several is not counted, since it finds the weights of another candidate in the
    processor's cache.
    """
    started, seconds = time.perf_counter(), list[float]()
    while not seconds or time.perf_counter() - started < TURN_SECONDS:
        before = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - before)
    return statistics.median(seconds[1:] or seconds)


def measure_candidate_memory(job: Job, name: str) -> tuple[float, float]:
    """Return the peak MiB above weights and gradients, and the MiB of weights."""
    torch.set_num_threads(job.threads)
    model, images = job.build(name), job.draw_images()
    job.run(model, images)  # Exclude what libraries keep: compiled code, packed weights, caches.
    model.zero_grad()
    peak = measure_peak(partial(job.run, model, images), job.device)
    gradients = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
    weights = sum(p.nbytes for p in model.parameters())
    weights += sum(layer.nbytes for layer in model.modules()
                   if isinstance(layer, (Packed, Exported)))
    return (peak - gradients) / MIB, weights / MIB


def measure_peak(run: Callable[[], object], device: str = 'cpu') -> int:
    """Return the peak bytes during a call, above those before.

    On a CPU it is the memory of the process, see :func:`run_in_new_process`.
    """
    if device != 'cpu':
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return torch.cuda.max_memory_allocated() - before
    # Let torch and its libraries allocate what they allocate only once.
    small = torch.rand(64, 64, requires_grad=True)
    (small @ small).sum().backward()
    nn.Conv2d(64, 64, 1)(small[None, :, None]).sum().backward()
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)  # Return the memory that glibc keeps to the system.
    except AttributeError:  # another C library
        pass
    Path('/proc/self/clear_refs').write_text('5', encoding='utf-8')  # resets the peak
    before = read_process_memory('VmRSS')
    run()
    return read_process_memory('VmHWM') - before


def compute_work(job: Job, name: str) -> float:
    """Return the operations of a candidate's forward pass on one image, in billions.

    Colonnade's backbones count in the form of the papers, whichever module computes them. The rest
    of a detector is counted as it runs on a random image.
    """
    kind = name.partition('-')[0]
    if kind in ('ours', 'timm'):
        return count_operations(job, 'ours', 'meta').get_total_flops() / 1e9
    counter = count_operations(job, kind, 'cpu')
    operations = counter.get_total_flops()
    if kind == 'detector':
        operations -= sum(counter.get_flop_counts()['Detect.detector.backbone'].values())
        backbone = count_operations(replace(job, pyramid=False), 'ours', 'meta')
        operations += backbone.get_total_flops()
    return operations / 1e9


def count_operations(job: Job, name: str, device: str) -> FlopCounterMode:
    """Return the counted operations of a candidate's forward pass."""
    torch.manual_seed(0)
    with torch.device(device):
        images = torch.rand(1, 3, *job.size)
        model = build_candidate(
            name, job.backbone, job.size, train=False, pyramid=job.pyramid, device=device)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(images)
    return counter


def run_in_new_process(function: Callable[..., Result], *args: Any) -> Result:
    """Return the result of a function that runs in a process of its own.

    With glibc, this process returns freed memory to the system at once, so that its peak is the
    memory in use.
    """
    os.environ['MALLOC_MMAP_THRESHOLD_'] = str(MIB // 4)
    try:
        with ProcessPoolExecutor(1, mp_context=get_context('spawn')) as pool:
            return pool.submit(function, *args).result()
    finally:
        del os.environ['MALLOC_MMAP_THRESHOLD_']


def compute_median_and_spread(seconds: Sequence[float]) -> tuple[float, float]:
    """Return the median, and half the range."""
    return statistics.median(seconds), (max(seconds) - min(seconds)) / 2
