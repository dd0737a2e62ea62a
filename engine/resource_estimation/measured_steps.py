"""Steps of a training on random images, to measure what they take."""
from __future__ import annotations

import copy
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from mmengine.config import Config, ConfigDict
from mmengine.logging import MessageHub, MMLogger
from mmengine.model import revert_sync_batchnorm
from mmengine.optim import OptimWrapper, OptimWrapperDict, build_optim_wrapper
from mmengine.structures import PixelData
from torch import nn

from colonnade.backbones.kernels.devices import accelerator_forms
from colonnade.common.console_logging import errors_alone
from colonnade.common.errors import UserError
from colonnade.models.half_precision import keep_answers_float32
from colonnade.models.random_weights import random_model
from colonnade.models.trial_step import loads_masks, values_of

from .image_sizes import Size
from .live_memory import LiveMemory

TIMED = 3  # steps
TOUCH = 0.01  # of a box and an object: then it counts as one
#: of wrappers of optimizers: those of half precision, whose products are here under autocast
HALF_TYPES = {'AmpOptimWrapper': torch.float16, 'Bfloat16OptimWrapper': torch.bfloat16}


@dataclass(frozen=True)
class Measured:
    """Of a step of training at one size."""
    size: Size
    seconds: float  # of an iteration, median
    memory: int  # peak bytes of all tensors, weights too


class Trial:
    """A model in training, on random images with random objects.

    Args:
        cfg: Of a detector or segmenter; nothing is downloaded.
        device: Type of the device that measures.
        half: The type of mixed precision, if any. A CPU takes bfloat16, which has as many bytes.
        images: In an iteration of one process.
        objects: Of an image.
        trains_on: Type of the device that is planned for. A CPU then computes as a GPU would, which
            stores more for the gradients.

    Raises:
        ValueError: If the model cannot be built, or has several optimizers.
    """

    def __init__(self, cfg: Config, device: str, half: torch.dtype | None, images: int,
                 objects: int, trains_on: str) -> None:
        self.cfg, self.device, self.images, self.objects = cfg, device, images, objects
        self.half = torch.bfloat16 if half and device == 'cpu' else half
        self.trains_on = trains_on
        torch.manual_seed(0)
        self.model = trained_model(cfg).to(device)
        with errors_alone(MMLogger.get_current_instance()):  # not the rate of each parameter
            self.optimizer: OptimWrapper = build_optim_wrapper(self.model, plain_wrapper(cfg))
            if isinstance(self.optimizer, OptimWrapperDict):
                raise UserError('--plan handles one optimizer, and optim_wrapper makes '
                                f'{len(self.optimizer)}')
            self.optimizer.initialize_count_status(self.model, 0, sys.maxsize)
        if self.half == torch.bfloat16:
            keep_answers_float32(self.model)
        MessageHub.get_current_instance().update_info_dict(dict(epoch=0, iter=0))
        # two show what more iterations hold: the second finds the gradients of the first
        self.iterations = min(cfg.optim_wrapper.get('accumulative_counts', 1), 2)

    def measure(self, size: Size, *, timed: int = TIMED) -> Measured:
        """Time and memory of an iteration at a size of the images that the model sees.

        Args:
            size: Height and width.
            timed: Steps whose time counts, behind one that warms up; 0 gives that of the step whose
                memory is measured.
        """
        with nullcontext() if self.trains_on == 'cpu' else accelerator_forms():
            return self._measure(size, timed)

    def _measure(self, size: Size, timed: int) -> Measured:
        set_size(self.model, size)
        step = partial(self._step, drawn_batch(self.cfg, self.images, size, self.objects))
        if timed or not any(True for _ in self.states()):  # which the first step makes
            step()
        started = time.perf_counter()
        memory = self._peak(step)
        seconds = [time.perf_counter() - started]
        for _ in range(timed):
            started = time.perf_counter()
            step()
            seconds.append(time.perf_counter() - started)
        return Measured(size, statistics.median(seconds[1:] or seconds) / self.iterations, memory)

    def _step(self, batch: dict[str, Any]) -> None:
        """The iterations of a step of the optimizer, two at most."""
        for _ in range(self.iterations):
            data = self.model.data_preprocessor(copy.deepcopy(batch), True)
            with self.optimizer.optim_context(self.model), self._autocast():
                losses = self.model(**data, mode='loss')
            loss, _ = self.model.parse_losses(losses)
            self.optimizer.update_params(loss)
        if self.device == 'cuda':
            torch.cuda.synchronize()

    def _autocast(self) -> AbstractContextManager:
        return torch.autocast(self.device, self.half) if self.half else nullcontext()

    def _peak(self, step: partial[None]) -> int:
        if self.device == 'cuda':
            torch.cuda.reset_peak_memory_stats()
            step()
            return torch.cuda.max_memory_allocated()
        with LiveMemory(self.tensors()) as living:
            step()
        return living.peak

    def tensors(self) -> Iterator[torch.Tensor]:
        """What lives between steps."""
        yield from self.model.parameters()
        yield from self.model.buffers()
        yield from (p.grad for p in self.model.parameters() if p.grad is not None)
        yield from self.states()

    def states(self) -> Iterator[torch.Tensor]:
        """What the optimizer keeps for the parameters."""
        for state in self.optimizer.optimizer.state.values():
            yield from (value for value in state.values() if isinstance(value, torch.Tensor))


