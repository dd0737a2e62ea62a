"""Datasets of a config, and the validation of their files."""
from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from io import StringIO
from pathlib import Path
from typing import Any

from mmengine.config import Config, ConfigDict
from mmengine.fileio import list_dir_or_file
from mmengine.registry import DATASETS

from colonnade.common.storage import exists, is_readable, local_copy
from colonnade.common.storage.file_access import is_remote
from colonnade.common.storage.shard_reader import SCHEME
from colonnade.datasets.gc_control import pause_gc
from colonnade.settings.checks.class_checks import reads_categories
from colonnade.settings.dataset_paths import (find_datasets, get_dataset_classes, get_dataset_paths,
                                              iter_evaluators)
from colonnade.settings.findings import Finding
from colonnade.settings.pipeline_steps import find_custom_loader, get_type_name
from colonnade.settings.registries import find_class
from colonnade.settings.rules import Effect

from ..bands import find_band_loader
from ..path_checks import IMAGES, LABEL_MAPS, find_outside_paths
from ..segment_maps import get_segment_map_name
from .coco_files import Usage, check_instances, find_valid_entries, load_coco
from .fast_checks import are_annotations_valid
from .label_map_files import build_label_loading, build_lazily, find_label_step, load_infos
from .listed_files import CheckLevel, ImageLoading, check_images, check_label_maps, make_image_check
from .panoptic_files import SEGMENT_MAP, check_segment_maps, load_panoptic
from .validation_report import Report


@dataclass
class Source:
    """A dataset of a config that reads files and does not wrap other datasets."""
    name: str  # key in the config
    split: str  # ``'train'``, ``'val'`` or ``'test'``
    dataset: ConfigDict  # settings of the dataset
    usage: Usage  # use of its COCO file
    report: Report = field(default_factory=Report)  # errors and warnings about its files
    num_images: int = 0
    num_annotations: int = 0

    @property
    def settings(self) -> Any:
        """``backend_args`` of the dataset."""
        return self.dataset.get('backend_args')

    def add_skipped_check(self, reason: str) -> None:
        """Report which checks were not made, and why."""
        self.report.add(Finding('skipped-check', f'{self.name}: {reason}'))

    @property
    def is_coco(self) -> bool:
        """True if it reads a COCO file as mmdet's CocoDataset does."""
        cls, coco = (
            find_class(each, DATASETS) for each in (self.dataset.type, 'mmdet.CocoDataset'))
        return (reads_categories(self.dataset) and bool(self.dataset.get('ann_file'))
                and cls.parse_data_info is coco.parse_data_info and cls.COCOAPI is coco.COCOAPI)

    @property
    def is_panoptic(self) -> bool:
        """True if it reads a panoptic JSON file as mmdet's CocoPanopticDataset does."""
        cls, panoptic = (
            find_class(each, DATASETS) for each in (self.dataset.type, 'mmdet.CocoPanopticDataset'))
        return (reads_categories(self.dataset) and bool(self.dataset.get('ann_file'))
                and cls.parse_data_info is panoptic.parse_data_info)

    @property
    def key(self) -> str:
        """Key that is equal for datasets that read the same files in the same way."""
        settings = {key: value for key, value in self.dataset.items() if key != 'pipeline'}
        return repr((settings, find_label_step(self.dataset), self.loading,
                     find_custom_loader(self.dataset.get('pipeline')), self.usage))

    @property
    def loading(self) -> ImageLoading:
        """Loading of its images."""
        steps = self.dataset.get('pipeline') or []
        first = steps[0] if steps else {}
        color_type = first.get('color_type', 'color')
        has_any_depth = color_type == 'unchanged' or first.get('imdecode_backend') == 'tifffile'
        bands = find_band_loader(steps)
        is_custom = has_any_depth or (find_custom_loader(steps) is not None and bands is None)
        return ImageLoading(self.settings, color_type, is_custom, bands)


def find_sources(cfg: Config, splits: Sequence[str]) -> Iterator[Source]:
    """Yield the datasets of some splits, without those that read the same files again."""
    known = set()
    for split in splits:
        evaluation = iter_evaluators(cfg, (f'{split}_evaluator', )) if split != 'train' else ()
        metrics = [metric for metric in evaluation if isinstance(metric, dict)]
        scores_masks = any('segm' in (metric.get('metric') or ()) for metric in metrics)
        for name, dataset in find_datasets(cfg, (f'{split}_dataloader', )):
            steps = dataset.get('pipeline') or []
            usage = Usage(
                masks=scores_masks or any(step.get('with_mask') for step in steps),
                scores_masks=scores_masks,
                polygons_only=any(step.get('poly2mask') is False for step in steps),
                evaluated=split != 'train',
                # pycocotools needs iscrowd, faster-coco-eval does not
                needs_iscrowd=any(
                    get_type_name(metric.get('type')) == 'CocoMetric' and metric.get('ann_file')
                    for metric in metrics),
                classes=get_dataset_classes(dataset))
            source = Source(name, split, dataset, usage)
            if source.is_panoptic:
                source.usage = replace(usage, is_panoptic=True, masks=False, needs_iscrowd=False)
            if source.key not in known:
                known.add(source.key)
                yield source


