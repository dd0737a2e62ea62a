"""Pretrained weights: do they match the backbone and the images, judged by their names?"""
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import timm
from mmcv.transforms import LoadImageFromFile
from mmengine.config import Config
from mmengine.registry import MODELS, TRANSFORMS

from colonnade.backbones import ColumnarBackbone, PlainViT
from colonnade.backbones.kernels.devices import on_meta_device
from colonnade.backbones.registry import infer_backbone
from colonnade.weights.downloads import check_published
from colonnade.weights.formats import convert_keys
from colonnade.weights.pretrained import get_normalization, get_pretrained, get_timm_name
from colonnade.weights.sharded_files import is_checkpoint
from colonnade.weights.state_dicts import WeightsError

from ..backbone_config import get_backbone_class
from ..dataset_paths import find_datasets
from ..findings import Finding
from ..pipeline_steps import find_custom_steps
from ..registries import find_class, is_custom_class
from .pipelines import steps_around

SCHEMES = ('timm', 'http', 'https')
PLACE = 'model.backbone.init_cfg.checkpoint'


def starts_from_backbone(cfg: Config, dataloaders: tuple[str, ...]) -> bool:
    """Return True if a training starts from weights of its backbone, not of a full model."""
    is_training = 'train_dataloader' in dataloaders
    return is_training and not cfg.get('load_from') and not cfg.get('resume')


def find_weight_problems(cfg: Config, dataloaders: tuple[str, ...]) -> Iterator[Finding]:
    """Yield backbone weights that do not exist, or have another architecture than the backbone.

    Weights of third-party backbones are not checked.
    """
    cls = get_backbone_class(cfg.model)
    if cls is None or not starts_from_backbone(cfg, dataloaders):
        return
    init_cfg = cfg.model.backbone.get('init_cfg')
    try:
        source = (get_pretrained(init_cfg) or {}).get('checkpoint')
    except ValueError as error:
        yield Finding('weights-file', f'model.backbone.init_cfg: {error}',
                      ('model.backbone.init_cfg', ))
        return
    if source is None:
        return
    scheme, separator, name = str(source).partition('://')
    fix = 'set a file, a URL or timm://NAME'
    if not separator:
        if not is_checkpoint(str(source)):
            yield Finding('weights-file', f'{PLACE}: no such weights file: {source}', (PLACE, ),
                          fix)
    elif scheme not in SCHEMES:
        yield Finding('weights-file', f'{PLACE}: {source} is neither a file nor an HTTP URL',
                      (PLACE, ), fix)
    elif scheme == 'timm':
        try:
            check_published(name)
        except WeightsError as error:
            yield Finding('weights-file', f'{PLACE}: {error}', (PLACE, ))
        else:
            yield from _check_architecture(cls, cfg.model.backbone.get('arch', ''), name)


def _check_architecture(cls: type[ColumnarBackbone], arch: Any, name: str) -> Iterator[Finding]:
    """Yield a finding if timm weights have another architecture than the backbone."""
    try:
        expected: dict[str, Any] = cls.variants.complete(arch)
        with on_meta_device():
            state = timm.create_model(name.partition('.')[0]).state_dict()
        weights_cls, sizes = infer_backbone(convert_keys(state, f'timm://{name}')[1])
    except WeightsError as error:
        yield Finding('weights-arch',
                      f'{PLACE}: timm://{name} does not match any backbone: {error}', (PLACE, ))
        return
    except ValueError:  # unknown architectures have their own check
        return
    columns = ['embed_dim', 'depth', 'num_heads'] + ['patch_size'] * (cls is not PlainViT)
    is_different = any(sizes[key] != expected[key] for key in columns if key in sizes)
    if weights_cls is not cls or is_different:
        actual = cls.variants.describe({**expected, **sizes}) if weights_cls is cls \
            else weights_cls.__name__
        yield Finding(
            'weights-arch', f'{PLACE} is timm://{name} ({actual}), but model.backbone.arch is '
            f'{cls.__name__} {arch}', (PLACE, 'model.backbone.arch'),
            'choose weights of this arch, or set arch to match the weights')


def find_normalization_problems(cfg: Config, _: tuple[str, ...]) -> Iterator[Finding]:
    """Yield a mean and std that differ from those that timm states for the weights."""
    if (cls := get_backbone_class(cfg.model)) is None:
        return
    backbone, preprocessor = cfg.model.backbone, cfg.model.get('data_preprocessor') or {}
    try:
        name = cls.get_weights_name(backbone.get('arch', ''), backbone.get('init_cfg'))
    except ValueError:  # unknown architectures have their own check
        return
    expected = get_normalization(name)
    values = [preprocessor.get(key) for key in ('mean', 'std')]
    if expected is None or not all(isinstance(v, (list, tuple)) and len(v) == 3 for v in values):
        return  # nothing is stated, or images have other channels
    place = 'model.data_preprocessor'
    weights = 'model.backbone.init_cfg' if backbone.get('init_cfg') else 'model.backbone.arch'
    if not np.allclose(values, expected, atol=0.5):
        mean, std = ([round(value, 3) for value in each] for each in expected)
        yield Finding(
            'normalisation',
            f'images are normalized with mean {values[0]} and std {values[1]} ({place}), but the '
            f'weights {name} ({weights}) expect mean {mean} and std {std}',
            (f'{place}.mean', f'{place}.std', weights), f'set these in {place}')


def find_channel_problems(cfg: Config, dataloaders: tuple[str, ...]) -> Iterator[Finding]:
    """Yield a finding if mmcv loads BGR images but the timm weights expect RGB.

    With custom steps or a custom preprocessor, the order of channels is unknown.
    """
    preprocessor = cfg.model.get('data_preprocessor') or {}
    if not starts_from_backbone(cfg, dataloaders) or get_backbone_class(cfg.model) is None:
        return
    if is_custom_class(find_class(preprocessor.get('type'), MODELS)) or \
            preprocessor.get('bgr_to_rgb') or preprocessor.get('rgb_to_bgr'):
        return
    try:
        name = get_timm_name(cfg.model.backbone.get('init_cfg'))
    except ValueError:  # wrong init_cfgs have their own check
        return
    datasets = dict(find_datasets(cfg, ('train_dataloader', )))
    pipelines = [dataset['pipeline'] for dataset in datasets.values() if dataset.get('pipeline')]
    around = [steps_around(place, cfg) for place in datasets]
    if name and pipelines and all(map(_loads_bgr, pipelines)) and not find_custom_steps(around):
        yield Finding(
            'channel-order',
            'the backbone gets BGR images (model.data_preprocessor.bgr_to_rgb is not True), but '
            f'the weights {name} ({PLACE}) expect RGB',
            ('model.data_preprocessor.bgr_to_rgb', PLACE),
            'set bgr_to_rgb=True in model.data_preprocessor')


def _loads_bgr(steps: list[dict[str, Any]]) -> bool:
    """Return True if mmcv decodes images in color and no step is a custom class."""
    first = steps[0]
    return (find_class(first.get('type'), TRANSFORMS) is LoadImageFromFile
            and first.get('color_type', 'color') == 'color'
            and first.get('imdecode_backend') != 'tifffile' and not find_custom_steps(steps))


def find_start_problems(cfg: Config, _: tuple[str, ...]) -> Iterator[Finding]:
    """Yield a ``load_from`` that does not exist."""
    source = cfg.get('load_from')
    if isinstance(source, (str, Path)) and source and '://' not in str(source) and \
            not is_checkpoint(source):
        yield Finding('weights-file', f'load_from: no such weights file: {source}', ('load_from', ))
