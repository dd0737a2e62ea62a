"""How many images and objects a training has, found without loading annotations."""
from __future__ import annotations

import mmap
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from mmengine.config import Config, ConfigDict
from mmengine.registry import DATASETS
from PIL import Image

from colonnade.runtime.images import SUFFIXES
from colonnade.settings.dataset_paths import find_datasets, paths_of
from colonnade.settings.registries import find_class

USUAL_OBJECTS = 7  # of an image of COCO 2017: 860,001 in 118,287
LOOKED_AT = 24  # images whose size is read


@dataclass(frozen=True)
class DataCounts:
    """Of the data sets to train on, as far as they are there.

    Attributes:
        images: None if they are not there.
        objects: Of an image in the mean; None where annotations do not say.
        sizes: Height and width of some images.
    """
    images: int | None
    objects: float | None
    sizes: tuple[tuple[int, int], ...]


def data_counts(cfg: Config) -> DataCounts:
    """What is known of the images to train on.

    Annotation files are not parsed. All their images are counted, also those that the data set
    leaves out because they have no objects.

    Args:
        cfg: Of a detector or segmenter.
    """
    dataset = cfg.train_dataloader.dataset
    images = number_of_images(dataset)
    objects = sum(in_file(path, rb'"bbox"\s*:') for path in annotation_files(cfg))
    files = sum(in_file(path, rb'"file_name"\s*:') for path in annotation_files(cfg))
    return DataCounts(images, objects / files if objects and files else None, tuple(sizes_of(cfg)))


def number_of_images(dataset: ConfigDict) -> int | None:
    """Of a data set or one that wraps others, repeated ones each time; None if one is unknown."""
    if 'datasets' in dataset:
        numbers = [number_of_images(part) for part in dataset.datasets]
        return None if None in numbers else sum(filter(None, numbers))
    if 'dataset' in dataset:
        inner = number_of_images(dataset.dataset)
        return None if inner is None else inner * dataset.get('times', 1)
    paths = paths_of(dataset)
    if not paths or not all(map(os.path.exists, paths)):
        return None
    if files := [path for path in paths if path.endswith('.json')]:
        return sum(in_file(path, rb'"file_name"\s*:') for path in files) or None
    return listed(dataset)


def listed(dataset: ConfigDict) -> int | None:
    """The length of a data set that lists files; None if it cannot be built as it stands."""
    if find_class(dataset.type, DATASETS) is None:
        return None
    try:
        settings: dict[str, Any] = dict(dataset, lazy_init=True, pipeline=[])
        return len(DATASETS.build(settings).load_data_list())
    except Exception:  # of classes of others; the training will say it
        return None


def annotation_files(cfg: Config) -> Iterator[str]:
    """The files in COCO's form that are there."""
    for _, dataset in find_datasets(cfg, ('train_dataloader', )):
        for path in paths_of(dataset):
            if path.endswith('.json') and os.path.isfile(path):
                yield path


def in_file(path: str, pattern: bytes) -> int:
    """How often a pattern occurs in a file."""
    with open(path, 'rb') as file:
        if not os.fstat(file.fileno()).st_size:
            return 0
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return sum(1 for _ in re.finditer(pattern, content))


def sizes_of(cfg: Config) -> Iterator[tuple[int, int]]:
    """Height and width of the first images that are found."""
    for _, dataset in find_datasets(cfg, ('train_dataloader', )):
        prefixes = dataset.get('data_prefix') or {}
        folder = prefixes.get('img', prefixes.get('img_path', ''))
        found = Path(dataset.get('data_root') or '', folder)
        files = (path for path in found.rglob('*') if path.suffix.lower() in SUFFIXES)
        for path in islice(files, LOOKED_AT) if folder and found.is_dir() else ():
            with Image.open(path) as image:  # reads the header
                yield image.height, image.width
