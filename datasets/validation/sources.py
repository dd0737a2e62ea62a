"""The data sets of a config: what of their files there is to look at, and a report of each."""
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
from colonnade.settings.dataset_paths import classes_of, evaluators, find_datasets, paths_of
from colonnade.settings.findings import Finding
from colonnade.settings.pipeline_steps import loading_step, name_of
from colonnade.settings.registries import find_class

from ..path_checks import IMAGES, LABEL_MAPS, find_outside_paths
from .coco_files import Usage, check_instances, load_coco
from .fast_checks import are_sound
from .label_map_files import build_unread, labels_of_dataset, load_infos, step_of_labels
from .listed_files import Depth, Loading, image_faults, images_of_entries, label_map_faults
from .validation_report import Report

SPLITS = ('train', 'val', 'test')


@dataclass
class Source:
    """A data set of a config that reads files, none of those that wrap others.

    Attributes:
        name: Where it stands in the config.
        split: ``'train'``, ``'val'`` or ``'test'``.
        dataset: Its settings.
        usage: What is used of a file in COCO's form.
        report: What is wrong with it.
        num_images, num_annotations: What it has.
    """
    name: str
    split: str
    dataset: ConfigDict
    usage: Usage
    report: Report = field(default_factory=Report)
    num_images: int = 0
    num_annotations: int = 0

    @property
    def settings(self) -> Any:
        """``backend_args`` of the data set."""
        return self.dataset.get('backend_args')

    def skip(self, what: str) -> None:
        """Note which checks are not made because of what was found before."""
        self.report.add(Finding('skipped-check', f'{self.name}: {what}'))

    @property
    def is_coco(self) -> bool:
        """Whether it reads a file in COCO's form as mmdet's CocoDataset does, all of it."""
        cls, coco = (
            find_class(kind, DATASETS) for kind in (self.dataset.type, 'mmdet.CocoDataset'))
        return (reads_categories(self.dataset) and bool(self.dataset.get('ann_file'))
                and cls.parse_data_info is coco.parse_data_info and cls.COCOAPI is coco.COCOAPI)

    @property
    def key(self) -> str:
        """The same for data sets that read the same files in the same way."""
        settings = {key: value for key, value in self.dataset.items() if key != 'pipeline'}
        return repr((settings, step_of_labels(self.dataset), self.loading,
                     loading_step(self.dataset.get('pipeline')), self.usage))

    @property
    def loading(self) -> Loading:
        """How it loads images."""
        steps = self.dataset.get('pipeline') or []
        first = steps[0] if steps else {}
        color_type = first.get('color_type', 'color')
        any_depth = color_type == 'unchanged' or first.get('imdecode_backend') == 'tifffile'
        return Loading(self.settings, color_type, any_depth or loading_step(steps) is not None)


def find_sources(cfg: Config, splits: Sequence[str]) -> Iterator[Source]:
    """The data sets of some splits, those that read the same files once."""
    seen = set()
    for split in splits:
        scored = evaluators(cfg, (f'{split}_evaluator', )) if split != 'train' else ()
        metrics = [metric for metric in scored if isinstance(metric, dict)]
        of_masks = any('segm' in (metric.get('metric') or ()) for metric in metrics)
        for name, dataset in find_datasets(cfg, (f'{split}_dataloader', )):
            steps = dataset.get('pipeline') or []
            usage = Usage(
                masks=of_masks or any(step.get('with_mask') for step in steps),
                scores_masks=of_masks,
                polygons_alone=any(step.get('poly2mask') is False for step in steps),
                evaluated=split != 'train',
                needs_iscrowd=any(map(is_pycocotools, metrics)),
                classes=classes_of(dataset))
            source = Source(name, split, dataset, usage)
            if source.key not in seen:
                seen.add(source.key)
                yield source


def is_pycocotools(metric: ConfigDict) -> bool:
    """Whether a metric reads a file with pycocotools, not with faster-coco-eval."""
    return name_of(metric.get('type')) == 'CocoMetric' and bool(metric.get('ann_file'))


def check_source(cfg: Config, source: Source, depth: Depth) -> None:
    """Look at the files of a data set.

    Args:
        cfg: Its config, of which the library is known.
        source: Its report takes what is wrong.
        depth: How closely to look.
    """
    depth.seen.update(paths_of(source.dataset))
    for path in paths_of(source.dataset):
        if is_readable(path, source.settings) and not exists(path, source.settings):
            source.report.add(Finding('missing-data', f'there is no {path}', (path, )))
    if source.report.num_faults:
        source.skip('no file was opened, because not all of its files and folders exist')
        return
    labels = labels_of_dataset(cfg, source.dataset)
    if not depth.whole:
        is_known = source.is_coco or labels is not None
        text = f'{source.name}: {describe_extent(source, is_known)}'
        source.report.add(Finding('partly-checked', text))
    if source.is_coco:
        check_coco(source, depth)
    elif labels is not None:
        infos = take_indices(load_infos(source.dataset), source.dataset.get('indices'))
        add_images(source, infos, depth)
        add_outside(source, infos, depth)
        if depth.whole and not source.dataset.get('ann_file'):
            add_label_maps_alone(source, infos)
        if infos and 'seg_map_path' in infos[0]:
            for index, found in label_map_faults(infos, labels, depth):
                places = (infos[index]['seg_map_path'], )
                source.report.add(replace(found, places=places, id=index))
    elif depth.whole:
        with redirect_stdout(StringIO()):  # pycocotools prints its progress
            infos = [info for info in load_infos(source.dataset) if isinstance(info, dict)]
        add_images(source, [info for info in infos if 'img_path' in info], depth)
        text = f'{name_of(source.dataset.type)}: files alone were looked at, not annotations'
        source.report.add(Finding('nothing-to-check', text))


