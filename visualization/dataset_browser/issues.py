"""Suspected issues of files, images and label maps, some of which may not be mistakes."""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np

from colonnade.common.name_lists import format_names
from colonnade.settings.findings import Finding
from colonnade.settings.rules import RULES

from .dataset_reader import ImageSet
from .image_scan import Hashes, LabelCounts, find_islands, find_similar_pairs
from .statistics import MIN_PER_CLASS, Statistics

MAX_EXAMPLES = 8  # examples of an issue that are shown
MIN_HUGE = 40_000_000  # pixels of a huge image
MAX_NAMES = 20  # classes that are listed
MIN_ISLANDS = 20  # islands of a suspicious label map
MAX_UNLABELED = 0.9  # fraction of pixels; more is suspicious
MAX_MARKED = 40  # islands of an image that are circled


@dataclass(frozen=True, kw_only=True)
class Example(Finding):
    """Finding in one image, with what to draw there."""
    data: ImageSet  # split of the image
    image: int  # index of the image in the split
    objects: tuple[int, ...] = ()  # indices of the objects in question
    points: tuple[tuple[float, float], ...] = ()  # points (x, y) to mark, in pixels of the image
    other: tuple[ImageSet, int] | None = None  # split and index of an image to show next to it
    is_drawn: bool = True  # whether the image can be shown


@dataclass
class SuspectedIssue:
    """All breaches of a rule."""
    rule: str  # key of RULES
    counts: dict[str, int] = field(default_factory=dict)  # number of breaches in each split
    examples: list[Example] = field(default_factory=list)  # the worst breaches
    note: str = ''  # description of breaches without examples

    @property
    def title(self) -> str:
        """Capitalized title of the rule."""
        title = RULES[self.rule].title
        return title[:1].upper() + title[1:]

    @property
    def count(self) -> int:
        """Number of breaches in all splits."""
        return sum(self.counts.values())

    def format_counts(self) -> str:
        """Return the number of breaches of each split that has any."""
        return ', '.join(f'{name}: {count:,}' for name, count in self.counts.items() if count)

    def add(self, name: str, count: int, examples: Sequence[Example]) -> None:
        """Add breaches of a split, sorted by descending severity."""
        self.counts[name] = self.counts.get(name, 0) + count
        self.examples += examples[:max(0, MAX_EXAMPLES - len(self.examples))]

    def add_images(self, data: ImageSet, breaches: Iterable[tuple[int, str]]) -> None:
        """Add images of a split: index and end of the message, by descending severity."""
        breaches = list(breaches)
        self.add(data.name, len(breaches), [
            Example(self.rule, f'{data.name}: {data.get_file_name(i)}{text}', (data.paths[i], ),
                    data=data, image=i) for i, text in breaches[:MAX_EXAMPLES]
        ])  # yapf: disable


def find_empty_images(sets: Sequence[ImageSet]) -> SuspectedIssue:
    """Return images without objects."""
    issue = SuspectedIssue('image-without-annotations')
    for data in sets:
        assert data.objects is not None
        empty = np.flatnonzero(data.objects.count_per_image(len(data)) == 0)
        issue.add_images(data, [(i, '') for i in empty.tolist()])
    return issue


def find_rare_classes(statistics: Sequence[Statistics], unit: str) -> SuspectedIssue:
    """Return classes with few ``'objects'`` or, in label maps, few ``'images'``."""
    issue = SuspectedIssue('rare-class' if unit == 'objects' else 'rare-label')
    for split in statistics:
        counts = split.amounts if unit == 'objects' else split.images
        rare = [i for i in np.argsort(counts, kind='stable').tolist() if counts[i] < MIN_PER_CLASS]
        issue.counts[split.name] = len(rare)
        if rare:
            names = format_names([f'{split.classes[i]} {counts[i]}' for i in rare], MAX_NAMES)
            issue.note += f' In {split.name}: {names}.'
    return issue


