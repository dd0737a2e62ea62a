"""Widths, strides and numbers of levels that heads expect, compared with those that they get."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from mmengine.config import ConfigDict
from mmengine.registry import MODELS

from ..findings import Finding
from ..known_settings import get_setting
from ..pipeline_steps import get_type_name
from ..registries import find_class, get_bases

DETECTION_TRANSFORMERS = ('DeformableDETR', 'DINO', 'DDQDETR')


@dataclass(frozen=True)
class Levels:
    """Feature maps that heads get.

    Attributes:
        widths: Channels of each level, finest level first.
        strides: Stride of each level in pixels.
        source: Subject and verb of messages, such as ``'the pyramid outputs'``.
        width_place: Config key that sets the widths.
        stride_place: Config key that sets the strides.
        number_place: Config key that sets the number of levels.
    """
    widths: Sequence[int]
    strides: Sequence[float]
    source: str
    width_place: str
    stride_place: str
    number_place: str

    def check(self, name: str, value: Any, expected: Any, place: str = '') -> Iterator[Finding]:
        """Yield a finding if a setting is not what the levels require.

        Args:
            place: Config key that sets the expected value. Defaults to that of the widths.
        """
        return check_setting(name, value, expected, self.source, place or self.width_place)

    def check_strides(self, name: str, value: Any, expected: Any) -> Iterator[Finding]:
        """Yield a finding if a setting is not the strides of the levels."""
        return self.check(name, value, expected, self.stride_place)


def check_setting(name: str, value: Any, expected: Any, source: str,
                  source_key: str) -> Iterator[Finding]:
    """Yield a finding if a setting that is set is not what another key requires."""
    if value is None:
        return
    value, expected = (list(v) if isinstance(v, (list, tuple)) else v for v in (value, expected))
    if value != expected:
        yield Finding('width', f'{name} is {value}, but {source} {expected} ({source_key})',
                      (name, source_key), f'set {name}={expected}')


def find_head_problems(model: ConfigDict, levels: Levels) -> Iterator[Finding]:
    """Yield settings of heads that do not match their levels."""
    if not levels.widths:
        return
    for name in ('decode_head', 'auxiliary_head'):
        for where, head in iter_components(model, name, 'model'):
            yield from _check_segmentation_head(where, head, levels)
    for name in ('rpn_head', 'bbox_head', 'mask_head'):
        if isinstance(head := model.get(name), dict) and isinstance(head.get('in_channels'), int):
            yield from _check_dense_head(f'model.{name}', head, levels)
    panoptic = model.get('panoptic_head')
    if isinstance(panoptic, dict) and isinstance(panoptic.get('in_channels'), (list, tuple)):
        name = 'model.panoptic_head'
        yield from levels.check(f'{name}.in_channels', panoptic['in_channels'], levels.widths)
        yield from levels.check_strides(f'{name}.strides', panoptic.get('strides'), levels.strides)
    if isinstance(roi_head := model.get('roi_head'), dict):
        yield from _check_roi_head(roi_head, levels)
    if get_type_name(model.get('type')) in DETECTION_TRANSFORMERS:
        yield from _check_transformer(model, levels)


def iter_components(section: ConfigDict, name: str, path: str) -> Iterator[tuple[str, ConfigDict]]:
    """Yield the keys and settings of a component of a model, which may be a list of them."""
    parts = section.get(name) or []
    if not isinstance(parts, list):
        yield f'{path}.{name}', parts
        return
    for index, part in enumerate(parts):
        yield f'{path}.{name}[{index}]', part


def _check_segmentation_head(where: str, head: ConfigDict, levels: Levels) -> Iterator[Finding]:
    widths, num_levels = levels.widths, len(levels.widths)
    reads_all = isinstance(head.get('in_channels'), (list, tuple))
    in_index = head.get('in_index', list(range(num_levels)) if reads_all else -1)
    is_list = isinstance(in_index, (list, tuple))
    if max(in_index if is_list else [in_index]) >= num_levels:
        yield Finding(
            'level-count', f'{where}.in_index is {in_index}, but {levels.source} {num_levels} '
            f'levels ({levels.number_place})', (f'{where}.in_index', levels.number_place))
        return
    expected = [widths[i] for i in in_index] if is_list else widths[in_index]
    yield from levels.check(f'{where}.in_channels', head.get('in_channels'), expected)
    strides = [levels.strides[i] for i in in_index] if is_list else []
    if is_list and 'feature_strides' in head:
        needed = compute_fpn_head_strides(strides)
        source = levels.source if needed == strides else \
            'FPNHead, which rounds logarithms down, needs'
        yield from check_setting(f'{where}.feature_strides', head.feature_strides, needed, source,
                                 levels.stride_place)
    if is_list and reads_all:
        yield from levels.check_strides(f'{where}.strides', head.get('strides'), strides)


def _check_dense_head(where: str, head: ConfigDict, levels: Levels) -> Iterator[Finding]:
    """Yield settings of a detector's head on all levels that do not match."""
    yield from levels.check(f'{where}.in_channels', head['in_channels'], levels.widths[0])
    expected = list(levels.strides)
    bases = get_bases(find_class(head.get('type'), MODELS))
    if len(expected) > 1 and any(base.__name__ == 'SOLOHead' for base in bases):
        # SOLO halves the resolution of the first level and resizes the last one to its neighbor.
        expected = [2 * expected[0], *expected[1:-1], expected[-2]]
    anchors = head.get('anchor_generator') or {}
    for key, value in (('anchor_generator.strides', anchors.get('strides')), ('strides',
                                                                              head.get('strides'))):
        # Other values are pairs, or fractions that no pyramid gives, such as YOLACT's.
        if isinstance(value, (list, tuple)) and all(
                isinstance(stride, (int, float)) and stride % 0.25 == 0 for stride in value):
            yield from levels.check_strides(f'{where}.{key}', value, expected)


