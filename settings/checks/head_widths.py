"""Widths, strides and numbers of levels that heads expect, and those that they get."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from mmengine.config import ConfigDict
from mmengine.registry import MODELS

from ..findings import Finding
from ..known_settings import value_of
from ..pipeline_steps import name_of
from ..registries import bases_of, find_class

DETECTION_TRANSFORMERS = ('DeformableDETR', 'DINO', 'DDQDETR')


@dataclass(frozen=True)
class Levels:
    """What heads get.

    Attributes:
        widths: Of each level, the finest first.
        strides: Of each level.
        gives: Who gives them, for messages.
        width_place: Key of the config that sets the width.
        stride_place: Key of the config that sets the strides.
        number_place: Key of the config that sets the number of levels.
    """
    widths: Sequence[int]
    strides: Sequence[float]
    gives: str
    width_place: str
    stride_place: str
    number_place: str

    def width_differs(self, name: str, found: Any, expected: Any) -> Iterator[Finding]:
        """A setting that does not say the width of the levels."""
        return differs(name, found, expected, self.gives, self.width_place)

    def number_differs(self, name: str, found: Any) -> Iterator[Finding]:
        """A setting that does not say the number of levels."""
        return differs(name, found, len(self.widths), self.gives, self.number_place)

    def strides_differ(self, name: str, found: Any, expected: Any) -> Iterator[Finding]:
        """A setting that does not say the strides of the levels."""
        return differs(name, found, expected, self.gives, self.stride_place)


def differs(name: str, found: Any, expected: Any, reason: str, other: str) -> Iterator[Finding]:
    """Yield a finding if a setting is not what another key asks for; none if it is not set."""
    if found is None:
        return
    found, expected = (list(v) if isinstance(v, (list, tuple)) else v for v in (found, expected))
    if found != expected:
        yield Finding('width', f'{name} is {found}, and {reason} {expected} ({other})',
                      (name, other), f'set {name}={expected}')


def head_problems(model: ConfigDict, levels: Levels) -> Iterator[Finding]:
    """Levels that heads expect otherwise than they get."""
    if not levels.widths:
        return
    for name in ('decode_head', 'auxiliary_head'):
        for where, head in parts_named(model, name, 'model'):
            yield from segmenter_problems(where, head, levels)
    for name in ('rpn_head', 'bbox_head', 'mask_head'):
        if isinstance(head := model.get(name), dict):
            yield from dense_problems(f'model.{name}', head, levels)
    panoptic = model.get('panoptic_head')
    if isinstance(panoptic, dict) and isinstance(panoptic.get('in_channels'), (list, tuple)):
        name = 'model.panoptic_head'
        yield from levels.width_differs(f'{name}.in_channels', panoptic['in_channels'],
                                        levels.widths)
        yield from levels.strides_differ(f'{name}.strides', panoptic.get('strides'), levels.strides)
    if isinstance(roi_head := model.get('roi_head'), dict):
        yield from region_problems(roi_head, levels)
    if name_of(model.get('type')) in DETECTION_TRANSFORMERS:
        yield from transformer_problems(model, levels)


def parts_named(section: ConfigDict, name: str, path: str) -> Iterator[tuple[str, ConfigDict]]:
    """Yield the keys and settings of a part of a model, which may be a list of parts."""
    parts = section.get(name) or []
    if not isinstance(parts, list):
        yield f'{path}.{name}', parts
        return
    for index, part in enumerate(parts):
        yield f'{path}.{name}[{index}]', part


def segmenter_problems(where: str, head: ConfigDict, levels: Levels) -> Iterator[Finding]:
    """What a head of mmseg expects otherwise."""
    widths, number = levels.widths, len(levels.widths)
    everything = isinstance(head.get('in_channels'), (list, tuple))
    chosen = head.get('in_index', list(range(number)) if everything else -1)
    several = isinstance(chosen, (list, tuple))
    if max(chosen if several else [chosen]) >= number:
        yield Finding(
            'level-count', f'{where}.in_index is {chosen}, and {levels.gives} {number} levels '
            f'({levels.number_place})', (f'{where}.in_index', levels.number_place))
        return
    expected = [widths[i] for i in chosen] if several else widths[chosen]
    yield from levels.width_differs(f'{where}.in_channels', head.get('in_channels'), expected)
    if several and 'feature_strides' in head:
        used = [levels.strides[i] for i in chosen]
        needed = strides_for_fpn_head(used)
        reason = levels.gives if needed == used else 'FPNHead, which rounds logarithms down, needs'
        yield from differs(f'{where}.feature_strides', head.feature_strides, needed, reason,
                           levels.stride_place)
    if several and everything:
        yield from levels.strides_differ(f'{where}.strides', head.get('strides'),
                                         [levels.strides[i] for i in chosen])


def dense_problems(where: str, head: ConfigDict, levels: Levels) -> Iterator[Finding]:
    """What a head on all levels of a detector expects otherwise."""
    if not isinstance(head.get('in_channels'), int):
        return
    yield from levels.width_differs(f'{where}.in_channels', head['in_channels'], levels.widths[0])
    for key, found in (('anchor_generator.strides', (head.get('anchor_generator')
                                                     or {}).get('strides')), ('strides',
                                                                              head.get('strides'))):
        # others are pairs, or fractions of no pyramid of ours, as YOLACT's
        if isinstance(found, (list, tuple)) and all(
                isinstance(stride, (int, float)) and stride % 0.25 == 0 for stride in found):
            yield from levels.strides_differ(f'{where}.{key}', found,
                                             strides_for_dense_head(head, levels.strides))


def strides_for_dense_head(head: ConfigDict, strides: Sequence[float]) -> list[float]:
    """Return the strides that a head on all levels has to state.

    SOLO's heads halve the resolution of the first level, and resize the last one to that of its
    neighbor, before they read them.
    """
    bases = bases_of(find_class(head.get('type'), MODELS))
    if len(strides) > 1 and any(base.__name__ == 'SOLOHead' for base in bases):
        return [2 * strides[0], *strides[1:-1], strides[-2]]
    return list(strides)


def region_problems(roi_head: ConfigDict, levels: Levels) -> Iterator[Finding]:
    """What extractors of regions, and the heads behind them, expect otherwise."""
    extractors = roi_head.get('bbox_roi_extractor'), roi_head.get('mask_roi_extractor')
    names = 'bbox_roi_extractor', 'mask_roi_extractor'
    for name, extractor in zip(names, extractors, strict=True):
        if isinstance(extractor, dict):
            where, used = f'model.roi_head.{name}', extractor.get('featmap_strides') or []
            yield from levels.width_differs(f'{where}.out_channels', extractor.get('out_channels'),
                                            levels.widths[0])
            yield from levels.strides_differ(f'{where}.featmap_strides', used,
                                             levels.strides[:len(used)])
    of_heads = (('bbox_head', 0, 'roi_feat_size'), ('mask_head', 1, ''))
    for head_name, index, size_key in of_heads:
        extractor = extractors[index] or extractors[0]
        if not isinstance(extractor, dict):
            continue
        source = f'model.roi_head.{names[index] if extractors[index] else names[0]}'
        for where, head in parts_named(roi_head, head_name, 'model.roi_head'):
            yield from differs(f'{where}.in_channels', value_of(head, 'in_channels'),
                               extractor.get('out_channels'), 'its regions have',
                               f'{source}.out_channels')
            size = (extractor.get('roi_layer') or {}).get('output_size')
            if size_key and isinstance(size, int):
                yield from differs(f'{where}.{size_key}', value_of(head, size_key), size,
                                   'its regions have', f'{source}.roi_layer.output_size')


def transformer_problems(model: ConfigDict, levels: Levels) -> Iterator[Finding]:
    """What the attention of a detection transformer expects otherwise than its levels are."""
    for name, attention in (('encoder', 'self_attn_cfg'), ('decoder', 'cross_attn_cfg')):
        settings = (model.get(name) or {}).get('layer_cfg', {}).get(attention) or {}
        where = f'model.{name}.layer_cfg.{attention}'
        yield from levels.width_differs(f'{where}.embed_dims', settings.get('embed_dims', 256),
                                        levels.widths[0])
        yield from levels.number_differs(f'{where}.num_levels', settings.get('num_levels', 4))
    yield from levels.number_differs('model.num_feature_levels', model.get('num_feature_levels', 4))
    yield from levels.width_differs('model.bbox_head.embed_dims',
                                    value_of(model.get('bbox_head') or {}, 'embed_dims'),
                                    levels.widths[0])


def strides_for_fpn_head(strides: Sequence[float]) -> list[float]:
    """The ``feature_strides`` with which mmseg's FPNHead doubles each level often enough.

    It rounds differences of logarithms down, which are a bit too small for strides such as 3.5 and
    28. Their proportions alone count.
    """
    steps = [np.log2(stride) - np.log2(strides[0]) for stride in strides]
    if all(int(step) == round(step) for step in steps):
        return list(strides)
    return [4 * 2**round(step) for step in steps]
