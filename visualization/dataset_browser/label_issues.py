"""Label maps and image files that look wrong."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from .dataset_reader import ImageSet
from .decoded_label_maps import LabelCounts, islands_of
from .duplicates import Hashes, Pair, near_pairs
from .issues import WORST, Case, Suspicion

MANY = 20  # islands of a label map
UNLABELLED = 0.9  # share of the pixels
MARKED = 40  # islands of a picture that are circled


def suspicions_of_labels(sets: Sequence[ImageSet],
                         counts: Sequence[LabelCounts]) -> Iterator[Suspicion]:
    """Label maps that look wrong, among those that were decoded."""
    mostly, foreign, torn = map(Suspicion, ('unlabelled-map', 'unknown-label', 'islands'))
    for data, found in zip(sets, counts, strict=True):
        total = np.maximum(found.pixels.sum(axis=1) + found.foreign, 1)
        add(mostly, data, found, found.pixels[:, -1] / total, UNLABELLED, ', unlabelled {:.1%}')
        add(foreign, data, found, found.foreign, 0, ', {} pixels of labels without a class')
        add(torn, data, found, found.islands, MANY - 1, ', {} islands')
    torn.cases = [with_points(case) for case in torn.cases]
    yield from (mostly, foreign, torn)


def add(suspicion: Suspicion, data: ImageSet, counts: LabelCounts, values: np.ndarray, most: float,
        text: str) -> None:
    """Label maps whose value is above ``most``, the largest first."""
    order = np.argsort(-values, kind='stable')
    order = order[values[order] > most]
    suspicion.add_images(data, [(int(counts.images[i]), text.format(values[i])) for i in order])


def with_points(case: Case) -> Case:
    """A case with its islands marked."""
    found = islands_of(case.data.maps[case.image].read(), len(case.data.classes))
    return replace(case, points=tuple((float(x), float(y)) for _, x, y in found[:MARKED]))


def suspicions_of_files(sets: Sequence[ImageSet], hashes: Hashes,
                        counts: Sequence[LabelCounts]) -> Iterator[Suspicion]:
    """Files that cannot be read or are of another size than said, and images that look alike."""
    unreadable = Suspicion('unreadable-file')
    for number, data in enumerate(sets):
        errors = [(index, text) for where, index, text in hashes.errors if where == number]
        errors += counts[number].errors if counts else []
        unreadable.add(data.name, len(errors), [
            Case('unreadable-file', text, (data.paths[i], ), data=data, image=i, shows_image=False)
            for i, text in errors[:WORST]
        ])
    yield unreadable
    yield other_sizes(sets, hashes, counts)
    yield from look_alikes(sets, near_pairs(hashes))


def other_sizes(sets: Sequence[ImageSet], hashes: Hashes,
                counts: Sequence[LabelCounts]) -> Suspicion:
    """Images of another size than their annotations say."""
    suspicion = Suspicion('other-size')
    for number, data in enumerate(sets):
        said = {i: tuple(size) for i, size in enumerate(data.sizes.tolist()) if all(size)}
        if counts:
            said = dict(
                zip(counts[number].images.tolist(),
                    map(tuple, counts[number].sizes.tolist()),
                    strict=True))
        own = hashes.places[:, 0] == number
        found = [(i, size, said[i]) for i, size in zip(
            hashes.places[own, 1].tolist(), map(tuple, hashes.sizes[own].tolist()), strict=True)
            if i in said and said[i] != size]  # yapf: disable
        suspicion.add_images(data, [
            (i, f' has {has[0]} x {has[1]} pixels, its annotations are for {wanted[0]} x '
             f'{wanted[1]}') for i, has, wanted in found
        ])  # yapf: disable
    return suspicion


def look_alikes(sets: Sequence[ImageSet], pairs: Sequence[Pair]) -> Iterator[Suspicion]:
    """Images of two splits that look alike, then images of one."""
    across, inside = Suspicion('split-images'), Suspicion('similar-images')
    inside.counts = {data.name: 0 for data in sets}
    across.counts = {f'{a.name} and {b.name}': 0 for a, b in combinations(sets, 2)}
    for pair in pairs:
        first, second = sets[pair.first[0]], sets[pair.second[0]]
        suspicion = inside if first is second else across
        name = first.name if first is second else f'{first.name} and {second.name}'
        how = 'the same file' if pair.same_file else f'{pair.distance} bits apart'
        caption = (f'{first.name}: {first.file(pair.first[1])}; {second.name}: '
                   f'{second.file(pair.second[1])}: {how}')
        places = (first.paths[pair.first[1]], second.paths[pair.second[1]])
        case = Case(suspicion.rule, caption, places, data=first, image=pair.first[1],
                    beside=(second, pair.second[1]))  # yapf: disable
        suspicion.add(name, 1, [case])
    yield from (across, inside)
