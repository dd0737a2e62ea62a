"""Settings for images of any number of bands in place of RGB."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from mmengine.config import Config

from colonnade.common.errors import UserError
from colonnade.datasets.bands import find_band_loader, measure_bands
from colonnade.datasets.custom.instance_datasets import CustomDataset
from colonnade.settings.pipeline_steps import get_step_type, iter_steps

from ..options import NewConfigOptions

IMPORTS = dict(
    mmdet=['colonnade.datasets.bands', 'colonnade.models.mmdet_bands'],
    mmseg=['colonnade.datasets.bands', 'colonnade.models.mmseg_bands'])
PREPROCESSORS = dict(mmdet='DetBandsDataPreprocessor', mmseg='SegBandsDataPreProcessor')
MAX_MEASURED = 200  # training images of which mean and standard deviation are measured
COLOR_STEPS = ('PhotoMetricDistortion', 'YOLOXHSVRandomAug')  # expect BGR values of 8 bits
MIXING_STEPS = ('Mosaic', 'CachedMosaic', 'MixUp', 'CachedMixUp')  # build images of three channels


def build_loading(args: NewConfigOptions) -> dict[str, Any]:
    """Return the pipeline step that loads the images."""
    step: dict[str, Any] = dict(type='LoadBands', num_bands=args.in_channels)
    if args.band_suffixes:
        step['suffixes'] = args.band_suffixes
    if args.rgb_channels:
        step['rgb_channels'] = list(args.rgb_channels)
    return step


def adapt_pipeline(steps: Sequence[dict[str, Any]], loading: dict[str, Any]) -> list[dict]:
    """Return a pipeline that loads all bands, without augmentations of colors.

    Raises:
        ValueError: If it mixes images, which mmdet supports only with three channels.
    """
    if mixing := [kind for step in iter_steps(steps) if (kind := get_step_type(step))
                  in MIXING_STEPS]:  # yapf: disable
        raise UserError(f'{mixing[0]} of the base config supports only RGB images: choose another '
                        'base config')
    adapted = []
    for step in steps:
        kind = get_step_type(step)
        if kind in COLOR_STEPS:
            continue
        if kind == 'LoadImageFromFile':
            step = loading
        elif kind == 'Pad':
            step = dict(step, pad_val=dict(img=0, masks=0, seg=255))
        adapted.append(dict(step))
    return adapted


def build_band_settings(cfg: Config, args: NewConfigOptions,
                        data: CustomDataset) -> tuple[dict[str, Any], str]:
    """Return the changed settings of the model, and a comment on them.

    Raises:
        ImageError: If an image cannot be read.
        ValueError: If an image has another number of bands.
    """
    paths = data.train_images
    picked = paths[::max(1, -(-len(paths) // MAX_MEASURED))]
    loader = find_band_loader([build_loading(args)])
    assert loader is not None  # because of its type

    def read() -> Iterator[np.ndarray]:
        for path in picked:
            yield loader.read(str(path))

    mean, std = measure_bands(read())
    preprocessor = dict(
        type=PREPROCESSORS[cfg.default_scope],
        mean=[round(value, 4) for value in mean],
        std=[round(value, 4) for value in std],
        bgr_to_rgb=False)
    backbone: dict[str, Any] = dict(in_channels=args.in_channels)
    if args.rgb_channels:
        backbone['rgb_channels'] = list(args.rgb_channels)
    model = dict(data_preprocessor=preprocessor, backbone=backbone)
    if (cfg.model.get('neck') or {}).get('type') == 'ViTAdapter':
        model['neck'] = dict(image_channels=args.in_channels)
    note = (f'mean and std of the {args.in_channels} bands are those of {len(picked)} of '
            f'{len(paths)} training images')
    return model, note
