"""Training steps on random images, whose memory and time are measured."""
from __future__ import annotations

import copy
import os
import statistics
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.logging import MessageHub, MMLogger
from mmengine.optim import OptimWrapper, OptimWrapperDict, build_optim_wrapper
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from colonnade.backbones.kernels.devices import force_accelerator_forms
from colonnade.common.console_logging import log_errors_only
from colonnade.common.errors import UserCodeError, UserError
from colonnade.common.process_memory import get_peak_memory
from colonnade.models.half_precision import keep_outputs_float32
from colonnade.models.trial_step import (build_box_batch, build_label_batch, build_trial_model,
                                         count_channels)
from colonnade.settings.config_values import has_masks, iter_values, loads_segments

from .training_images import Size

MIN_IOU = 0.01  # IoU of a box and an object from which RoI heads count it as positive
#: optimizer wrappers of mixed precision, which is done here by autocast
HALF_TYPES = {'AmpOptimWrapper': torch.float16, 'Bfloat16OptimWrapper': torch.bfloat16}
SCALES = (1 / 4, 1 / 2, 1.)  # factors of the largest images, until a step takes too much
SMALL = 2**19  # pixels of a batch that any host can compute
MAX_SECONDS = 60.  # time of the steps at one size
CGROUPS = ('/sys/fs/cgroup/memory.max', '/sys/fs/cgroup/memory/memory.limit_in_bytes')


@dataclass(frozen=True)
class Setting:
    """Workload of a process.

    Attributes:
        here: Type of the device that measures. A CPU that measures for a GPU computes as a GPU
            would, which stores more for the gradients.
        half: Type of mixed precision, if any. A CPU uses bfloat16, which has as many bytes.
    """
    cfg: Config
    device: str  # type of the device that trains
    here: str
    half: torch.dtype | None
    images: int  # per iteration
    objects: int  # per image
    processes: int
    fsdp: bool  # whether they shard the weights
    unlabeled: int = 0  # images that hooks add to those of an iteration


@dataclass(frozen=True)
class Measurement:
    """Time and memory of a step at one size of images."""
    size: Size
    seconds: float  # median, per iteration
    memory: int  # peak bytes of all tensors, with weights


