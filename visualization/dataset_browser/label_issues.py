"""Label maps and image files that look wrong."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np

from .dataset_reader import ImageSet
from .decoded_label_maps import ISLAND, LabelCounts, islands_of
from .duplicates import MOST_BITS, Hashes, Pair, near_pairs
from .issues import WORST, Case, Suspicion

MANY = 20  # islands of a label map
UNLABELLED = 0.9  # share of the pixels
MARKED = 40  # islands of a picture that are circled


def suspicions_of_labels(sets: Sequence[ImageSet],
                         counts: Sequence[LabelCounts]) -> Iterator[Suspicion]:
    """Label maps that look wrong, among those that were decoded."""
    mostly = Suspicion(
        f'Label maps of which more than {UNLABELLED:.0%} is unlabelled',
        'Label 0 may be a class that is taken for unlabelled, or the work is not finished.')
    foreign = Suspicion(
        'Label maps with labels that no class has',
        'Training stops at them, or leaves them out. Classes may be missing from the config.')
    torn = Suspicion(
        f'Label maps of {MANY} islands or more',
        f'An island is a connected part of a class of fewer than {ISLAND} pixels. Maps that were '
        'resized or saved with losses have many.')
    for data, found in zip(sets, counts, strict=True):
        total = np.maximum(found.pixels.sum(axis=1) + found.foreign, 1)
        add(mostly, data, found, found.pixels[:, -1] / total, UNLABELLED, 'unlabelled {:.1%}')
        add(foreign, data, found, found.foreign, 0, '{} pixels of labels without a class')
        add(torn, data, found, found.islands, MANY - 1, '{} islands')
    torn.cases = [with_points(case) for case in torn.cases]
    yield from (mostly, foreign, torn)


def add(suspicion: Suspicion, data: ImageSet, counts: LabelCounts, values: np.ndarray, most: float,
        text: str) -> None:
    """Label maps whose value is above ``most``, the largest first."""
    order = np.argsort(-values, kind='stable')
    order = order[values[order] > most]
    suspicion.add(data.name, len(order), [
        Case(data, int(counts.images[i]),
             f'{data.name}: {data.file(int(counts.images[i]))}, {text.format(values[i])}')
        for i in order[:WORST]
    ])


def with_points(case: Case) -> Case:
    """A case with its islands marked."""
    found = islands_of(case.data.maps[case.image].read(), len(case.data.classes))
    return Case(
        case.data,
        case.image,
        case.caption,
        points=tuple((float(x), float(y)) for _, x, y in found[:MARKED]))


def suspicions_of_files(sets: Sequence[ImageSet], hashes: Hashes,
                        counts: Sequence[LabelCounts]) -> Iterator[Suspicion]:
    """Files that cannot be read or are of another size than said, and images that look alike."""
    unreadable = Suspicion(
        'Files that cannot be read',
        'Damaged files, and images whose values have no known range. Training '
        'stops at them, takes another image, or sees wrong values.')
    for number, data in enumerate(sets):
        errors = [(index, text) for where, index, text in hashes.errors if where == number]
        errors += counts[number].errors if counts else []
        unreadable.add(data.name, len(errors),
                       [Case(data, i, text, shows_image=False) for i, text in errors[:WORST]])
    yield unreadable
    yield other_sizes(sets, hashes, counts)
    yield from look_alikes(sets, near_pairs(hashes))


def other_sizes(sets: Sequence[ImageSet], hashes: Hashes,
                counts: Sequence[LabelCounts]) -> Suspicion:
    """Images of another size than their annotations say."""
    suspicion = Suspicion(
        'Images of another size than their annotations',
        'Compared with the size in the file of annotations, or that of the label map. The image '
        'may have been turned or resized since.')
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
        suspicion.add(data.name, len(found), [
            Case(data, i, f'{data.name}: {data.file(i)} has {has[0]} x {has[1]} pixels, its '
                 f'annotations are for {wanted[0]} x {wanted[1]}')
            for i, has, wanted in found[:WORST]
        ])  # yapf: disable
    return suspicion


def look_alikes(sets: Sequence[ImageSet], pairs: Sequence[Pair]) -> Iterator[Suspicion]:
    """Images of two splits that look alike, then images of one."""
    meaning = (f'Their difference hashes of 64 bits differ in at most {MOST_BITS}, and their gray '
               'values little. ')
    across = Suspicion('Images that two splits have',
                       meaning + 'A model that was trained on an image is not tested by it.')
    inside = Suspicion(
        'Images that look like another of the same split',
        meaning + 'Frames of a video are like that; they teach little more than one.')
    inside.counts = {data.name: 0 for data in sets}
    across.counts = {f'{a.name} and {b.name}': 0 for a, b in combinations(sets, 2)}
    for pair in pairs:
        first, second = sets[pair.first[0]], sets[pair.second[0]]
        suspicion = inside if first is second else across
        name = first.name if first is second else f'{first.name} and {second.name}'
        how = 'the same file' if pair.same_file else f'{pair.distance} bits apart'
        caption = (f'{first.name}: {first.file(pair.first[1])}; {second.name}: '
                   f'{second.file(pair.second[1])}: {how}')
        case = Case(first, pair.first[1], caption, beside=(second, pair.second[1]))
        suspicion.add(name, 1, [case])
    yield from (across, inside)
