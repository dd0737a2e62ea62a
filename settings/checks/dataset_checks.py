"""Datasets, metrics and heads: do they exchange what the others need?"""
from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from mmengine.config import Config, ConfigDict
from mmengine.registry import DATASETS, METRICS

from colonnade.common.storage.file_access import is_remote

from ..classes import iter_class_heads
from ..dataset_paths import find_datasets, get_dataset_classes, get_setting_paths, iter_evaluators
from ..findings import Finding
from ..known_settings import get_setting
from ..pipeline_steps import get_type_name, is_loading_annotations
from ..registries import find_class, get_bases, get_package
from .class_checks import reads_categories

#: config keys of the mask heads of detectors
MASK_HEADS = ('mask_head', 'mask_branch', 'mask_iou_head', 'panoptic_head', 'segm_head')


def get_library(kind: Any, *registries: Any) -> str:
    """Return mmdet or mmseg if a type or one of its bases is from there, or an empty string."""
    packages = map(get_package, get_bases(find_class(kind, *registries)))
    return next((package for package in packages if package in ('mmdet', 'mmseg')), '')


def find_metric_problems(cfg: Config, dataloaders: tuple[str, ...]) -> Iterator[Finding]:
    """Yield metrics that do not match their datasets or the predictions of the model."""
    model = cfg.model
    for split in ('val', 'test'):
        if f'{split}_dataloader' not in dataloaders:
            continue
        key = f'{split}_evaluator'
        datasets = list(find_datasets(cfg, (f'{split}_dataloader', )))
        for metric in iter_evaluators(cfg, (key, )):
            if not isinstance(metric, dict):
                continue
            for name, dataset in datasets:
                yield from _check_metric(key, metric, name, dataset, len(datasets))
            types = metric.get('metric') or []
            types = [types] if isinstance(types, str) else types
            head = next((head for head in ('roi_head', 'bbox_head') if model.get(head)), None)
            if 'segm' in types and head and get_library(model.get('type')) == 'mmdet' and \
                    not _has_mask_head(model):
                yield Finding(
                    'metric-masks', f"{key}.metric has 'segm', but model.{head} predicts no masks "
                    f'({get_type_name(model.type)})', (f'{key}.metric', f'model.{head}'),
                    f"set {key}.metric='bbox'")


def _check_metric(key: str, metric: ConfigDict, name: str, dataset: ConfigDict,
                  num_datasets: int) -> Iterator[Finding]:
    """Yield a metric of another task than its dataset, or with other annotations."""
    metric_library = get_library(metric.get('type'), METRICS)
    data_library = get_library(dataset.get('type'), DATASETS)
    if metric_library and data_library and metric_library != data_library:
        tasks = dict(mmdet='instances', mmseg='label maps')
        yield Finding(
            'metric-task', f'{key} is {get_type_name(metric.type)}, which evaluates '
            f'{tasks[metric_library]} ({metric_library}), but {name} is '
            f'{get_type_name(dataset.type)}, which has {tasks[data_library]}',
            (f'{key}.type', f'{name}.type'))
        return
    cls, coco = (find_class(kind, DATASETS) for kind in (dataset.type, 'mmdet.CocoDataset'))
    is_panoptic = getattr(cls, 'COCOAPI', None) is not getattr(coco, 'COCOAPI', None)
    if not reads_categories(dataset) or is_panoptic != ('Panoptic' in get_type_name(
            metric.get('type'))):
        return
    path = metric.get('ann_file')
    own = next(iter(get_setting_paths(dataset.get('ann_file'), dataset)), None)
    if not isinstance(path, str) or not own or num_datasets != 1:
        return
    is_same = path == own if is_remote(path) or is_remote(own) else \
        os.path.realpath(path) == os.path.realpath(own)
    if not is_same:
        yield Finding('metric-file', f'{key}.ann_file is {path}, but {name} reads {own}',
                      (f'{key}.ann_file', f'{name}.ann_file'), 'set both to the same file')


def _has_mask_head(model: Any) -> bool:
    if isinstance(model, (list, tuple)):
        return any(map(_has_mask_head, model))
    if not isinstance(model, dict):
        return False
    kind = get_type_name(model.get('type'))
    return any(map(model.get, MASK_HEADS)) or any(
        word in kind for word in ('Ins', 'Mask', 'SOLO', 'YOLACT')) or any(
            _has_mask_head(value) for key, value in model.items() if key.endswith('head'))


