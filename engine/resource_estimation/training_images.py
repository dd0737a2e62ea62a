"""Number of training images and objects, and sizes of the images in a batch."""
from __future__ import annotations

import mmap
import os
import random
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle, islice
from math import prod
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from mmengine.config import Config, ConfigDict
from mmengine.registry import DATASETS, TRANSFORMS

from colonnade.common.errors import UserCodeError, UserError
from colonnade.datasets.bands import find_band_loader
from colonnade.datasets.validation.image_files import read_image_size
from colonnade.runtime.images import SUFFIXES
from colonnade.settings.dataset_paths import find_datasets, get_dataset_paths
from colonnade.settings.reading import report_third_party_errors
from colonnade.settings.registries import find_class

Size = tuple[int, int]  # height, width

NUM_READ = 24  # images whose size is read
NUM_DRAWS = 300  # runs of the pipeline: the largest of a dozen scales meets each shape of images
NUM_BATCHES = 200
STRIPE = 16  # height of the stripes of a label, so that crops with two labels can be found
#: sizes of photographs, if no images are found: mostly 3:4, some upright, some wide
PHOTOGRAPHS = ((480, 640), ) * 5 + ((640, 480), ) * 3 + ((480, 800), ) * 2
#: prefixes of transforms that need files or keep sizes
WITHOUT_SIZE = ('Load', 'Pack', 'PhotoMetric', 'YOLOXHSV')


@dataclass(frozen=True)
class DataCounts:
    """Training data, as far as known without parsing annotations.

    Attributes:
        images: Number of images, also those without objects. None if they are not found.
        objects: Mean number of objects per image. None if annotations do not have them.
        sizes: Height and width of some images.
    """
    images: int | None
    objects: float | None
    sizes: tuple[Size, ...]


def count_data(cfg: Config) -> DataCounts:
    """Return what is found of the training data of a config."""
    datasets = [dataset for _, dataset in find_datasets(cfg, ('train_dataloader', ))]
    files = [path for each in datasets for path in get_dataset_paths(each)
             if path.endswith('.json') and os.path.isfile(path)]  # yapf: disable
    objects, images = (sum(_count_key(path, key) for path in files)
                       for key in ('bbox', 'file_name'))  # yapf: disable
    return DataCounts(
        count_images(cfg.train_dataloader.dataset),
        objects / images if objects and images else None,
        tuple(size for each in datasets for size in _read_sizes(each)))


def count_images(dataset: ConfigDict) -> int | None:
    """Return the length of a dataset or of one that wraps others; None if it is not known."""
    if 'datasets' in dataset:
        counts = [count_images(part) for part in dataset.datasets]
        return None if None in counts else sum(filter(None, counts))
    if 'dataset' in dataset:
        inner = count_images(dataset.dataset)
        return None if inner is None else inner * dataset.get('times', 1)
    paths = get_dataset_paths(dataset)
    if not paths or not all(map(os.path.exists, paths)):
        return None
    if files := [path for path in paths if path.endswith('.json')]:
        return sum(_count_key(path, 'file_name') for path in files) or None
    if find_class(dataset.type, DATASETS) is None:
        return None
    with suppress(UserCodeError), report_third_party_errors(''):  # training will report them
        settings: dict[str, Any] = dict(dataset, lazy_init=True, pipeline=[])
        return len(DATASETS.build(settings).load_data_list())  # it lists files
    return None


def _count_key(path: str, key: str) -> int:
    """Return how often a key occurs in a JSON file."""
    with open(path, 'rb') as file:
        if not os.fstat(file.fileno()).st_size:
            return 0
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return sum(1 for _ in re.finditer(rb'"%s"\s*:' % key.encode(), content))


def _read_sizes(dataset: ConfigDict) -> Iterator[Size]:
    """Yield height and width of the first images of a dataset."""
    prefixes = dataset.get('data_prefix') or {}
    prefix = prefixes.get('img', prefixes.get('img_path', ''))
    folder = Path(dataset.get('data_root') or '', prefix)
    files = (path for path in folder.rglob('*') if path.suffix.lower() in SUFFIXES)
    num_bands = 0 if find_band_loader(dataset.get('pipeline')) else None
    for path in islice(files, NUM_READ) if prefix and folder.is_dir() else ():
        width, height = read_image_size(path, num_bands=num_bands)  # only reads the header
        yield height, width


