"""Checks on loaded datasets: whether training can learn from them, and evaluates on others."""
from __future__ import annotations

import filecmp
import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from mmengine.config import Config, ConfigDict
from mmengine.dataset import Compose
from mmengine.logging import print_log
from mmengine.registry import DATASETS, TRANSFORMS
from mmengine.runner import Runner
from torch.utils.data import Dataset

from colonnade.common.distributed import run_on_first_rank
from colonnade.common.errors import UserError
from colonnade.common.name_lists import format_names
from colonnade.settings.checks.class_checks import reads_categories
from colonnade.settings.dataset_paths import find_datasets, get_dataset_classes, get_dataset_paths
from colonnade.settings.findings import Finding
from colonnade.settings.registries import find_class, is_custom_class

from .path_checks import iter_image_paths, report_deep_json
from .validation.coco_files import explain_omission, load_json
from .validation.label_map_files import build_lazily, sample_evenly

MAX_SHOWN = 3  # images in a warning
MAX_COMPARED = 2000  # files with the same name in training and validation that are opened
EMPTY_DATASET = 'need at least one array to concatenate'  # numpy's error for no images


@runtime_checkable
class JoinedDatasets(Protocol):
    """A dataset of others, such as mmengine's and torch's ``ConcatDataset``."""
    datasets: Iterable[Any]


@runtime_checkable
class WrappedDataset(Protocol):
    """A dataset around another one, such as ``RepeatDataset`` and torch's ``Subset``."""
    dataset: Any


def check_loaded_data(runner: Runner, *, allow_external_files: bool = False) -> None:
    """Load the datasets of a training, and check that it can learn from them.

    Logs a warning if training uses validation images. Images are not opened.

    Args:
        runner: Runner of the training.
        allow_external_files: Whether annotations may refer to files anywhere.

    Raises:
        ValueError: If no annotation can be used for training, or if annotations refer to files
            outside of their dataset.
    """
    cfg = runner.cfg
    try:
        with report_deep_json(cfg, ('train_dataloader', )):
            training = list(iter_datasets(runner.train_dataloader.dataset))
    except ValueError as error:
        if EMPTY_DATASET not in str(error):
            raise
        raise UserError(str(_explain_nothing_to_learn(cfg))) from error
    validation: list[Any] = []
    if cfg.get('val_dataloader'):
        with report_deep_json(cfg, ('val_dataloader', )):
            validation = list(iter_datasets(runner.val_dataloader.dataset))

    def check() -> None:
        if not any(map(_has_instances, training)):
            raise UserError(str(_explain_nothing_to_learn(cfg)))
        validated = list(iter_image_paths(validation, allow_external_files=allow_external_files))
        shared = find_shared_images(
            iter_image_paths(training, allow_external_files=allow_external_files), validated)
        if shared:
            text = f'{len(shared)} of {len(set(validated))} validation images are also used for ' \
                   f'training, which makes metrics too optimistic: ' \
                   f'{format_names(shared, MAX_SHOWN)}'
            finding = Finding('shared-images', text, tuple(shared))
            print_log(str(finding), logger='current', level=logging.WARNING)

    run_on_first_rank(check)


def loaded_datasets(runner: Runner) -> dict[str, Dataset]:
    """Return the datasets of a training, by their dataloader in the config."""
    loaded = dict(train_dataloader=runner.train_dataloader.dataset)
    if runner.val_loop is not None:
        loaded['val_dataloader'] = runner.val_loop.dataloader.dataset
    return loaded


def iter_datasets(dataset: Any) -> Iterator[Any]:
    """Yield the datasets that read files, of a dataset that may wrap others."""
    if isinstance(dataset, JoinedDatasets):
        for part in dataset.datasets:
            yield from iter_datasets(part)
    elif isinstance(dataset, WrappedDataset):
        yield from iter_datasets(dataset.dataset)
    else:
        yield dataset


def _has_instances(dataset: Any) -> bool:
    """Return True if a dataset has a segment or instance to learn from, or is not from mmdet."""
    detection = find_class('mmdet.BaseDetDataset', DATASETS)
    if detection is None or not isinstance(dataset, detection):
        return True
    steps = dataset.pipeline.transforms if isinstance(dataset.pipeline, Compose) else ()
    polygons_only = loads_only_polygons(steps)
    for index in range(len(dataset)):
        info = dataset.get_data_info(index)
        instances = info.get('instances')
        if info.get('segments_info') or instances is None or not all(
                instance.get('ignore_flag')
                or polygons_only and isinstance(instance.get('mask'), dict)
                for instance in instances):
            return True
    return False


def loads_only_polygons(steps: Iterable[Any]) -> bool:
    """Return True if mmdet's step that loads masks omits RLEs.

    Args:
        steps: Settings or objects of pipeline steps. Custom ones may convert RLEs to polygons.
    """
    loader = find_class('mmdet.LoadAnnotations', TRANSFORMS)
    for step in steps:
        cls = find_class(step.get('type'), TRANSFORMS) if isinstance(step, dict) else type(step)
        if is_custom_class(cls):
            return False
        if cls is loader:
            settings = step if isinstance(step, dict) else vars(step)
            if settings.get('with_mask'):
                return settings.get('poly2mask') is False
    return False