def _check_roi_head(roi_head: ConfigDict, levels: Levels) -> Iterator[Finding]:
    """Yield settings of RoI extractors, and of the heads after them, that do not match."""
    names = 'bbox_roi_extractor', 'mask_roi_extractor'
    extractors = [roi_head.get(name) for name in names]
    for name, extractor in zip(names, extractors, strict=True):
        if isinstance(extractor, dict):
            where, strides = f'model.roi_head.{name}', extractor.get('featmap_strides') or []
            yield from levels.check(f'{where}.out_channels', extractor.get('out_channels'),
                                    levels.widths[0])
            yield from levels.check_strides(f'{where}.featmap_strides', strides,
                                            levels.strides[:len(strides)])
    for head_name, index, size_key in (('bbox_head', 0, 'roi_feat_size'), ('mask_head', 1, '')):
        extractor = extractors[index] or extractors[0]
        if not isinstance(extractor, dict):
            continue
        source = f'model.roi_head.{names[index] if extractors[index] else names[0]}'
        for where, head in iter_components(roi_head, head_name, 'model.roi_head'):
            yield from check_setting(f'{where}.in_channels', get_setting(head, 'in_channels'),
                                     extractor.get('out_channels'), 'its RoIs have',
                                     f'{source}.out_channels')
            size = (extractor.get('roi_layer') or {}).get('output_size')
            if size_key and isinstance(size, int):
                yield from check_setting(f'{where}.{size_key}', get_setting(head, size_key), size,
                                         'its RoIs have', f'{source}.roi_layer.output_size')


def _check_transformer(model: ConfigDict, levels: Levels) -> Iterator[Finding]:
    """Yield settings of the attention of a detection transformer that do not match."""
    number = len(levels.widths), levels.number_place
    for name, attention in (('encoder', 'self_attn_cfg'), ('decoder', 'cross_attn_cfg')):
        settings = (model.get(name) or {}).get('layer_cfg', {}).get(attention) or {}
        where = f'model.{name}.layer_cfg.{attention}'
        yield from levels.check(f'{where}.embed_dims', settings.get('embed_dims', 256),
                                levels.widths[0])
        yield from levels.check(f'{where}.num_levels', settings.get('num_levels', 4), *number)
    yield from levels.check('model.num_feature_levels', model.get('num_feature_levels', 4), *number)
    yield from levels.check('model.bbox_head.embed_dims',
                            get_setting(model.get('bbox_head') or {}, 'embed_dims'),
                            levels.widths[0])


def compute_fpn_head_strides(strides: Sequence[float]) -> list[float]:
    """Return the ``feature_strides`` with which mmseg's FPNHead upsamples each level correctly.

    The head rounds differences of logarithms down, which are slightly too small for strides such as
    3.5 and 28. Only the ratios of the strides matter.
    """
    steps = [np.log2(stride) - np.log2(strides[0]) for stride in strides]
    if all(int(step) == round(step) for step in steps):
        return list(strides)
    return [4 * 2**round(step) for step in steps]
