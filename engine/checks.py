"""Do the parts of a config fit each other and the data? Asked before anything is loaded."""
from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

import numpy as np
from mmengine.config import Config, ConfigDict
from mmengine.logging import print_log
from mmengine.registry import MODELS

from colonnade.backbones import ColumnarBackbone
from colonnade.necks import ColumnarPyramid, Pyramid, SimplePyramid
from colonnade.weights.pretrained import normalisation_of

from .class_checks import class_problems, label_problems
from .options import names_of_type
from .registries import find_class

ADVICE = 'If the data are right, tools/new_config.py writes a config like this for their classes'
NUM_TAPS = 4  # of a trunk, unless its out_indices say otherwise
#: necks on top of a pyramid that give ``num_outs`` levels of ``out_channels``, or one each
NECKS_OF_ONE_WIDTH = ('FPN', 'PAFPN', 'ChannelMapper', 'CSPNeXtPAFPN', 'YOLOXPAFPN')


def check_config(cfg: Config, dataloaders: tuple[str, ...]) -> None:
    """Raise a ValueError that lists what does not fit in a config, of which nothing is built.

    Args:
        cfg: Of a detector or segmenter; widths and batches only of those on a trunk of ours.
        dataloaders: Those that will be read. Some of their label maps are looked at.
    """
    trunk = trunk_of(cfg.model)
    of_classes = list(dict.fromkeys(class_problems(cfg, dataloaders)))
    others = []
    if trunk is not None:
        others = [*width_problems(cfg.model, trunk), *batch_problems(cfg, dataloaders)]
    if not of_classes + others:
        of_classes = list(label_problems(cfg, dataloaders))
    if problems := of_classes + others:
        lines = [f'  {problem}' for problem in problems] + [ADVICE] * bool(of_classes)
        raise ValueError('\n'.join(['the config does not fit together:', *lines]))


def settle_trunk(model: ConfigDict) -> None:
    """Write into a config what follows from the weights' name, for those who read it without."""
    if (trunk := trunk_of(model)) is not None:
        backbone = model.backbone
        if 'arch' not in backbone:
            return
        for key, value in trunk.implied(backbone.arch, backbone.get('init_cfg')).items():
            if backbone.get(key) is None:
                backbone[key] = value


def warn_of_normalisation(model: ConfigDict) -> None:
    """Warn if images are normalised otherwise than the trunk's weights need, as timm lists it."""
    if (trunk := trunk_of(model)) is None:
        return
    backbone, found = model.backbone, model.get('data_preprocessor') or {}
    name = trunk.weights_name(backbone.get('arch', ''), backbone.get('init_cfg'))
    expected = normalisation_of(name)
    given = [found.get(key) for key in ('mean', 'std')]
    if expected is None or not all(isinstance(v, (list, tuple)) and len(v) == 3 for v in given):
        return  # or images have other channels
    if np.allclose(given, expected, atol=0.5):
        return
    mean, std = ([round(value, 3) for value in values] for values in expected)
    print_log(
        f'images are normalised with mean {given[0]} and std {given[1]}, and the weights {name} '
        f'are for mean {mean} and std {std}: set these in model.data_preprocessor',
        logger='current',
        level=logging.WARNING)


def trunk_of(model: ConfigDict) -> type[ColumnarBackbone] | None:
    """The class of a model's trunk, if it is one of ours."""
    trunk = find_class((model.get('backbone') or {}).get('type'), MODELS)
    return trunk if isinstance(trunk, type) and issubclass(trunk, ColumnarBackbone) else None


def pyramid_of(model: ConfigDict) -> type[Pyramid] | None:
    """The class of a model's neck, if it is one of ours."""
    neck = model.get('neck')
    pyramid = find_class(neck.get('type'), MODELS) if isinstance(neck, dict) else None
    return pyramid if isinstance(pyramid, type) and issubclass(pyramid, Pyramid) else None


def width_problems(model: ConfigDict, trunk: type[ColumnarBackbone]) -> Iterator[str]:
    """Widths, strides and numbers of maps that trunk, pyramid and heads do not agree on."""
    backbone, neck, pyramid = model.backbone, model.get('neck'), pyramid_of(model)
    if (neck is not None and pyramid is None) or 'arch' not in backbone:
        return
    kind = trunk.__name__
    unknown = [
        problem for part in ('backbone', 'neck', 'neck.fpn')
        for problem in unknown_settings(model, part)
    ]
    if unknown:
        yield from unknown
        return
    settings = trunk.variants.complete(backbone.arch)
    width, stride = settings['embed_dim'], backbone.get('patch_size') or settings['patch_size']
    taps = backbone.get('out_indices')
    if pyramid is None:  # heads get the trunk's maps as they are
        number = NUM_TAPS if taps is None else len(taps)
        yield from head_problems(model, [width] * number, [stride] * number, 'the trunk gives')
        return
    for key, expected, of_trunk in (('in_channels', width, 'embed_dim'), ('stride', stride,
                                                                          'patch_size')):
        if neck.get(key) != expected:
            found = neck.get(key, 'not set')
            yield (f'model.neck.{key} is {found}, and {of_trunk} of {kind} '
                   f'{backbone.arch} is {expected}: set model.neck.{key}={expected}')
    defaults = inspect.signature(pyramid).parameters.values()
    settings = {parameter.name: parameter.default for parameter in defaults} | neck
    strides = list(settings['out_strides'] or SimplePyramid.default_strides(stride))
    if backbone.get('return_prefix_tokens'):
        yield (f'model.backbone.return_prefix_tokens is True, and {neck.type} takes maps alone: '
               'set it to False')
    if pyramid is ColumnarPyramid and taps is not None and len(taps) != len(strides):
        yield (f'model.backbone.out_indices has {len(taps)} blocks, and model.neck.out_strides '
               f'{len(strides)} strides')
    yield from head_problems(model, *levels_of(pyramid, settings, strides))


