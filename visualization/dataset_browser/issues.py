"""What looks wrong about a data set. It need not be wrong: somebody has to look."""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from colonnade.common.name_lists import format_names
from colonnade.settings.findings import Finding
from colonnade.settings.rules import RULES

from .dataset_reader import ImageSet
from .statistics import FEW, Numbers

WORST = 8  # cases of a kind that are shown
HUGE = 40_000_000  # pixels
MOST_NAMES = 20  # classes that are listed


@dataclass(frozen=True, kw_only=True)
class Case(Finding):
    """A finding in one image, and what shows it there.

    Attributes:
        data: Split of the image.
        image: Index of the image in the split.
        objects: Indices of the objects that it is about.
        points: ``(x, y)`` in pixels of the image, to be marked.
        beside: Split and index of an image to be shown next to it.
        shows_image: Whether there is an image that can be shown.
    """
    data: ImageSet
    image: int
    objects: tuple[int, ...] = ()
    points: tuple[tuple[float, float], ...] = ()
    beside: tuple[ImageSet, int] | None = None
    shows_image: bool = True


@dataclass
class Suspicion:
    """All breaches of a rule in the splits.

    Attributes:
        rule: A key of :data:`~colonnade.settings.rules.RULES`.
        counts: Number of breaches of each split.
        cases: The worst breaches.
        note: Names of the breaches, where there is nothing to show.
    """
    rule: str
    counts: dict[str, int] = field(default_factory=dict)
    cases: list[Case] = field(default_factory=list)
    note: str = ''

    @property
    def title(self) -> str:
        """Title of the rule, with a capital."""
        title = RULES[self.rule].title
        return title[:1].upper() + title[1:]

    @property
    def number(self) -> int:
        """Number of breaches in all splits."""
        return sum(self.counts.values())

    def add(self, name: str, number: int, cases: Sequence[Case]) -> None:
        """Add breaches of a split, the worst first."""
        self.counts[name] = self.counts.get(name, 0) + number
        self.cases = [*self.cases, *cases[:max(0, WORST - len(self.cases))]]

    def add_images(self, data: ImageSet, breaches: Iterable[tuple[int, str]]) -> None:
        """Add images of a split, the worst first.

        Args:
            data: The split.
            breaches: Index of each image, and what is odd about it beyond its name.
        """
        breaches = list(breaches)
        self.add(data.name, len(breaches), [
            Case(self.rule, f'{data.name}: {data.file(i)}{text}', (data.paths[i], ),
                 data=data, image=i) for i, text in breaches[:WORST]
        ])  # yapf: disable


def empty_images(sets: Sequence[ImageSet]) -> Suspicion:
    """Images without objects."""
    suspicion = Suspicion('image-without-annotations')
    for data in sets:
        assert data.objects is not None
        empty = np.flatnonzero(data.objects.counts(len(data)) == 0)
        suspicion.add_images(data, [(i, '') for i in empty.tolist()])
    return suspicion


def huge_images(sets: Sequence[ImageSet], sizes: Sequence[np.ndarray]) -> Suspicion:
    """Images of very many pixels.

    Args:
        sets: The splits.
        sizes: Index, width and height of the images of each whose size is known, ``(I, 3)``.
    """
    suspicion = Suspicion('huge-image')
    for data, known in zip(sets, sizes, strict=True):
        order = known[np.argsort(-known[:, 1] * known[:, 2], kind='stable')]
        order = order[order[:, 1] * order[:, 2] > HUGE]
        suspicion.add_images(data,
                             [(i, f', {width} x {height}') for i, width, height in order.tolist()])
    return suspicion


def rare_classes(numbers: Sequence[Numbers], what: str) -> Suspicion:
    """Classes that are nearly missing.

    Args:
        numbers: Of each split.
        what: ``'objects'`` or ``'images'``, of which few are suspected.
    """
    suspicion = Suspicion('rare-class' if what == 'objects' else 'rare-label')
    for found in numbers:
        counts = found.amounts if what == 'objects' else found.images
        few = [i for i in np.argsort(counts, kind='stable').tolist() if counts[i] < FEW]
        suspicion.counts[found.name] = len(few)
        named = [f'{found.classes[i]} {counts[i]}' for i in few]
        if named:
            suspicion.note += f' In {found.name}: {format_names(named, MOST_NAMES)}.'
    return suspicion
