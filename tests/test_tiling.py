"""Tiles of images, and the merging of their results."""
from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pycocotools import mask as coco_masks

from colonnade.datasets.rle import encode_crop, make_json_rle
from colonnade.inference.results import Instances, LabelMap
from colonnade.inference.tiling import (Part, View, compute_tiles, find_overlapping_pairs,
                                        merge_results)

lengths = st.integers(1, 90)
CLASSES, PALETTE = ('disc', 'square'), ((255, 0, 0), (0, 255, 0))


@given(lengths, lengths, st.integers(1, 60), st.sampled_from([0., 0.25, 0.6]))
def test_tiles_cover_the_image_and_overlap(height: int, width: int, tile: int,
                                           overlap: float) -> None:
    shared = int(np.ceil(tile * overlap))
    if shared >= tile:
        return
    views = compute_tiles((height, width), tile, overlap)
    counts = np.zeros((height, width), dtype=int)
    for view in views:
        size = view.bottom - view.top, view.right - view.left
        assert size == (min(tile, height), min(tile, width))
        counts[view.slices] += 1
    assert counts.all()
    lefts = sorted({view.left for view in views})
    assert all(left + tile - following >= shared
               for left, following in zip(lefts, lefts[1:], strict=False))


@pytest.mark.parametrize('tile, overlap', [(0, 0.2), (10, 1.), (10, -0.1), (1, 0.5)])
def test_invalid_tiles(tile: int, overlap: float) -> None:
    with pytest.raises(ValueError, match=f'got {tile} and {overlap}'):
        compute_tiles((100, 100), tile, overlap)


@given(lengths, lengths, st.integers(2, 60), st.integers(0, 99))
def test_label_maps_are_merged_without_seams(height: int, width: int, tile: int, seed: int) -> None:
    labels = np.random.default_rng(seed).integers(0, 2, (height, width)).astype(np.uint8)
    views = compute_tiles((height, width), tile, 0.25)
    maps = [LabelMap((tile, tile), CLASSES, PALETTE, labels[view.slices]) for view in views]
    merged = merge_results(maps, views, (height, width))
    assert merged.size == (height, width)
    np.testing.assert_array_equal(merged.labels, labels)


def test_label_maps_meet_in_the_middle_of_the_overlap() -> None:
    views = compute_tiles((4, 14), 8, 0.25)
    maps = [
        LabelMap((4, 8), CLASSES, PALETTE, np.full((4, 8), i, dtype=np.uint8)) for i in range(2)
    ]
    merged = merge_results(maps, views, (4, 14))
    np.testing.assert_array_equal(merged.labels[0], [0] * 7 + [1] * 7)


@given(st.data())
def test_crops_are_encoded_as_by_pycocotools(data: st.DataObject) -> None:
    height, width = data.draw(lengths), data.draw(lengths)
    top, left = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
    shape = data.draw(st.integers(1, height - top)), data.draw(st.integers(1, width - left))
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    mask = random.random(shape) < data.draw(st.sampled_from([0., 0.1, 0.9, 1.]))
    image = np.zeros((height, width), dtype=np.uint8, order='F')
    image[top:top + shape[0], left:left + shape[1]] = mask
    expected = coco_masks.encode(image)
    assert make_json_rle(encode_crop(mask, top, left, (height, width))) == dict(
        size=expected['size'], counts=expected['counts'].decode())


def detect(scene: np.ndarray, view: View, score: float, with_masks: bool = True) -> Instances:
    """Return the instances of a perfect detector in a view; objects with odd IDs are squares."""
    part = scene[view.slices]
    ids = [n for n in np.unique(part) if n]
    boxes, masks = [], []
    for object_id in ids:
        ys, xs = np.nonzero(part == object_id)
        boxes.append([xs.min(), ys.min(), xs.max() + 1, ys.max() + 1])
        rle = coco_masks.encode(np.asfortranarray(part == object_id, dtype=np.uint8))
        masks.append(dict(size=rle['size'], counts=rle['counts'].decode()))
    return Instances(
        size=part.shape,
        classes=CLASSES,
        palette=PALETTE,
        boxes=np.array(boxes, dtype=np.float32).reshape(-1, 4),
        scores=np.full(len(ids), score, dtype=np.float32),
        labels=np.array([n % 2 for n in ids], dtype=np.int64),
        masks=tuple(masks) if with_masks else None)