def describe_extent(source: Source, is_known: bool) -> str:
    """Return what is looked at before a training, of a dataset whose format is known or not."""
    if not is_known:
        return 'its annotations are of a form that is not known here, and are not checked'
    is_remote_only = any(is_remote(path) and not path.startswith(SCHEME)
                         for path in paths_of(source.dataset))  # yapf: disable
    files = '' if is_remote_only else ', names of files and some headers'
    return f'annotations{files} alone are checked, for what stops training or changes its data'


def add_outside(source: Source, infos: Sequence[dict[str, Any]], depth: Depth) -> None:
    """Look whether a data set names files outside of its folders.

    Args:
        source: Its report takes them.
        infos: With ``img_path``, ``seg_map_path`` and the ``id`` of images; by default their place.
        depth: How closely to look.
    """
    if depth.allow_external_files:
        return
    dataset = build_unread(source.dataset)
    for key, prefixes in (('img_path', IMAGES), ('seg_map_path', LABEL_MAPS)):
        places = {info[key]: info.get('id', place) for place, info in enumerate(infos)
                  if isinstance(info.get(key), str)}  # yapf: disable
        for path in find_outside_paths(dataset, places, prefixes):
            text = f'{path} is outside of {dataset.data_root or "the folders of the data set"}'
            source.report.add(Finding('outside', text, (path, ), id=places[path]))


def add_label_maps_alone(source: Source, infos: Sequence[dict[str, Any]]) -> None:
    """Look for label maps of which no image is there, where mmseg pairs them by their names."""
    dataset: Any = build_unread(source.dataset)
    folder = dataset.data_prefix.get('seg_map_path')
    pairs = find_class('mmseg.BaseSegDataset', DATASETS).load_data_list
    if not folder or source.dataset.get('indices') is not None or \
            type(dataset).load_data_list is not pairs:
        return
    known = {info.get('seg_map_path') for info in infos}
    names = list_dir_or_file(
        folder, False, True, dataset.seg_map_suffix, True, backend_args=source.settings)
    for path in sorted(posixpath.join(folder, name) for name in names):
        if path not in known:
            source.report.add(Finding('no-image', f'{path} has no image', (path, )))


def add_images(source: Source, infos: Sequence[dict[str, Any]], depth: Depth) -> None:
    """Look at the images that a data set names."""
    source.num_images = len(infos)
    sizes = [(info['width'], info['height']) if info.get('width') and info.get('height') else None
             for info in infos]  # yapf: disable
    paths = [info['img_path'] for info in infos]
    for index, found in image_faults(paths, sizes, source.loading, depth):
        if found.rule == 'other-size':  # of panoptic maps, at which masks of one size are wanted
            found = replace(found, effect='sample')
        source.report.add(replace(found, places=(paths[index], ), id=index))


def check_coco(source: Source, depth: Depth) -> None:
    """Look at a file in COCO's form and its images."""
    dataset, report = source.dataset, source.report
    ann_file = paths_of(dataset)[0]
    try:
        with local_copy(ann_file, source.settings) as local:
            content = load_coco(Path(local), report, annotated=source.split != 'test')
    except OSError as error:
        text = f'{ann_file} cannot be read: {error}'
        report.add(Finding('unreadable-annotations', text, (ann_file, )))
        source.skip('no image was looked at')
        return
    if content is None:
        source.skip(f'{ann_file} was not read, and no image was looked at')
        return
    source.num_images, source.num_annotations = len(content['images']), len(content['annotations'])
    used = used_images(content, source)
    folder = image_folder(dataset)
    if not depth.allow_external_files:
        add_outside(source, [
            dict(img_path=os.path.join(folder, entry['file_name']), id=entry.get('id'))
            for entry in content['images']
            if isinstance(entry.get('file_name'), str) and (used is None or entry.get('id') in used)
        ], depth)
    look = images_of_entries(folder, source.loading, depth, used)
    with pause_gc():
        if not depth.whole and are_sound(content, source.usage):
            content = dict(content, annotations=[])
        check_instances(Path(ann_file), content, report, look=look, usage=source.usage)


def used_images(content: dict[str, list], source: Source) -> set[Any] | None:
    """The ids of the images that mmdet does not leave out; None if that cannot be told.

    Args:
        content: Of the file.
        source: Whose file it is.
    """
    dataset = source.dataset
    rules: dict[str, Any] = {} if dataset.get('test_mode') else dataset.get('filter_cfg') or {}
    try:
        images = [image for image in content['images'] if
                  min(image['width'], image['height']) >= rules.get('min_size', 0)]  # yapf: disable
        if rules.get('filter_empty_gt'):
            classes = source.usage.classes
            known = {each['id'] for each in content['categories']
                     if not classes or each['name'] in classes}  # yapf: disable
            full = {each['image_id'] for each in content['annotations']
                    if each['category_id'] in known}  # yapf: disable
            images = [image for image in images if image['id'] in full]
        return {image['id'] for image in take_indices(images, dataset.get('indices'))}
    except (KeyError, TypeError):  # of entries that are reported
        return None


def take_indices(items: list[Any], indices: Any) -> list[Any]:
    """What mmengine takes of a data set by its ``indices``: some, the first or the last."""
    if isinstance(indices, int):
        return items[:indices] if indices >= 0 else items[indices:]
    return items if indices is None else [items[index] for index in indices if index < len(items)]


def image_folder(dataset: ConfigDict) -> str:
    """What the file names of a data set in COCO's form start from."""
    prefix = (dataset.get('data_prefix') or {}).get('img', '')
    whole = paths_of(ConfigDict(dataset, ann_file='', data_prefix=dict(img=prefix)))
    return whole[0] if whole else str(dataset.get('data_root') or '')
