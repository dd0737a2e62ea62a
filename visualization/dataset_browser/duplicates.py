"""Images that are nearly the same, found by small hashes of what they show.

The difference hash has 64 bits. An image becomes gray and 9 x 8 pixels small. Each bit says whether
a pixel is brighter than the one left of it (Neal Krawetz, "Kind of Like That", 2013). The hash
changes little with an image's size and compression. Images of large even parts can have the same
hash by chance, so the gray values themselves must be alike too.
"""
from __future__ import annotations

import filecmp
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from colonnade.common.prefetching import prefetched
from colonnade.runtime.images import ImageError, read_image

WIDTH, HEIGHT = 9, 8  # of the gray image
MOST_BITS = 6  # that hashes may differ in
MOST_GRAY = 6.  # mean difference of gray values, of 255
CHUNK = 128  # hashes that are compared with all others at a time
WORKERS = 2  # threads that decode


@dataclass(frozen=True)
class Hashes:
    """What images look like.

    Attributes:
        paths: Of the images that could be read.
        places: Where each is from: the number of its set, and its index there, ``(I, 2)``.
        bits: The hashes, ``(I,)``, uint64.
        gray: The small images, ``(I, 72)``, uint8.
        sizes: Width and height, ``(I, 2)``.
        errors: What could not be read: set, index and reason.
    """
    paths: list[str]
    places: np.ndarray
    bits: np.ndarray
    gray: np.ndarray
    sizes: np.ndarray
    errors: list[tuple[int, int, str]]


@dataclass(frozen=True)
class Pair:
    """Two images that look alike.

    Attributes:
        first, second: Set and index of each.
        distance: Bits that their hashes differ in.
        same_file: Whether the files have the same content.
    """
    first: tuple[int, int]
    second: tuple[int, int]
    distance: int
    same_file: bool


def small_gray(pixels: np.ndarray) -> np.ndarray:
    """An image ``(H, W, 3)`` as ``(8, 9)`` gray values, each the mean of a part of it."""
    gray = Image.fromarray(pixels).convert('L')
    return np.asarray(gray.resize((WIDTH, HEIGHT), Image.Resampling.BOX))


def hash_of(gray: np.ndarray) -> int:
    """The difference hash of ``(8, 9)`` gray values."""
    bits = np.packbits(gray[:, 1:] > gray[:, :-1])
    return int.from_bytes(bits.tobytes(), 'big')


def hashes_of(images: Sequence[tuple[int, int, str]], report: Callable[[int], None]) -> Hashes:
    """Decode images and hash them.

    Args:
        images: Number of the set, index in it, and path of each.
        report: Called with the number of images that are done.
    """

    def look(item: tuple[int, int, str]) -> tuple[np.ndarray | None, tuple[int, int], str]:
        try:
            pixels = read_image(item[2])
        except ImageError as error:
            return None, (0, 0), str(error)
        return small_gray(pixels), (pixels.shape[1], pixels.shape[0]), ''

    whole, errors = [], []
    found = prefetched(look, images, workers=WORKERS, ahead=2 * WORKERS)
    for done, (item, (gray, size, error)) in enumerate(zip(images, found, strict=True), 1):
        if gray is None:
            errors.append((item[0], item[1], error))
        else:
            whole.append((item, gray, size))
        report(done)
    return Hashes([item[2] for item, *_ in whole],
                  np.array([item[:2] for item, *_ in whole], dtype=np.int64).reshape(-1, 2),
                  np.array([hash_of(gray) for _, gray, _ in whole], dtype=np.uint64),
                  np.array([gray.ravel() for _, gray, _ in whole],
                           dtype=np.uint8).reshape(-1, WIDTH * HEIGHT),
                  np.array([size for *_, size in whole], dtype=np.int64).reshape(-1, 2), errors)


def near_pairs(hashes: Hashes) -> list[Pair]:
    """For each image the first before it that it looks like.

    Returns:
        Pairs of two sets first, then those of the same content, then the most alike.
    """
    found = []
    for late, earlier in candidates(hashes.bits):
        early = next((i for i in earlier if alike(hashes, i, late)), None)
        if early is None:
            continue
        distance = int(hashes.bits[early] ^ hashes.bits[late]).bit_count()
        same = distance == 0 and filecmp.cmp(hashes.paths[early], hashes.paths[late], False)
        places = [(int(number), int(index)) for number, index in hashes.places[[early, late]]]
        found.append(Pair(places[0], places[1], distance, same))
    return sorted(found, key=lambda p: (p.first[0] == p.second[0], not p.same_file, p.distance))


def alike(hashes: Hashes, first: int, second: int) -> bool:
    """Whether gray values are alike, and the images not one image that a set has twice."""
    difference = np.abs(hashes.gray[first].astype(int) - hashes.gray[second]).mean()
    own = hashes.places[first, 0] == hashes.places[second, 0]
    return difference <= MOST_GRAY and not (own and hashes.paths[first] == hashes.paths[second])


def candidates(bits: np.ndarray) -> Iterator[tuple[int, list[int]]]:
    """Each hash that differs from earlier ones in few bits, and which these are."""
    for start in range(0, len(bits), CHUNK):
        end = min(start + CHUNK, len(bits))
        near = np.bitwise_count(bits[start:end, None] ^ bits[None, :end]) <= MOST_BITS
        for late in range(start, end):
            if earlier := np.flatnonzero(near[late - start, :late]).tolist():
                yield late, earlier
