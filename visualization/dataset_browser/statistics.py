"""Statistics and plots of a dataset: number, size, class and position of objects, co-occurrence.

Shapes: ``I`` images, ``K`` classes, ``N`` objects that are not crowds.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from colonnade.evaluation.plots import COLORS, new_figure, shorten_label

from .dataset_reader import ImageSet
from .image_scan import LabelCounts
from .objects import Objects

SMALL, LARGE = 32**2, 96**2  # pixels: COCO's limits of medium objects
MIN_PER_CLASS = 10  # objects of a class, or images of a class in label maps; fewer are suspicious
GRID = 24  # rows and columns of the map of box centers

Plot = tuple[str, Figure]  # caption and plot
MAX_CLASSES = 25  # bars
MAX_TOGETHER = 20  # classes in the co-occurrence matrix
MAX_SIZES = 2000  # points in the plot of image sizes
NUM_BINS = 32  # in a histogram
MAX_NAME = 18  # characters of a class name


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

    def rank_classes(self, limit: int | None = None) -> np.ndarray:
        """Return the classes that occur, most frequent first."""
        order = np.argsort(-self.amounts, kind='stable')[:limit]
        return order[self.amounts[order] > 0]


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


@dataclass(frozen=True)
class LabelStatistics(Statistics):
    """Statistics of label maps."""
    num_maps: int  # number of label maps that were decoded
    unlabeled: np.ndarray  # fraction of unlabeled pixels in each, (num_maps,)
    total: int  # number of all pixels


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


def add_legend(figure: Figure, **style: Any) -> None:
    """Add the names of splits above the data."""
    figure.legend(loc='outside upper right', ncols=3, frameon=False, **style)


def plot_classes(splits: Sequence[Statistics], unit: str) -> Plot:
    """Plot the fractions of classes, in the order of their frequency in the first split."""
    ranked = splits[0].rank_classes()
    order = ranked[:MAX_CLASSES][::-1]
    figure, axes = new_figure(5.6, 1.35 + 0.21 * max(len(order), 2))
    height, rows = 0.8 / len(splits), np.arange(len(order))
    for index, split in enumerate(splits):
        fractions = split.amounts[order] / max(split.amounts.sum(), 1)
        axes.barh(rows + 0.4 - height * (index + 0.5), fractions * 100, height, label=split.name,
                  color=COLORS[index])  # yapf: disable
    names = [shorten_label(splits[0].classes[i], MAX_NAME) for i in order]
    axes.set_yticks(rows, names, fontsize=8)
    axes.set(ylim=(-0.6, max(len(order), 1) - 0.4), xlabel=f'% of all {unit}')
    axes.grid(False, axis='y')
    add_legend(figure)
    others = len(ranked) - len(order)
    rest = f' The {len(order)} most frequent; {others} others are in the table.' if others else ''
    return f'Classes by percentage of {unit}.{rest}', figure


def plot_histogram(splits: Sequence[Statistics],
                   select: Callable[[Any], np.ndarray],
                   label: str,
                   caption: str,
                   *,
                   log: bool = False,
                   lines: Sequence[float] = (),
                   unit: str = 'images') -> Plot:
    """Plot the distribution of a quantity in each split, in percent of ``unit``."""
    figure, axes = new_figure(5.6, 2.9)
    values = [np.asarray(select(split), dtype=float) for split in splits]
    values = [each[each > 0] if log else each for each in values]
    edges = choose_edges(np.concatenate(values), log=log)
    for index, (each, split) in enumerate(zip(values, splits, strict=True)):
        if len(each):
            style: dict[str, Any] = dict(histtype='step')
            if index == 0:
                style = dict(histtype='stepfilled', alpha=0.45)
            axes.hist(each, edges, weights=np.full(len(each), 100 / len(each)), label=split.name,
                      color=COLORS[index], linewidth=1.6, **style)  # yapf: disable
    for line in lines:
        axes.axvline(line, color='#333333', linestyle=':', linewidth=1)
    if log:
        axes.set_xscale('log')
        steps = (1, 2, 5) if edges[-1] > 10 * edges[0] else (1, 1.5, 2, 3, 5, 7)
        axes.xaxis.set_major_locator(LogLocator(subs=steps))
        axes.xaxis.set_major_formatter('{x:g}')
        axes.xaxis.set_minor_locator(NullLocator())
    axes.set(xlabel=label, ylabel=f'{unit}, %')
    if any(map(len, values)):
        add_legend(figure)
    return caption, figure


def choose_edges(values: np.ndarray, *, log: bool) -> np.ndarray:
    """Return the edges of a histogram's bins; few integers get one bin each."""
    if not len(values):
        return np.array([0.5, 1.5])
    low, high = float(values.min()), float(values.max())
    if log:
        return np.geomspace(low * 0.98, high * 1.02, NUM_BINS + 1)
    if (values == values.round()).all():
        step = max(1, int(np.ceil((high - low + 1) / NUM_BINS)))
        return np.arange(low - 0.5, high + step + 0.5, step)
    return np.linspace(low, high if high > low else low + 1, NUM_BINS + 1)


