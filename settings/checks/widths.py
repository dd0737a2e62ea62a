"""Widths, strides and numbers of levels: do backbone, pyramid and heads match?"""
from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from mmengine.config import Config, ConfigDict
from mmengine.registry import MODELS

from colonnade.backbones import ColumnarBackbone
from colonnade.common.name_lists import format_count, suggest_names
from colonnade.necks import ColumnarPyramid, Pyramid, SimplePyramid, ViTAdapter

from ..backbone_config import get_backbone_class
from ..findings import Finding
from ..pipeline_steps import get_type_name
from ..registries import find_class
from .dataset_checks import get_library
from .head_widths import Levels, find_head_problems, iter_components

ARCH = 'model.backbone.arch'
OUT_INDICES = 'model.backbone.out_indices'
NUM_OUTPUTS = 4  # feature maps of a backbone without out_indices
#: necks whose levels all have ``out_channels``: ``num_outs`` levels, or one per feature map
NECKS_OF_ONE_WIDTH = ('FPN', 'PAFPN', 'ChannelMapper', 'CSPNeXtPAFPN', 'YOLOXPAFPN')
BATCH_NORMS = ('BN', 'BN2d', 'SyncBN', 'BatchNorm2d', 'SyncBatchNorm')  # names of mmcv and torch


def find_width_problems(cfg: Config, _: tuple[str, ...]) -> Iterator[Finding]:
    """Yield widths, strides and numbers of levels that backbone, pyramid and heads disagree on.

    Third-party backbones are not checked.
    """
    model = cfg.model
    cls = get_backbone_class(model)
    if cls is None:
        return
    backbone, neck = model.backbone, model.get('neck')
    arch = backbone.get('arch')
    try:
        if arch is None:
            raise ValueError(f'{cls.__name__} has no default arch')
        variant = cls.variants.complete(arch)
    except ValueError as error:
        is_unknown = isinstance(arch, str) and 'did you mean' not in str(error)
        meant = suggest_names(arch, cls.variants.rows) if is_unknown else ''
        yield Finding('arch', f'{ARCH}: {error}', (ARCH, ), meant)
        return
    width, stride = variant['embed_dim'], backbone.get('patch_size') or variant['patch_size']
    indices = backbone.get('out_indices')
    num_maps = NUM_OUTPUTS if indices is None else len(indices)
    yield from _check_block_indices(cls, backbone, variant['depth'])
    pyramid = find_class(neck.get('type'), MODELS) if isinstance(neck, dict) else None
    runs_blocks = isinstance(pyramid, type) and issubclass(pyramid, ViTAdapter)
    if bool(backbone.get('defer_blocks')) != runs_blocks:
        yield Finding(
            'deferred-blocks', f'model.backbone.defer_blocks is {not runs_blocks}, but the neck '
            f'{"runs" if runs_blocks else "does not run"} the blocks',
            ('model.backbone.defer_blocks', 'model.neck'),
            f'set model.backbone.defer_blocks={runs_blocks}')
        return
    if neck is None:  # heads read the feature maps directly
        levels = Levels([width] * num_maps, [stride] * num_maps, 'the backbone outputs', ARCH, ARCH,
                        OUT_INDICES)
        yield from find_head_problems(model, levels)
    elif isinstance(pyramid, type) and issubclass(pyramid, (Pyramid, ViTAdapter)):
        yield from _check_pyramid(model, pyramid, width, stride)
    elif isinstance(neck, dict) and has_one_width(neck) and isinstance(
            neck.get('in_channels'), (list, tuple)):
        expected = [width] * num_maps
        if list(neck['in_channels']) != expected:
            shown = arch if isinstance(arch, str) else 'its own'
            maps = format_count(num_maps, 'feature map')
            yield Finding(
                'width', f'model.neck.in_channels is {list(neck["in_channels"])}, but {ARCH} '
                f'{shown} ({cls.__name__}) has {maps} of {width} channels',
                ('model.neck.in_channels', ARCH), f'set model.neck.in_channels={expected}')


def _check_block_indices(cls: type[ColumnarBackbone], backbone: ConfigDict,
                         depth: int) -> Iterator[Finding]:
    """Yield an error if ``out_indices`` or ``frozen_stages`` exceeds the depth of the backbone."""
    indices = backbone.get('out_indices')
    source = f'{ARCH} of {cls.__name__} has {depth} blocks'
    if indices is not None and (wrong := [i for i in indices if not -depth <= i < depth]):
        yield Finding(
            'block-index', f'{OUT_INDICES} must be block indices from {-depth} to {depth - 1}, got '
            f'{wrong}: {source}', (OUT_INDICES, ARCH))
        return
    built = depth if not indices else max(index % depth for index in indices) + 1
    frozen = backbone.get('frozen_stages', -1)
    if isinstance(frozen, int) and not -1 <= frozen <= built:
        yield Finding(
            'block-index',
            f'model.backbone.frozen_stages must be between -1 and {built}, got {frozen}: '
            f'{source}, of which {built} are built', ('model.backbone.frozen_stages', ARCH))


