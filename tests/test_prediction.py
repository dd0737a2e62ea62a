"""Batches of images, and what models load from."""
from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.random_models import random_checkpoint
from mmengine.config import Config
from mmengine.logging import MMLogger
from PIL import Image

import colonnade
from colonnade.common.errors import UserError
from colonnade.common.prefetching import prefetch_map
from colonnade.configs import find_config
from colonnade.inference.batches import WINDOW, in_batches
from colonnade.inference.loading import metainfo_of
from colonnade.inference.model import Model
from colonnade.inference.results import Instances
from colonnade.inference.test_pipeline import steps_for_arrays
from colonnade.runtime.images import ImageError
from colonnade.settings.reading import read_config

LEAVES = dict(
    boxes='faster_rcnn/xcit_nano_12_p16_slim_shapes',
    masks='mask_rcnn/xcit_nano_12_p16_slim_shapes',
    labels='sem_fpn/xcit_nano_12_p16_slim_shapes')


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


def test_prefetched_keeps_order_and_never_runs_far_ahead() -> None:
    taken = []

    def endless() -> Iterator[int]:
        for number in itertools.count():
            taken.append(number)
            yield number

    def slow_at_first(number: int) -> int:
        time.sleep(0.02 if number == 0 else 0)
        return number * number

    found = prefetch_map(slow_at_first, endless(), workers=2, ahead=3)
    assert list(itertools.islice(found, 5)) == [0, 1, 4, 9, 16]
    found.close()
    assert len(taken) <= 5 + 3
    before = set(threading.enumerate())
    broken = prefetch_map(lambda number: 1 // number, [2, 1, 0, 1], workers=2, ahead=9)
    assert [next(broken), next(broken)] == [0, 1]
    with pytest.raises(ZeroDivisionError):
        next(broken)
    assert not set(threading.enumerate()) - before


def test_norms_of_several_processes_predict_in_one(weights: dict[str, Path]) -> None:
    """mmcv's synchronized norm cannot be built before processes have found each other."""
    cfg = read_config(find_config(LEAVES['masks']))
    cfg.model.neck.norm_cfg = dict(type='MMSyncBN')
    model = colonnade.load(cfg, weights['masks'], device='cpu')
    assert any(isinstance(module, torch.nn.BatchNorm2d) for module in model.module.neck.modules())


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


@pytest.mark.parametrize('kind', LEAVES)
def test_answers_leave_the_device_before_numpy(kind: str, models: dict[str, Model],
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    """``np.array(tensor)`` is an error for tensors of a GPU; here it is one for all."""

    def refuse(*_: Any, **__: Any) -> None:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    monkeypatch.setattr(torch.Tensor, '__array__', refuse)
    assert models[kind].predict(images((40, 60)))[0].size == (40, 60)


@pytest.mark.gpu
@pytest.mark.parametrize('kind', LEAVES)
def test_answers_of_a_gpu(kind: str, models: dict[str, Model], weights: dict[str, Path]) -> None:
    image, = images((40, 60))
    expected = models[kind].predict(image)
    found = colonnade.load(LEAVES[kind], weights[kind], device='cuda:0').predict(image)
    if isinstance(expected, Instances):
        np.testing.assert_allclose(found.scores[:5], expected.scores[:5], atol=1e-2)
    else:
        assert (found.labels == expected.labels).mean() > 0.99


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


def test_wrapped_data_sets_and_colours() -> None:
    cfg = read_config(find_config(LEAVES['labels']))
    dataset, kinds = cfg.test_dataloader.dataset, [step['type'] for step in steps_for_arrays(cfg)]
    assert kinds[0] == 'mmseg.LoadImageFromNDArray' and 'LoadAnnotations' not in kinds
    classes = metainfo_of(cfg)['classes']
    cfg.test_dataloader.dataset = dict(type='ConcatDataset', datasets=[dataset])
    assert [step['type'] for step in steps_for_arrays(cfg)] == kinds
    assert metainfo_of(cfg)['classes'] == classes
    dataset.pipeline[0].color_type = 'grayscale'
    with pytest.raises(ValueError, match="color_type 'grayscale': only color can be predicted"):
        steps_for_arrays(cfg)
    dataset.pipeline = dataset.pipeline[1:]
    with pytest.raises(ValueError, match='no test pipeline that begins with LoadImageFromFile'):
        steps_for_arrays(cfg)


def test_images_above_the_limit_of_pillow_in_tiles(models: dict[str, Model], tmp_path: Path,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    Image.fromarray(images((40, 60))[0]).save(tmp_path / 'a.png')
    monkeypatch.setattr(Image, 'MAX_IMAGE_PIXELS', 1000)
    with pytest.raises(ImageError, match='has 2,400 pixels, more than'):
        models['labels'].predict(tmp_path / 'a.png')
    assert models['labels'].predict(tmp_path / 'a.png', tile=32).size == (40, 60)


@pytest.mark.slow
@pytest.mark.parametrize('leaf', colonnade.list_configs('*/xcit_nano_12_p16_slim_shapes'))
def test_every_head_answers(leaf: str, tmp_path: Path) -> None:
    """Alone, in batches, in tiles, and on a single pixel."""
    model = colonnade.load(leaf, random_checkpoint(leaf, tmp_path / 'a.pth'), device='cpu')
    given = images((40, 60), (40, 60), (1, 1))
    alone = [model.predict(image) for image in given]
    for one, other in zip(alone, model.predict(given, batch_size=2), strict=True):
        if isinstance(one, Instances):
            np.testing.assert_allclose(one.scores, other.scores, atol=1e-4)
        else:
            assert (one.labels == other.labels).mean() > 0.999
    for image, found in zip(given, model.predict_stream(given, tile=32), strict=True):
        assert found.size == image.shape[:2] and found.draw(image).width >= found.size[1]


@pytest.mark.parametrize('change, says', [
    (dict(config='mask_rcnn/xcit_nano'), 'no config file mask_rcnn/xcit_nano'),
    (dict(weights=None), 'no weights behind'),
    (dict(weights='nowhere.pth'), 'nowhere.pth'),
    (dict(weights='labels'), 'labels.pth'),
    (dict(config='mask_rcnn/xcit_nano_12_p16_slim_coco'), r'boxes\.pth'),
    (dict(device='cuda:99'), 'device cuda:99 cannot be used: '),
    (dict(device='gpu'), 'device gpu cannot be used: name cpu, cuda or cuda:0'),
    (dict(cfg_options={'model.test_cfg.rcnn.score_th': 1}), r'did you mean .*\.score_thr'),
    (dict(config='labels', weights=None), 'labels.pth holds no config that can be used'),
])  # yapf: disable
def test_what_load_refuses(change: dict[str, Any], says: str, weights: dict[str, Path]) -> None:
    arguments = dict(config=LEAVES['boxes'], weights='boxes') | change
    for key in ('config', 'weights'):
        arguments[key] = weights.get(arguments[key], arguments[key])  # type: ignore[call-overload]
    with pytest.raises((ValueError, OSError, colonnade.WeightsError), match=says):
        colonnade.load(**arguments)


def test_an_image_that_the_network_refuses_stops_no_other(models: dict[str, Model]) -> None:
    """A line of pixels is prepared as less than a patch."""
    good, thin = images((40, 40), (1, 64))
    for batch_size in (1, 3):
        found = list(models['labels'].answers([good, thin, good], batch_size=batch_size))
        assert [answer.error is None for answer in found] == [True, False, True]
        assert 'at least 16 x 16' in str(found[1].error) and found[1].image is None


def test_what_the_network_fails_on_is_found_in_a_batch(models: dict[str, Model],
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    model, given = models['labels'], images((40, 40), (40, 40), (40, 40))
    given[1][:] = 0
    step = model.module.test_step

    def fails_on_black(data: dict[str, list]) -> list:
        if any(not image.any() for image in data['inputs']):
            raise RuntimeError('black')
        return step(data)

    monkeypatch.setattr(model.module, 'test_step', fails_on_black)
    found = list(model.answers(given, batch_size=3))
    assert [answer.result is None for answer in found] == [False, True, False]
    assert str(found[1].error) == 'the image: the model does not take it: black'


def test_boxes_that_are_no_numbers_are_errors_of_the_image(models: dict[str, Model],
                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    model, step = models['boxes'], models['boxes'].module.test_step

    def diverged(data: dict[str, list]) -> list:
        samples = step(data)
        samples[0].pred_instances.bboxes[:] = torch.inf
        return samples

    monkeypatch.setattr(model.module, 'test_step', diverged)
    with pytest.raises(ImageError, match='boxes or scores that are not finite'):
        model.predict(images((40, 40))[0])


def test_one_image_of_pillows_many_times(models: dict[str, Model], tmp_path: Path) -> None:
    """Pillow decodes it when it is first used, which only one thread may do."""
    for _ in range(5):
        Image.fromarray(images((40, 40))[0]).save(tmp_path / 'a.png')
        with Image.open(tmp_path / 'a.png') as image:
            assert len(models['labels'].predict([image] * 4)) == 4


def test_what_one_image_may_be(models: dict[str, Model], tmp_path: Path) -> None:
    model = models['labels']
    Image.fromarray(images((40, 40))[0]).save(tmp_path / 'a.png')
    with (tmp_path / 'a.png').open('rb') as file:
        np.testing.assert_array_equal(
            model.predict(file).labels,
            model.predict(tmp_path / 'a.png').labels)
    with pytest.raises(TypeError, match='predict_stream takes several images'):
        next(model.predict_stream(str(tmp_path / 'a.png')))
    with pytest.raises(TypeError, match='an image is a path, .* got int'):
        model.predict(5)
    with pytest.raises(ValueError, match='overlap is of tiles'):
        model.predict(tmp_path / 'a.png', overlap=0.5)


def kinds_of(rgb: np.ndarray) -> dict[str, tuple[Any, dict[str, str]]]:
    """One image in every form that is taken."""
    tensor, file = torch.from_numpy(rgb.copy()), BytesIO()
    Image.fromarray(rgb).save(file, 'PNG')
    channels_first = tensor.permute(2, 0, 1)
    return {
        'an array': (rgb, {}),
        'a view': (rgb[:, ::-1][:, ::-1], {}),
        'of OpenCV': (rgb[..., ::-1], dict(channels='bgr')),
        'floats': (rgb / 255, {}),
        'a tensor': (channels_first, {}),
        'a tensor of floats': (channels_first / 255, {}),
        'a tensor with a gradient': ((channels_first / 255).requires_grad_(), {}),
        'a tensor of float64': ((channels_first / 255).to(torch.float64), {}),
        'a tensor in BGR': (channels_first.flip(0), dict(channels='bgr')),
        'a tensor, channels last': (tensor, {}),
        'of Pillow': (Image.fromarray(rgb), {}),
        'a file': (file.getvalue(), {}),
    }


@pytest.mark.parametrize('kind', ['labels', 'boxes'])
def test_images_in_memory(kind: str, models: dict[str, Model], tmp_path: Path) -> None:
    """All give one answer, and keep the image, so that it can be drawn."""
    model, rgb = models[kind], images((40, 56))[0]
    Image.fromarray(rgb).save(tmp_path / 'a.png')
    expected = model.predict(tmp_path / 'a.png')
    assert expected.image is None
    drawn = np.asarray(expected.draw())
    for name, (image, options) in kinds_of(rgb).items():
        for found in (model.predict(image, **options), *model.predict([image], tile=48, **options)):
            np.testing.assert_array_equal(found.image, rgb, err_msg=name)
        found = model.predict(image, **options)
        np.testing.assert_array_equal(found.draw(), drawn, err_msg=name)
    mirrored = model.predict(rgb[..., ::-1])  # nothing shows that this one is of OpenCV
    assert (np.asarray(mirrored.draw()) != drawn).any()
    batch = torch.from_numpy(np.stack([rgb, rgb])).permute(0, 3, 1, 2)
    assert [len(model.predict(several)) for several in (batch, batch.numpy().transpose(0, 2, 3, 1))
            ] == [2, 2]  # yapf: disable


def test_a_kept_image_is_a_copy(models: dict[str, Model]) -> None:
    """Programs that read videos write each frame to one array."""
    frame = images((40, 40))[0]
    found, before = models['labels'].predict(frame), frame.copy()
    frame[:] = 0
    np.testing.assert_array_equal(found.image, before)


def test_gray_images_in_memory(models: dict[str, Model]) -> None:
    gray = images((40, 40))[0][..., 0]
    expected = models['labels'].predict(Image.fromarray(gray))
    for image in (gray, gray[..., None], torch.from_numpy(gray), torch.from_numpy(gray)[None]):
        found = models['labels'].predict(image)
        np.testing.assert_array_equal(found.labels, expected.labels)
        np.testing.assert_array_equal(found.image, expected.image)


@pytest.mark.parametrize('image, says', [
    (np.zeros((40, 40, 4), np.uint8), r'got \(40, 40, 4\) and uint8'),
    (np.zeros((3, 40, 40), np.uint8), r'as a tensor also \(3, H, W\), .*got \(3, 40, 40\)'),
    (np.zeros((40, 40, 3), np.int64), r'values of type uint8, .* got .* and int64'),
    (np.full((40, 40, 3), 255.), 'floats from 0 to 1, got floats from 255 to 255'),
    (np.full((40, 40, 3), np.nan), 'got floats from nan to nan'),
    (torch.full((3, 40, 40), -1.), 'got floats from -1 to -1'),
    (torch.zeros(3, 0, 40), r'got \(3, 0, 40\) and torch.float32'),
    ([5], "an image is a path, .* a tensor or the content of a file, got int"),
])  # yapf: disable
def test_what_no_image_is(image: Any, says: str, models: dict[str, Model]) -> None:
    with pytest.raises(ImageError, match=says):
        models['labels'].predict(image)


def test_the_order_of_channels_has_two_names(models: dict[str, Model]) -> None:
    with pytest.raises(UserError, match="channels must be rgb or bgr, got 'RGB'"):
        models['labels'].predict(images((40, 40))[0], channels='RGB')


@pytest.mark.parametrize('config, given, says', [
    ('a.png', None, 'a.png is an image: a config stands before it'),
    ('a.safetensors', None, 'a.safetensors holds no config'),
    ('a.pth', LEAVES['boxes'], 'a.pth holds weights, and is no config: name the config first'),
    (LEAVES['boxes'], 'a.png', 'no weights behind .*: a.png is no file of weights'),
    ('README.md', 'a.pth', 'README.md is no config: configs end in .py'),
])  # yapf: disable
def test_files_of_another_kind(config: str, given: str | None, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        colonnade.load(config, given)


def test_backbones_that_cannot_be_fused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leaf = 'sem_fpn/simplified_vit_nano_12_slim_shapes'
    weights = random_checkpoint(leaf, tmp_path / 'a.pth')
    with pytest.raises(ValueError, match='SimplifiedViT cannot be fused'):
        colonnade.load(leaf, weights, fuse=True)
    said: list[str] = []
    monkeypatch.setattr(MMLogger.get_current_instance(), 'handle', lambda x: said.append(x.msg))
    model = colonnade.load(leaf, weights, fuse=None)
    assert not model.module.neck.fused
    assert [text for text in said if 'SimplifiedViT cannot be fused' in text][0].startswith('not ')