def find_label_setting_problems(cfg: Config, dataloaders: tuple[str, ...]) -> Iterator[Finding]:
    """Yield settings of a segmenter that disagree on which label is ignored."""
    heads = [(name, head.get('ignore_index', 255)) for name, head in iter_class_heads(cfg.model)
             if get_library(head.get('type')) == 'mmseg']
    datasets = [(name, dataset) for name, dataset in find_datasets(cfg, dataloaders)
                if get_library(dataset.get('type'), DATASETS) == 'mmseg']
    settings = set()
    for name, dataset in datasets:
        reduce = get_setting(dataset, 'reduce_zero_label')
        if reduce is not None:
            settings.add((name, reduce))
        for index, step in enumerate(dataset.get('pipeline') or []):
            value = step.get('reduce_zero_label') if isinstance(step, dict) else None
            if None not in (value, reduce) and is_loading_annotations(step) and value != reduce:
                place = f'{name}.pipeline[{index}].reduce_zero_label'
                yield Finding('zero-label',
                              f'{place} is {value}, but {name}.reduce_zero_label is {reduce}',
                              (place, f'{name}.reduce_zero_label'), f'remove {place}')
        for head_name, ignored in heads:
            if reduce and ignored != 255:
                yield Finding(
                    'ignored-label',
                    f'{head_name}.ignore_index is {ignored}, but {name}.reduce_zero_label changes '
                    'label 0 to 255, which the head would learn as a class',
                    (f'{head_name}.ignore_index', f'{name}.reduce_zero_label'),
                    f'set {head_name}.ignore_index=255')
    if len({reduce for _, reduce in settings}) > 1:
        listed = ', '.join(f'{name} {reduce}' for name, reduce in sorted(settings))
        yield Finding('zero-labels', f'reduce_zero_label differs: {listed}',
                      tuple(f'{name}.reduce_zero_label' for name, _ in sorted(settings)),
                      'set the same value for all datasets')  # yapf: disable
    padding = (cfg.model.get('data_preprocessor') or {}).get('seg_pad_val', 255)
    for head_name, ignored in heads:
        if 'train_dataloader' in dataloaders and padding != ignored:
            place = 'model.data_preprocessor.seg_pad_val'
            yield Finding(
                'ignored-label',
                f'{place} is {padding}, but {head_name}.ignore_index is {ignored}: the padding of '
                'images would be learned as a class', (place, f'{head_name}.ignore_index'),
                f'set {place}={ignored}')


def find_palette_problems(cfg: Config, dataloaders: tuple[str, ...]) -> Iterator[Finding]:
    """Yield palettes with fewer colors than classes, or for mmseg with more.

    If a dataset uses some classes of its type, mmseg selects their colors from the full palette.
    """
    for name, dataset in find_datasets(cfg, dataloaders):
        metainfo = dataset.get('metainfo') or {}
        palette, classes = metainfo.get('palette'), get_dataset_classes(dataset)
        if palette is None and metainfo.get('PALETTE'):
            yield Finding('unread-section', f'{name}.metainfo.PALETTE has no effect',
                          (f'{name}.metainfo.PALETTE', ), 'did you mean palette?')
        if not isinstance(palette, (list, tuple)) or not palette or classes is None:
            continue
        all_classes = get_dataset_classes(ConfigDict(type=dataset.type))
        is_exact = get_library(dataset.get('type'),
                               DATASETS) == 'mmseg' and all_classes in (None, classes)
        if len(palette) < len(classes) or is_exact and len(palette) != len(classes):
            yield Finding(
                'palette', f'{name}.metainfo.palette has {len(palette)} colors for '
                f'{len(classes)} classes', (f'{name}.metainfo.palette', f'{name}.metainfo.classes'),
                'set one color per class, or remove the palette')


def find_window_problems(cfg: Config, _: tuple[str, ...]) -> Iterator[Finding]:
    """Yield sliding windows that leave gaps, and incomplete settings of windows."""
    test_cfg = cfg.model.get('test_cfg') or {}
    if not isinstance(test_cfg, dict) or test_cfg.get('mode') != 'slide':
        return
    section, sizes = 'model.test_cfg', {}
    for key in ('crop_size', 'stride'):
        value = test_cfg.get(key)
        if not isinstance(value, (list, tuple)) or len(value) != 2:
            yield Finding('window', f"{section}.mode is 'slide', but {section}.{key} is {value}",
                          (f'{section}.mode', f'{section}.{key}'),
                          f'set {section}.{key} to the height and width in pixels')
        else:
            sizes[key] = value
    if len(sizes) == 2 and any(step > side for side, step in zip(*sizes.values(), strict=True)):
        yield Finding(
            'window', f'{section}.stride is {list(sizes["stride"])}, but {section}.crop_size is '
            f'{list(sizes["crop_size"])}: pixels between windows are not predicted',
            (f'{section}.stride', f'{section}.crop_size'), 'set a stride of at most crop_size')
