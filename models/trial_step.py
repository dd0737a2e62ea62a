"""A step of training on a few drawn boxes or labels: do all parts of a model fit each other?"""
from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch
from mmengine.config import Config
from mmengine.logging import MessageHub
from mmengine.model import revert_sync_batchnorm
from mmengine.structures import PixelData
from torch import Tensor, nn

from colonnade.common.errors import UserCodeError
from colonnade.settings.overrides import paths_below
from colonnade.settings.reading import errors_of_others

from .meta_device import with_plain_norms
from .random_weights import random_model

#: of the images in pixels; the second for heads that choose among more pixels than the first has
SIDES = (128, 512)


def trial_fault(cfg: Config, *, gradients: bool = False) -> BaseException | None:
    """Return the error of a model that cannot take a step of training; None if it can.

    Args:
        cfg: Of a detector or segmenter. Weights are random.
        gradients: Whether maps are those of training. Without gradients, on a CPU, they are in
            channels-last order, which some heads cannot view.
    """
    fault: BaseException | None = None
    for side in SIDES:
        try:
            with torch.set_grad_enabled(gradients), warnings.catch_warnings(), \
                    errors_of_others('a step of training fails'):
                warnings.simplefilter('ignore')
                trial_loss(trial_model(cfg, side), cfg, side)
            return None
        except UserCodeError as error:
            fault = error.__cause__
    return fault


def trial_model(cfg: Config, side: int) -> nn.Module:
    """The model of a config, for square images on a CPU."""
    settings = with_plain_norms(cfg.model)
    preprocessor = settings.get('data_preprocessor') or {}
    preprocessor.pop('batch_augments', None)
    if preprocessor.get('size'):
        preprocessor['size'] = (side, side)
    return revert_sync_batchnorm(random_model(settings)).train()


def trial_loss(model: nn.Module, cfg: Config, side: int) -> Tensor:
    """The loss for a drawn batch of two images."""
    if cfg.default_scope == 'mmdet':
        batch = drawn_boxes((side, side), masks=loads_masks(cfg))
    else:
        batch = drawn_labels((side, side))
    MessageHub.get_current_instance().update_info_dict(dict(epoch=0, iter=0))  # which heads look up
    losses = model(**model.data_preprocessor(batch, training=True), mode='loss')
    return model.parse_losses(losses)[0]


def loads_masks(cfg: Config) -> bool:
    """Whether a detector is trained with masks."""
    data = cfg.get('train_dataloader')
    return True in values_of(data, 'with_mask') or \
        'LoadPanopticAnnotations' in values_of(data, 'type')


def values_of(value: Any, name: str) -> Iterator[Any]:
    """Yield the values of a setting, wherever it is below a part of a config."""
    return (item for path, item in paths_below(value) if path.rpartition('.')[2] == name)


def drawn_boxes(size: tuple[int, int],
                images: int = 2,
                *,
                objects: int = 3,
                masks: bool,
                semantic: bool = True) -> dict[str, Any]:
    """Return random images with boxes, as mmdet's pipelines pack them.

    Args:
        size: Height and width.
        images: Number of images.
        objects: Number of boxes of an image.
        masks: Whether boxes have masks.
        semantic: Whether images have label maps.
    """
    from mmdet.testing import demo_mm_inputs  # imports much that nothing else needs
    batch = demo_mm_inputs(
        images, (3, *size), [objects] * images,
        num_classes=2,
        with_mask=masks,
        with_semantic=semantic)
    for sample in batch['data_samples']:
        sample.gt_instances.labels.zero_()  # every dataset has a first class
    return batch


def drawn_labels(size: tuple[int, int], images: int = 2) -> dict[str, Any]:
    """Return random images with label maps, as mmseg's pipelines pack them."""
    from mmseg.structures import SegDataSample
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (images, 3, *size), generator=generator).to(torch.uint8)
    labels = torch.randint(2, (images, 1, *size), generator=generator)
    sizes = dict.fromkeys(('img_shape', 'ori_shape', 'pad_shape'), size)
    return dict(
        inputs=list(pixels),
        data_samples=[
            SegDataSample(metainfo=sizes, gt_sem_seg=PixelData(data=each)) for each in labels
        ])