def check_source(cfg: Config, source: Source, level: CheckLevel) -> None:
    """Check the files of a dataset, and add findings to its report."""
    dataset, paths = source.dataset, get_dataset_paths(source.dataset)
    level.visited.update(paths)
    for path in paths:
        if is_readable(path, source.settings) and not exists(path, source.settings):
            source.report.add(Finding('missing-data', f'{path} does not exist', (path, )))
    if source.report.num_errors:
        source.add_skipped_check('no file was opened, because some files or folders do not exist')
        return
    label_loading = build_label_loading(cfg, dataset)
    if not level.is_full:
        if source.is_coco or source.is_panoptic or label_loading is not None:
            is_remote_only = any(is_remote(path) and not path.startswith(SCHEME) for path in paths)
            files = '' if is_remote_only else ', file names and some headers'
            text = f'only annotations{files} are checked, for problems that stop training ' \
                   'or change its data'
        else:
            text = 'its annotations are not checked, because their format is unknown'
        source.report.add(Finding('partly-checked', f'{source.name}: {text}'))
    if source.is_coco or source.is_panoptic:
        _check_coco(source, level)
    elif label_loading is not None:
        infos = _select_indices(load_infos(dataset), dataset.get('indices'))
        _check_image_infos(source, infos, level)
        _check_outside(source, infos, level)
        if level.is_full and not dataset.get('ann_file'):
            _find_unpaired_label_maps(source, infos)
        if infos and 'seg_map_path' in infos[0]:
            for index, finding in check_label_maps(infos, label_loading, level):
                places = (infos[index]['seg_map_path'], )
                source.report.add(replace(finding, places=places, id=index))
    elif level.is_full:
        with redirect_stdout(StringIO()):  # progress of pycocotools
            infos = [info for info in load_infos(dataset) if isinstance(info, dict)]
        _check_image_infos(source, [info for info in infos if 'img_path' in info], level)
        text = f'{get_type_name(dataset.type)}: only files were checked, not annotations'
        source.report.add(Finding('nothing-to-check', text))


def _check_outside(source: Source, infos: Sequence[dict[str, Any]], level: CheckLevel) -> None:
    """Report files outside of the folders of a dataset.

    Args:
        infos: Dicts with ``img_path`` or ``seg_map_path``, and perhaps the ``id`` of the image.
    """
    if level.allow_external_files:
        return
    dataset = build_lazily(source.dataset)
    for key, prefixes in (('img_path', IMAGES), ('seg_map_path', LABEL_MAPS)):
        ids = {info[key]: info.get('id', index) for index, info in enumerate(infos)
               if isinstance(info.get(key), str)}  # yapf: disable
        for path in find_outside_paths(dataset, ids, prefixes):
            text = f'{path} is outside of {dataset.data_root or "the folders of the dataset"}'
            source.report.add(Finding('outside', text, (path, ), id=ids[path]))


def _find_unpaired_label_maps(source: Source, infos: Sequence[dict[str, Any]]) -> None:
    """Report label maps without an image, if mmseg pairs them by names."""
    dataset: Any = build_lazily(source.dataset)
    folder = dataset.data_prefix.get('seg_map_path')
    stock_loading = find_class('mmseg.BaseSegDataset', DATASETS).load_data_list
    if not folder or source.dataset.get('indices') is not None or \
            type(dataset).load_data_list is not stock_loading:
        return
    known = {info.get('seg_map_path') for info in infos}
    names = list_dir_or_file(
        folder, False, True, dataset.seg_map_suffix, True, backend_args=source.settings)
    for path in sorted(posixpath.join(folder, name) for name in names):
        if path not in known:
            source.report.add(Finding('no-image', f'{path} has no image', (path, )))


def _check_image_infos(source: Source, infos: Sequence[dict[str, Any]], level: CheckLevel) -> None:
    source.num_images = len(infos)
    sizes = [(info['width'], info['height']) if info.get('width') and info.get('height') else None
             for info in infos]  # yapf: disable
    paths = [info['img_path'] for info in infos]
    for index, finding in check_images(paths, sizes, source.loading, level):
        if finding.rule == 'other-size':  # panoptic maps need masks of the image's size
            finding = replace(finding, effect='sample')
        source.report.add(replace(finding, places=(paths[index], ), id=index))


