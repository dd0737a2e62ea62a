"""Label maps and image files that look wrong."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from .dataset_reader import ImageSet
from .decoded_label_maps import LabelCounts, find_islands
from .duplicates import Hashes, Pair, find_similar_pairs
from .issues import HUGE, MAX_CASES, Case, Issue

MANY = 20  # islands of a label map
UNLABELLED = 0.9  # fraction of the pixels
MAX_MARKED = 40  # islands of an image that are circled


def find_label_issues(sets: Sequence[ImageSet], counts: Sequence[LabelCounts]) -> Iterator[Issue]:
    """Yield label maps that look wrong, among those that were decoded."""
    unlabeled, foreign, torn = map(Issue, ('unlabelled-map', 'unknown-label', 'islands'))
    for data, found in zip(sets, counts, strict=True):
        fraction = found.pixels[:, -1] / np.maximum(found.pixels.sum(axis=1) + found.foreign, 1)
        for issue, values, limit, text in (
            (unlabeled, fraction, UNLABELLED, ', unlabelled {:.1%}'),
            (foreign, found.foreign, 0, ', {} pixels of labels without a class'),
            (torn, found.islands, MANY - 1, ', {} islands'),
        ):  # yapf: disable
            order = np.argsort(-values, kind='stable')
            worst = order[values[order] > limit]
            issue.add_images(data, [(int(found.images[i]), text.format(values[i])) for i in worst])
    torn.cases = [mark_islands(case) for case in torn.cases]
    yield from (unlabeled, foreign, torn)


def mark_islands(case: Case) -> Case:
    """Return a case with its islands marked."""
    islands = find_islands(case.data.maps[case.image].read(), len(case.data.classes))
    return replace(case, points=tuple(islands[:MAX_MARKED]))


def find_file_issues(sets: Sequence[ImageSet], hashes: Hashes,
                     counts: Sequence[LabelCounts]) -> Iterator[Issue]:
    """Yield files that cannot be read or have another size than said, and images that look alike.

    Args:
        sets: Splits.
        hashes: Hashes of their images.
        counts: Counts of their label maps; empty for sets of objects.
    """
    unreadable, other_size = Issue('unreadable-file'), Issue('other-size')
    for number, data in enumerate(sets):
        errors = [(index, text) for place, index, text in hashes.errors if place == number]
        declared = {i: size for i, size in enumerate(data.sizes.tolist()) if all(size)}
        if counts:
            errors += counts[number].errors
            declared = dict(
                zip(counts[number].images.tolist(), counts[number].sizes.tolist(), strict=True))
        unreadable.add(data.name, len(errors), [
            Case('unreadable-file', text, (data.paths[i], ), data=data, image=i, shows_image=False)
            for i, text in errors[:MAX_CASES]
        ])
        breaches = []
        for index, *size in list_sizes(hashes, number):
            if size != declared.get(index, size):
                breaches.append(
                    (index, f' has {size[0]} x {size[1]} pixels, its annotations are for '
                     f'{declared[index][0]} x {declared[index][1]}'))
        other_size.add_images(data, breaches)
    yield from (unreadable, other_size)
    yield from find_similar_images(sets, find_similar_pairs(hashes))


def list_sizes(hashes: Hashes, number: int) -> list[list[int]]:
    """Return index, width and height of the images of a set that could be read."""
    own = hashes.places[:, 0] == number
    return np.column_stack([hashes.places[own, 1], hashes.sizes[own]]).tolist()


def find_similar_images(sets: Sequence[ImageSet], pairs: Sequence[Pair]) -> Iterator[Issue]:
    """Yield images of two splits that look alike, then images of one."""
    across, inside = Issue('split-images'), Issue('similar-images')
    inside.counts = {data.name: 0 for data in sets}
    across.counts = {f'{a.name} and {b.name}': 0 for a, b in combinations(sets, 2)}
    for pair in pairs:
        first, second = sets[pair.first[0]], sets[pair.second[0]]
        issue = inside if first is second else across
        name = first.name if first is second else f'{first.name} and {second.name}'
        reason = 'the same file' if pair.same_file else f'{pair.distance} bits apart'
        text = (f'{first.name}: {first.get_file_name(pair.first[1])}; {second.name}: '
                f'{second.get_file_name(pair.second[1])}: {reason}')
        places = (first.paths[pair.first[1]], second.paths[pair.second[1]])
        case = Case(issue.rule, text, places, data=first, image=pair.first[1],
                    other=(second, pair.second[1]))  # yapf: disable
        issue.add(name, 1, [case])
    yield from (across, inside)


def find_huge_images(sets: Sequence[ImageSet], hashes: Hashes) -> Issue:
    """Return images of very many pixels."""
    issue = Issue('huge-image')
    for number, data in enumerate(sets):
        sizes = sorted(list_sizes(hashes, number), key=lambda size: -size[1] * size[2])
        issue.add_images(data, [(i, f', {width} x {height}') for i, width, height in sizes
                                if width * height > HUGE])  # yapf: disable
    return issue
