"""Statistics that need decoded files: similarity hashes of images and pixel counts of label maps.

The difference hash has 64 bits. An image is reduced to 9 x 8 gray pixels, and each bit tells
whether a pixel is brighter than its left neighbor (Neal Krawetz, "Kind of Like That", 2013). The
hash hardly depends on size and compression. Images with large uniform areas can have the same hash
by chance, so the gray values are compared as well.

Shapes: ``I`` images, ``K`` classes.
"""
from __future__ import annotations

import filecmp
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import cv2
import numpy as np
from PIL import Image

from colonnade.common.prefetching import prefetch_map
from colonnade.common.progress import Progress
from colonnade.datasets.bands import LoadBands, read_picture

from .dataset_reader import ImageSet

WIDTH, HEIGHT = 9, 8  # pixels of the gray image
MAX_BITS = 6  # different bits of similar images
MAX_DIFFERENCE = 6.  # mean difference of gray values of similar images, of 255
CHUNK = 128  # hashes that are compared with all others at a time
ISLAND = 10  # pixels; smaller connected components of a class are islands
WORKERS = 2  # threads that decode
A = TypeVar('A')
B = TypeVar('B')


@dataclass(frozen=True)
class Hashes:
    """Hashes of images."""
    paths: list[str]  # paths of the readable images
    places: np.ndarray  # index of the split, and index of the image in it, (I, 2)
    bits: np.ndarray  # hashes, (I,), uint64
    gray: np.ndarray  # gray images, (I, 72), uint8
    sizes: np.ndarray  # width and height, (I, 2)
    errors: list[tuple[int, int, str]]  # split, index and error message of each unreadable image


@dataclass(frozen=True)
class SimilarPair:
    """Two images that look alike."""
    first: tuple[int, int]  # split and index of the first image
    second: tuple[int, int]  # split and index of the second image
    distance: int  # number of different bits
    is_same_file: bool  # whether the files have the same content


@dataclass(frozen=True)
class LabelCounts:
    """Counts of label maps."""
    images: np.ndarray  # indices of the readable images, (I,)
    sizes: np.ndarray  # width and height, (I, 2)
    foreign: np.ndarray  # number of pixels whose label has no class, (I,)
    islands: np.ndarray  # number of connected components of fewer than ISLAND pixels, (I,)
    pixels: np.ndarray  # pixels of each class, and unlabeled ones in the last column, (I, K + 1)
    errors: list[tuple[int, str]]  # index and error message of each unreadable label map


def shrink_to_gray(pixels: np.ndarray) -> np.ndarray:
    """Return an image ``(H, W, 3)`` as ``(8, 9)`` gray values, each the mean of a part of it."""
    gray = Image.fromarray(pixels).convert('L')
    return np.asarray(gray.resize((WIDTH, HEIGHT), Image.Resampling.BOX))


def compute_hash(gray: np.ndarray) -> int:
    """Return the difference hash of ``(8, 9)`` gray values."""
    return int.from_bytes(np.packbits(gray[:, 1:] > gray[:, :-1]).tobytes(), 'big')


def scan(read: Callable[[A], B], items: Sequence[A],
         title: str) -> tuple[list[tuple[A, B]], list[tuple[A, str]]]:
    """Return items with what is read from them in threads, and unreadable items with the error."""

    def attempt(item: A) -> tuple[B | None, str]:
        try:
            return read(item), ''
        except (OSError, ValueError) as error:
            return None, str(error)

    results: list[tuple[A, Any]] = []
    errors: list[tuple[A, str]] = []
    with Progress(title, len(items)) as progress:
        done = prefetch_map(attempt, items, workers=WORKERS, ahead=2 * WORKERS)
        for number, (item, (result, error)) in enumerate(zip(items, done, strict=True), 1):
            if result is None:
                errors.append((item, error))
            else:
                results.append((item, result))
            progress(number)
    return results, errors


