"""Do the weights that a config names fit its backbone and its images? Asked by their names alone."""
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import timm
from mmcv.transforms import LoadImageFromFile
from mmengine.config import Config, ConfigDict
from mmengine.registry import MODELS, TRANSFORMS

from colonnade.backbones import ColumnarBackbone, PlainViT
from colonnade.backbones.kernels.devices import on_meta_device
from colonnade.backbones.registry import infer_backbone
from colonnade.weights.downloads import check_published
from colonnade.weights.formats import convert_keys
from colonnade.weights.pretrained import get_normalization, get_pretrained, get_timm_name
from colonnade.weights.sharded_files import is_checkpoint
from colonnade.weights.state_dicts import WeightsError

from ..backbone_config import backbone_of
from ..dataset_paths import find_datasets
from ..findings import Finding
from ..pipeline_steps import users_steps
from ..registries import find_class, is_users
from .pipelines import steps_around

SCHEMES = ('timm', 'http', 'https')
PLACE = 'model.backbone.init_cfg.checkpoint'


def starts_from_backbone(cfg: Config, dataloaders: tuple[str, ...]) -> bool:
    """Return True if a training starts from weights of its backbone_class, not of a full model."""
    is_training = 'train_dataloader' in dataloaders
    return is_training and not cfg.get('load_from') and not cfg.get('resume')


def weight_problems(cfg: Config, dataloaders: tuple[str, ...]) -> Iterator[Finding]:
    """Yield weights that are not there, or are of another architecture than the backbone_class.

    The weights of backbones of others are not looked at.
    """
    backbone_class = backbone_of(cfg.model)
    if backbone_class is None or not starts_from_backbone(cfg, dataloaders):
        return
    backbone = cfg.model.backbone
    try:
        source = (get_pretrained(backbone.get('init_cfg')) or {}).get('checkpoint')
    except ValueError as error:
        yield Finding('weights-file', f'model.backbone.init_cfg: {error}',
                      ('model.backbone.init_cfg', ))
        return
    if source is not None:
        yield from source_problems(backbone_class, backbone, str(source))


def source_problems(backbone_class: type[ColumnarBackbone], backbone: ConfigDict,
                    source: str) -> Iterator[Finding]:
    """What is wrong with the weights of a backbone_class, by where they are from."""
    scheme, separator, name = source.partition('://')
    if not separator:
        if not is_checkpoint(source):
            yield Finding('weights-file', f'{PLACE}: there is no weights file {source}', (PLACE, ),
                          'name a file, a URL or timm://NAME')
    elif scheme not in SCHEMES:
        yield Finding('weights-file', f'{PLACE}: {source} is neither a file nor a URL of http',
                      (PLACE, ), 'name a file, a URL or timm://NAME')
    elif scheme == 'timm':
        try:
            check_published(name)
        except WeightsError as error:
            yield Finding('weights-file', f'{PLACE}: {error}', (PLACE, ))
        else:
            yield from architecture_problem(backbone_class, backbone, name)


def architecture_problem(backbone_class: type[ColumnarBackbone], backbone: ConfigDict,
                         name: str) -> Iterator[Finding]:
    """Weights of timm's that are of another architecture than the backbone_class."""
    try:
        own: dict[str, Any] = backbone_class.variants.complete(backbone.get('arch', ''))
        with on_meta_device():
            state = timm.create_model(name.partition('.')[0]).state_dict()
        kind, sizes = infer_backbone(convert_keys(state, f'timm://{name}')[1])
    except WeightsError as error:
        yield Finding('weights-arch',
                      f'{PLACE}: timm://{name} is of no backbone that there is: {error}', (PLACE, ))
        return
    except ValueError:  # of an architecture that there is not: another check says so
        return
    columns = ['embed_dim', 'depth', 'num_heads'] + ['patch_size'] * (
        backbone_class is not PlainViT)
    differing = [key for key in columns if key in sizes and sizes[key] != own[key]]
    if kind is not backbone_class or differing:
        theirs = kind.variants.describe({
            **own,
            **sizes
        }) if kind is backbone_class else kind.__name__
        arch = backbone.get('arch')
        yield Finding(
            'weights-arch', f'{PLACE} is timm://{name}, of {theirs}, and model.backbone.arch is '
            f'{backbone_class.__name__} {arch}', (PLACE, 'model.backbone.arch'),
            'name the weights of this arch, or the arch of these weights')