def _check_coco(source: Source, level: CheckLevel) -> None:
    dataset, report = source.dataset, source.report
    ann_file = get_dataset_paths(dataset)[0]
    load = load_panoptic if source.is_panoptic else load_coco
    try:
        with local_copy(ann_file, source.settings) as local:
            content = load(Path(local), report, needs_annotations=source.split != 'test')
    except OSError as error:
        text = f'{ann_file} cannot be read: {error}'
        report.add(Finding('unreadable-annotations', text, (ann_file, )))
        content = None
    if content is None:
        source.add_skipped_check(f'{ann_file} was not read, and no image was checked')
        return
    source.num_images, source.num_annotations = len(content['images']), len(content['annotations'])
    used = _find_used_images(content, source)
    folder = _get_folder(dataset, 'img')
    if not level.allow_external_files:
        _check_outside(source, [
            dict(img_path=os.path.join(folder, entry['file_name']), id=entry.get('id'))
            for entry in content['images']
            if isinstance(entry.get('file_name'), str) and (used is None or entry.get('id') in used)
        ], level)
    check = make_image_check(folder, source.loading, level, used, fits=source.is_panoptic)
    with pause_gc():
        checked = content
        if not level.is_full and are_annotations_valid(content, source.usage):
            checked = dict(content, annotations=[])
        check_instances(Path(ann_file), checked, report, check_images=check, usage=source.usage)
    if source.is_panoptic:
        _check_segments(source, content, used, level)


def _get_folder(dataset: ConfigDict, prefix: str) -> str:
    """Return the folder of images or label maps of a dataset."""
    below = (dataset.get('data_prefix') or {}).get(prefix, '')
    folders = get_dataset_paths(ConfigDict(dataset, ann_file='', data_prefix={prefix: below}))
    return folders[0] if folders else str(dataset.get('data_root') or '')


def _check_segments(source: Source, content: dict[str, list], used: set[Any] | None,
                    level: CheckLevel) -> None:
    """Report images without annotation, and PNG images that do not match their segments."""
    ann_file, images = get_dataset_paths(source.dataset)[0], []
    for image in find_valid_entries(content['images'], 'images', Path(ann_file), Report())[0]:
        is_used = used is None or image['id'] in used
        if SEGMENT_MAP not in image and source.split != 'test':
            effect: Effect = 'sample' if source.usage.evaluated else 'meaning'
            text = f'{ann_file}: image {image["id"]}: {image["file_name"]} has no annotation'
            source.report.add(
                Finding(
                    'no-annotation',
                    text, (image['file_name'], ),
                    id=image['id'],
                    effect=effect if is_used else 'none'))
        if is_used or level.is_full:
            images.append(image)
    if not (source.dataset.get('data_prefix') or {}).get('seg'):
        return
    if source.usage.evaluated:  # metrics read the file of the annotation
        images = [image for image in images if SEGMENT_MAP in image]
        names = [image[SEGMENT_MAP] for image in images]
    else:
        names = [get_segment_map_name(image['file_name']) for image in images]
    folder = _get_folder(source.dataset, 'seg')
    paths = [os.path.join(folder, name) for name in names]
    if not level.allow_external_files:
        _check_outside(source, [
            dict(seg_map_path=path, id=image['id'])
            for path, image in zip(paths, images, strict=True)
        ], level)
    for image, finding in check_segment_maps(images, paths, content['annotations'], source.settings,
                                             level):
        if used is not None and image['id'] not in used:
            finding = replace(finding, effect='none')
        source.report.add(finding if finding.id is not None else replace(finding, id=image['id']))


def _find_used_images(content: dict[str, list], source: Source) -> set[Any] | None:
    """Return the IDs of the images that mmdet does not omit, or None if entries are malformed."""
    dataset = source.dataset
    rules: dict[str, Any] = {} if dataset.get('test_mode') else dataset.get('filter_cfg') or {}
    try:
        images = [image for image in content['images'] if
                  min(image['width'], image['height']) >= rules.get('min_size', 0)]  # yapf: disable
        if rules.get('filter_empty_gt'):
            classes = source.usage.classes
            known = {each['id'] for each in content['categories']
                     if not classes or each['name'] in classes}  # yapf: disable
            if source.is_panoptic:
                known = {each['id'] for each in content['categories'] if each['isthing']}
            annotated = {each['image_id'] for each in content['annotations']
                         if each['category_id'] in known
                         and not (source.is_panoptic and each['iscrowd'])}  # yapf: disable
            images = [image for image in images if image['id'] in annotated]
        return {image['id'] for image in _select_indices(images, dataset.get('indices'))}
    except (KeyError, TypeError):  # malformed entries, which are reported elsewhere
        return None


def _select_indices(items: list[Any], indices: Any) -> list[Any]:
    """Return the items that mmengine selects by the ``indices`` of a dataset."""
    if isinstance(indices, int):
        return items[:indices] if indices >= 0 else items[indices:]
    return items if indices is None else [items[index] for index in indices if index < len(items)]
