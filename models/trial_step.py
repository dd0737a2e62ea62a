"""Trial step of training on synthetic boxes or labels, which tests that all parts fit."""
from __future__ import annotations

import warnings
from typing import Any

import torch
from mmengine.config import Config
from mmengine.logging import MessageHub
from mmengine.model import revert_sync_batchnorm
from mmengine.structures import PixelData
from torch import Tensor, nn

from colonnade.common.errors import UserCodeError
from colonnade.settings.config_values import has_masks
from colonnade.settings.reading import report_third_party_errors

from .building import build_random_model, replace_sync_norms

#: sizes of the images in pixels; the second is for heads that select more pixels than the first has
SIDES = (128, 512)


def find_trial_error(cfg: Config, *, gradients: bool = False) -> BaseException | None:
    """Return the error of a step of training, or None."""
    last_error: BaseException | None = None
    for side in SIDES:
        try:
            with torch.set_grad_enabled(gradients), warnings.catch_warnings(), \
                    report_third_party_errors('a step of training fails'):
                warnings.simplefilter('ignore')
                compute_trial_loss(build_trial_model(cfg, side), cfg, side)
            return None
        except UserCodeError as error:
            last_error = error.__cause__
    return last_error


def build_trial_model(cfg: Config, side: int) -> nn.Module:
    """Build the model of a config for square images on a CPU."""
    settings = replace_sync_norms(cfg.model)
    preprocessor = settings.get('data_preprocessor') or {}
    preprocessor.pop('batch_augments', None)
    if preprocessor.get('size'):
        preprocessor['size'] = (side, side)
    return revert_sync_batchnorm(build_random_model(settings)).train()


def compute_trial_loss(model: nn.Module, cfg: Config, side: int) -> Tensor:
    """Compute the loss of a synthetic batch of two images."""
    if cfg.default_scope == 'mmdet':
        batch = build_box_batch((side, side), channels=count_channels(cfg), masks=has_masks(cfg))
    else:
        batch = build_label_batch((side, side), channels=count_channels(cfg))
    MessageHub.get_current_instance().update_info_dict(dict(epoch=0, iter=0))  # some heads read it
    losses = model(**model.data_preprocessor(batch, training=True), mode='loss')
    return model.parse_losses(losses)[0]


def count_channels(cfg: Config) -> int:
    """Return the number of channels of images that a config's backbone expects."""
    return (cfg.model.get('backbone') or {}).get('in_channels', 3)


def build_box_batch(size: tuple[int, int],
                    images: int = 2,
                    *,
                    channels: int = 3,
                    objects: int = 3,
                    masks: bool,
                    semantic: bool = True) -> dict[str, Any]:
    """Build random images with boxes, as mmdet's pipelines pack them."""
    from mmdet.testing import demo_mm_inputs  # slow to import
    batch = demo_mm_inputs(
        images, (channels, *size), [objects] * images,
        num_classes=2,
        with_mask=masks,
        with_semantic=semantic)
    for sample in batch['data_samples']:
        sample.gt_instances.labels.zero_()  # every dataset has a first class
    return batch


def build_label_batch(size: tuple[int, int],
                      images: int = 2,
                      *,
                      channels: int = 3) -> dict[str, Any]:
    """Build random images with label maps, as mmseg's pipelines pack them."""
    from mmseg.structures import SegDataSample
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (images, channels, *size), generator=generator).to(torch.uint8)
    labels = torch.randint(2, (images, 1, *size), generator=generator)
    sizes = dict.fromkeys(('img_shape', 'ori_shape', 'pad_shape'), size)
    return dict(
        inputs=list(pixels),
        data_samples=[
            SegDataSample(metainfo=sizes, gt_sem_seg=PixelData(data=each)) for each in labels
        ])
