"""Can a training learn from its data, and is it evaluated on others? Asked of loaded data sets."""
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
from colonnade.settings.dataset_paths import classes_of, find_datasets, paths_of
from colonnade.settings.findings import Finding
from colonnade.settings.registries import find_class, is_users

from .path_checks import image_paths, naming_deep_files
from .validation.coco_files import load_json, why_left_out
from .validation.label_map_files import build_unread, spread

EXAMPLES = 3  # of images, in a warning
COMPARED = 2000  # files of one name in training and validation that are opened
NOTHING = 'need at least one array to concatenate'  # what numpy says of a data set without images


@runtime_checkable
class JoinedDatasets(Protocol):
    """A dataset of others, such as mmengine's and torch's ``ConcatDataset``."""
    datasets: Iterable[Any]


@runtime_checkable
class WrappedDataset(Protocol):
    """A dataset around another one, such as ``RepeatDataset`` and torch's ``Subset``."""
    dataset: Any


def check_loaded_data(runner: Runner, *, allow_external_files: bool = False) -> None:
    """Load the data sets of a training, and look whether it can learn from them.

    A warning says if images of validation are trained on too.

    Args:
        runner: Of the training.
        allow_external_files: Whether annotations may name files anywhere.

    Raises:
        ValueError: If no annotation can be trained on, with the number of those that cannot, or if
            annotations name files that they may not.
    """
    cfg = runner.cfg
    try:
        with naming_deep_files(cfg, ('train_dataloader', )):
            training = list(iter_datasets(runner.train_dataloader.dataset))
    except ValueError as error:
        if NOTHING not in str(error):
            raise
        raise UserError(str(nothing_to_learn(cfg))) from error
    validation: list[Any] = []
    if cfg.get('val_dataloader'):
        with naming_deep_files(cfg, ('val_dataloader', )):
            validation = list(iter_datasets(runner.val_dataloader.dataset))
    run_on_first_rank(lambda: check_entries(cfg, training, validation, allow_external_files))


def check_entries(cfg: Config, training: list[Any], validation: list[Any],
                  allow_external_files: bool) -> None:
    """Look at each image that datasets name, once; images are not opened.

    Raises:
        UserError: As :func:`check_loaded_data`.
    """
    if not any(map(has_instances, training)):
        raise UserError(str(nothing_to_learn(cfg)))
    validated = list(image_paths(validation, allow_external_files=allow_external_files))
    warn_of_shared_images(
        image_paths(training, allow_external_files=allow_external_files), validated)


def loaded_datasets(runner: Runner) -> dict[str, Dataset]:
    """The data sets of a training, by the config's loaders."""
    loaded = dict(train_dataloader=runner.train_dataloader.dataset)
    if runner.val_loop is not None:
        loaded['val_dataloader'] = runner.val_loop.dataloader.dataset
    return loaded


def iter_datasets(dataset: Any) -> Iterator[Any]:
    """The data sets that read files, of a data set that wraps others."""
    if isinstance(dataset, JoinedDatasets):
        for part in dataset.datasets:
            yield from iter_datasets(part)
    elif isinstance(dataset, WrappedDataset):
        yield from iter_datasets(dataset.dataset)
    else:
        yield dataset


def has_instances(dataset: Any) -> bool:
    """Whether a data set has an instance to learn from, or is of another kind."""
    detection = find_class('mmdet.BaseDetDataset', DATASETS)
    if detection is None or not isinstance(dataset, detection):
        return True
    steps = dataset.pipeline.transforms if isinstance(dataset.pipeline, Compose) else ()
    polygons = takes_polygons_alone(steps)
    for index in range(len(dataset)):
        instances = dataset.get_data_info(index).get('instances')
        if instances is None or not all(
                instance.get('ignore_flag') or polygons and isinstance(instance.get('mask'), dict)
                for instance in instances):
            return True
    return False


def takes_polygons_alone(steps: Iterable[Any]) -> bool:
    """Whether mmdet's own step that loads masks leaves out those that are RLEs.

    Args:
        steps: Of a pipeline; settings or what is built of them. A user's may make polygons of RLEs.
    """
    loader = find_class('mmdet.LoadAnnotations', TRANSFORMS)
    for step in steps:
        kind = find_class(step.get('type'), TRANSFORMS) if isinstance(step, dict) else type(step)
        if is_users(kind):
            return False
        if kind is loader:
            settings = step if isinstance(step, dict) else vars(step)
            if settings.get('with_mask'):
                return settings.get('poly2mask') is False
    return False


def nothing_to_learn(cfg: Config) -> Finding:
    """Return why a training has nothing to learn from, for each data set of the config."""
    datasets = dict(find_datasets(cfg, ('train_dataloader', )))
    reasons = [f'  {name}: {describe_dataset(dataset)}' for name, dataset in datasets.items()]
    text = '\n'.join(['there is nothing to train on:', *reasons])
    return Finding('nothing-to-learn', text, tuple(datasets))