def unknown_settings(model: ConfigDict, part: str) -> Iterator[str]:
    """Settings of a part of a model that its class does not take."""
    settings = model
    for name in part.split('.'):
        settings = settings.get(name) or {}
    known = names_of_type(settings.get('type'))
    for key in settings:
        if known is not None and key not in {*known, 'type', '_scope_'}:
            near = get_close_matches(key, known, n=1)
            meant = f'; did you mean {near[0]}?' if near else ''
            yield f'model.{part} ({settings.type}) has no setting {key}{meant}'


def levels_of(pyramid: type[Pyramid], settings: dict[str, Any],
              strides: list[float]) -> tuple[list[int], list[float]]:
    """Widths and strides of the levels that heads get; empty if a neck on top is not known.

    A simple pyramid has the settings of an FPN itself.
    """
    width = settings['in_channels']
    fpn = settings if pyramid is SimplePyramid else settings.get('fpn')
    if fpn is None:
        return [width] * len(strides), strides
    if fpn is not settings and fpn.get('type') not in NECKS_OF_ONE_WIDTH:
        return [], []
    number = fpn.get('num_outs', len(strides))
    strides = strides[fpn.get('start_level', 0):]
    strides += [strides[-1] * 2**(index + 1) for index in range(number - len(strides))]
    return [fpn.get('out_channels', width)] * number, strides[:number]


def strides_for_fpn_head(strides: list[float]) -> list[float]:
    """The ``feature_strides`` with which mmseg's FPNHead doubles each level often enough.

    It rounds differences of logarithms down, which are a bit too small for strides such as 3.5 and
    28. Their proportions alone count.
    """
    steps = [np.log2(stride) - np.log2(strides[0]) for stride in strides]
    if all(int(step) == round(step) for step in steps):
        return strides
    return [4 * 2**round(step) for step in steps]


def head_problems(model: ConfigDict,
                  widths: list[int],
                  strides: list[float],
                  gives: str = 'the pyramid gives') -> Iterator[str]:
    """Levels that heads expect otherwise than they get."""
    if not widths:
        return

    def differs(name: str, found: Any, expected: Any, reason: str = gives) -> Iterator[str]:
        if found is not None and found != expected:
            found, expected = (list(v) if isinstance(v, tuple) else v for v in (found, expected))
            if found != expected:
                yield f'{name} is {found}, and {reason} {expected}: set {name}={expected}'

    for name in ('decode_head', 'auxiliary_head'):
        heads = model.get(name) or []
        for index, head in enumerate(heads if isinstance(heads, list) else [heads]):
            where = f'model.{name}' + (f'[{index}]' if isinstance(heads, list) else '')
            everything = isinstance(head.get('in_channels'), (list, tuple))
            chosen = head.get('in_index', list(range(len(widths))) if everything else -1)
            several = isinstance(chosen, (list, tuple))
            if max(chosen if several else [chosen]) >= len(widths):
                yield f'{where}.in_index is {chosen}, and {gives} {len(widths)} levels'
                continue
            expected = [widths[i] for i in chosen] if several else widths[chosen]
            yield from differs(f'{where}.in_channels', head.get('in_channels'), expected)
            if several and 'feature_strides' in head:
                used = [strides[i] for i in chosen]
                needed = strides_for_fpn_head(used)
                reason = gives if needed == used else 'FPNHead, which rounds logarithms down, needs'
                yield from differs(f'{where}.feature_strides', head.feature_strides, needed, reason)
    for name in ('rpn_head', 'bbox_head', 'mask_head'):
        head = model.get(name)
        if isinstance(head, dict) and isinstance(head.get('in_channels'), int):
            yield from differs(f'model.{name}.in_channels', head['in_channels'], widths[0])
            found = (head.get('anchor_generator') or {}).get('strides') or strides
            # others are pairs, or fractions of no pyramid of ours, as YOLACT's
            if all(isinstance(stride, (int, float)) and stride % 0.25 == 0 for stride in found):
                yield from differs(f'model.{name}.anchor_generator.strides', found, strides)
    panoptic = model.get('panoptic_head')
    if isinstance(panoptic, dict) and isinstance(panoptic.get('in_channels'), (list, tuple)):
        yield from differs('model.panoptic_head.in_channels', panoptic['in_channels'], widths)
    for name in ('bbox_roi_extractor', 'mask_roi_extractor'):
        extractor = (model.get('roi_head') or {}).get(name)
        if isinstance(extractor, dict):
            where, used = f'model.roi_head.{name}', extractor.get('featmap_strides') or []
            yield from differs(f'{where}.out_channels', extractor.get('out_channels'), widths[0])
            yield from differs(f'{where}.featmap_strides', used, strides[:len(used)])


def batch_problems(cfg: Config, dataloaders: tuple[str, ...]) -> Iterator[str]:
    """Batches that are too small to be normalised."""
    if 'train_dataloader' not in dataloaders or cfg.get('train_dataloader') is None:
        return
    head = cfg.model.get('decode_head') or {}
    pools_to_one = not isinstance(head, list) and 1 in (head.get('pool_scales') or ())
    synchronised = cfg.get('launcher', 'none') != 'none' and cfg.get('sync_bn')
    if pools_to_one and cfg.train_dataloader.get('batch_size') == 1 and not synchronised:
        yield (
            f'train_dataloader.batch_size is 1, and {head["type"]} normalises one value per image '
            'and channel: set train_dataloader.batch_size=2 or more')