def trained_model(cfg: Config) -> nn.Module:
    """The model of a config in training, with random weights."""
    settings = copy.deepcopy(cfg.model)
    if settings.get('data_preprocessor'):
        settings.data_preprocessor.pop('batch_augments', None)  # the size is behind them
    find_objects(settings)
    return revert_sync_batchnorm(random_model(settings)).train()


def find_objects(model: ConfigDict) -> None:
    """Let RoI heads find as many objects as they may, as in the end: random weights find few.

    Masks of what they find are cut from whole images, one for each, which takes much memory.
    """
    stages = (model.get('train_cfg') or {}).get('rcnn') or []
    for stage in stages if isinstance(stages, list) else [stages]:
        if (stage.get('assigner') or {}).get('type') == 'MaxIoUAssigner':
            stage.assigner.update(pos_iou_thr=TOUCH, neg_iou_thr=TOUCH, min_pos_iou=TOUCH)


def plain_wrapper(cfg: Config) -> dict[str, Any]:
    """The optimizer's wrapper of a config, without mixed precision."""
    settings = copy.deepcopy(cfg.optim_wrapper)
    if settings.get('type') in HALF_TYPES:
        settings.type = 'OptimWrapper'
        for option in ('loss_scale', 'dtype', 'use_fsdp'):
            settings.pop(option, None)
    return dict(settings, accumulative_counts=min(settings.get('accumulative_counts', 1), 2))


def set_size(model: nn.Module, size: Size) -> None:
    """Let a model take images of a size as they are."""
    preprocessor: Any = model.data_preprocessor
    if hasattr(preprocessor, 'pad_size_divisor'):
        preprocessor.pad_size_divisor = 1
    if hasattr(preprocessor, 'size_divisor'):  # mmseg's, which takes one of the two
        preprocessor.size, preprocessor.size_divisor = size, None


def padded(cfg: Config, size: Size) -> Size:
    """What the model of a config pads the images of a batch to, in training."""
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


def drawn_batch(cfg: Config, images: int, size: Size, objects: int) -> dict[str, Any]:
    """Random images as pipelines pack them: with boxes and masks, or labels of pixels."""
    if cfg.default_scope == 'mmdet':
        from mmdet.testing import demo_mm_inputs  # imports much that nothing else needs
        batch: dict[str, Any] = demo_mm_inputs(
            images, (3, *size), [max(1, objects)] * images,
            num_classes=2,
            with_mask=loads_masks(cfg),
            with_semantic=True in values_of(cfg.get('train_dataloader'), 'with_seg'))
        for sample in batch['data_samples']:
            sample.gt_instances.labels.zero_()  # every data set has a first class
        return batch
    from mmseg.structures import SegDataSample
    pixels = torch.randint(256, (images, 3, *size)).to(torch.uint8)
    labels = torch.randint(2, (images, 1, *size))
    sizes = dict.fromkeys(('img_shape', 'ori_shape', 'pad_shape'), size)
    return dict(
        inputs=list(pixels),
        data_samples=[
            SegDataSample(metainfo=sizes, gt_sem_seg=PixelData(data=each)) for each in labels
        ])
