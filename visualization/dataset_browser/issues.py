"""What looks wrong about a data set. It need not be wrong: somebody has to look."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from colonnade.common.name_lists import format_names

from .dataset_reader import ImageSet
from .statistics import FEW, Numbers

WORST = 8  # cases of a kind that are shown
HUGE = 40_000_000  # pixels
MOST_NAMES = 20  # classes that are listed


@dataclass(frozen=True)
class Case:
    """One place to look at.

    Attributes:
        data: The set.
        image: Its index there.
        caption: File, annotations, and what is odd.
        objects: Indices of the objects that it is about.
        points: ``(x, y)`` in pixels of the image, to be marked.
        beside: Another image to be shown beside it.
        shows_image: Whether there is an image that can be shown.
    """
    data: ImageSet
    image: int
    caption: str
    objects: tuple[int, ...] = ()
    points: tuple[tuple[float, float], ...] = ()
    beside: tuple[ImageSet, int] | None = None
    shows_image: bool = True


@dataclass
class Suspicion:
    """All of a kind that look wrong.

    Attributes:
        title: What they are.
        meaning: When something counts as one, and what it may mean.
        counts: How many each split has.
        cases: The worst.
        note: Which they are, where there is nothing to show.
    """
    title: str
    meaning: str
    counts: dict[str, int] = field(default_factory=dict)
    cases: list[Case] = field(default_factory=list)
    note: str = ''

    @property
    def number(self) -> int:
        """In all splits."""
        return sum(self.counts.values())

    def add(self, name: str, number: int, cases: Sequence[Case]) -> None:
        """Those of a split, the worst first."""
        self.counts[name] = self.counts.get(name, 0) + number
        self.cases = [*self.cases, *cases[:max(0, WORST - len(self.cases))]]


def empty_images(sets: Sequence[ImageSet]) -> Suspicion:
    """Images without objects."""
    suspicion = Suspicion(
        'Images without annotations',
        'They teach what is no object, if that is meant. Somebody may also have forgotten them.')
    for data in sets:
        assert data.objects is not None
        found = np.flatnonzero(data.objects.counts(len(data)) == 0)
        cases = [Case(data, int(i), f'{data.name}: {data.file(int(i))}') for i in found[:WORST]]
        suspicion.add(data.name, len(found), cases)
    return suspicion


def huge_images(sets: Sequence[ImageSet], sizes: Sequence[np.ndarray]) -> Suspicion:
    """Images of very many pixels.

    Args:
        sets: The splits.
        sizes: Index, width and height of the images of each whose size is known, ``(I, 3)``.
    """
    suspicion = Suspicion(
        f'Images of more than {HUGE // 10**6} million pixels',
        'Decoding takes long, and small objects vanish when they are resized: cut them up.')
    for data, known in zip(sets, sizes, strict=True):
        order = known[np.argsort(-known[:, 1] * known[:, 2], kind='stable')]
        order = order[order[:, 1] * order[:, 2] > HUGE]
        suspicion.add(data.name, len(order), [
            Case(data, int(i), f'{data.name}: {data.file(int(i))}, {width} x {height}')
            for i, width, height in order[:WORST]
        ])
    return suspicion


def rare_classes(numbers: Sequence[Numbers], what: str) -> Suspicion:
    """Classes that are nearly missing.

    Args:
        numbers: Of each split.
        what: ``'objects'`` or ``'images'``, of which few are suspected.
    """
    suspicion = Suspicion(
        f'Classes with fewer than {FEW} {what}',
        'In training, a model can hardly learn them. In validation, their score is mostly chance.')
    for found in numbers:
        counts = found.amounts if what == 'objects' else found.images
        few = [i for i in np.argsort(counts, kind='stable').tolist() if counts[i] < FEW]
        suspicion.counts[found.name] = len(few)
        named = [f'{found.classes[i]} {counts[i]}' for i in few]
        if named:
            suspicion.note += f' In {found.name}: {format_names(named, MOST_NAMES)}.'
    return suspicion