def normalisation_problems(cfg: Config, _: tuple[str, ...]) -> Iterator[Finding]:
    """Yield images that are not normalised as the weights of the backbone need, by timm."""
    if (backbone_class := backbone_of(cfg.model)) is None:
        return
    backbone, found = cfg.model.backbone, cfg.model.get('data_preprocessor') or {}
    try:
        name = backbone_class.get_weights_name(backbone.get('arch', ''), backbone.get('init_cfg'))
    except ValueError:  # another check says so
        return
    expected = get_normalization(name)
    given = [found.get(key) for key in ('mean', 'std')]
    if expected is None or not all(isinstance(v, (list, tuple)) and len(v) == 3 for v in given):
        return  # or images have other channels
    place = 'model.data_preprocessor'
    weights = 'model.backbone.init_cfg' if backbone.get('init_cfg') else 'model.backbone.arch'
    if not np.allclose(given, expected, atol=0.5):
        mean, std = ([round(value, 3) for value in values] for values in expected)
        yield Finding(
            'normalisation',
            f'images are normalised with mean {given[0]} and std {given[1]} ({place}), and the '
            f'weights {name} ({weights}) are for mean {mean} and std {std}',
            (f'{place}.mean', f'{place}.std', weights), f'set these in {place}')


def channel_problems(cfg: Config, dataloaders: tuple[str, ...]) -> Iterator[Finding]:
    """Yield a finding if mmcv loads BGR images but the timm weights expect RGB.

    With steps or a preprocessor of the user's, the order of channels is not known.
    """
    if not starts_from_backbone(cfg, dataloaders):
        return
    preprocessor = cfg.model.get('data_preprocessor') or {}
    if backbone_of(cfg.model) is None or is_users(find_class(preprocessor.get('type'), MODELS)) or \
            preprocessor.get('bgr_to_rgb') or preprocessor.get('rgb_to_bgr'):
        return
    try:
        name = get_timm_name(cfg.model.backbone.get('init_cfg'))
    except ValueError:  # another check says so
        return
    datasets = dict(find_datasets(cfg, ('train_dataloader', )))
    pipelines = [dataset['pipeline'] for dataset in datasets.values() if dataset.get('pipeline')]
    around = [steps_around(place, cfg) for place in datasets]
    if name and pipelines and all(map(loads_bgr, pipelines)) and not users_steps(around):
        yield Finding(
            'channel-order',
            f'images reach the backbone as BGR (model.data_preprocessor.bgr_to_rgb is not True), and '
            f'the weights {name} ({PLACE}) are for RGB',
            ('model.data_preprocessor.bgr_to_rgb', PLACE),
            'set bgr_to_rgb=True in model.data_preprocessor')


def loads_bgr(steps: list[dict[str, Any]]) -> bool:
    """Whether a pipeline loads images as mmcv decodes them to colours, and no step is a user's."""
    first = steps[0]
    return (find_class(first.get('type'), TRANSFORMS) is LoadImageFromFile
            and first.get('color_type', 'color') == 'color'
            and first.get('imdecode_backend') != 'tifffile' and not users_steps(steps))


def start_problems(cfg: Config, _: tuple[str, ...]) -> Iterator[Finding]:
    """Yield a full model to start from that is not there."""
    source = cfg.get('load_from')
    if isinstance(source, (str, Path)) and source and '://' not in str(source) and \
            not is_checkpoint(source):
        yield Finding('weights-file', f'load_from: there is no weights file {source}',
                      ('load_from', ))