def hash_images(images: Sequence[tuple[int, int, str]], bands: LoadBands | None = None) -> Hashes:
    """Decode and hash images, each given as index of the split, index in it, and path."""

    def shrink(image: tuple[int, int, str]) -> tuple[np.ndarray, tuple[int, int]]:
        pixels = read_picture(image[2], bands)
        return shrink_to_gray(pixels), (pixels.shape[1], pixels.shape[0])

    results, errors = scan(shrink, images, 'images')
    gray = np.array([gray for _, (gray, _) in results], np.uint8)
    return Hashes(
        paths=[image[2] for image, _ in results],
        places=np.array([image[:2] for image, _ in results], np.int64).reshape(-1, 2),
        bits=np.array(list(map(compute_hash, gray)), np.uint64),
        gray=gray.reshape(-1, WIDTH * HEIGHT),
        sizes=np.array([size for _, (_, size) in results], np.int64).reshape(-1, 2),
        errors=[(split, index, error) for (split, index, _), error in errors])


def find_similar_pairs(hashes: Hashes) -> list[SimilarPair]:
    """Return for each image the first earlier one that looks like it.

    Pairs across splits come first, then those of the same content, then the most similar.
    """
    pairs = []
    for late, candidates in find_near_hashes(hashes.bits):
        early = next((i for i in candidates if are_alike(hashes, i, late)), None)
        if early is None:
            continue
        distance = int(hashes.bits[early] ^ hashes.bits[late]).bit_count()
        is_same = distance == 0 and filecmp.cmp(hashes.paths[early], hashes.paths[late], False)
        first, second = (tuple(place) for place in hashes.places[[early, late]].tolist())
        pairs.append(SimilarPair(first, second, distance, is_same))
    return sorted(pairs, key=lambda p: (p.first[0] == p.second[0], not p.is_same_file, p.distance))


def are_alike(hashes: Hashes, first: int, second: int) -> bool:
    """Return True if gray values are similar, unless a split lists one file twice."""
    difference = np.abs(hashes.gray[first].astype(int) - hashes.gray[second]).mean()
    is_same_split = hashes.places[first, 0] == hashes.places[second, 0]
    is_listed_twice = is_same_split and hashes.paths[first] == hashes.paths[second]
    return difference <= MAX_DIFFERENCE and not is_listed_twice


def find_near_hashes(bits: np.ndarray) -> Iterator[tuple[int, list[int]]]:
    """Yield the index of each hash that is close to earlier ones, and the indices of these."""
    for start in range(0, len(bits), CHUNK):
        end = min(start + CHUNK, len(bits))
        near = np.bitwise_count(bits[start:end, None] ^ bits[None, :end]) <= MAX_BITS
        for late in range(start, end):
            if earlier := np.flatnonzero(near[late - start, :late]).tolist():
                yield late, earlier


def count_labels(data: ImageSet, indices: Sequence[int]) -> LabelCounts:
    """Decode the label maps of some images of a split and return their counts."""
    num_classes = len(data.classes)

    def count(index: int) -> list[int]:
        labels = data.maps[index].read()
        pixels = np.bincount(labels.ravel(), minlength=num_classes + 1)
        return [*labels.shape[::-1], pixels[num_classes + 1:].sum(),
                len(find_islands(labels, num_classes)), *pixels[:num_classes + 1]]  # yapf: disable

    counted, errors = scan(count, indices, f'label maps of {data.name}')
    table = np.array([row for _, row in counted], np.int64).reshape(-1, 5 + num_classes)
    return LabelCounts(
        np.array([index for index, _ in counted], np.int64), table[:, :2], table[:, 2], table[:, 3],
        table[:, 4:], errors)


def find_islands(labels: np.ndarray, num_classes: int) -> list[tuple[float, float]]:
    """Return the center of each island in a label map ``(H, W)``, as column and row."""
    islands = []
    for label in np.unique(labels[labels < num_classes]):
        _, _, stats, centers = cv2.connectedComponentsWithStats(
            (labels == label).astype(np.uint8), connectivity=8)
        islands += [(float(round(x)), float(round(y)))
                    for (x, y), area in zip(centers[1:], stats[1:, cv2.CC_STAT_AREA], strict=True)
                    if area < ISLAND]  # yapf: disable
    return islands
