"""Tiles of an image, and one answer made of theirs."""
from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pycocotools import mask as coco_masks

from colonnade.datasets.rle import encode_crop, make_json_rle
from colonnade.inference.results import Instances, LabelMap
from colonnade.inference.tiling import Part, View, candidates, merge, tiles_of

lengths = st.integers(1, 90)
CLASSES, PALETTE = ('disc', 'square'), ((255, 0, 0), (0, 255, 0))


@given(lengths, lengths, st.integers(1, 60), st.sampled_from([0., 0.25, 0.6]))
def test_tiles_cover_an_image_and_overlap(height: int, width: int, tile: int,
                                          overlap: float) -> None:
    shared = int(np.ceil(tile * overlap))
    if shared >= tile:
        return
    views = tiles_of((height, width), tile, overlap)
    seen = np.zeros((height, width), dtype=int)
    for view in views:
        assert (view.bottom - view.top, view.right - view.left) == (min(tile,
                                                                        height), min(tile, width))
        seen[view.slices] += 1
    assert seen.all()
    lefts = sorted({view.left for view in views})
    assert all(left + tile - following >= shared
               for left, following in zip(lefts, lefts[1:], strict=False))


@pytest.mark.parametrize('tile, overlap', [(0, 0.2), (10, 1.), (10, -0.1), (1, 0.5)])
def test_impossible_tiles(tile: int, overlap: float) -> None:
    with pytest.raises(ValueError, match=f'got {tile} and {overlap}'):
        tiles_of((100, 100), tile, overlap)


@given(lengths, lengths, st.integers(2, 60), st.integers(0, 99))
def test_label_maps_meet_without_seam(height: int, width: int, tile: int, seed: int) -> None:
    labels = np.random.default_rng(seed).integers(0, 2, (height, width)).astype(np.uint8)
    views = tiles_of((height, width), tile, 0.25)
    maps = [LabelMap((tile, tile), CLASSES, PALETTE, labels[view.slices]) for view in views]
    whole = merge(maps, views, (height, width))
    assert whole.size == (height, width)
    np.testing.assert_array_equal(whole.labels, labels)


def test_a_pixel_is_of_the_tile_that_shows_most_around_it() -> None:
    views = tiles_of((4, 14), 8, 0.25)
    maps = [
        LabelMap((4, 8), CLASSES, PALETTE, np.full((4, 8), i, dtype=np.uint8)) for i in range(2)
    ]
    np.testing.assert_array_equal(merge(maps, views, (4, 14)).labels[0], [0] * 7 + [1] * 7)


@given(st.data())
def test_masks_are_encoded_in_place(data: st.DataObject) -> None:
    """As pycocotools encodes the whole image."""
    height, width = data.draw(lengths), data.draw(lengths)
    top, left = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
    shape = data.draw(st.integers(1, height - top)), data.draw(st.integers(1, width - left))
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    mask = random.random(shape) < data.draw(st.sampled_from([0., 0.1, 0.9, 1.]))
    whole = np.zeros((height, width), dtype=np.uint8, order='F')
    whole[top:top + shape[0], left:left + shape[1]] = mask
    expected = coco_masks.encode(whole)
    assert make_json_rle(encode_crop(mask, top, left, (height, width))) == dict(
        size=expected['size'], counts=expected['counts'].decode())


def seen(scene: np.ndarray, view: View, score: float, with_masks: bool) -> Instances:
    """What a perfect detector finds in a view of numbered objects; odd ones are squares."""
    part = scene[view.slices]
    numbers = [n for n in np.unique(part) if n]
    boxes, masks = [], []
    for number in numbers:
        ys, xs = np.nonzero(part == number)
        boxes.append([xs.min(), ys.min(), xs.max() + 1, ys.max() + 1])
        code = coco_masks.encode(np.asfortranarray(part == number, dtype=np.uint8))
        masks.append(dict(size=code['size'], counts=code['counts'].decode()))
    return Instances(
        size=part.shape,
        classes=CLASSES,
        palette=PALETTE,
        boxes=np.array(boxes, dtype=np.float32).reshape(-1, 4),
        scores=np.full(len(numbers), score, dtype=np.float32),
        labels=np.array([n % 2 for n in numbers], dtype=np.int64),
        masks=tuple(masks) if with_masks else None)


