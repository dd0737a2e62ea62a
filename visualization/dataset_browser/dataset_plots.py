"""Plots of a data set's numbers, training and validation beside each other."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from colonnade.common.plots import COLORS, new_figure, shorten_label

from .statistics import GRID, LARGE, SMALL, LabelNumbers, Numbers, ObjectNumbers

Plot = tuple[str, Figure]  # caption and plot
MOST_CLASSES = 25  # of bars
MOST_TOGETHER = 20  # of the matrix of classes
MOST_SIZES = 2000  # points of the plot of image sizes
BARS = 32  # of a histogram
LONGEST = 18  # letters of a class's name in a plot


def legend_above(drawn: Figure, **style: Any) -> None:
    """Names of splits where they cover no data."""
    drawn.legend(loc='outside upper right', ncols=3, frameon=False, **style)


def class_bars(numbers: Sequence[Numbers], what: str) -> Plot:
    """Shares of classes, the most frequent of the first split first."""
    order = numbers[0].frequent(MOST_CLASSES)[::-1]
    drawn, axes = new_figure(5.6, 1.35 + 0.21 * max(len(order), 2))
    height, places = 0.8 / len(numbers), np.arange(len(order))
    for index, found in enumerate(numbers):
        shares = found.amounts[order] / max(found.amounts.sum(), 1)
        axes.barh(
            places + 0.4 - height * (index + 0.5),
            shares * 100,
            height,
            label=found.name,
            color=COLORS[index])
    axes.set_yticks(
        places, [shorten_label(numbers[0].classes[i], LONGEST) for i in order], fontsize=8)
    axes.set_ylim(-0.6, max(len(order), 1) - 0.4)
    axes.grid(False, axis='y')
    axes.set_xlabel(f'share of all {what}, %')
    legend_above(drawn)
    occurring = len(numbers[0].frequent(len(numbers[0].classes)))
    left = occurring - len(order)
    rest = f' The {len(order)} most frequent; {left} others are in the table.' if left else ''
    return f'Classes by their share of {what}.{rest}', drawn


def histogram(numbers: Sequence[Numbers],
              values: Callable[[Any], np.ndarray],
              label: str,
              caption: str,
              *,
              log: bool = False,
              lines: Sequence[float] = (),
              counted: str = 'images') -> Plot:
    """The distribution of a quantity in each split, in percent of what is counted."""
    drawn, axes = new_figure(5.6, 2.9)
    found = [np.asarray(values(each), dtype=float) for each in numbers]
    found = [each[each > 0] if log else each for each in found]
    everything = np.concatenate(found)
    edges = edges_of(everything, log=log)
    for index, (each, split) in enumerate(zip(found, numbers, strict=True)):
        if len(each):
            axes.hist(
                each,
                edges,
                weights=np.full(len(each), 100 / len(each)),
                label=split.name,
                histtype='stepfilled' if index == 0 else 'step',
                color=COLORS[index],
                alpha=0.45 if index == 0 else 1,
                linewidth=1.6)
    for line in lines:
        axes.axvline(line, color='#333333', linestyle=':', linewidth=1)
    if log:
        axes.set_xscale('log')
        steps = (1, 2, 5) if edges[-1] > 10 * edges[0] else (1, 1.5, 2, 3, 5, 7)
        axes.xaxis.set_major_locator(LogLocator(subs=steps))
        axes.xaxis.set_major_formatter('{x:g}')
        axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(label)
    axes.set_ylabel(f'{counted}, %')
    if any(map(len, found)):
        legend_above(drawn)
    return caption, drawn


def edges_of(values: np.ndarray, *, log: bool) -> np.ndarray:
    """The borders of a histogram's bars; whole numbers get bars of their own where they fit."""
    if not len(values):
        return np.array([0.5, 1.5])
    low, high = float(values.min()), float(values.max())
    if log:
        return np.geomspace(low * 0.98, high * 1.02, BARS + 1)
    if (values == values.round()).all():
        step = max(1, int(np.ceil((high - low + 1) / BARS)))
        return np.arange(low - 0.5, high + step + 0.5, step)
    return np.linspace(low, high if high > low else low + 1, BARS + 1)


