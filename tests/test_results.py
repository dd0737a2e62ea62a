"""What models answer, and pictures of it."""
from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from pycocotools import mask as coco_masks

from colonnade.inference.drawing import draw_instances
from colonnade.inference.results import Instances, LabelMap
from colonnade.runtime.colors import distinct_colors

RED, BLUE = (255, 0, 0), (0, 0, 255)


def squares() -> Instances:
    """Two in an image of 8 x 10, the second class first."""
    masks = np.zeros((2, 8, 10), dtype=np.uint8)
    masks[0, 1:3, 2:5], masks[1, 4:8, 5:9] = 1, 1
    codes = [coco_masks.encode(np.asfortranarray(mask)) for mask in masks]
    return Instances(
        size=(8, 10),
        classes=('disc', 'square'),
        palette=(RED, BLUE),
        boxes=np.array([[2, 1, 5, 3], [5, 4, 9, 8]], dtype=np.float32),
        scores=np.array([0.9, 0.2], dtype=np.float32),
        labels=np.array([1, 0]),
        masks=tuple(dict(size=code['size'], counts=code['counts'].decode()) for code in codes))


def test_instances() -> None:
    found = squares()
    assert len(found) == 2 and found.names == ('square', 'disc')
    assert found.decode_masks().sum((1, 2)).tolist() == [6, 16]
    assert found.above(0.9).names == ('square', )
    assert found.above(0.95).decode_masks().shape == (0, 8, 10)
    second = found.take([1])
    assert second.names == ('disc', ) and second.decode_masks().sum() == 16
    boxes = Instances((8, 10), found.classes, found.palette, found.boxes, found.scores,
                      found.labels)
    with pytest.raises(ValueError, match='the model finds boxes, and no masks'):
        boxes.decode_masks()


def test_instances_as_coco_has_them() -> None:
    first, second = squares().to_coco(7, [18, 44])
    assert (first['image_id'], first['category_id'], second['category_id']) == (7, 44, 18)
    assert first['bbox'] == [2, 1, 3, 2] and np.float32(first['score']) == np.float32(0.9)
    assert first['segmentation']['size'] == [8, 10]
    assert [entry['category_id'] for entry in squares().to_coco(1)] == [2, 1]


def test_instances_are_drawn() -> None:
    black = np.zeros((8, 10, 3), dtype=np.uint8)
    drawn = np.array(squares().draw(black, threshold=0.1, opacity=0.5, legend=False))
    assert drawn[1, 2].tolist() == [0, 0, 255]  # the box
    assert drawn[5, 6].tolist() == [128, 0, 0] and not black.any()  # the mask
    assert not np.array(squares().draw(black, threshold=1, legend=False)).any()


def test_label_maps() -> None:
    labels = np.array([[0, 0, 1], [0, 2, 1]], dtype=np.uint8)
    found = LabelMap((2, 3), ('sky', 'tree', 'road'), (RED, BLUE, (9, 9, 9)), labels)
    assert found.shares() == {'sky': 1 / 2, 'tree': 1 / 3, 'road': 1 / 6}
    for first in (0, 1):
        image = found.as_image(first)
        np.testing.assert_array_equal(np.array(image), labels + first)
        np.testing.assert_array_equal(
            np.array(image.convert('RGB')),
            np.array(found.palette)[labels])
    grey = np.full((2, 3, 3), 100, dtype=np.uint8)
    assert np.array(found.draw(grey, opacity=1, legend=False))[1, 2].tolist() == list(BLUE)
    assert np.array(found.draw(grey, opacity=0, legend=False)).tolist() == grey.tolist()
    assert found.draw(grey).height > 2  # with a legend
    with pytest.raises(ValueError, match='the image has 3 x 3 pixels, and .* predicted 2 x 3'):
        found.draw(np.zeros((3, 3, 3), dtype=np.uint8))
    with pytest.raises(ValueError, match='opacity is from 0 to 1, got 2'):
        found.draw(grey, opacity=2)
    with pytest.raises(ValueError, match='has no image: pass it'):
        found.draw()


def test_label_maps_of_many_classes() -> None:
    names = tuple(map(str, range(300)))
    labels = np.array([[0, 299]], dtype=np.uint16)
    found = LabelMap((1, 2), names, distinct_colors(300), labels)
    assert np.array(found.as_image()).tolist() == [[0, 299]]
    small = LabelMap((1, 1), names[:256], distinct_colors(256), np.zeros((1, 1), dtype=np.uint8))
    assert small.as_image().mode == 'P' and np.array(small.as_image(1)).dtype == np.uint16
    with pytest.raises(ValueError, match='labels are from 0 to 65535'):
        found.as_image(65500)


@pytest.mark.parametrize('size, number', [((1, 1), 1), ((1, 1), 0), ((60, 80), 200), ((2, 500), 3)])
def test_pictures_of_any_size(size: tuple[int, int], number: int) -> None:
    corners = np.random.default_rng(0).uniform(0, 1, (number, 2, 2)) * size[::-1]
    boxes = np.concatenate([corners.min(1), corners.max(1)], axis=1)
    picture = draw_instances(np.zeros((*size, 3), dtype=np.uint8), boxes, None, [RED] * number,
                             ['a long caption 0.50'] * number)  # yapf: disable
    assert picture.size == size[::-1] and np.array(picture).any() == bool(number)


def test_captions_leave_small_objects_visible() -> None:
    """Ten small objects in a row, as in a photograph of a crowd: each must stay visible."""
    boxes = np.array([[20 + 30 * index, 60, 32 + 30 * index, 72] for index in range(10)], float)
    blank = np.zeros((160, 340, 3), dtype=np.uint8)
    plain = np.array(draw_instances(blank, boxes, None, [RED] * 10, None))
    picture = np.array(draw_instances(blank, boxes, None, [RED] * 10, ['person 0.50'] * 10))
    for left, top, right, bottom in boxes.astype(int):
        inside = slice(top, bottom + 1), slice(left, right + 1)
        assert (picture[inside] == plain[inside]).all()


def test_instances_are_chosen_and_printed() -> None:
    found = squares()
    assert found.take(found.scores > 0.5).names == ('square', )
    assert [entry['category_id'] for entry in found.to_coco(1, np.array([7, 8]))] == [8, 7]
    assert repr(found) == '2 instances, image of height 8 and width 10: square 0.90, disc 0.20'
    assert repr(found.above(1)) == '0 instances, image of height 8 and width 10'
    labels = LabelMap((1, 4), found.classes, found.palette, np.array([[0, 0, 0, 1]],
                                                                     dtype=np.uint8))
    assert repr(labels) == 'label map of height 1 and width 4: disc 75%, square 25%'


def test_names_of_several_lines_are_drawn() -> None:
    found = replace(squares(), classes=('disc', 'a\nsquare'))
    image = np.zeros((8, 10, 3), dtype=np.uint8)
    assert found.draw(image).size == (10, 8)
    labels = LabelMap((8, 10), found.classes, found.palette, np.ones((8, 10), dtype=np.uint8))
    assert labels.draw(image).height > 8
    with pytest.raises(ValueError, match='threshold is from 0 to 1, got 5'):
        found.draw(image, threshold=5)