def _check_pyramid(model: ConfigDict, pyramid: type[Pyramid | ViTAdapter], width: int,
                   stride: int) -> Iterator[Finding]:
    """Yield the settings of a pyramid and its heads that do not match the backbone."""
    backbone, neck = model.backbone, model.neck
    columns = [('in_channels', width, 'embed_dim')]
    if pyramid is not ViTAdapter:
        columns.append(('stride', stride, 'patch_size'))
    for key, expected, column in columns:
        if neck.get(key) != expected:
            yield Finding(
                'width', f'model.neck.{key} is {neck.get(key, "not set")}, but {column} of '
                f'{get_type_name(backbone.type)} {backbone.arch} is {expected} ({ARCH})',
                (f'model.neck.{key}', ARCH), f'set model.neck.{key}={expected}')
    defaults = inspect.signature(pyramid).parameters.values()
    settings = {parameter.name: parameter.default for parameter in defaults} | neck
    strides = list(ViTAdapter.out_strides if pyramid is ViTAdapter else settings['out_strides']
                   or SimplePyramid.get_default_strides(stride))
    if backbone.get('return_prefix_tokens'):
        yield Finding(
            'prefix-tokens', 'model.backbone.return_prefix_tokens is True, but '
            f'{pyramid.__name__} accepts only feature maps',
            ('model.backbone.return_prefix_tokens', 'model.neck'), 'set it to False')
    indices = backbone.get('out_indices')
    if pyramid is ColumnarPyramid and indices is not None and len(indices) != len(strides):
        yield Finding(
            'level-count', f'{OUT_INDICES} has {len(indices)} blocks, but model.neck.out_strides '
            f'has {len(strides)} strides', (OUT_INDICES, 'model.neck.out_strides'))
    if isinstance(settings['in_channels'], int):
        yield from find_head_problems(model, _infer_levels(pyramid, settings, strides))


def _infer_levels(pyramid: type, settings: dict[str, Any], strides: list[float]) -> Levels:
    """Return the levels that heads get; none if there is an unknown neck on top.

    A simple pyramid has the settings of an FPN itself.
    """
    width, place = settings['in_channels'], 'model.neck.in_channels'
    num_levels, number_place = len(strides), 'model.neck.out_strides'
    fpn = settings if pyramid is SimplePyramid else settings.get('fpn')
    if fpn is not None and fpn is not settings and not has_one_width(fpn):
        num_levels = 0
    elif fpn is not None:
        section = 'model.neck' if fpn is settings else 'model.neck.fpn'
        if fpn.get('num_outs') is not None:
            num_levels, number_place = fpn['num_outs'], f'{section}.num_outs'
        strides = strides[fpn.get('start_level', 0):]
        strides += [strides[-1] * 2**(index + 1) for index in range(num_levels - len(strides))]
        if 'out_channels' in fpn:
            width, place = fpn['out_channels'], f'{section}.out_channels'
    return Levels([width] * num_levels, strides[:num_levels], 'the pyramid outputs', place,
                  'model.neck.out_strides', number_place)


def has_one_width(neck: dict[str, Any]) -> bool:
    """Return True for necks of mmdet and mmseg whose levels all have ``out_channels``."""
    kind = neck.get('type')
    return get_type_name(kind) in NECKS_OF_ONE_WIDTH and bool(get_library(kind, MODELS))


def find_batch_problems(cfg: Config, dataloaders: tuple[str, ...]) -> Iterator[Finding]:
    """Yield batches of one image if a head of mmseg normalizes over a single value per channel."""
    if 'train_dataloader' not in dataloaders or cfg.get('train_dataloader') is None:
        return
    is_distributed = cfg.get('launcher', 'none') != 'none'
    if cfg.train_dataloader.get('batch_size') != 1 or is_distributed and cfg.get('sync_bn'):
        return
    for name in ('decode_head', 'auxiliary_head'):
        for _, head in iter_components(cfg.model, name, 'model'):
            norm = get_type_name((head.get('norm_cfg') or {}).get('type'))
            pools = 1 in (head.get('pool_scales') or
                          ()) or 'ASPP' in get_type_name(head.get('type'))
            if pools and norm in BATCH_NORMS and not (is_distributed and 'Sync' in norm):
                yield Finding(
                    'batch-size',
                    f'train_dataloader.batch_size is 1, but {get_type_name(head["type"])} '
                    f'(model.{name}) would normalize over a single value per channel',
                    ('train_dataloader.batch_size', f'model.{name}'),
                    'set train_dataloader.batch_size to 2 or more')