def plot_image_sizes(splits: Sequence[Statistics]) -> Plot:
    """Plot width against height of images; larger points stand for more images."""
    figure, axes = new_figure(5.6, 3.8)
    for index, split in enumerate(splits):
        if not len(split.sizes):
            continue
        sizes, counts = np.unique(split.sizes, axis=0, return_counts=True)
        order = np.argsort(-counts, kind='stable')[:MAX_SIZES]
        widths, heights = sizes[order].T
        axes.scatter(widths, heights, s=14 + 120 * counts[order] / counts.max(), label=split.name,
                     alpha=0.5, color=COLORS[index], linewidths=0,
                     rasterized=len(order) > 300)  # yapf: disable
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set(xlabel='width, pixels', ylabel='height, pixels')
    if any(len(split.sizes) for split in splits):
        add_legend(figure, markerscale=0.8)
    return 'Sizes of images. A larger point stands for more images.', figure


def plot_centers(split: ObjectStatistics) -> Plot:
    """Plot the density of box centers over the image."""
    figure, axes = new_figure(3.4, 2.6)
    density = split.centers / max(split.centers.sum(), 1) * GRID**2
    image = axes.imshow(density, cmap='viridis', extent=(0, 1, 1, 0), aspect='auto', vmin=0)
    figure.colorbar(image, label='boxes, 1 if evenly distributed')
    axes.grid(False)
    axes.set(xticks=[], yticks=[])
    axes.set_title(split.name, fontsize=10)
    return (f'Density of box centers over the image, {split.name}; it would be 1 everywhere if '
            'they were evenly distributed.'), figure


def plot_together(split: Statistics) -> Plot:
    """Plot how often images of one class contain another."""
    ranked = split.rank_classes()
    order = ranked[:MAX_TOGETHER]
    matrix = split.together[np.ix_(order, order)].astype(float)
    percent = matrix / np.maximum(np.diag(matrix), 1)[:, None] * 100
    side = 1.7 + 0.18 * max(len(order), 6)
    figure, axes = new_figure(side + 0.5, side)
    image = axes.imshow(percent, cmap='Blues', vmin=0, vmax=100)
    names = [shorten_label(split.classes[i], MAX_NAME) for i in order]
    axes.set_xticks(range(len(order)), names, rotation=90, fontsize=8)
    axes.set_yticks(range(len(order)), names, fontsize=8)
    axes.grid(False)
    figure.colorbar(image, label='% of the images', shrink=0.7)
    others = len(ranked) - len(order)
    rest = f' {others} less frequent classes are omitted.' if others else ''
    return (f'Co-occurrence of classes, {split.name}: percentage of the images with the class of '
            f'the row that also contain the class of the column.{rest}'), figure


def plot_statistics(splits: Sequence[Statistics]) -> list[Plot]:
    """Return all plots of objects or label maps."""
    sizes = plot_image_sizes(splits)
    ratios = plot_histogram(splits, lambda s: s.sizes[:, 0] / np.maximum(s.sizes[:, 1], 1),
                            'width / height', 'Aspect ratios of images.', log=True,
                            lines=(1, ))  # yapf: disable
    if isinstance(splits[0], LabelStatistics):
        unlabeled = plot_histogram(splits, lambda s: s.unlabeled * 100, 'unlabeled pixels, %',
                                   'Unlabeled pixels per image.')  # yapf: disable
        return [plot_classes(splits, 'labeled pixels'), plot_together(splits[0]), unlabeled, ratios,
                sizes]  # yapf: disable
    return [
        plot_classes(splits, 'objects'),
        plot_together(splits[0]),
        plot_histogram(splits, lambda s: s.per_image, 'objects per image', 'Objects per image.'),
        plot_histogram(splits, lambda s: np.sqrt(s.sides.prod(axis=1)),
                       'square root of width x height, pixels',
                       "Sizes of boxes. Dotted lines: 32 and 96 pixels, COCO's limits of medium "
                       'objects.', log=True, lines=(SMALL**0.5, LARGE**0.5), unit='objects'),
        plot_histogram(splits, lambda s: s.relative * 100,
                       'square root of the share of the image, %',
                       'Sizes of boxes relative to their images.', log=True, unit='objects'),
        plot_histogram(splits, lambda s: s.sides[:, 0] / np.maximum(s.sides[:, 1], 1e-9),
                       'width / height', 'Aspect ratios of boxes.', log=True, lines=(1, ),
                       unit='objects'),
        sizes,
        ratios,
        *(plot_centers(split) for split in splits if isinstance(split, ObjectStatistics)),
    ]  # yapf: disable