@pytest.mark.parametrize('with_masks', [True, False])
@pytest.mark.parametrize('with_full_image', [True, False])
def test_objects_across_tiles(with_masks: bool, with_full_image: bool) -> None:
    """A bar across three tiles of 80, a block across two, and two objects in one tile."""
    scene = np.zeros((60, 200), dtype=int)
    scene[5:15, 20:190] = 1
    scene[20:40, 70:100] = 2
    scene[22:38, 101:112] = 4
    scene[45:55, 5:15] = 3
    views = compute_tiles(scene.shape, 80, 0.25)
    assert len(views) == 3
    views += [View(0, 0, *scene.shape)] if with_full_image else []
    parts = [detect(scene, view, 0.5 + 0.1 * i, with_masks) for i, view in enumerate(views)]
    merged = merge_results(parts, views, scene.shape)
    expected = detect(scene, View(0, 0, *scene.shape), 1., with_masks)
    assert len(merged) == len(expected) and (np.diff(merged.scores) <= 0).all()
    for i, box in enumerate(expected.boxes):
        j, = np.flatnonzero((merged.boxes == box).all(1))
        assert merged.labels[j] == expected.labels[i]
        object_id = scene[int(box[1]), int(box[0])]
        visible = [k for k, view in enumerate(views) if (scene[view.slices] == object_id).any()]
        assert merged.scores[j] == pytest.approx(0.5 + 0.1 * max(visible))
        if with_masks:
            masks = (coco_masks.decode(each) for each in (merged.masks[j], expected.masks[i]))
            np.testing.assert_array_equal(*masks)


@pytest.mark.parametrize('starts, expected', [
    ((20, 50, 80), [(20, 0, 50, 20), (50, 0, 80, 20)]),
    ((), []),
])
def test_adjacent_objects_of_a_class(starts: tuple[int, ...], expected: list) -> None:
    """One object ends in the overlap of the tiles, where the next one begins."""
    scene = np.zeros((20, 100), dtype=int)
    for object_id, (start, end) in enumerate(zip(starts, starts[1:], strict=False)):
        scene[:, start:end] = 2 * object_id + 1
    views = compute_tiles(scene.shape, 60, 0.25)
    merged = merge_results([detect(scene, view, 0.9) for view in views], views, scene.shape)
    assert sorted(map(tuple, merged.boxes)) == expected
    assert merged.boxes.shape == (len(expected), 4) and len(merged.masks) == len(expected)


def test_diagonal_objects_whose_boxes_overlap() -> None:
    """Neither object has a pixel in the overlap of both boxes."""
    views, size = compute_tiles((30, 30), 20, 0.5), (30, 30)
    parts = []
    for view in views:
        scene = np.zeros(size, dtype=int)
        if (view.top, view.left) in ((0, 0), (10, 10)):
            for offset in range(6):
                row = view.top + (5 + offset if view.top == 0 else 4 + offset)
                scene[row, view.left + (15 - offset if view.top == 0 else 9 - offset)] = 1
        parts.append(detect(scene, view, 0.5))
    assert len(merge_results(parts, views, size)) == 2


@given(st.lists(st.tuples(*[st.integers(0, 20)] * 2, *[st.integers(0, 9)] * 2,
                          st.integers(0, 2), st.integers(0, 2)), max_size=12))  # yapf: disable
def test_overlapping_pairs(rows: list[tuple[int, ...]]) -> None:
    parts = [
        Part(view, label, 1., (0., 0., 0., 0.), View(top, left, top + height, left + width), None,
             False, True) for top, left, height, width, label, view in rows
    ]

    def is_pair(one: Part, other: Part) -> bool:
        is_similar = one.label == other.label and one.view != other.view
        a, b = one.place, other.place
        return (is_similar and a.top < b.bottom and b.top < a.bottom and a.left < b.right
                and b.left < a.right)

    expected = {(i, j) for i, j in combinations(range(len(parts)), 2)
                if is_pair(parts[i], parts[j])}  # yapf: disable
    pairs = find_overlapping_pairs(parts)
    assert len(pairs) == len(set(pairs)) and set(pairs) == expected
