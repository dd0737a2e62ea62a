"""Data sets, metrics and heads: does each give what the next one needs?"""
from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from mmengine.config import Config, ConfigDict
from mmengine.registry import DATASETS, METRICS

from colonnade.common.storage.file_access import is_remote

from ..classes import class_heads
from ..dataset_paths import classes_of, evaluators, find_datasets, paths_of_setting
from ..findings import Finding
from ..known_settings import value_of
from ..pipeline_steps import loads_annotations, name_of
from ..registries import bases_of, find_class, package_of
from .class_checks import reads_categories

#: detectors' parts that give masks are called so
MASKS = ('mask_head', 'mask_branch', 'mask_iou_head', 'panoptic_head', 'segm_head')


def library_of(kind: Any, *registries: Any) -> str:
    """mmdet, mmseg or another package that a type is of, or whose class it extends."""
    packages = map(package_of, bases_of(find_class(kind, *registries)))
    return next((package for package in packages if package in ('mmdet', 'mmseg')), '')


def metric_problems(cfg: Config, dataloaders: tuple[str, ...]) -> Iterator[Finding]:
    """Metrics that do not go with their data sets, or with what the model predicts."""
    for part in ('val', 'test'):
        if f'{part}_dataloader' not in dataloaders:
            continue
        key = f'{part}_evaluator'
        metrics = list(evaluators(cfg, (key, )))
        datasets = list(find_datasets(cfg, (f'{part}_dataloader', )))
        for metric in metrics:
            if isinstance(metric, dict):
                for name, dataset in datasets:
                    yield from metric_against_data(key, metric, name, dataset, len(datasets))
                yield from masks_problem(cfg, key, metric)


def metric_against_data(key: str, metric: ConfigDict, name: str, dataset: ConfigDict,
                        number: int) -> Iterator[Finding]:
    """A metric of another task than its data set, or of other annotations."""
    of_metric = library_of(metric.get('type'), METRICS)
    of_data = library_of(dataset.get('type'), DATASETS)
    if of_metric and of_data and of_metric != of_data:
        tasks = dict(mmdet='instances', mmseg='label maps')
        yield Finding(
            'metric-task',
            f'{key} is {name_of(metric.type)}, for {tasks[of_metric]} of {of_metric}, and '
            f'{name} is {name_of(dataset.type)}, of {tasks[of_data]}',
            (f'{key}.type', f'{name}.type'))
        return
    if not reads_categories_as(dataset, metric):
        return
    ann_file = metric.get('ann_file')
    own = next(iter(paths_of_setting(dataset.get('ann_file'), dataset)), None)
    if isinstance(ann_file, str) and own and number == 1 and not is_same_file(ann_file, own):
        yield Finding('metric-file', f'{key}.ann_file is {ann_file}, and {name} reads {own}',
                      (f'{key}.ann_file', f'{name}.ann_file'), 'name the same file')


def is_same_file(path: str, other: str) -> bool:
    """Whether two paths or URLs name one file, however they are spelt."""
    if is_remote(path) or is_remote(other):
        return path == other
    return os.path.realpath(path) == os.path.realpath(other)


def reads_categories_as(dataset: ConfigDict, metric: ConfigDict) -> bool:
    """Whether a metric reads the annotations that a data set reads: panoptic ones, or none."""
    cls, coco = (find_class(kind, DATASETS) for kind in (dataset.type, 'mmdet.CocoDataset'))
    is_panoptic = getattr(cls, 'COCOAPI', None) is not getattr(coco, 'COCOAPI', None)
    return reads_categories(dataset) and is_panoptic == ('Panoptic' in name_of(metric.get('type')))


def masks_problem(cfg: Config, key: str, metric: ConfigDict) -> Iterator[Finding]:
    """A metric of masks of a model that predicts boxes alone."""
    wanted = metric.get('metric')
    wanted = [wanted] if isinstance(wanted, str) else wanted or []
    head = next((head for head in ('roi_head', 'bbox_head') if cfg.model.get(head)), None)
    if 'segm' in wanted and head and library_of(cfg.model.get('type')) == 'mmdet' and \
            not gives_masks(cfg.model):
        yield Finding(
            'metric-masks', f"{key}.metric has 'segm', and model.{head} predicts no masks "
            f'({name_of(cfg.model.type)})', (f'{key}.metric', f'model.{head}'),
            f"set {key}.metric='bbox'")


def gives_masks(model: Any) -> bool:
    """Whether a detector has a part that predicts masks."""
    if isinstance(model, (list, tuple)):
        return any(map(gives_masks, model))
    if not isinstance(model, dict):
        return False
    kind = name_of(model.get('type'))
    return any(map(model.get, MASKS)) or any(
        word in kind for word in ('Ins', 'Mask', 'SOLO', 'YOLACT')) or any(
            gives_masks(value) for key, value in model.items() if key.endswith('head'))


