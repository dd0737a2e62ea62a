"""Loading of models, and prediction of images in batches."""
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
from colonnade.inference import large_tiffs
from colonnade.inference import model as model_module
from colonnade.inference.arrays import get_array_steps
from colonnade.inference.batches import WINDOW, run_in_batches
from colonnade.inference.loading import find_dataset_metainfo
from colonnade.inference.model import Model
from colonnade.inference.results import Instances, Result
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
    return {kind: colonnade.load(LEAVES[kind], path, device='cpu')
            for kind, path in weights.items()}  # yapf: disable


@pytest.fixture
def segmenter(models: dict[str, Model]) -> Model:
    return models['labels']


def draw_noise(*sizes: tuple[int, int]) -> list[np.ndarray]:
    noise = np.random.default_rng(0)
    return [noise.integers(0, 256, (*size, 3), dtype=np.uint8) for size in sizes]


def check_equal(one: Result, other: Result, tolerance: float = 1e-3) -> None:
    assert one.size == other.size and type(one) is type(other)
    if isinstance(one, Instances):
        np.testing.assert_allclose(one.scores, other.scores, atol=1e-4)
        np.testing.assert_allclose(one.boxes, other.boxes, atol=tolerance)
    else:
        assert (one.labels == other.labels).mean() >= 1 - tolerance


