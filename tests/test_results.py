"""Results of models, and their drawings."""
from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as coco_masks

from colonnade.datasets.segment_maps import read_segment_ids
from colonnade.inference.drawing import draw_instances
from colonnade.inference.results import Instances, LabelMap, PanopticMap
from colonnade.runtime.colors import distinct_colors
from colonnade.runtime.results import number_segments

RED, BLUE = (255, 0, 0), (0, 0, 255)
GRAY = np.full((2, 3, 3), 100, dtype=np.uint8)


def build_squares() -> Instances:
    """Two squares in an image of 8 x 10 pixels, that of the second class first."""
    masks = np.zeros((2, 8, 10), dtype=np.uint8)
    masks[0, 1:3, 2:5], masks[1, 4:8, 5:9] = 1, 1
    rles = [coco_masks.encode(np.asfortranarray(mask)) for mask in masks]
    return Instances(
        size=(8, 10),
        classes=('disc', 'square'),
        palette=(RED, BLUE),
        boxes=np.array([[2, 1, 5, 3], [5, 4, 9, 8]], dtype=np.float32),
        scores=np.array([0.9, 0.2], dtype=np.float32),
        labels=np.array([1, 0]),
        masks=tuple(dict(size=rle['size'], counts=rle['counts'].decode()) for rle in rles))


def build_label_map() -> LabelMap:
    labels = np.array([[0, 0, 1], [0, 2, 1]], dtype=np.uint8)
    return LabelMap((2, 3), ('sky', 'tree', 'road'), (RED, BLUE, (9, 9, 9)), labels)


def test_instances() -> None:
    squares = build_squares()
    assert len(squares) == 2 and squares.names == ('square', 'disc')
    assert squares.decode_masks().sum((1, 2)).tolist() == [6, 16]
    assert squares.filter_by_score(0.9).names == ('square', )
    assert squares.filter_by_score(0.95).decode_masks().shape == (0, 8, 10)
    second = squares.select([1])
    assert second.names == ('disc', ) and second.decode_masks().sum() == 16
    assert squares.select(squares.scores > 0.5).names == ('square', )
    assert repr(squares) == '2 instances, image of height 8 and width 10: square 0.90, disc 0.20'
    assert repr(squares.filter_by_score(1)) == '0 instances, image of height 8 and width 10'
    with pytest.raises(ValueError, match='the model predicts boxes without masks'):
        replace(squares, masks=None).decode_masks()


def test_coco_entries() -> None:
    first, second = build_squares().to_coco(7, [18, 44])
    assert (first['image_id'], first['category_id'], second['category_id']) == (7, 44, 18)
    assert first['bbox'] == [2, 1, 3, 2] and np.float32(first['score']) == np.float32(0.9)
    assert first['segmentation']['size'] == [8, 10]
    for ids, expected in ((None, [2, 1]), (np.array([7, 8]), [8, 7])):
        assert [entry['category_id'] for entry in build_squares().to_coco(1, ids)] == expected


def test_drawing_of_instances() -> None:
    black = np.zeros((8, 10, 3), dtype=np.uint8)
    drawing = np.array(build_squares().draw(black, threshold=0.1, opacity=0.5, legend=False))
    assert drawing[1, 2].tolist() == [0, 0, 255], 'box'
    assert drawing[5, 6].tolist() == [128, 0, 0] and not black.any(), 'mask'
    assert not np.array(build_squares().draw(black, threshold=1, legend=False)).any()


def test_label_map() -> None:
    result = build_label_map()
    assert result.class_fractions() == {'sky': 1 / 2, 'tree': 1 / 3, 'road': 1 / 6}
    assert repr(result) == 'label map of height 2 and width 3: sky 50%, tree 33%, road 17%'
    for first in (0, 1):
        image = result.to_image(first)
        np.testing.assert_array_equal(np.array(image), result.labels + first)
        colors = np.array(result.palette)[result.labels]
        np.testing.assert_array_equal(np.array(image.convert('RGB')), colors)
    assert np.array(result.draw(GRAY, opacity=1, legend=False))[1, 2].tolist() == list(BLUE)
    assert np.array(result.draw(GRAY, opacity=0, legend=False)).tolist() == GRAY.tolist()
    assert result.draw(GRAY).height > 2, 'with a legend'