def _explain_nothing_to_learn(cfg: Config) -> Finding:
    datasets = dict(find_datasets(cfg, ('train_dataloader', )))
    reasons = [f'  {name}: {_describe_dataset(dataset)}' for name, dataset in datasets.items()]
    text = '\n'.join(['there is nothing to train on:', *reasons])
    return Finding('nothing-to-learn', text, tuple(datasets))


def _describe_dataset(dataset: ConfigDict) -> str:
    """Return what a dataset has, and why training cannot use it."""
    paths = get_dataset_paths(dataset)
    if reads_categories(dataset) and paths and os.path.isfile(paths[0]):
        return _describe_annotations(load_json(Path(paths[0])), dataset, paths[0])
    built = build_lazily(dataset)
    number = len(built.load_data_list())
    location = ', '.join(paths)
    if number:
        return f'none of the {number} images of {location} has an annotation to train on'
    ending = vars(built).get('img_suffix')  # exists in mmseg's datasets
    suffix = f' that end in {ending}' if ending is not None else ''
    return f'no images{suffix} in {location}'


def _describe_annotations(content: dict[str, Any], dataset: ConfigDict, ann_file: str) -> str:
    classes = get_dataset_classes(dataset) or ()
    known = {each['id'] for each in content['categories'] if each['name'] in classes}
    images = {image['id']: image for image in content['images']}
    polygons_only = loads_only_polygons(dataset.get('pipeline') or ())
    counts = Counter(
        _classify_annotation(annotation | each, images, known, polygons_only)
        for annotation in content.get('annotations', [])
        for each in annotation.get('segments_info', [annotation]))
    min_size = (dataset.get('filter_cfg') or {}).get('min_size', 0)
    num_small = sum(min(image['width'], image['height']) < min_size for image in images.values())
    reasons = ', '.join(f'{number} {reason}' for reason, number in counts.items())
    text = (f'{ann_file} has {len(images)} images and {sum(counts.values())} annotations'
            f'{f" ({reasons})" if reasons else ""}; the classes are {format_names(classes, 8)}')
    if num_small:
        text += f'; {num_small} images are smaller than filter_cfg.min_size {min_size}'
    return text


def _classify_annotation(annotation: dict[str, Any], images: dict[int, dict[str, Any]],
                         known: set[int], polygons_only: bool) -> str:
    """Return why mmdet does not train on an annotation."""
    image = images.get(annotation.get('image_id', -1))
    if annotation.get('category_id') not in known:
        return 'of other classes'
    omission = explain_omission({'area': 1, **annotation}, image)
    if omission and omission[0] == 'not-trained':
        return 'to be ignored'
    if annotation.get('iscrowd'):
        return 'crowds'
    if image is None:
        return 'of unknown images'
    if omission:
        return 'without area in the image'
    if polygons_only and isinstance(annotation.get('segmentation'), dict):
        return 'RLEs, though the pipeline has poly2mask=False'
    return 'usable, if their image is'


def find_shared_images(training: Iterable[str], validation: list[str]) -> list[str]:
    """Return the validation images that are also in training, or have a copy or link there.

    Copies and links are detected if they have the same name, and only for ``MAX_COMPARED`` files of
    each dataset.
    """
    known = dict.fromkeys(validation)
    shared: set[str] = set()
    namesakes: dict[str, list[str]] = {os.path.basename(path): [] for path in known}
    for path in training:
        if path in known:
            shared.add(path)
        if (same_name := namesakes.get(os.path.basename(path))) is not None:
            same_name.append(path)
    rest = [path for path in known if path not in shared and namesakes[os.path.basename(path)]]
    names = dict.fromkeys(sample_evenly(sorted(set(map(os.path.basename, rest))), MAX_COMPARED))
    candidates: dict[tuple[str, int], list[str]] = {}
    for path in [path for name in names for path in namesakes[name]][:MAX_COMPARED]:
        candidates.setdefault(_get_name_and_size(path), []).append(path)
    for path in [path for path in rest if os.path.basename(path) in names][:MAX_COMPARED]:
        if any(_is_same(path, other) for other in candidates.get(_get_name_and_size(path), ())):
            shared.add(path)
    return [path for path in known if path in shared]


def _get_name_and_size(path: str) -> tuple[str, int]:
    try:
        return os.path.basename(path), os.path.getsize(path)
    except OSError:  # reported when the image is loaded
        return os.path.basename(path), -1


def _is_same(path: str, other: str) -> bool:
    """Return True if two paths lead to the same file, or to files with the same content."""
    try:
        return os.path.samefile(path, other) or filecmp.cmp(path, other, shallow=False)
    except OSError:  # missing image
        return False
