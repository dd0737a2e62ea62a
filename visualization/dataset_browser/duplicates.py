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

from colonnade.common.prefetching import prefetch_map
from colonnade.runtime.images import ImageError, read_image

WIDTH, HEIGHT = 9, 8  # of the gray image
MAX_BITS = 6  # that hashes may differ in
MAX_DIFFERENCE = 6.  # mean difference of gray values, of 255
CHUNK = 128  # hashes that are compared with all others at a time
WORKERS = 2  # threads that decode


@dataclass(frozen=True)
class Hashes:
    """Hashes of images.

    Attributes:
        paths: Paths of the images that could be read.
        places: Index of the set, and index of the image in it, ``(I, 2)``.
        bits: Hashes, ``(I,)``, uint64.
        gray: Small images, ``(I, 72)``, uint8.
        sizes: Width and height, ``(I, 2)``.
        errors: Set, index and reason of what could not be read.
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
        first: Set and index of the first image.
        second: Set and index of the second image.
        distance: Bits that their hashes differ in.
        same_file: Whether the files have the same content.
    """
    first: tuple[int, int]
    second: tuple[int, int]
    distance: int
    same_file: bool


def shrink_to_gray(pixels: np.ndarray) -> np.ndarray:
    """Return an image ``(H, W, 3)`` as ``(8, 9)`` gray values, each the mean of a part of it."""
    gray = Image.fromarray(pixels).convert('L')
    return np.asarray(gray.resize((WIDTH, HEIGHT), Image.Resampling.BOX))


def compute_hash(gray: np.ndarray) -> int:
    """Return the difference hash of ``(8, 9)`` gray values."""
    bits = np.packbits(gray[:, 1:] > gray[:, :-1])
    return int.from_bytes(bits.tobytes(), 'big')


def hash_images(images: Sequence[tuple[int, int, str]], report: Callable[[int], None]) -> Hashes:
    """Decode images and hash them.

    Args:
        images: Index of the set, index in it, and path of each.
        report: Called with the number of images that are done.
    """

    def shrink(item: tuple[int, int, str]) -> tuple[np.ndarray, tuple[int, int]] | str:
        try:
            pixels = read_image(item[2])
        except ImageError as error:
            return str(error)
        return shrink_to_gray(pixels), (pixels.shape[1], pixels.shape[0])

    hashed, errors = [], []
    results = prefetch_map(shrink, images, workers=WORKERS, ahead=2 * WORKERS)
    for done, (item, result) in enumerate(zip(images, results, strict=True), 1):
        if isinstance(result, str):
            errors.append((item[0], item[1], result))
        else:
            hashed.append((item, *result))
        report(done)
    return Hashes(
        paths=[item[2] for item, *_ in hashed],
        places=np.array([item[:2] for item, *_ in hashed], dtype=np.int64).reshape(-1, 2),
        bits=np.array([compute_hash(gray) for _, gray, _ in hashed], dtype=np.uint64),
        gray=np.array([gray.ravel() for _, gray, _ in hashed],
                      dtype=np.uint8).reshape(-1, WIDTH * HEIGHT),
        sizes=np.array([size for *_, size in hashed], dtype=np.int64).reshape(-1, 2),
        errors=errors)


def find_similar_pairs(hashes: Hashes) -> list[Pair]:
    """Return for each image the first before it that it looks like.

    Pairs of two sets come first, then those of the same content, then the most alike.
    """
    pairs = []
    for late, earlier in find_near_hashes(hashes.bits):
        early = next((i for i in earlier if are_alike(hashes, i, late)), None)
        if early is None:
            continue
        distance = int(hashes.bits[early] ^ hashes.bits[late]).bit_count()
        same = distance == 0 and filecmp.cmp(hashes.paths[early], hashes.paths[late], False)
        places = [(int(number), int(index)) for number, index in hashes.places[[early, late]]]
        pairs.append(Pair(places[0], places[1], distance, same))
    return sorted(pairs, key=lambda p: (p.first[0] == p.second[0], not p.same_file, p.distance))


def are_alike(hashes: Hashes, first: int, second: int) -> bool:
    """Return True if gray values are alike, and it is not one image that a set has twice."""
    difference = np.abs(hashes.gray[first].astype(int) - hashes.gray[second]).mean()
    same_set = hashes.places[first, 0] == hashes.places[second, 0]
    same_image = same_set and hashes.paths[first] == hashes.paths[second]
    return difference <= MAX_DIFFERENCE and not same_image


def find_near_hashes(bits: np.ndarray) -> Iterator[tuple[int, list[int]]]:
    """Yield each hash that differs from earlier ones in few bits, and which these are."""
    for start in range(0, len(bits), CHUNK):
        end = min(start + CHUNK, len(bits))
        near = np.bitwise_count(bits[start:end, None] ^ bits[None, :end]) <= MAX_BITS
        for late in range(start, end):
            if earlier := np.flatnonzero(near[late - start, :late]).tolist():
                yield late, earlier
