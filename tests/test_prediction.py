"""Results, their pictures, batches of images, and what models load from."""
from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mmengine.config import Config
from pycocotools import mask as coco_masks
from random_models import random_checkpoint

import colonnade
from colonnade.configs import find_config
from colonnade.engine.prediction.batches import WINDOW, in_batches, prefetched
from colonnade.engine.prediction.drawing import draw_instances
from colonnade.engine.prediction.images import ImageError
from colonnade.engine.prediction.model import Model
from colonnade.engine.prediction.results import Instances, LabelMap, distinct_colours

LEAVES = dict(
    boxes='faster_rcnn/xcit_nano_12_p16_slim_shapes',
    masks='mask_rcnn/xcit_nano_12_p16_slim_shapes',
    labels='sem_fpn/xcit_nano_12_p16_slim_shapes')
RED, BLUE = (255, 0, 0), (0, 0, 255)


@pytest.fixture(scope='module')
def weights(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp('weights')
    return {kind: random_checkpoint(leaf, folder / f'{kind}.pth') for kind, leaf in LEAVES.items()}


@pytest.fixture(scope='module')
def models(weights: dict[str, Path]) -> dict[str, Model]:
    """All in one process, as are the tests below."""
    return {kind: colonnade.load(LEAVES[kind], path, device='cpu')
            for kind, path in weights.items()}  # yapf: disable


def images(*sizes: tuple[int, int]) -> list[np.ndarray]:
    noise = np.random.default_rng(0)
    return [noise.integers(0, 256, (*size, 3), dtype=np.uint8) for size in sizes]


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
    assert found.mask_arrays().sum((1, 2)).tolist() == [6, 16]
    assert found.above(0.9).names == ('square', )
    assert found.above(0.95).mask_arrays().shape == (0, 8, 10)
    second = found.take([1])
    assert second.names == ('disc', ) and second.mask_arrays().sum() == 16
    boxes = Instances((8, 10), found.classes, found.palette, found.boxes, found.scores,
                      found.labels)
    with pytest.raises(ValueError, match='the model finds boxes, and no masks'):
        boxes.mask_arrays()


def test_instances_as_coco_has_them() -> None:
    first, second = squares().as_coco(7, [18, 44])
    assert (first['image_id'], first['category_id'], second['category_id']) == (7, 44, 18)
    assert first['bbox'] == [2, 1, 3, 2] and np.float32(first['score']) == np.float32(0.9)
    assert first['segmentation']['size'] == [8, 10]
    assert [entry['category_id'] for entry in squares().as_coco(1)] == [2, 1]


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
    with pytest.raises(ValueError, match='given as an array: draw'):
        found.draw()


def test_label_maps_of_many_classes() -> None:
    names = tuple(map(str, range(300)))
    labels = np.array([[0, 299]], dtype=np.uint16)
    found = LabelMap((1, 2), names, distinct_colours(300), labels)
    assert np.array(found.as_image()).tolist() == [[0, 299]]
    small = LabelMap((1, 1), names[:256], distinct_colours(256), np.zeros((1, 1), dtype=np.uint8))
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


def test_prefetched_keeps_order_and_never_runs_far_ahead() -> None:
    taken = []

    def endless() -> Iterator[int]:
        for number in itertools.count():
            taken.append(number)
            yield number

    def slow_at_first(number: int) -> int:
        time.sleep(0.02 if number == 0 else 0)
        return number * number

    found = prefetched(slow_at_first, endless(), workers=2, ahead=3)
    assert list(itertools.islice(found, 5)) == [0, 1, 4, 9, 16]
    found.close()
    assert len(taken) <= 5 + 3
    before = threading.active_count()
    broken = prefetched(lambda number: 1 // number, [2, 1, 0, 1], workers=2, ahead=9)
    assert [next(broken), next(broken)] == [0, 1]
    with pytest.raises(ZeroDivisionError):
        next(broken)
    assert threading.active_count() == before


@pytest.mark.parametrize('batch_size', [1, 3])
def test_batches_are_of_one_shape_and_in_order(batch_size: int) -> None:
    batches: list[list[str]] = []

    def run(batch: list[str]) -> list[str]:
        batches.append(batch)
        return [item.upper() for item in batch]

    items = ['b1', 'aa1', 'b2', '', 'b3', 'aa2', 'b4', '']
    found = in_batches(run, items, shape_of=lambda item: len(item) or None, batch_size=batch_size)
    assert list(found) == [(item, item.upper() if item else None) for item in items]
    assert all(len({len(item) for item in batch}) == 1 for batch in batches)
    assert max(map(len, batches)) == batch_size


def test_an_odd_image_does_not_hold_up_the_others() -> None:
    """It waits for others of its shape, not for the end."""
    items = itertools.chain(['odd'], itertools.repeat('a'))
    found = in_batches(lambda batch: batch, items, shape_of=len, batch_size=2)
    assert next(found)[0] == 'odd'
    assert next(items) == 'a' and WINDOW * 2 < 20


@pytest.mark.parametrize('kind', LEAVES)
def test_batches_change_no_answer(kind: str, models: dict[str, Model]) -> None:
    model = models[kind]
    assert model.kind == kind
    given = images((40, 60), (60, 40), (64, 64), (40, 60))
    single = [model.predict(image) for image in given]
    for one, other in zip(single, model.predict(given, batch_size=2), strict=True):
        assert one.size == other.size and type(one) is type(other)
        if isinstance(one, Instances):
            np.testing.assert_allclose(one.boxes, other.boxes, atol=1e-3)
            np.testing.assert_allclose(one.scores, other.scores, atol=1e-5)
        else:
            assert (one.labels == other.labels).mean() > 0.999


def test_models_answer_in_threads(models: dict[str, Model]) -> None:
    given = images((50, 60), (60, 50))
    alone = {kind: model.predict(given) for kind, model in models.items()}
    found: dict[tuple[str, int], list] = {}
    threads = [
        threading.Thread(
            target=lambda k=kind, n=number: found.update({(k, n): models[k].predict(given)}))
        for kind in models for number in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    for (kind, _), results in found.items():
        for one, other in zip(results, alone[kind], strict=True):
            key = 'labels' if kind == 'labels' else 'boxes'
            np.testing.assert_array_equal(getattr(one, key), getattr(other, key))


def test_what_cannot_be_read_does_not_end_answers(models: dict[str, Model], tmp_path: Path) -> None:
    image, = images((40, 40))
    given: list[Any] = [image, tmp_path / 'none.jpg', images((2, 9000))[0], image]
    answers = list(models['labels'].answers(given))
    assert [answer.error is None for answer in answers] == [True, False, False, True]
    assert 'none.jpg: there is no such file' in str(answers[1].error)
    assert 'the image of 2 x 9000 pixels does not pass the test pipeline' in str(answers[2].error)
    with pytest.raises(ImageError, match='none.jpg'):
        models['labels'].predict(given)


@pytest.mark.usefixtures('no_layout')
def test_sources_of_load(models: dict[str, Model], weights: dict[str, Path],
                         tmp_path: Path) -> None:
    image, = images((40, 40))
    expected = models['masks'].predict(image)
    path = find_config(LEAVES['masks'])
    whole = torch.load(weights['masks'])
    whole['meta'] = dict(
        cfg=Config.fromfile(path).dump(), dataset_meta=dict(classes=('a', 'b', 'c')))
    torch.save(whole, tmp_path / 'run.pth')
    for arguments in ((str(path), str(weights['masks'])), (Config.fromfile(path), weights['masks']),
                      (tmp_path / 'run.pth', )):
        model = colonnade.load(*arguments, device='cpu')
        np.testing.assert_array_equal(model.predict(image).boxes, expected.boxes)
    assert model.classes == ('a', 'b', 'c') and len(set(model.palette)) == 3


def test_settings_override_a_config(weights: dict[str, Path]) -> None:
    strict = colonnade.load(
        LEAVES['masks'], weights['masks'], cfg_options={'model.test_cfg.rcnn.score_thr': 0.9})
    assert (strict.predict(images((40, 40))[0]).scores > 0.9).all()


def test_classes_of_a_data_set_of_the_library(tmp_path: Path) -> None:
    """A checkpoint without classes has those that mmdet knows of COCO."""
    leaf = 'mask_rcnn/xcit_nano_12_p16_slim_coco'
    model = colonnade.load(leaf, random_checkpoint(leaf, tmp_path / 'a.pth'), device='cpu')
    assert len(model.classes) == 80 and model.classes[0] == 'person'
    assert model.palette[0] == (220, 20, 60)


@pytest.mark.parametrize('change, says', [
    (dict(config='mask_rcnn/xcit_nano'), 'no config file mask_rcnn/xcit_nano'),
    (dict(weights=None), 'no weights: load'),
    (dict(weights='nowhere.pth'), 'nowhere.pth'),
    (dict(weights='labels'), 'labels.pth'),
    (dict(config='mask_rcnn/xcit_nano_12_p16_slim_coco'), r'boxes\.pth'),
    (dict(device='cuda:99'), 'device cuda:99 cannot be used: '),
    (dict(device='gpu'), 'device gpu cannot be used: Expected one of cpu, cuda'),
    (dict(cfg_options={'model.test_cfg.rcnn.score_th': 1}), r'did you mean .*\.score_thr'),
    (dict(config='labels', weights=None), 'labels.pth holds no config that can be used'),
])  # yapf: disable
def test_what_load_refuses(change: dict[str, Any], says: str, weights: dict[str, Path]) -> None:
    arguments = dict(config=LEAVES['boxes'], weights='boxes') | change
    for key in ('config', 'weights'):
        arguments[key] = weights.get(arguments[key], arguments[key])  # type: ignore[call-overload]
    with pytest.raises((ValueError, OSError, colonnade.WeightsError), match=says):
        colonnade.load(**arguments)
