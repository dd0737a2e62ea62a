"""Widths, strides and numbers of maps: do network, pyramid and heads agree?"""
from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, NamedTuple

from mmengine.config import Config, ConfigDict
from mmengine.registry import MODELS

from colonnade.backbones import ColumnarBackbone
from colonnade.common.errors import UserError
from colonnade.common.name_lists import suggest_names
from colonnade.necks import ColumnarPyramid, SimplePyramid

from ..backbone_config import backbone_of, pyramid_of
from ..findings import Finding
from ..pipeline_steps import name_of
from .dataset_checks import library_of
from .head_widths import Levels, head_problems, parts_named

NUM_TAPS = 4  # of a network, unless its out_indices say otherwise
#: necks on top of a pyramid that give ``num_outs`` levels of ``out_channels``, or one each
NECKS_OF_ONE_WIDTH = ('FPN', 'PAFPN', 'ChannelMapper', 'CSPNeXtPAFPN', 'YOLOXPAFPN')
BATCH_NORMS = ('BN', 'BN2d', 'SyncBN', 'BatchNorm2d', 'SyncBatchNorm')  # mmcv's names, torch's


class Backbone(NamedTuple):
    """What the maps of a backbone are."""
    width: int
    stride: int
    num_maps: int
    says: str  # where the width stands


def width_problems(cfg: Config, _: tuple[str, ...]) -> Iterator[Finding]:
    """Yield widths, strides and numbers of maps that network, pyramid and heads do not agree on.

    Nothing is found for backbones of others.
    """
    model = cfg.model
    kind = backbone_of(model)
    if kind is None:
        return
    backbone, neck, pyramid = model.backbone, model.get('neck'), pyramid_of(model)
    network = None
    try:
        network = described(kind, backbone)
    except ValueError as error:
        yield arch_problem(kind, backbone, str(error))
    if network is None:
        return
    yield from tap_problems(kind, backbone)
    if neck is None:  # heads get the backbone's maps as they are
        place, number = 'model.backbone.arch', network.num_maps
        levels = Levels([network.width] * number, [network.stride] * number, 'the backbone gives',
                        place, place, 'model.backbone.out_indices')
        yield from head_problems(model, levels)
    elif pyramid is not None:
        yield from pyramid_problems(model, network)
    elif isinstance(neck, dict):
        yield from foreign_neck_problems(model, network)


def described(kind: type[ColumnarBackbone], backbone: ConfigDict) -> Backbone:
    """The maps of a network, by its config."""
    if 'arch' not in backbone:
        raise UserError(f'{kind.__name__} has no default')
    settings = kind.variants.complete(backbone.arch)
    taps, arch = backbone.get('out_indices'), backbone.arch
    named = arch if isinstance(arch, str) else 'its own'
    width = settings['embed_dim']
    return Backbone(width,
                    backbone.get('patch_size') or settings['patch_size'],
                    NUM_TAPS if taps is None else len(taps),
                    f'model.backbone.arch {named} ({kind.__name__}) is {width} wide')


def arch_problem(kind: type[ColumnarBackbone], backbone: ConfigDict, says: str) -> Finding:
    """An architecture that there is not, with the one that was meant."""
    arch = backbone.get('arch')
    is_unknown = isinstance(arch, str) and 'did you mean' not in says
    meant = suggest_names(arch, kind.variants.rows) if is_unknown else ''
    return Finding('arch', f'model.backbone.arch: {says}', ('model.backbone.arch', ), meant)


def tap_problems(kind: type[ColumnarBackbone], backbone: ConfigDict) -> Iterator[Finding]:
    """Blocks that are tapped or frozen, and that the backbone does not have."""
    depth = kind.variants.complete(backbone.arch)['depth']
    taps = backbone.get('out_indices')
    of_depth = f'model.backbone.arch of {kind.__name__} has {depth} blocks'
    if taps is not None and (wrong := [tap for tap in taps if not -depth <= tap < depth]):
        yield Finding(
            'block-index',
            f'model.backbone.out_indices must be block numbers in {-depth} ... {depth - 1}, got '
            f'{wrong}, and {of_depth}', ('model.backbone.out_indices', 'model.backbone.arch'))
        return
    built = depth if not taps else max(tap % depth for tap in taps) + 1
    frozen = backbone.get('frozen_stages', -1)
    if isinstance(frozen, int) and not -1 <= frozen <= built:
        yield Finding(
            'block-index',
            f'model.backbone.frozen_stages must be in -1 ... {built}, got {frozen}, and '
            f'{of_depth}, of which {built} are built',
            ('model.backbone.frozen_stages', 'model.backbone.arch'))


