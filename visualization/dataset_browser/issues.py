"""What looks wrong about a dataset. It need not be wrong: somebody has to look."""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from colonnade.common.name_lists import format_names
from colonnade.settings.findings import Finding
from colonnade.settings.rules import RULES

from .dataset_reader import ImageSet
from .statistics import FEW, Statistics

MAX_CASES = 8  # cases of an issue that are shown
HUGE = 40_000_000  # pixels
MAX_NAMES = 20  # classes that are listed


@dataclass(frozen=True, kw_only=True)
class Case(Finding):
    """A finding in one image, and what shows it there.

    Attributes:
        data: Split of the image.
        image: Index of the image in the split.
        objects: Indices of the objects that it is about.
        points: ``(x, y)`` in pixels of the image, to be marked.
        other: Split and index of an image to be shown next to it.
        shows_image: Whether there is an image that can be shown.
    """
    data: ImageSet
    image: int
    objects: tuple[int, ...] = ()
    points: tuple[tuple[float, float], ...] = ()
    other: tuple[ImageSet, int] | None = None
    shows_image: bool = True


@dataclass
class Issue:
    """All breaches of a rule in the splits.

    Attributes:
        rule: Key of :data:`~colonnade.settings.rules.RULES`.
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
    def count(self) -> int:
        """Number of breaches in all splits."""
        return sum(self.counts.values())

    def format_counts(self) -> str:
        """Return the number of breaches of each split that has any."""
        return ', '.join(f'{name}: {count:,}' for name, count in self.counts.items() if count)

    def add(self, name: str, count: int, cases: Sequence[Case]) -> None:
        """Add breaches of a split, the worst first."""
        self.counts[name] = self.counts.get(name, 0) + count
        self.cases = [*self.cases, *cases[:max(0, MAX_CASES - len(self.cases))]]

    def add_images(self, data: ImageSet, breaches: Iterable[tuple[int, str]]) -> None:
        """Add images of a split, the worst first.

        Args:
            data: Split.
            breaches: Index of each image, and what is odd about it beyond its name.
        """
        breaches = list(breaches)
        self.add(data.name, len(breaches), [
            Case(self.rule, f'{data.name}: {data.get_file_name(i)}{text}', (data.paths[i], ),
                 data=data, image=i) for i, text in breaches[:MAX_CASES]
        ])  # yapf: disable


def find_empty_images(sets: Sequence[ImageSet]) -> Issue:
    """Return images without objects."""
    issue = Issue('image-without-annotations')
    for data in sets:
        assert data.objects is not None
        empty = np.flatnonzero(data.objects.count_per_image(len(data)) == 0)
        issue.add_images(data, [(i, '') for i in empty.tolist()])
    return issue


def find_rare_classes(statistics: Sequence[Statistics], unit: str) -> Issue:
    """Return classes that are nearly missing.

    Args:
        statistics: Statistics of each split.
        unit: ``'objects'`` or ``'images'``, of which few are suspected.
    """
    issue = Issue('rare-class' if unit == 'objects' else 'rare-label')
    for split in statistics:
        counts = split.amounts if unit == 'objects' else split.images
        few = [i for i in np.argsort(counts, kind='stable').tolist() if counts[i] < FEW]
        issue.counts[split.name] = len(few)
        named = [f'{split.classes[i]} {counts[i]}' for i in few]
        if named:
            issue.note += f' In {split.name}: {format_names(named, MAX_NAMES)}.'
    return issue