def compute_model_sizes(cfg: Config, sources: Sequence[Size],
                        image_size: Size | None) -> tuple[Size, float]:
    """Return the largest size to which a model pads images, and the mean pixels of an image.

    Args:
        cfg: Config of a training.
        sources: Sizes of images of the dataset; those of photographs if empty.
        image_size: Size of all images instead of those that the pipeline makes.
    """
    if image_size:
        largest, mean_pixels = image_size, 0.
    else:
        largest, mean_pixels = compute_batch_sizes(cfg, sources)
    settings = cfg.model.get('data_preprocessor') or {}
    padded = [largest]
    if settings.get('size'):
        padded.append(tuple(settings['size']))
    else:
        divisor = settings.get('pad_size_divisor') or settings.get('size_divisor') or 1
        padded = [(-(-largest[0] // divisor) * divisor, -(-largest[1] // divisor) * divisor)]
        padded += [tuple(augment['size']) for augment in settings.get('batch_augments') or ()
                   if augment.get('size') and 'Pad' in str(augment.get('type'))]  # yapf: disable
    size = _compute_common_size(padded)
    return size, prod(size) if image_size or settings.get('size') else mean_pixels


def compute_batch_sizes(cfg: Config, sources: Sequence[Size]) -> tuple[Size, float]:
    """Return the largest size of a batch, and the mean pixels of an image in a batch.

    Images are padded to their common size. Sizes are those that the training pipeline makes of
    blank images. A batch sampler by aspect ratio separates wide images from upright ones.
    """
    advice = 'pass --image-size HEIGHT WIDTH'
    random.seed(0)
    np.random.seed(0)
    with report_third_party_errors(
            f'the training pipeline cannot be run on a blank image: {advice}'):
        transforms = list(map(TRANSFORMS.build, _iter_transforms(cfg.train_dataloader.dataset)))
        images = list(islice(cycle(sources or PHOTOGRAPHS), NUM_DRAWS))
        sizes = [_compute_output_size(transforms, size, cfg.default_scope) for size in images]
    if not sources and list(map(sorted, sizes)) == list(map(sorted, images)):
        raise UserError('the training pipeline does not resize images, and no image was '
                        f'found: {advice}')
    data = cfg.train_dataloader
    groups = [sizes]
    if 'AspectRatio' in str((data.get('batch_sampler') or {}).get('type')):
        groups = [[s for s in sizes if s[0] < s[1]], [s for s in sizes if s[0] >= s[1]]]
    batches = [
        _compute_common_size(random.choices(group, k=data.batch_size)) for group in groups if group
        for _ in range(NUM_BATCHES * len(group) // len(sizes) + 1)
    ]
    largest = [_compute_common_size(group) if data.batch_size > 1 else max(group, key=prod)
               for group in groups if group]  # yapf: disable
    return max(largest, key=prod), mean(map(prod, batches))


def _compute_common_size(sizes: Sequence[Size]) -> Size:
    return max(height for height, _ in sizes), max(width for _, width in sizes)


def _iter_transforms(dataset: ConfigDict) -> Iterator[dict[str, Any]]:
    """Yield the transforms of a dataset that may change sizes, innermost first."""
    inner = dataset.get('dataset') or (dataset.get('datasets') or [None])[0]
    if inner is not None:
        yield from _iter_transforms(inner)
    for settings in dataset.get('pipeline') or ():
        if not str(settings['type']).rpartition('.')[2].startswith(WITHOUT_SIZE):
            yield settings


def _compute_output_size(transforms: Sequence[Any], source: Size, library: str) -> Size:
    """Return the size that a blank image gets in a pipeline of mmdet or mmseg."""
    image = _build_blank_image(*source, library)
    for transform in transforms:
        if hasattr(transform, 'get_indices'):  # mixes images
            image['mix_results'] = [_build_blank_image(*source, library) for _ in range(3)]
        changed = transform(image)
        image = image if changed is None else changed  # None drops images without objects
    height, width = image['img'].shape[:2]
    return height, width


def _build_blank_image(height: int, width: int, library: str) -> dict[str, Any]:
    """Return an image of a pipeline, with a label map and, in mmdet, one object."""
    labels = np.zeros((height, width), np.uint8)
    labels[np.arange(height) // STRIPE % 2 == 1] = 1
    image = dict(
        img=np.zeros((height, width, 3), np.uint8),
        img_path='',
        img_id=0,
        img_shape=(height, width),
        ori_shape=(height, width),
        height=height,
        width=width,
        gt_seg_map=labels,
        seg_fields=['gt_seg_map'])
    if library == 'mmdet':
        from mmdet.structures.bbox import HorizontalBoxes  # slow to import
        from mmdet.structures.mask import BitmapMasks
        image |= dict(
            gt_bboxes=HorizontalBoxes([[width / 4, height / 4, width * 3 / 4, height * 3 / 4]]),
            gt_bboxes_labels=np.zeros(1, np.int64),
            gt_ignore_flags=np.zeros(1, bool),
            gt_masks=BitmapMasks(np.ones((1, height, width), np.uint8), height, width))
    return image