def find_label_issues(sets: Sequence[ImageSet],
                      counts: Sequence[LabelCounts]) -> Iterator[SuspectedIssue]:
    """Yield suspicious label maps."""
    unlabeled, foreign, torn = map(SuspectedIssue, ('unlabelled-map', 'unknown-label', 'islands'))
    for data, found in zip(sets, counts, strict=True):
        fraction = found.pixels[:, -1] / np.maximum(found.pixels.sum(axis=1) + found.foreign, 1)
        for issue, values, limit, text in (
            (unlabeled, fraction, MAX_UNLABELED, ', {:.1%} unlabeled'),
            (foreign, found.foreign, 0, ', {} pixels of labels without a class'),
            (torn, found.islands, MIN_ISLANDS - 1, ', {} islands'),
        ):  # yapf: disable
            order = np.argsort(-values, kind='stable')
            worst = order[values[order] > limit]
            issue.add_images(data, [(int(found.images[i]), text.format(values[i])) for i in worst])
    for number, example in enumerate(torn.examples):
        labels = example.data.maps[example.image].read()
        islands = find_islands(labels, len(example.data.classes))
        torn.examples[number] = replace(example, points=tuple(islands[:MAX_MARKED]))
    yield from (unlabeled, foreign, torn)


def find_file_issues(sets: Sequence[ImageSet], hashes: Hashes,
                     counts: Sequence[LabelCounts]) -> Iterator[SuspectedIssue]:
    """Yield unreadable files, images of another size than declared, and similar images."""
    unreadable, other_size = SuspectedIssue('unreadable-file'), SuspectedIssue('other-size')
    for number, data in enumerate(sets):
        errors = [(index, text) for place, index, text in hashes.errors if place == number]
        declared = {i: size for i, size in enumerate(data.sizes.tolist()) if all(size)}
        if counts:
            errors += counts[number].errors
            declared = dict(
                zip(counts[number].images.tolist(), counts[number].sizes.tolist(), strict=True))
        unreadable.add(data.name, len(errors), [
            Example('unreadable-file', text, (data.paths[i], ), data=data, image=i, is_drawn=False)
            for i, text in errors[:MAX_EXAMPLES]
        ])
        breaches = []
        for index, *size in list_sizes(hashes, number):
            if size != declared.get(index, size):
                width, height = declared[index]
                breaches.append((index, f' has {size[0]} x {size[1]} pixels, but its annotations '
                                 f'are for {width} x {height}'))
        other_size.add_images(data, breaches)
    yield from (unreadable, other_size)
    yield from find_similar_images(sets, hashes)


def list_sizes(hashes: Hashes, number: int) -> list[list[int]]:
    """Return index, width and height of the readable images of a split."""
    own = hashes.places[:, 0] == number
    return np.column_stack([hashes.places[own, 1], hashes.sizes[own]]).tolist()


def find_similar_images(sets: Sequence[ImageSet], hashes: Hashes) -> Iterator[SuspectedIssue]:
    """Yield similar images of two splits, then of one split."""
    across, inside = SuspectedIssue('split-images'), SuspectedIssue('similar-images')
    inside.counts = {data.name: 0 for data in sets}
    across.counts = {f'{a.name} and {b.name}': 0 for a, b in combinations(sets, 2)}
    for pair in find_similar_pairs(hashes):
        (first, one), (second, other) = ((sets[i], index) for i, index in (pair.first, pair.second))
        issue = inside if first is second else across
        name = first.name if first is second else f'{first.name} and {second.name}'
        reason = 'the same file' if pair.is_same_file else f'{pair.distance} bits apart'
        text = (f'{first.name}: {first.get_file_name(one)}; {second.name}: '
                f'{second.get_file_name(other)}: {reason}')
        example = Example(issue.rule, text, (first.paths[one], second.paths[other]), data=first,
                          image=one, other=(second, other))  # yapf: disable
        issue.add(name, 1, [example])
    yield from (across, inside)


def find_huge_images(sets: Sequence[ImageSet], hashes: Hashes) -> SuspectedIssue:
    """Return images with very many pixels."""
    issue = SuspectedIssue('huge-image')
    for number, data in enumerate(sets):
        sizes = sorted(list_sizes(hashes, number), key=lambda size: -size[1] * size[2])
        issue.add_images(data, [(i, f', {width} x {height}') for i, width, height in sizes
                                if width * height > MIN_HUGE])  # yapf: disable
    return issue