def objects_in_a_row() -> np.ndarray:
    """60 x 200 with a bar across three tiles of 80, a block across two, and two in one tile."""
    scene = np.zeros((60, 200), dtype=int)
    scene[5:15, 20:190] = 1
    scene[20:40, 70:100] = 2
    scene[22:38, 101:112] = 4
    scene[45:55, 5:15] = 3
    return scene


@pytest.mark.parametrize('with_masks', [True, False])
@pytest.mark.parametrize('whole_too', [True, False])
def test_objects_across_borders_are_found_once_and_whole(with_masks: bool, whole_too: bool) -> None:
    scene = objects_in_a_row()
    views = tiles_of(scene.shape, 80, 0.25)
    assert len(views) == 3
    views += [View(0, 0, *scene.shape)] if whole_too else []
    found = [seen(scene, view, 0.5 + 0.1 * i, with_masks) for i, view in enumerate(views)]
    merged = merge(found, views, scene.shape)
    expected = seen(scene, View(0, 0, *scene.shape), 1., with_masks)
    assert sorted(map(tuple, merged.boxes)) == sorted(map(tuple, expected.boxes))
    for box, label, score in zip(merged.boxes, merged.labels, merged.scores, strict=True):
        index = next(i for i, other in enumerate(expected.boxes) if (other == box).all())
        assert label == expected.labels[index]
        views_of_it = [i for i, view in enumerate(views) if (scene[view.slices] == scene[
            int(box[1]), int(box[0])]).any()]  # yapf: disable
        assert score == pytest.approx(0.5 + 0.1 * max(views_of_it))
        if with_masks:
            mask = coco_masks.decode(merged.masks[list(map(tuple, merged.boxes)).index(tuple(box))])
            np.testing.assert_array_equal(mask, coco_masks.decode(expected.masks[index]))
    assert (np.diff(merged.scores) <= 0).all()


def test_neighbours_stay_apart() -> None:
    """One ends where the other begins, in what the tiles share, and both have one class."""
    scene = np.zeros((20, 100), dtype=int)
    scene[:, 20:50], scene[:, 50:80] = 1, 3
    views = tiles_of(scene.shape, 60, 0.25)
    merged = merge([seen(scene, view, 0.9, True) for view in views], views, scene.shape)
    assert sorted(map(tuple, merged.boxes)) == [(20, 0, 50, 20), (50, 0, 80, 20)]


def test_nothing_in_any_tile() -> None:
    scene = np.zeros((20, 100), dtype=int)
    views = tiles_of(scene.shape, 60, 0.25)
    merged = merge([seen(scene, view, 0.9, True) for view in views], views, scene.shape)
    assert len(merged) == 0 and merged.boxes.shape == (0, 4) and merged.masks == ()


def test_masks_whose_places_meet_and_that_do_not() -> None:
    """Two diagonals: their rectangles share a corner in which neither has a pixel."""
    views, size = tiles_of((30, 30), 20, 0.5), (30, 30)
    found = []
    for view in views:
        scene = np.zeros(size, dtype=int)
        if (view.top, view.left) in ((0, 0), (10, 10)):
            for offset in range(6):
                row = view.top + (5 + offset if view.top == 0 else 4 + offset)
                scene[row, view.left + (15 - offset if view.top == 0 else 9 - offset)] = 1
        found.append(seen(scene, view, 0.5, True))
    assert len(merge(found, views, size)) == 2


@given(st.lists(st.tuples(*[st.integers(0, 20)] * 2, *[st.integers(0, 9)] * 2,
                          st.integers(0, 2), st.integers(0, 2)), max_size=12))  # yapf: disable
def test_candidates_are_the_pairs_that_meet(rows: list[tuple[int, ...]]) -> None:
    parts = [
        Part(view, label, 1., (0., 0., 0., 0.), View(top, left, top + height, left + width), None,
             False, True) for top, left, height, width, label, view in rows
    ]
    expected = {
        (i, j)
        for i, j in combinations(range(len(parts)), 2)
        if parts[i].label == parts[j].label and parts[i].view != parts[j].view and parts[i].place.
        top < parts[j].place.bottom and parts[j].place.top < parts[i].place.bottom and
        parts[i].place.left < parts[j].place.right and parts[j].place.left < parts[i].place.right
    }
    found = candidates(parts)
    assert len(found) == len(set(found)) and set(found) == expected