def label_setting_problems(cfg: Config, dataloaders: tuple[str, ...]) -> Iterator[Finding]:
    """Labels that are ignored in one part of a segmenter, and not in another."""
    heads = [(name, head.get('ignore_index', 255)) for name, head in class_heads(cfg.model)
             if library_of(head.get('type')) == 'mmseg']
    found = [(name, dataset) for name, dataset in find_datasets(cfg, dataloaders)
             if library_of(dataset.get('type'), DATASETS) == 'mmseg']
    for name, dataset in found:
        reduce = value_of(dataset, 'reduce_zero_label')
        for index, step in enumerate(dataset.get('pipeline') or []):
            said = step.get('reduce_zero_label') if isinstance(step, dict) else None
            if None not in (said, reduce) and loads_annotations(step) and said != reduce:
                place = f'{name}.pipeline[{index}].reduce_zero_label'
                yield Finding('zero-label',
                              f'{place} is {said}, and {name}.reduce_zero_label is {reduce}',
                              (place, f'{name}.reduce_zero_label'), f'remove {place}')
        for head_name, ignored in heads:
            if reduce and ignored != 255:
                yield Finding(
                    'ignored-label',
                    f'{head_name}.ignore_index is {ignored}, and {name}.reduce_zero_label makes '
                    'label 0 to 255, which the head then takes for a class',
                    (f'{head_name}.ignore_index', f'{name}.reduce_zero_label'),
                    f'set {head_name}.ignore_index=255')
    settings = {(name, reduce)
                for name, dataset in found
                if (reduce := value_of(dataset, 'reduce_zero_label')) is not None}
    if len({reduce for _, reduce in settings}) > 1:
        yield Finding(
            'zero-labels',
            'reduce_zero_label differs: ' + ', '.join(f'{name} {reduce}'
                                                      for name, reduce in sorted(settings)),
            tuple(f'{name}.reduce_zero_label' for name, _ in sorted(settings)),
            'set the same for all')
    padding = (cfg.model.get('data_preprocessor') or {}).get('seg_pad_val', 255)
    for head_name, ignored in heads:
        if 'train_dataloader' in dataloaders and padding != ignored:
            place = 'model.data_preprocessor.seg_pad_val'
            yield Finding(
                'ignored-label',
                f'{place} is {padding}, and {head_name}.ignore_index is {ignored}: borders of '
                'images are learnt as a class', (place, f'{head_name}.ignore_index'),
                f'set {place}={ignored}')


def palette_problems(cfg: Config, dataloaders: tuple[str, ...]) -> Iterator[Finding]:
    """Palettes with fewer colours than there are classes, or for mmseg with more.

    mmseg picks the colours of some of a data set's classes from those of all.
    """
    for name, dataset in find_datasets(cfg, dataloaders):
        metainfo = dataset.get('metainfo') or {}
        palette, classes = metainfo.get('palette'), classes_of(dataset)
        if palette is None and metainfo.get('PALETTE'):
            yield Finding('unread-section', f'nothing reads {name}.metainfo.PALETTE',
                          (f'{name}.metainfo.PALETTE', ), 'did you mean palette?')
        if not isinstance(palette, (list, tuple)) or not palette or classes is None:
            continue
        every = classes_of(ConfigDict(type=dataset.type))
        exactly = library_of(dataset.get('type'), DATASETS) == 'mmseg' and every in (None, classes)
        if len(palette) < len(classes) or exactly and len(palette) != len(classes):
            yield Finding(
                'palette', f'{name}.metainfo.palette has {len(palette)} colours, and there are '
                f'{len(classes)} classes', (f'{name}.metainfo.palette', f'{name}.metainfo.classes'),
                'name a colour for each class, or remove the palette')


def window_problems(cfg: Config, _: tuple[str, ...]) -> Iterator[Finding]:
    """Yield windows of tests that leave gaps, and crops that are smaller than a patch."""
    test_cfg = cfg.model.get('test_cfg') or {}
    if not isinstance(test_cfg, dict) or test_cfg.get('mode') != 'slide':
        return
    where, sizes = 'model.test_cfg', {}
    for key in ('crop_size', 'stride'):
        value = test_cfg.get(key)
        if not isinstance(value, (list, tuple)) or len(value) != 2:
            yield Finding('window', f"{where}.mode is 'slide', and {where}.{key} is {value}",
                          (f'{where}.mode', f'{where}.{key}'),
                          f'set {where}.{key} to two numbers of pixels')
        else:
            sizes[key] = value
    if len(sizes) == 2 and any(step > side for side, step in zip(*sizes.values(), strict=True)):
        yield Finding(
            'window', f'{where}.stride is {list(sizes["stride"])}, and {where}.crop_size '
            f'{list(sizes["crop_size"])}: pixels between windows are not predicted',
            (f'{where}.stride', f'{where}.crop_size'), 'set a stride of at most crop_size')