def pyramid_problems(model: ConfigDict, network: Backbone) -> Iterator[Finding]:
    """What a pyramid of ours, or a head on it, expects otherwise than it gets."""
    backbone, neck, pyramid = model.backbone, model.neck, pyramid_of(model)
    assert pyramid is not None
    kind = f'{name_of(backbone.type)} {backbone.arch}'
    expectations = (('in_channels', network.width, 'embed_dim'), ('stride', network.stride,
                                                                  'patch_size'))
    for key, expected, of_backbone in expectations:
        if neck.get(key) != expected:
            found = neck.get(key, 'not set')
            yield Finding(
                'width', f'model.neck.{key} is {found}, and {of_backbone} of {kind} is {expected} '
                '(model.backbone.arch)', (f'model.neck.{key}', 'model.backbone.arch'),
                f'set model.neck.{key}={expected}')
    defaults = inspect.signature(pyramid).parameters.values()
    settings = {parameter.name: parameter.default for parameter in defaults} | neck
    strides = list(settings['out_strides'] or SimplePyramid.get_default_strides(network.stride))
    if backbone.get('return_prefix_tokens'):
        yield Finding(
            'prefix-tokens',
            f'model.backbone.return_prefix_tokens is True, and {pyramid.__name__} takes maps alone',
            ('model.backbone.return_prefix_tokens', 'model.neck'), 'set it to False')
    taps = backbone.get('out_indices')
    if pyramid is ColumnarPyramid and taps is not None and len(taps) != len(strides):
        yield Finding(
            'level-count',
            f'model.backbone.out_indices has {len(taps)} blocks, and model.neck.out_strides '
            f'{len(strides)} strides', ('model.backbone.out_indices', 'model.neck.out_strides'))
    if isinstance(settings['in_channels'], int):
        yield from head_problems(model, levels_of(pyramid, settings, strides))


def levels_of(pyramid: type, settings: dict[str, Any], strides: list[float]) -> Levels:
    """The levels that heads get; none if a neck on top is not known.

    A simple pyramid has the settings of an FPN itself.
    """
    width, place = settings['in_channels'], 'model.neck.in_channels'
    fpn = settings if pyramid is SimplePyramid else settings.get('fpn')
    number, number_place = len(strides), 'model.neck.out_strides'
    if fpn is not None:
        if fpn is not settings and not gives_one_width(fpn):
            number = 0
        else:
            inner = 'model.neck' if fpn is settings else 'model.neck.fpn'
            if fpn.get('num_outs') is not None:
                number, number_place = fpn['num_outs'], f'{inner}.num_outs'
            strides = strides[fpn.get('start_level', 0):]
            strides += [strides[-1] * 2**(index + 1) for index in range(number - len(strides))]
            if 'out_channels' in fpn:
                width, place = fpn['out_channels'], f'{inner}.out_channels'
    return Levels([width] * number, strides[:number], 'the pyramid gives', place,
                  'model.neck.out_strides', number_place)


def gives_one_width(neck: dict[str, Any]) -> bool:
    """Whether a neck is one of mmdet or mmseg whose levels have ``out_channels`` each."""
    kind = neck.get('type')
    return name_of(kind) in NECKS_OF_ONE_WIDTH and bool(library_of(kind, MODELS))


def foreign_neck_problems(model: ConfigDict, network: Backbone) -> Iterator[Finding]:
    """What a neck of others expects otherwise than it gets."""
    neck = model.neck
    widths = neck.get('in_channels')
    if not gives_one_width(neck) or not isinstance(widths, (list, tuple)):
        return
    expected = [network.width] * network.num_maps
    if list(widths) != expected:
        yield Finding(
            'width', f'model.neck.in_channels is {list(widths)}, and {network.says}, with '
            f'{network.num_maps} maps', ('model.neck.in_channels', 'model.backbone.arch'),
            f'set model.neck.in_channels={expected}')


def batch_problems(cfg: Config, dataloaders: tuple[str, ...]) -> Iterator[Finding]:
    """Batches that are too small to be normalised."""
    if 'train_dataloader' not in dataloaders or cfg.get('train_dataloader') is None:
        return
    several = cfg.get('launcher', 'none') != 'none'
    if cfg.train_dataloader.get('batch_size') != 1 or several and cfg.get('sync_bn'):
        return
    for name in ('decode_head', 'auxiliary_head'):
        for _, head in parts_named(cfg.model, name, 'model'):
            if pools_to_one(head) and not (several and 'Sync' in name_of(head.norm_cfg.type)):
                yield Finding(
                    'batch-size', f'train_dataloader.batch_size is 1, and {name_of(head["type"])} '
                    f'(model.{name}) normalises one value per image and channel',
                    ('train_dataloader.batch_size', f'model.{name}'),
                    'set train_dataloader.batch_size=2 or more')


def pools_to_one(head: ConfigDict) -> bool:
    """Whether a head of mmseg normalises maps of one pixel over the batch."""
    norm = name_of((head.get('norm_cfg') or {}).get('type'))
    pools = 1 in (head.get('pool_scales') or ()) or 'ASPP' in name_of(head.get('type'))
    return pools and norm in BATCH_NORMS
