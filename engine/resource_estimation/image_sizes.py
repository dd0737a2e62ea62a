"""Which sizes of images the pipeline of a training makes."""
from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from mmengine.config import Config, ConfigDict
from mmengine.registry import TRANSFORMS

from colonnade.common.errors import UserCodeError, UserError

Size = tuple[int, int]  # height, width

#: of photographs, where nothing is known of the images: mostly 3:4, some upright, some wide
USUAL = ((480, 640), ) * 5 + ((640, 480), ) * 3 + ((480, 800), ) * 2
DRAWS = 300  # of the pipeline: the largest of a dozen scales meets each shape of images
BATCHES = 200
STRIPE = 16  # pixels of one label: crops that want two find them
#: beginnings of the names of transforms that need files or keep sizes
OF_NO_SIZE = ('Load', 'Pack', 'PhotoMetric', 'YOLOXHSV')
SIZE_OPTION = 'say --plan-size HEIGHT WIDTH'


@dataclass(frozen=True)
class ImageSizes:
    """Of batches, before the model pads them."""
    largest: Size
    mean_pixels: float  # of an image in its batch


def image_sizes(cfg: Config, sources: Sequence[Size]) -> ImageSizes:
    """The largest images of a batch and the mean, of images that the train pipeline gets.

    The pipeline is run on blank images. Images of a batch are padded to their common size. A batch
    sampler by aspect ratio keeps lying images from upright ones.

    Args:
        cfg: Of a detector or segmenter.
        sources: Sizes of images of the data set; those of usual photographs if empty.

    Raises:
        ValueError: If the sizes do not follow from the config, with what to say instead.
    """
    dataset = cfg.train_dataloader.dataset
    with same_draws():
        try:
            transforms = [TRANSFORMS.build(settings) for settings in transforms_of(dataset)]
            blank = blank_instances if cfg.default_scope == 'mmdet' else blank_image
            drawn = [(source, size_behind(transforms, blank, source))
                     for source in draw_sources(sources or USUAL)]
        except Exception as error:  # of classes of others, which may read files
            raise UserCodeError('the train pipeline cannot be run on a blank image '
                                f'({type(error).__name__}: {error}): {SIZE_OPTION}') from error
        if not sources and all(sorted(source) == sorted(size) for source, size in drawn):
            raise UserError('the train pipeline keeps images at their own size, and none is '
                            f'found to look at: {SIZE_OPTION}')
        return of_batches(cfg, [size for _, size in drawn])


def draw_sources(sources: Sequence[Size]) -> list[Size]:
    """As many sizes as the pipeline is run on."""
    return [sources[index % len(sources)] for index in range(DRAWS)]


def of_batches(cfg: Config, sizes: list[Size]) -> ImageSizes:
    """The largest and the mean of batches that are made of images of these sizes."""
    by_aspect = 'AspectRatio' in str((cfg.train_dataloader.get('batch_sampler') or {}).get('type'))
    groups = [sizes]
    if by_aspect:
        lying = [size for size in sizes if size[0] < size[1]]
        groups = [group for group in (lying, [s for s in sizes if s[0] >= s[1]]) if group]
    count = cfg.train_dataloader.get('batch_size') or 1
    batches = [
        common_size(random.choices(group, k=count)) for group in groups
        for _ in range(BATCHES * len(group) // len(sizes) + 1)
    ]
    largest = [common_size(group) if count > 1 else max(group, key=np.prod) for group in groups]
    return ImageSizes(max(largest, key=np.prod), float(np.mean([h * w for h, w in batches])))


def common_size(sizes: Sequence[Size]) -> Size:
    """What images are padded to, to be in a batch."""
    return max(height for height, _ in sizes), max(width for _, width in sizes)


def size_behind(transforms: Sequence[Any], blank: Callable[..., dict[str, Any]],
                source: Size) -> Size:
    """The size that a blank image gets in a pipeline."""
    image = blank(*source)
    for transform in transforms:
        if hasattr(transform, 'get_indices'):  # mixes images
            image['mix_results'] = [blank(*source) for _ in range(3)]
        changed = transform(image)
        image = image if changed is None else changed  # dropped, as images without objects are
    height, width = image['img'].shape[:2]
    return height, width


def transforms_of(dataset: ConfigDict) -> Iterator[dict[str, Any]]:
    """Those of a data set, innermost first, but for what loads files, packs, or changes colours."""
    inner = dataset.get('dataset') or (dataset.get('datasets') or [None])[0]
    if inner is not None:
        yield from transforms_of(inner)
    for settings in dataset.get('pipeline') or ():
        if not str(settings['type']).rpartition('.')[2].startswith(OF_NO_SIZE):
            yield settings


def blank_image(height: int, width: int) -> dict[str, Any]:
    """What pipelines hold of an image whose pixels are labelled."""
    labels = np.zeros((height, width), np.uint8)
    labels[np.arange(height) // STRIPE % 2 == 1] = 1
    return dict(
        img=np.zeros((height, width, 3), np.uint8),
        img_path='',
        img_id=0,
        img_shape=(height, width),
        ori_shape=(height, width),
        height=height,
        width=width,
        gt_seg_map=labels,
        seg_fields=['gt_seg_map'])


def blank_instances(height: int, width: int) -> dict[str, Any]:
    """What mmdet's pipelines hold of an image with one object."""
    from mmdet.structures.bbox import HorizontalBoxes  # imports much
    from mmdet.structures.mask import BitmapMasks
    corners = [width / 4, height / 4, width * 3 / 4, height * 3 / 4]
    return dict(
        blank_image(height, width),
        gt_bboxes=HorizontalBoxes([corners]),
        gt_bboxes_labels=np.zeros(1, np.int64),
        gt_ignore_flags=np.zeros(1, bool),
        gt_masks=BitmapMasks(np.ones((1, height, width), np.uint8), height, width))


@contextmanager
def same_draws() -> Iterator[None]:
    """While open, numpy and Python draw the same numbers each time; then they go on as before."""
    states = random.getstate(), np.random.get_state()
    random.seed(0)
    np.random.seed(0)
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