def image_sizes(numbers: Sequence[Numbers]) -> Plot:
    """Width against height of images; larger points stand for more images."""
    drawn, axes = new_figure(5.6, 3.8)
    for index, found in enumerate(numbers):
        if not len(found.sizes):
            continue
        sizes, counts = np.unique(found.sizes, axis=0, return_counts=True)
        order = np.argsort(-counts, kind='stable')[:MOST_SIZES]
        area = 14 + 120 * counts[order] / counts.max()
        axes.scatter(
            sizes[order, 0],
            sizes[order, 1],
            s=area,
            label=found.name,
            alpha=0.5,
            color=COLORS[index],
            linewidths=0,
            rasterized=len(order) > 300)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel('width, pixels')
    axes.set_ylabel('height, pixels')
    if any(len(found.sizes) for found in numbers):
        legend_above(drawn, markerscale=0.8)
    return 'Sizes of images. A larger point stands for more images.', drawn


def centres(found: ObjectNumbers) -> Plot:
    """Where in their images objects are."""
    drawn, axes = new_figure(3.4, 2.6)
    share = found.centres / max(found.centres.sum(), 1) * GRID**2
    shown = axes.imshow(share, cmap='viridis', extent=(0, 1, 1, 0), aspect='auto', vmin=0)
    drawn.colorbar(shown, label='boxes, 1 if evenly spread')
    bare(axes)
    axes.set_title(found.name, fontsize=10)
    return (f'Centres of boxes, {found.name}, in the area of an image. Bright: many boxes; 1 is as '
            'many as if they were evenly spread.'), drawn


def bare(axes: Axes) -> None:
    """No grid and no ticks."""
    axes.grid(False)
    axes.set_xticks([])
    axes.set_yticks([])


def together(found: Numbers) -> Plot:
    """How often images of one class have another, too."""
    order = found.frequent(MOST_TOGETHER)
    matrix = found.together[np.ix_(order, order)].astype(float)
    shares = matrix / np.maximum(np.diag(matrix), 1)[:, None] * 100
    side = 1.7 + 0.18 * max(len(order), 6)
    drawn, axes = new_figure(side + 0.5, side)
    shown = axes.imshow(shares, cmap='Blues', vmin=0, vmax=100)
    names = [shorten_label(found.classes[i], LONGEST) for i in order]
    axes.set_xticks(range(len(order)), names, rotation=90, fontsize=8)
    axes.set_yticks(range(len(order)), names, fontsize=8)
    axes.grid(False)
    drawn.colorbar(shown, label='% of the images', shrink=0.7)
    occurring = len(found.frequent(len(found.classes)))
    left = occurring - len(order)
    rest = f' {left} less frequent classes are left out.' if left else ''
    return (f'Classes together, {found.name}: of the images with the class at the left, how many '
            f'have the one beneath, in percent.{rest}'), drawn


def of_objects(numbers: Sequence[ObjectNumbers]) -> list[Plot]:
    """All plots of objects."""
    limits = SMALL**0.5, LARGE**0.5
    return [
        class_bars(numbers, 'objects'),
        together(numbers[0]),
        histogram(numbers, lambda n: n.per_image, 'objects of an image', 'Objects of an image.'),
        histogram(numbers, lambda n: np.sqrt(n.sides.prod(axis=1)),
                  'square root of width x height, pixels',
                  'Sizes of boxes. Dotted lines: 32 and 96 pixels, where COCO\'s medium begins and '
                  'ends.', log=True, lines=limits, counted='objects'),
        histogram(numbers, lambda n: n.relative * 100,
                  'square root of the share of the image, %',
                  'Sizes of boxes relative to their images.', log=True, counted='objects'),
        histogram(numbers, lambda n: n.sides[:, 0] / np.maximum(n.sides[:, 1], 1e-9),
                  'width / height', 'Aspect ratios of boxes.', log=True, lines=(1, ),
                  counted='objects'),
        image_sizes(numbers),
        histogram(numbers, ratios, 'width / height', 'Aspect ratios of images.', log=True,
                  lines=(1, )),
        *map(centres, numbers),
    ]  # yapf: disable


def ratios(found: Numbers) -> np.ndarray:
    """Width over height of images."""
    return found.sizes[:, 0] / np.maximum(found.sizes[:, 1], 1)


def of_labels(numbers: Sequence[LabelNumbers]) -> list[Plot]:
    """All plots of label maps."""
    return [
        class_bars(numbers, 'labelled pixels'),
        together(numbers[0]),
        histogram(numbers, lambda n: n.unlabelled * 100, 'unlabelled pixels of an image, %',
                  'Share of unlabelled pixels.'),
        histogram(numbers, ratios, 'width / height', 'Aspect ratios of images.', log=True,
                  lines=(1, )),
        image_sizes(numbers),
    ]  # yapf: disable