class Trial:
    """A model in training, on random images with random objects; nothing is downloaded."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        cfg = copy.deepcopy(setting.cfg)
        self.half = torch.bfloat16 if setting.half and setting.here == 'cpu' else setting.half
        # RoI heads get as many positive boxes as late in training: random weights find few.
        stages = (cfg.model.get('train_cfg') or {}).get('rcnn') or []
        for stage in stages if isinstance(stages, list) else [stages]:
            if (stage.get('assigner') or {}).get('type') == 'MaxIoUAssigner':
                stage.assigner.update(pos_iou_thr=MIN_IOU, neg_iou_thr=MIN_IOU, min_pos_iou=MIN_IOU)
        torch.manual_seed(0)
        self.model = build_trial_model(cfg, side=32).to(setting.here)
        wrapper = cfg.optim_wrapper
        # Two iterations are enough: the second finds the accumulated gradients of the first.
        self.iterations = wrapper.accumulative_counts = min(
            wrapper.get('accumulative_counts', 1), 2)
        if wrapper.get('type') in HALF_TYPES:
            wrapper.type = 'OptimWrapper'
            for option in ('loss_scale', 'dtype', 'use_fsdp'):
                wrapper.pop(option, None)
        with log_errors_only(MMLogger.get_current_instance()):  # the rate of each parameter
            self.optimizer: OptimWrapper = build_optim_wrapper(self.model, wrapper)
        if isinstance(self.optimizer, OptimWrapperDict):
            raise UserError('--estimate supports only one optimizer, but optim_wrapper has '
                            f'{len(self.optimizer)}')
        self.optimizer.initialize_count_status(self.model, 0, sys.maxsize)
        if self.half == torch.bfloat16:
            keep_outputs_float32(self.model)
        MessageHub.get_current_instance().update_info_dict(dict(epoch=0, iter=0))

    def measure_sizes(self, size: Size, room: float, num_timed: int) -> list[Measurement]:
        """Take steps at increasing sizes, up to the largest one that this host can compute.

        Heads with queries cannot take steps on images with few pixels.

        Args:
            size: Height and width of the largest images.
            room: Bytes that a step may take.
            num_timed: See :meth:`measure`.
        """
        steps: list[Measurement] = []
        error: Exception | None = None
        for scale in SCALES if self.setting.images * prod(size) > SMALL else (1., ):
            scaled = scale_size(size, scale)
            if steps:
                growth = prod(scaled) / prod(steps[-1].size)
                seconds = steps[-1].seconds * self.iterations * (num_timed + 2)
                if growth * steps[-1].memory > room or growth * seconds > MAX_SECONDS:
                    break
            try:
                steps.append(self.measure(scaled, num_timed=num_timed))
            except (RuntimeError, IndexError, ValueError, AssertionError) as failure:
                error = failure
        if not steps:
            raise UserCodeError('a training step on random images failed: '
                                f'{type(error).__name__}: {error}') from error
        return steps

    def measure(self, size: Size, *, num_timed: int) -> Measurement:
        """Return time and memory of an iteration.

        Args:
            size: Height and width of the images that the model gets.
            num_timed: Number of steps that are timed after a warm-up. With 0, the time is that of
                the step whose memory is measured.
        """
        preprocessor: Any = self.model.data_preprocessor
        preprocessor.pad_size_divisor = 1  # read by mmdet's preprocessor
        preprocessor.size, preprocessor.size_divisor = size, None  # read by mmseg's
        step = partial(self._step, self._draw_batch(size))
        with nullcontext() if self.setting.device == 'cpu' else force_accelerator_forms():
            if num_timed or not any(True for _ in self.states()):  # the first step creates them
                step()
            started = time.perf_counter()
            memory = self._measure_peak(step)
            seconds = [time.perf_counter() - started]
            for _ in range(num_timed):
                started = time.perf_counter()
                step()
                seconds.append(time.perf_counter() - started)
        return Measurement(size,
                           statistics.median(seconds[1:] or seconds) / self.iterations, memory)

    def _draw_batch(self, size: Size) -> dict[str, Any]:
        """Return random images as pipelines pack them: with boxes and masks, or label maps."""
        cfg, images = self.setting.cfg, self.setting.images + self.setting.unlabeled
        if cfg.default_scope != 'mmdet':
            return build_label_batch(size, images, channels=count_channels(cfg))
        return build_box_batch(
            size,
            images,
            channels=count_channels(cfg),
            objects=max(1, self.setting.objects),
            masks=has_masks(cfg),
            semantic=loads_segments(cfg)
            or True in iter_values(cfg.get('train_dataloader'), 'with_seg'))

    def _step(self, batch: dict[str, Any]) -> None:
        for _ in range(self.iterations):
            data = self.model.data_preprocessor(copy.deepcopy(batch), True)
            autocast = torch.autocast(self.setting.here, self.half, enabled=self.half is not None)
            with self.optimizer.optim_context(self.model), autocast:
                losses = self.model(**data, mode='loss')
            self.optimizer.update_params(self.model.parse_losses(losses)[0])
        if self.setting.here == 'cuda':
            torch.cuda.synchronize()

    def _measure_peak(self, step: Callable[[], None]) -> int:
        if self.setting.here == 'cuda':
            torch.cuda.reset_peak_memory_stats()
            step()
            return torch.cuda.max_memory_allocated()
        gradients = (p.grad for p in self.model.parameters() if p.grad is not None)
        with LiveMemory([*self.model.parameters(), *self.model.buffers(), *gradients,
                         *self.states()]) as live:  # yapf: disable
            step()
        return live.peak

    def states(self) -> Iterator[Tensor]:
        """Yield the states of the optimizer."""
        for state in self.optimizer.optimizer.state.values():
            yield from (value for value in state.values() if isinstance(value, Tensor))


class LiveMemory(TorchDispatchMode):
    """Context manager that counts the bytes of all living tensors, and their peak.

    It counts storages, so views cost nothing, nor do tensors that autograd drops because a kernel
    recomputes them. Memory that an operator holds only while it runs is not seen. torch's own
    ``MemTracker`` also reports the types of tensors, and takes many times as long.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._living: dict[int, weakref.ref] = {}
        for tensor in tensors:
            self._add(tensor)

    def _add(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage.data_ptr(), storage.nbytes()
        if size and key not in self._living:
            self._living[key] = weakref.ref(storage, lambda _: self._drop(key, size))
            self.now += size
            self.peak = max(self.peak, self.now)

    def _drop(self, key: int, size: int) -> None:
        del self._living[key]
        self.now -= size

    def __torch_dispatch__(self, func: Callable[..., Any], types: Any, args: tuple = (),
                           kwargs: dict[str, Any] | None = None) -> Any:  # yapf: disable
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.layout == torch.strided:
                self._add(leaf)
        return result


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


def measure_imports(library: str) -> int:
    """Return the peak bytes of this process after importing the models of mmdet or mmseg."""
    for name in ('models', 'testing') if library == 'mmdet' else ('models', ):
        import_module(f'{library}.{name}')
    return get_peak_memory()


def get_host_memory() -> int:
    """Return the bytes of this host, or the limit of its cgroup."""
    limits = [os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')]
    for path in map(Path, CGROUPS):
        if path.exists() and (text := path.read_text(encoding='utf-8').strip()).isdigit():
            limits.append(int(text))
    return min(limits)