def test_prefetching_keeps_order_and_is_bounded() -> None:
    taken = []

    def count_up() -> Iterator[int]:
        for number in itertools.count():
            taken.append(number)
            yield number

    def square(number: int) -> int:
        time.sleep(0.02 if number == 0 else 0)
        return number * number

    squares = prefetch_map(square, count_up(), workers=2, ahead=3)
    assert list(itertools.islice(squares, 5)) == [0, 1, 4, 9, 16]
    squares.close()
    assert len(taken) <= 5 + 3
    before = set(threading.enumerate())
    failing = prefetch_map(lambda number: 1 // number, [2, 1, 0, 1], workers=2, ahead=9)
    assert [next(failing), next(failing)] == [0, 1]
    with pytest.raises(ZeroDivisionError):
        next(failing)
    assert not set(threading.enumerate()) - before


@pytest.mark.parametrize('batch_size', [1, 3])
def test_batches_have_one_shape_and_keep_order(batch_size: int) -> None:
    batches: list[list[str]] = []

    def run(batch: list[str]) -> list[str]:
        batches.append(batch)
        return [item.upper() for item in batch]

    items = ['b1', 'aa1', 'b2', '', 'b3', 'aa2', 'b4', '']
    outputs = run_in_batches(
        run, items, get_shape=lambda item: len(item) or None, batch_size=batch_size)
    assert list(outputs) == [(item, item.upper() if item else None) for item in items]
    assert all(len({len(item) for item in batch}) == 1 for batch in batches)
    assert max(map(len, batches)) == batch_size


def test_unusual_shape_does_not_block_other_images() -> None:
    items = itertools.chain(['odd'], itertools.repeat('a'))
    outputs = run_in_batches(lambda batch: batch, items, get_shape=len, batch_size=2)
    assert next(outputs)[0] == 'odd'
    assert next(items) == 'a' and WINDOW * 2 < 20


@pytest.mark.slow
@pytest.mark.parametrize('kind', LEAVES)
def test_batches_do_not_change_results(kind: str, models: dict[str, Model]) -> None:
    model = models[kind]
    assert model.kind == kind
    images = draw_noise((40, 60), (60, 40), (64, 64), (40, 60))
    for image, result in zip(images, model.predict(images, batch_size=2), strict=True):
        check_equal(model.predict(image), result)


@pytest.mark.parametrize('kind', LEAVES)
def test_results_leave_the_device_before_numpy(kind: str, models: dict[str, Model],
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    """``np.array(tensor)`` raises for tensors on a GPU; here it raises for all."""

    def fail(*_: Any, **__: Any) -> None:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    monkeypatch.setattr(torch.Tensor, '__array__', fail)
    assert models[kind].predict(draw_noise((40, 60)))[0].size == (40, 60)


@pytest.mark.gpu
@pytest.mark.parametrize('kind', LEAVES)
def test_results_on_a_gpu(kind: str, models: dict[str, Model], weights: dict[str, Path]) -> None:
    image, = draw_noise((40, 60))
    expected = models[kind].predict(image)
    result = colonnade.load(LEAVES[kind], weights[kind], device='cuda:0').predict(image)
    if isinstance(expected, Instances):
        np.testing.assert_allclose(result.scores[:5], expected.scores[:5], atol=1e-2)
    else:
        assert (result.labels == expected.labels).mean() > 0.99


def test_models_predict_in_threads(models: dict[str, Model]) -> None:
    images = draw_noise((50, 60), (60, 50))
    expected = {kind: model.predict(images) for kind, model in models.items()}
    found: dict[tuple[str, int], list] = {}
    threads = [
        threading.Thread(
            target=lambda k=kind, n=number: found.update({(k, n): models[k].predict(images)}))
        for kind in models for number in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    for (kind, _), results in found.items():
        for one, other in zip(results, expected[kind], strict=True):
            check_equal(one, other, tolerance=0)


def test_unreadable_images_do_not_stop_the_others(segmenter: Model, tmp_path: Path) -> None:
    image, thin = draw_noise((40, 40), (2, 9000))
    images: list[Any] = [image, tmp_path / 'none.jpg', thin, image]
    predictions = list(segmenter.iter_predictions(images))
    assert [prediction.error is None for prediction in predictions] == [True, False, False, True]
    assert 'none.jpg: no such file' in str(predictions[1].error)
    message = 'the test pipeline of the config fails on the image of 2 x 9000 pixels'
    assert message in str(predictions[2].error)
    with pytest.raises(ImageError, match='none.jpg'):
        segmenter.predict(images)


def test_images_on_which_the_network_fails(segmenter: Model,
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    """A line of pixels becomes smaller than a patch; the other image fails only in the network."""
    image, thin, black = draw_noise((40, 40), (1, 64), (40, 40))
    black[:] = 0
    step = segmenter.module.test_step

    def fail_on_black(data: dict[str, list]) -> list:
        if any(not image.any() for image in data['inputs']):
            raise RuntimeError('black')
        return step(data)

    monkeypatch.setattr(segmenter.module, 'test_step', fail_on_black)
    for bad, batch_size, message in ((thin, 1, 'at least 16 x 16'), (thin, 3, 'at least 16 x 16'),
                                     (black, 3, 'the image: the model fails on it: black')):
        predictions = list(segmenter.iter_predictions([image, bad, image], batch_size=batch_size))
        assert [prediction.result is None for prediction in predictions] == [False, True, False]
        assert message in str(predictions[1].error) and predictions[1].image is None


def test_infinite_boxes(models: dict[str, Model], monkeypatch: pytest.MonkeyPatch) -> None:
    model, step = models['boxes'], models['boxes'].module.test_step

    def diverge(data: dict[str, list]) -> list:
        samples = step(data)
        samples[0].pred_instances.bboxes[:] = torch.inf
        return samples

    monkeypatch.setattr(model.module, 'test_step', diverge)
    with pytest.raises(ImageError, match='predicted NaN or infinite boxes or scores'):
        model.predict(draw_noise((40, 40))[0])


@pytest.mark.usefixtures('no_layout')
def test_sources_of_load(models: dict[str, Model], weights: dict[str, Path],
                         tmp_path: Path) -> None:
    image, = draw_noise((40, 40))
    expected = models['masks'].predict(image)
    path = find_config(LEAVES['masks'])
    checkpoint = torch.load(weights['masks'])
    checkpoint['meta'] = dict(
        cfg=Config.fromfile(path).dump(), dataset_meta=dict(classes=('a', 'b', 'c')))
    torch.save(checkpoint, tmp_path / 'run.pth')
    run = tmp_path / 'run'
    run.mkdir()
    torch.save(checkpoint, run / 'best_coco_bbox_mAP_iter_5.pth')
    (run / 'best_checkpoint').write_text('moved/run/best_coco_bbox_mAP_iter_5.pth')
    (run / 'last_checkpoint').write_text('moved/run/iter_9.pth')
    (run / path.name).write_text(checkpoint['meta']['cfg'])
    for arguments in ((str(path), str(weights['masks'])), (Config.fromfile(path), weights['masks']),
                      (tmp_path / 'run.pth', ), (run, ), (run, tmp_path / 'run.pth')):
        model = colonnade.load(*arguments, device='cpu')
        np.testing.assert_array_equal(model.predict(image).boxes, expected.boxes)
    assert model.classes == ('a', 'b', 'c') and len(set(model.palette)) == 3
    (run / path.name).write_text('import os\n' + checkpoint['meta']['cfg'])
    with pytest.raises(colonnade.WeightsError, match='the config of .* contains code'):
        colonnade.load(run)
    (run / 'best_coco_bbox_mAP_iter_5.pth').unlink()
    with pytest.raises(FileNotFoundError, match='run is neither .* work dir .* has no checkpoint'):
        colonnade.load(run)


def test_settings_override_the_config(weights: dict[str, Path]) -> None:
    """A synchronized norm of mmcv becomes a norm of one process."""
    cfg = read_config(find_config(LEAVES['masks']))
    cfg.model.neck.norm_cfg = dict(type='MMSyncBN')
    options = {'model.test_cfg.rcnn.score_thr': 0.9}
    model = colonnade.load(cfg, weights['masks'], device='cpu', cfg_options=options)
    assert any(isinstance(module, torch.nn.BatchNorm2d) for module in model.module.neck.modules())
    assert (model.predict(draw_noise((40, 40))[0]).scores > 0.9).all()


def test_classes_of_coco(tmp_path: Path) -> None:
    """A checkpoint without classes gets those of the dataset class."""
    leaf = 'mask_rcnn/xcit_nano_12_p16_slim_coco'
    model = colonnade.load(leaf, random_checkpoint(leaf, tmp_path / 'a.pth'), device='cpu')
    assert len(model.classes) == 80 and model.classes[0] == 'person'
    assert model.palette[0] == (220, 20, 60)


def test_pipelines_for_arrays() -> None:
    cfg = read_config(find_config(LEAVES['labels']))
    dataset, kinds = cfg.test_dataloader.dataset, [step['type'] for step in get_array_steps(cfg)]
    assert kinds[0] == 'mmseg.LoadImageFromNDArray' and 'LoadAnnotations' not in kinds
    classes = find_dataset_metainfo(cfg)['classes']
    cfg.test_dataloader.dataset = dict(type='ConcatDataset', datasets=[dataset])
    assert [step['type'] for step in get_array_steps(cfg)] == kinds
    assert find_dataset_metainfo(cfg)['classes'] == classes
    dataset.pipeline[0].color_type = 'grayscale'
    with pytest.raises(ValueError, match="color_type 'grayscale' in the config: .* only 'color'"):
        get_array_steps(cfg)
    dataset.pipeline = dataset.pipeline[1:]
    with pytest.raises(ValueError, match='no test pipeline that begins with LoadImageFromFile'):
        get_array_steps(cfg)


def test_tiles_allow_images_above_the_limit_of_pillow(segmenter: Model, tmp_path: Path,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    Image.fromarray(draw_noise((40, 60))[0]).save(tmp_path / 'a.png')
    monkeypatch.setattr(Image, 'MAX_IMAGE_PIXELS', 1000)
    with pytest.raises(ImageError, match='has 2,400 pixels, more than'):
        segmenter.predict(tmp_path / 'a.png')
    assert segmenter.predict(tmp_path / 'a.png', tile=32).size == (40, 60)


def test_large_tiffs_equal_other_images(segmenter: Model, tmp_path: Path,
                                        monkeypatch: pytest.MonkeyPatch) -> None:
    Image.fromarray(draw_noise((40, 60))[0]).save(tmp_path / 'a.tif')
    expected = segmenter.predict(tmp_path / 'a.tif', tile=32)
    monkeypatch.setattr(large_tiffs, 'MAX_PIXELS', 1000)
    prediction, = segmenter.iter_predictions([tmp_path / 'a.tif'], tile=32)
    assert not prediction.image.flags.owndata
    check_equal(prediction.result, expected)


def test_masks_have_a_largest_size(models: dict[str, Model],
                                   monkeypatch: pytest.MonkeyPatch) -> None:
    image, = draw_noise((40, 60))
    monkeypatch.setattr(model_module, 'MAX_RLE_PIXELS', 2399)
    with pytest.raises(ImageError, match='has 2,400 pixels, more than the 2,399 of COCO masks'):
        models['masks'].predict(image, tile=32)
    assert models['labels'].predict(image, tile=32).size == (40, 60)


@pytest.mark.slow
@pytest.mark.parametrize('leaf', colonnade.list_configs('*/xcit_nano_12_p16_slim_shapes'))
def test_every_head(leaf: str, tmp_path: Path) -> None:
    """Single images, batches, tiles and a single pixel."""
    model = colonnade.load(leaf, random_checkpoint(leaf, tmp_path / 'a.pth'), device='cpu')
    images = draw_noise((40, 60), (40, 60), (1, 1))
    single = [model.predict(image) for image in images]
    for one, other in zip(single, model.predict(images, batch_size=2), strict=True):
        if isinstance(one, Instances):
            np.testing.assert_allclose(one.scores, other.scores, atol=1e-4)
        else:
            check_equal(one, other)
    for image, result in zip(images, model.predict_stream(images, tile=32), strict=True):
        assert result.size == image.shape[:2] and result.draw(image).width >= result.size[1]


@pytest.mark.parametrize('leaf, name', [
    (LEAVES['masks'], 'MaskRCNN'),
    ('upernet/xcit_nano_12_p16_slim_shapes', 'UPerHead'),
    ('pmt/xcit_nano_12_p16_slim_shapes_panoptic', 'PMTHead'),
])
def test_name_is_that_of_the_unfused_head(leaf: str, name: str, tmp_path: Path) -> None:
    model = colonnade.load(leaf, random_checkpoint(leaf, tmp_path / 'a.pth'), device='cpu')
    assert model.name == name and repr(model).startswith(f'{name} on XCiT, ')


def test_name_of_a_cascade_of_heads(tmp_path: Path) -> None:
    cfg = read_config(find_config(LEAVES['labels']))
    common = dict(
        in_channels=cfg.model.decode_head.in_channels[0], in_index=0, channels=16, num_classes=4)
    cfg.model.update(
        type='CascadeEncoderDecoder',
        num_stages=2,
        decode_head=[
            dict(type='FCNHead', num_convs=1, **common),
            dict(type='OCRHead', ocr_channels=16, **common)
        ])
    cfg.dump(tmp_path / 'ocr.py')
    path = random_checkpoint(str(tmp_path / 'ocr.py'), tmp_path / 'a.pth')
    assert colonnade.load(str(tmp_path / 'ocr.py'), path, device='cpu').name == 'OCRHead'


@pytest.mark.parametrize('change, message', [
    (dict(config='mask_rcnn/xcit_nano'), 'no such config file: mask_rcnn/xcit_nano'),
    (dict(weights=None), 'no weights after'),
    (dict(weights='nowhere.pth'), 'nowhere.pth'),
    (dict(weights='labels'), 'labels.pth'),
    (dict(config='mask_rcnn/xcit_nano_12_p16_slim_coco'), r'boxes\.pth'),
    (dict(device='cuda:99'), 'device cuda:99 cannot be used: '),
    (dict(device='gpu'), 'device gpu cannot be used: choose cpu, cuda or cuda:0'),
    (dict(cfg_options={'model.test_cfg.rcnn.score_th': 1}), r'did you mean .*\.score_thr'),
    (dict(config='labels', weights=None), 'labels.pth contains no usable config'),
    (dict(config='a.png', weights=None),
     'expected a config as the first argument, got the image a.png'),
    (dict(config='a.safetensors', weights=None), 'a.safetensors contains no config'),
    (dict(config='a.pth'), 'expected a config as the first argument, got the weights a.pth'),
    (dict(weights='a.png'), 'no weights after .*: a.png is not a weights file'),
    (dict(config='README.md'), 'README.md is no'),
])  # yapf: disable
def test_invalid_arguments_of_load(change: dict[str, Any], message: str,
                                   weights: dict[str, Path]) -> None:
    arguments = dict(config=LEAVES['boxes'], weights='boxes') | change
    for key in ('config', 'weights'):
        arguments[key] = weights.get(arguments[key], arguments[key])  # type: ignore[call-overload]
    with pytest.raises((ValueError, OSError, colonnade.WeightsError), match=message):
        colonnade.load(**arguments)


def test_backbones_that_cannot_be_fused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leaf = 'sem_fpn/simplified_vit_nano_12_slim_shapes'
    weights = random_checkpoint(leaf, tmp_path / 'a.pth')
    with pytest.raises(ValueError, match='SimplifiedViT cannot be fused'):
        colonnade.load(leaf, weights, fuse=True)
    logged, logger = list[str](), MMLogger.get_current_instance()
    monkeypatch.setattr(logger, 'handle', lambda x: logged.append(x.msg))
    monkeypatch.setattr(logger, 'isEnabledFor', lambda _: True)  # other tests may set its level
    model = colonnade.load(leaf, weights, fuse=None)
    assert not model.module.neck.fused
    assert [text for text in logged if 'SimplifiedViT cannot be fused' in text][0].startswith('not')


def build_variants(rgb: np.ndarray) -> dict[str, tuple[Any, dict[str, str]]]:
    """Return an image as each supported type, with the options of ``predict``."""
    tensor, file = torch.from_numpy(rgb.copy()), BytesIO()
    Image.fromarray(rgb).save(file, 'PNG')
    channels_first = tensor.permute(2, 0, 1)
    return {
        'array': (rgb, {}),
        'view': (rgb[:, ::-1][:, ::-1], {}),
        'OpenCV': (rgb[..., ::-1], dict(channels='bgr')),
        'floats': (rgb / 255, {}),
        'tensor': (channels_first, {}),
        'tensor of floats': (channels_first / 255, {}),
        'tensor with a gradient': ((channels_first / 255).requires_grad_(), {}),
        'tensor of float64': ((channels_first / 255).to(torch.float64), {}),
        'tensor in BGR': (channels_first.flip(0), dict(channels='bgr')),
        'tensor with channels last': (tensor, {}),
        'Pillow image': (Image.fromarray(rgb), {}),
        'content of a file': (file.getvalue(), {}),
    }


@pytest.mark.parametrize('kind', ['labels', 'boxes'])
def test_images_in_memory(kind: str, models: dict[str, Model], tmp_path: Path) -> None:
    """All types give the same result, which keeps the image for drawing."""
    model, rgb = models[kind], draw_noise((40, 56))[0]
    Image.fromarray(rgb).save(tmp_path / 'a.png')
    expected = model.predict(tmp_path / 'a.png')
    assert expected.image is None
    drawing = np.asarray(expected.draw())
    for name, (image, options) in build_variants(rgb).items():
        single, = model.predict([image], tile=48, **options)
        np.testing.assert_array_equal(single.image, rgb, err_msg=name)
        result = model.predict(image, **options)
        np.testing.assert_array_equal(result.image, rgb, err_msg=name)
        np.testing.assert_array_equal(result.draw(), drawing, err_msg=name)
    with (tmp_path / 'a.png').open('rb') as file:
        np.testing.assert_array_equal(model.predict(file).draw(), drawing)
    mirrored = model.predict(rgb[..., ::-1])  # BGR values, without the option
    assert (np.asarray(mirrored.draw()) != drawing).any()
    batch = np.stack([rgb, rgb])
    for images in (batch, torch.from_numpy(batch).permute(0, 3, 1, 2)):
        assert len(model.predict(images)) == 2


def test_pillow_image_is_decoded_by_one_thread(segmenter: Model, tmp_path: Path) -> None:
    for _ in range(5):
        Image.fromarray(draw_noise((40, 40))[0]).save(tmp_path / 'a.png')
        with Image.open(tmp_path / 'a.png') as image:
            assert len(segmenter.predict([image] * 4)) == 4


def test_kept_image_is_a_copy(segmenter: Model) -> None:
    """Programs that read videos reuse one array for all frames."""
    frame = draw_noise((40, 40))[0]
    result, before = segmenter.predict(frame), frame.copy()
    frame[:] = 0
    np.testing.assert_array_equal(result.image, before)


def test_gray_images_in_memory(segmenter: Model) -> None:
    gray = draw_noise((40, 40))[0][..., 0]
    expected = segmenter.predict(Image.fromarray(gray))
    for image in (gray, gray[..., None], torch.from_numpy(gray), torch.from_numpy(gray)[None]):
        result = segmenter.predict(image)
        np.testing.assert_array_equal(result.labels, expected.labels)
        np.testing.assert_array_equal(result.image, expected.image)


@pytest.mark.parametrize('image, options, error, message', [
    (np.zeros((40, 40, 4), np.uint8), {}, ImageError, r'got shape \(40, 40, 4\) and type uint8'),
    (np.zeros((3, 40, 40), np.uint8), {}, ImageError, r'also of shape \(3, H, W\), .*\(3, 40, 40'),
    (np.zeros((40, 40, 3), np.int64), {}, ImageError, 'with uint8 values .* and type int64'),
    (np.full((40, 40, 3), 255.), {}, ImageError, 'floats from 0 to 1; got floats from 255 to 255'),
    (np.full((40, 40, 3), np.nan), {}, ImageError, 'got floats from nan to nan'),
    (torch.full((3, 40, 40), -1.), {}, ImageError, 'got floats from -1 to -1'),
    (torch.zeros(3, 0, 40), {}, ImageError, r'got shape \(3, 0, 40\) and type torch.float32'),
    ([5], {}, ImageError, 'expected a path, .* a tensor or the content of a file, got int'),
    (5, {}, TypeError, 'expected a path, .* got int'),
    (np.zeros((4, 4, 3), np.uint8), dict(overlap=0.5), UserError, 'overlap has no effect without'),
    (np.zeros((4, 4, 3), np.uint8), dict(channels='RGB'), UserError,
     "channels must be rgb or bgr, got 'RGB'"),
])  # yapf: disable
def test_invalid_arguments_of_predict(image: Any, options: dict[str, Any], error: type[Exception],
                                      message: str, segmenter: Model) -> None:
    with pytest.raises(error, match=message):
        segmenter.predict(image, **options)


def test_predict_stream_needs_several_images(segmenter: Model) -> None:
    with pytest.raises(TypeError, match='predict_stream expects several images'):
        next(segmenter.predict_stream('a.png'))
