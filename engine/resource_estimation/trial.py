"""Training steps on random images, to measure what they take."""
from __future__ import annotations

import copy
import statistics
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from mmengine.config import Config, ConfigDict
from mmengine.logging import MessageHub, MMLogger
from mmengine.model import revert_sync_batchnorm
from mmengine.optim import OptimWrapper, OptimWrapperDict, build_optim_wrapper
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from colonnade.backbones.kernels.devices import force_accelerator_forms
from colonnade.common.console_logging import errors_alone
from colonnade.common.errors import UserError
from colonnade.models.building import build_random_model
from colonnade.models.half_precision import keep_outputs_float32
from colonnade.models.trial_step import build_box_batch, build_label_batch, has_masks, iter_values

from ..upstream import identify_storage
from .images import Size

TOUCH = 0.01  # IoU of a box and an object from which RoI heads count it as found
#: optimizer wrappers of mixed precision, which is done here by autocast
HALF_TYPES = {'AmpOptimWrapper': torch.float16, 'Bfloat16OptimWrapper': torch.bfloat16}


@dataclass(frozen=True)
class Setting:
    """What a process computes.

    Attributes:
        cfg: Of a detector or segmenter, with its batch settled.
        device: Type of the device that trains.
        here: Type of the device that measures. A CPU that measures for a GPU computes as a GPU
            would, which stores more for the gradients.
        half: Type of mixed precision, if any. A CPU takes bfloat16, which has as many bytes.
        images: Number of images of an iteration.
        objects: Number of objects of an image.
        processes: Number of processes of the training.
        fsdp: Whether they shard the weights.
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
class Measured:
    """What a step takes at one size of images."""
    size: Size
    seconds: float  # of an iteration, median
    memory: int  # peak bytes of all tensors, weights too


class Trial:
    """A model in training, on random images with random objects. Nothing is downloaded.

    Raises:
        ValueError: If the model cannot be built, or has several optimizers.
    """

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        cfg = setting.cfg
        self.half = torch.bfloat16 if setting.half and setting.here == 'cpu' else setting.half
        torch.manual_seed(0)
        self.model = build_model(cfg).to(setting.here)
        # two iterations show what more of them hold: the second finds the gradients of the first
        self.iterations = min(cfg.optim_wrapper.get('accumulative_counts', 1), 2)
        with errors_alone(MMLogger.get_current_instance()):  # not the rate of each parameter
            self.optimizer: OptimWrapper = build_optim_wrapper(
                self.model, wrapper_settings(cfg, self.iterations))
        if isinstance(self.optimizer, OptimWrapperDict):
            raise UserError('--plan handles one optimizer, and optim_wrapper makes '
                            f'{len(self.optimizer)}')
        self.optimizer.initialize_count_status(self.model, 0, sys.maxsize)
        if self.half == torch.bfloat16:
            keep_outputs_float32(self.model)
        MessageHub.get_current_instance().update_info_dict(dict(epoch=0, iter=0))

    def measure(self, size: Size, *, num_timed: int) -> Measured:
        """Return time and memory of an iteration.

        Args:
            size: Height and width of the images that the model gets.
            num_timed: Number of steps that are timed after a warm-up; with 0, the time is that of
                the step whose memory is measured.
        """
        set_size(self.model, size)
        step = partial(self._step, draw_batch(self.setting, size))
        with nullcontext() if self.setting.device == 'cpu' else force_accelerator_forms():
            if num_timed or not any(True for _ in self.states()):  # which the first step makes
                step()
            started = time.perf_counter()
            memory = self._measure_peak(step)
            seconds = [time.perf_counter() - started]
            for _ in range(num_timed):
                started = time.perf_counter()
                step()
                seconds.append(time.perf_counter() - started)
        return Measured(size, statistics.median(seconds[1:] or seconds) / self.iterations, memory)

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
        with LiveMemory(self.tensors()) as living:
            step()
        return living.peak

    def tensors(self) -> Iterator[Tensor]:
        """Yield the tensors that live between steps."""
        yield from self.model.parameters()
        yield from self.model.buffers()
        yield from (p.grad for p in self.model.parameters() if p.grad is not None)
        yield from self.states()

    def states(self) -> Iterator[Tensor]:
        """Yield what the optimizer keeps for the parameters."""
        for state in self.optimizer.optimizer.state.values():
            yield from (value for value in state.values() if isinstance(value, Tensor))


class LiveMemory(TorchDispatchMode):
    """Context manager that counts the bytes of all tensors that live, and their peak.

    Storages are counted, so views cost nothing, nor do tensors that autograd drops because a kernel
    recomputes them. What an operator holds only while it runs is not seen. torch's own
    ``MemTracker`` also says what kind of tensor it is, and takes many times as long.

    Args:
        tensors: What lives already.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._living: dict[int, weakref.ref] = {}
        for tensor in tensors:
            self._add(tensor)

    def _add(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = identify_storage(tensor), storage.nbytes()
        if key not in self._living:
            self._living[key] = weakref.ref(storage, lambda _: self._drop(key, size))
            self.now += size
            self.peak = max(self.peak, self.now)

    def _drop(self, key: int, size: int) -> None:
        del self._living[key]
        self.now -= size

    def __torch_dispatch__(self,
                           func: Callable[..., Any],
                           types: Any,
                           args: tuple = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        """Run an operator, and count what it returns."""
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.layout == torch.strided:
                self._add(leaf)
        return result


def build_model(cfg: Config) -> nn.Module:
    """Return the model of a config in training, with random weights.

    RoI heads find as many objects as they may, as in the end: random weights find few. Masks of
    what they find are cut from whole images, one for each, which takes much memory.
    """
    settings = copy.deepcopy(cfg.model)
    if settings.get('data_preprocessor'):
        settings.data_preprocessor.pop('batch_augments', None)  # sizes are those after it
    stages = (settings.get('train_cfg') or {}).get('rcnn') or []
    for stage in stages if isinstance(stages, list) else [stages]:
        if (stage.get('assigner') or {}).get('type') == 'MaxIoUAssigner':
            stage.assigner.update(pos_iou_thr=TOUCH, neg_iou_thr=TOUCH, min_pos_iou=TOUCH)
    return revert_sync_batchnorm(build_random_model(settings)).train()


def wrapper_settings(cfg: Config, iterations: int) -> ConfigDict:
    """Return the optimizer wrapper of a config without mixed precision."""
    settings = copy.deepcopy(cfg.optim_wrapper)
    if settings.get('type') in HALF_TYPES:
        settings.type = 'OptimWrapper'
        for option in ('loss_scale', 'dtype', 'use_fsdp'):
            settings.pop(option, None)
    settings.accumulative_counts = iterations
    return settings


def set_size(model: nn.Module, size: Size) -> None:
    """Let a model take images of a size without padding."""
    preprocessor: Any = model.data_preprocessor
    if hasattr(preprocessor, 'pad_size_divisor'):
        preprocessor.pad_size_divisor = 1
    if hasattr(preprocessor, 'size_divisor'):  # mmseg's, which takes one of the two
        preprocessor.size, preprocessor.size_divisor = size, None


def padded_size(cfg: Config, size: Size) -> Size:
    """Return what the model of a config pads the images of a batch to, in training."""
    settings = cfg.model.get('data_preprocessor') or {}
    if settings.get('size'):
        height, width = settings['size']
        return max(height, size[0]), max(width, size[1])
    divisor = settings.get('pad_size_divisor') or settings.get('size_divisor') or 1
    height, width = (-(-side // divisor) * divisor for side in size)
    for augment in settings.get('batch_augments') or ():
        if augment.get('size') and 'Pad' in str(augment.get('type')):
            height, width = max(height, augment['size'][0]), max(width, augment['size'][1])
    return height, width


def draw_batch(setting: Setting, size: Size) -> dict[str, Any]:
    """Return random images as pipelines pack them: with boxes and masks, or label maps."""
    cfg, images = setting.cfg, setting.images
    if cfg.default_scope != 'mmdet':
        return build_label_batch(size, images)
    return build_box_batch(
        size,
        images,
        objects=max(1, setting.objects),
        masks=has_masks(cfg),
        semantic=True in iter_values(cfg.get('train_dataloader'), 'with_seg'))