@pytest.mark.parametrize('draw, message', [
    (lambda: build_label_map().draw(np.zeros((3, 3, 3), np.uint8)),
     'the image has 3 x 3 pixels, but the result is for 2 x 3'),
    (lambda: build_label_map().draw(GRAY, opacity=2), 'opacity must be between 0 and 1, got 2'),
    (lambda: build_label_map().draw(), 'has no image: pass one'),
    (lambda: build_squares().draw(GRAY, threshold=5), 'threshold must be between 0 and 1, got 5'),
])  # yapf: disable
def test_invalid_drawings(draw: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw()


def test_label_maps_of_many_classes() -> None:
    names = tuple(map(str, range(300)))
    large = LabelMap((1, 2), names, distinct_colors(300), np.array([[0, 299]], dtype=np.uint16))
    assert np.array(large.to_image()).tolist() == [[0, 299]]
    small = LabelMap((1, 1), names[:256], distinct_colors(256), np.zeros((1, 1), dtype=np.uint8))
    assert small.to_image().mode == 'P' and np.array(small.to_image(1)).dtype == np.uint16
    with pytest.raises(ValueError, match='labels must be between 0 and 65535'):
        large.to_image(65500)


@pytest.mark.parametrize('size, number', [((1, 1), 1), ((1, 1), 0), ((60, 80), 200), ((2, 500), 3)])
def test_drawings_of_any_size(size: tuple[int, int], number: int) -> None:
    corners = np.random.default_rng(0).uniform(0, 1, (number, 2, 2)) * size[::-1]
    boxes = np.concatenate([corners.min(1), corners.max(1)], axis=1)
    drawing = draw_instances(np.zeros((*size, 3), dtype=np.uint8), boxes, None, [RED] * number,
                             ['a long caption 0.50'] * number)  # yapf: disable
    assert drawing.size == size[::-1] and np.array(drawing).any() == bool(number)


def test_captions_do_not_hide_small_objects() -> None:
    boxes = np.array([[20 + 30 * index, 60, 32 + 30 * index, 72] for index in range(10)], float)
    blank = np.zeros((160, 340, 3), dtype=np.uint8)
    plain = np.array(draw_instances(blank, boxes, None, [RED] * 10, None))
    drawing = np.array(draw_instances(blank, boxes, None, [RED] * 10, ['person 0.50'] * 10))
    for left, top, right, bottom in boxes.astype(int):
        box = slice(top, bottom + 1), slice(left, right + 1)
        assert (drawing[box] == plain[box]).all()


def test_captions_with_line_breaks() -> None:
    squares = replace(build_squares(), classes=('disc', 'a\nsquare'))
    image = np.zeros((8, 10, 3), dtype=np.uint8)
    assert squares.draw(image).size == (10, 8)
    labels = LabelMap((8, 10), squares.classes, squares.palette, np.ones((8, 10), dtype=np.uint8))
    assert labels.draw(image).height > 8


def test_panoptic_map(tmp_path: Path) -> None:
    # mmdet's codes of two classes: a background (1), two discs (0), and pixels without a segment
    codes = np.array([[1, 1000, 1000, 2], [1, 1, 2000, 2]], dtype=np.int32)
    segments, labels = number_segments(codes, num_classes=2)
    result = PanopticMap((2, 4), ('disc', 'sky'), (RED, BLUE), segments, labels, num_things=1)
    np.testing.assert_array_equal(segments, [[1, 2, 2, 0], [1, 1, 3, 0]])
    assert (len(result), result.names) == (3, ('sky', 'disc', 'disc'))
    assert repr(result) == '3 segments, image of height 2 and width 4: sky, disc, disc'
    assert result.segments_info()[1] == dict(id=2, label='disc', isthing=True, area=2)
    image, info = result.save(tmp_path / 'a.b')
    np.testing.assert_array_equal(read_segment_ids(np.array(Image.open(image))), segments)
    content = json.loads(info.read_text())
    assert (info.name, content['segments']) == ('a.b.json', 'a.b.png')
    assert content['segments_info'] == result.segments_info()


def test_no_segments() -> None:
    segments, labels = number_segments(np.full((2, 2), 2), num_classes=2)
    result = PanopticMap((2, 2), ('disc', 'sky'), (RED, BLUE), segments, labels, num_things=1)
    assert result.segments_info() == [] and not segments.any()
    assert result.to_json() == dict(segments=[]) and result.to_coco(1, 'a.png')['file_name']
    assert result.draw(GRAY[:, :2]).height > 2


def build_discs() -> PanopticMap:
    """Sky on the left, two discs on the right, and a corner without a segment."""
    codes = np.ones((60, 90), dtype=np.int32)
    codes[:30, 30:], codes[30:, 30:], codes[-5:, -5:] = 1000, 2000, 2
    segments, labels = number_segments(codes, num_classes=2)
    return PanopticMap((60, 90), ('disc', 'sky'), (RED, BLUE), segments, labels, num_things=1)


def test_panoptic_entries() -> None:
    annotation = build_discs().to_coco(7, 'a.png', [18, 200])
    assert (annotation['image_id'], annotation['file_name']) == (7, 'a.png')
    assert annotation['segments_info'][:2] == [
        dict(id=1, category_id=200, area=1800, bbox=[0, 0, 30, 60], iscrowd=0),
        dict(id=2, category_id=18, area=1800, bbox=[30, 0, 60, 30], iscrowd=0)
    ]
    assert build_discs().to_coco(7, 'a.png')['segments_info'][0]['category_id'] == 2
    first, *_, last = build_discs().to_json(masks=True)['segments']
    assert (first['class'], first['isthing'], first['area']) == ('sky', False, 1800)
    assert last['isthing'] and coco_masks.area(last['mask']) == last['area'] == 1775


def test_drawing_of_segments() -> None:
    discs, gray = build_discs(), np.full((60, 90, 3), 100, dtype=np.uint8)
    plain = dict(captions=False, legend=False)
    assert np.array(discs.draw(gray, opacity=0, **plain)).tolist() == gray.tolist()
    drawing = np.array(discs.draw(gray, opacity=1, **plain))
    assert drawing[10, 10].tolist() == list(BLUE) and drawing[10, 60].tolist() == list(RED)
    assert drawing[50, 60].tolist() not in (list(RED), list(BLUE)), 'another shade'
    assert drawing[58, 88].tolist() == [0, 0, 0], 'no segment'
    assert (drawing[20:40, 60] == 255).all(1).sum() == 1, 'contour'
    captioned = np.array(discs.draw(gray, opacity=1, legend=False))
    assert (captioned != drawing).any(-1)[:30, 30:].any(), 'caption'
    assert discs.draw(gray).height > 60, 'legend'
    labels = discs.to_label_map()
    assert labels.class_fractions()['unlabeled'] == 25 / 5400