def describe_dataset(dataset: ConfigDict) -> str:
    """What a data set has, and what of it cannot be trained on."""
    paths = paths_of(dataset)
    if reads_categories(dataset) and paths and os.path.isfile(paths[0]):
        return describe_annotations(load_json(Path(paths[0])), dataset, paths[0])
    found = build_unread(dataset)
    number = len(found.load_data_list())
    where = ', '.join(paths)
    if number:
        return f'none of the {number} images of {where} has an annotation to train on'
    ending = vars(found).get('img_suffix')  # of mmseg's datasets
    suffix = f' that end in {ending}' if ending is not None else ''
    return f'no images{suffix} in {where}'


def describe_annotations(content: dict[str, Any], dataset: ConfigDict, ann_file: str) -> str:
    """The annotations of a COCO file, by why they cannot be trained on."""
    classes = classes_of(dataset) or ()
    known = {each['id'] for each in content['categories'] if each['name'] in classes}
    images = {image['id']: image for image in content['images']}
    counts = Counter(
        classify_annotation(annotation, images, known,
                            takes_polygons_alone(dataset.get('pipeline') or ()))
        for annotation in content.get('annotations', []))
    settings = dataset.get('filter_cfg') or {}
    least = settings.get('min_size', 0)
    small = sum(min(image['width'], image['height']) < least for image in images.values())
    faults = ', '.join(f'{number} {fault}' for fault, number in counts.items())
    text = (f'{ann_file} has {len(images)} images and {sum(counts.values())} annotations'
            f'{f" ({faults})" if faults else ""}; the classes are {format_names(classes, 8)}')
    if small:
        text += f'; {small} images are smaller than filter_cfg.min_size {least}'
    return text


def classify_annotation(annotation: dict[str, Any], images: dict[int, dict[str, Any]],
                        known: set[int], polygons: bool) -> str:
    """Return why mmdet does not train on an annotation, also where only ``polygons`` are loaded."""
    image = images.get(annotation.get('image_id', -1))
    if annotation.get('category_id') not in known:
        return 'of other classes'
    reason = why_left_out({'area': 1, **annotation}, image)
    if reason and reason[0] == 'not-trained':
        return 'to be ignored'
    if annotation.get('iscrowd'):
        return 'crowds'
    if image is None:
        return 'of no image'
    if reason:
        return 'without area in the image'
    if polygons and isinstance(annotation.get('segmentation'), dict):
        return 'RLEs, and the pipeline says poly2mask=False'
    return 'usable, if their image is'


def warn_of_shared_images(training: Iterable[str], validation: list[str]) -> None:
    """Warn in a line if images of validation are trained on too."""
    shared = shared_images(training, validation)
    if shared:
        text = f'{len(shared)} of {len(set(validation))} images of validation are trained on ' \
               'too, so that evaluations look better than they are: ' \
               f'{format_names(shared, EXAMPLES)}'
        finding = Finding('shared-images', text, tuple(shared))
        print_log(str(finding), logger='current', level=logging.WARNING)


def shared_images(training: Iterable[str], validation: list[str]) -> list[str]:
    """Return the paths in ``validation`` that are also in ``training``, or have a copy there.

    Copies and links are found if they have the same name. Of those, at most ``COMPARED`` files of
    each set are looked at.
    """
    known = dict.fromkeys(validation)
    found: set[str] = set()
    others: dict[str, list[str]] = {os.path.basename(path): [] for path in known}
    for path in training:
        if path in known:
            found.add(path)
        if (same_name := others.get(os.path.basename(path))) is not None:
            same_name.append(path)
    rest = [path for path in known if path not in found and others[os.path.basename(path)]]
    names = dict.fromkeys(spread(sorted(set(map(os.path.basename, rest))), COMPARED))
    candidates: dict[tuple[str, int], list[str]] = {}
    for path in [path for name in names for path in others[name]][:COMPARED]:
        candidates.setdefault(name_and_size(path), []).append(path)
    for path in [path for path in rest if os.path.basename(path) in names][:COMPARED]:
        if any(is_same_image(path, other) for other in candidates.get(name_and_size(path), ())):
            found.add(path)
    return [path for path in known if path in found]


def name_and_size(path: str) -> tuple[str, int]:
    """The name of a file, and its bytes; -1 if it is not there."""
    try:
        return os.path.basename(path), os.path.getsize(path)
    except OSError:  # the loader says it
        return os.path.basename(path), -1


def is_same_image(path: str, other: str) -> bool:
    """Whether two paths lead to the same file, or to files of the same content."""
    try:
        return os.path.samefile(path, other) or filecmp.cmp(path, other, shallow=False)
    except OSError:  # of images that are not there
        return False
