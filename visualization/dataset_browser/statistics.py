"""Statistics of a dataset: number, size, class and position of objects, co-occurrence of classes.

Shapes: ``I`` images, ``K`` classes, ``N`` objects that are not crowds.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ..html_pages import plots
from .dataset_reader import ImageSet
from .image_scan import LabelCounts
from .objects import Objects

SMALL, LARGE = 32**2, 96**2  # pixels: COCO's limits of medium objects
MIN_PER_CLASS = 10  # objects of a class, or images of a class in label maps; fewer are suspicious
GRID = 24  # rows and columns of the map of box centers
MAX_CLASSES = 25  # classes in the plot of frequencies
MAX_TOGETHER = 20  # classes in the co-occurrence matrix
ABOUT_SIZES = ("Sizes of boxes. Dotted lines: 32 and 96 pixels, COCO's limits of medium objects.")


@dataclass(frozen=True)
class Statistics:
    """Statistics of a split."""
    name: str  # name of the split
    classes: tuple[str, ...]  # class names
    sizes: np.ndarray  # width and height of the images, (I, 2), where they are known
    amounts: np.ndarray  # number of objects, or pixels in label maps, of each class, (K,)
    images: np.ndarray  # number of images of each class, (K,)
    num_images: int  # number of images in the split
    together: np.ndarray  # number of images that contain both classes, (K, K)

    def rank_classes(self) -> np.ndarray:
        """Return the classes that occur, most frequent first."""
        order = np.argsort(-self.amounts, kind='stable')
        return order[self.amounts[order] > 0]

    def describe(self) -> dict[str, str]:
        """Return counts and sizes by name."""
        facts = {'images': f'{self.num_images:,}', **self.describe_annotations(),
                 'classes': f'{len(self.classes)}',
                 'classes that do not occur': f'{int((self.amounts == 0).sum())}'}  # yapf: disable
        if len(self.sizes):
            area = self.sizes.prod(axis=1)
            for name, index in (('smallest', area.argmin()), ('largest', area.argmax())):
                width, height = self.sizes[index]
                facts[f'{name} image'] = f'{width} x {height}'
        return facts

    def describe_annotations(self) -> dict[str, str]:
        """Return counts of annotations by name."""
        raise NotImplementedError


@dataclass(frozen=True)
class ObjectStatistics(Statistics):
    """Statistics of objects."""
    per_image: np.ndarray  # number of objects in each image, (I,)
    crowds: int  # number of crowds and objects to be ignored
    sides: np.ndarray  # width and height of boxes, (N, 2)
    areas: np.ndarray  # areas of objects, (N,)
    relative: np.ndarray  # square root of a box's share of the image area, (N,)
    centers: np.ndarray  # number of box centers in each cell of the image, (GRID, GRID)

    def count_by_size(self) -> tuple[int, int, int]:
        """Return the number of small, medium and large objects as defined by COCO."""
        small, large = int((self.areas < SMALL).sum()), int((self.areas >= LARGE).sum())
        return small, len(self.areas) - small - large, large

    def describe_annotations(self) -> dict[str, str]:
        """Return counts of annotations by name."""
        total, per_image = len(self.areas), self.per_image
        small, medium, large = (f'{count:,} ({format_percent(count, total)})'
                                for count in self.count_by_size())
        return {
            'objects': f'{total:,}',
            'crowds and objects to be ignored': f'{self.crowds:,}',
            'images without objects': f'{int((per_image == 0).sum()):,}',
            'objects per image, mean': f'{per_image.mean():.1f}' if len(per_image) else '–',
            'objects per image, maximum': f'{per_image.max(initial=0)}',
            'small objects, below 32² pixels': small,
            'medium objects': medium,
            'large objects, from 96² pixels': large
        }


@dataclass(frozen=True)
class LabelStatistics(Statistics):
    """Statistics of label maps."""
    num_maps: int  # number of label maps that were decoded
    unlabeled: np.ndarray  # fraction of unlabeled pixels in each, (num_maps,)
    total: int  # number of all pixels

    def describe_annotations(self) -> dict[str, str]:
        """Return counts of annotations by name."""
        unlabeled = self.total - int(self.amounts.sum())
        return {
            'label maps counted': f'{self.num_maps:,}',
            'pixels': f'{self.total:,}',
            'unlabeled pixels': format_percent(unlabeled, self.total)
        }


def format_percent(part: int, whole: int) -> str:
    """Return a ratio as text."""
    return f'{part / whole:.1%}' if whole else '–'


def compute_statistics(data: ImageSet, counts: LabelCounts | None = None) -> Statistics:
    """Return the statistics of a split; label maps need their counts."""
    if data.objects is not None:
        return compute_object_statistics(data, data.objects)
    assert counts is not None
    pixels = counts.pixels
    has = (pixels[:, :-1] > 0).astype(np.int64)
    total = pixels.sum(axis=1)
    return LabelStatistics(
        name=data.name,
        classes=data.classes,
        sizes=counts.sizes,
        amounts=pixels[:, :-1].sum(axis=0),
        images=has.sum(axis=0),
        num_images=len(data),
        together=has.T @ has,
        num_maps=len(pixels),
        unlabeled=pixels[:, -1] / np.maximum(total, 1),
        total=int(total.sum()))


def compute_object_statistics(data: ImageSet, objects: Objects) -> ObjectStatistics:
    """Return the statistics of objects."""
    chosen, num_classes = objects.singles, len(data.classes)
    labels, images = objects.labels[chosen], objects.images[chosen]
    pairs = np.unique(images * num_classes + labels)  # image and class, each once
    sizes = np.maximum(data.sizes[images], 1)
    sides = np.maximum(objects.sides[chosen], 0)
    centers = (objects.boxes[chosen, :2] + objects.boxes[chosen, 2:]) / 2 / sizes
    cells, *_ = np.histogram2d(centers[:, 1], centers[:, 0], bins=GRID, range=[[0, 1], [0, 1]])
    pair_images, pair_labels = np.divmod(pairs, max(num_classes, 1))
    together = np.zeros((num_classes, num_classes), np.int64)
    for label in range(num_classes):  # A matrix of images and classes would need much memory.
        has = np.isin(pair_images, pair_images[pair_labels == label])
        together[label] = np.bincount(pair_labels[has], minlength=num_classes)
    return ObjectStatistics(
        name=data.name,
        classes=data.classes,
        sizes=data.sizes[(data.sizes > 0).all(axis=1)],
        amounts=np.bincount(labels, minlength=num_classes),
        images=np.bincount(pair_labels, minlength=num_classes),
        num_images=len(data),
        together=together,
        per_image=objects.count_per_image(len(data)),
        crowds=len(objects) - len(chosen),
        sides=sides,
        areas=objects.areas[chosen],
        relative=np.sqrt(sides.prod(axis=1) / sizes.prod(axis=1)),
        centers=cells)


def plot_statistics(splits: Sequence[Statistics]) -> list[tuple[str, Figure]]:
    """Return captions and plots of all splits, of objects or label maps."""

    def histogram(select: Callable[[Any], np.ndarray], xlabel: str, caption: str,
                  **style: Any) -> tuple[str, Figure]:
        series = {split.name: np.asarray(select(split), dtype=float) for split in splits}
        return caption, plots.draw_histograms(series, xlabel, **style)

    sizes = [
        ('Sizes of images. A larger point stands for more images.',
         plots.draw_sizes({split.name: split.sizes for split in splits})),
        histogram(lambda s: s.sizes[:, 0] / np.maximum(s.sizes[:, 1], 1), 'width / height',
                  'Aspect ratios of images.', log=True, lines=(1, ))]  # yapf: disable
    classes = [plot_classes(splits), plot_together(splits[0])]
    if isinstance(splits[0], LabelStatistics):
        return [*classes, histogram(lambda s: s.unlabeled * 100, 'unlabeled pixels, %',
                                    'Unlabeled pixels per image.'), *sizes]  # yapf: disable
    return [
        *classes,
        histogram(lambda s: s.per_image, 'objects per image', 'Objects per image.'),
        histogram(lambda s: np.sqrt(s.sides.prod(axis=1)), 'square root of width x height, pixels',
                  ABOUT_SIZES, log=True, lines=(SMALL**0.5, LARGE**0.5), unit='objects'),
        histogram(lambda s: s.relative * 100, 'square root of the share of the image, %',
                  'Sizes of boxes relative to their images.', log=True, unit='objects'),
        histogram(lambda s: s.sides[:, 0] / np.maximum(s.sides[:, 1], 1e-9), 'width / height',
                  'Aspect ratios of boxes.', log=True, lines=(1, ), unit='objects'),
        *sizes,
        *((f'Density of box centers over the image, {split.name}; it would be 1 everywhere if they '
           'were evenly distributed.',
           plots.draw_density(split.centers, split.name, 'boxes, 1 if evenly distributed'))
          for split in splits if isinstance(split, ObjectStatistics)),
    ]  # yapf: disable


def plot_classes(splits: Sequence[Statistics]) -> tuple[str, Figure]:
    """Plot the percentages of classes, in the order of their frequency in the first split."""
    unit = 'labeled pixels' if isinstance(splits[0], LabelStatistics) else 'objects'
    ranked = splits[0].rank_classes()
    order = ranked[:MAX_CLASSES]
    percent = {split.name: 100 * split.amounts[order] / max(split.amounts.sum(), 1)
               for split in splits}  # yapf: disable
    plot = plots.draw_bars([splits[0].classes[i] for i in order], percent, f'% of all {unit}')
    others = len(ranked) - len(order)
    rest = f' The {len(order)} most frequent; {others} others are in the table.' if others else ''
    return f'Classes by percentage of {unit}.{rest}', plot


def plot_together(split: Statistics) -> tuple[str, Figure]:
    """Plot how often images of one class contain another."""
    ranked = split.rank_classes()
    order = ranked[:MAX_TOGETHER]
    matrix = split.together[np.ix_(order, order)].astype(float)
    fractions = matrix / np.maximum(np.diag(matrix), 1)[:, None]
    plot = plots.draw_matrix(fractions, [split.classes[i] for i in order], 'also contain',
                             'images with')  # yapf: disable
    others = len(ranked) - len(order)
    rest = f' {others} less frequent classes are omitted.' if others else ''
    return (f'Co-occurrence of classes, {split.name}: percentage of the images with the class of '
            f'the row that also contain the class of the column.{rest}'), plot
