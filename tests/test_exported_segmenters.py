"""Whole segmenters in ONNX: the label maps of the model itself, for images of any size."""
from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from helpers.exported_by_hand import write_folder
from mmengine.registry import MODELS, DefaultScope
from PIL import Image
from torch import nn

from colonnade.common.hashing import compute_sha256
from colonnade.configs import find_config
from colonnade.export import ExportError, ExportOptions, export
from colonnade.export.end_to_end import require_agreement
from colonnade.export.openvino_graphs import to_openvino
from colonnade.export.quantization import calibration_images, quantise
from colonnade.export.segmenters import means, require_plain
from colonnade.inference import Model
from colonnade.runtime import load
from colonnade.settings.reading import read_config

SIZES = ((97, 70), (64, 143))
HEADS = ('linear', 'sem_fpn', 'upernet', 'segformer', 'segmenter', 'mask2former_semantic')


def noise(height: int, width: int) -> np.ndarray:
    """RGB values that change slowly."""
    few = np.random.default_rng(height).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return cv2.resize(few, (width, height), interpolation=cv2.INTER_CUBIC)


def segmenter(head: str) -> Model:
    """One of ours on one block, whose classes differ from pixel to pixel."""
    torch.manual_seed(0)
    cfg = read_config(find_config(f'{head}/xcit_nano_12_p16_slim_shapes'))
    num_maps = len(cfg.model.backbone.get('out_indices') or range(4))
    cfg.model.backbone.out_indices = (0, ) * num_maps
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        module = MODELS.build(cfg.model).eval()
    module.init_weights()
    for layer in module.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.running_mean.normal_()
            layer.running_var.uniform_(0.5, 2)
    classifier = getattr(module.decode_head, 'conv_seg', None)
    if classifier is not None:
        nn.init.normal_(classifier.weight, std=10.)
        with torch.no_grad():  # no class is the most likely everywhere
            classifier.bias -= module(torch.randn(1, 3, 64, 96)).mean((0, 2, 3))
    num = module.decode_head.num_classes
    return Model(module.requires_grad_(False), cfg, tuple(map(str, range(num))),
                 ((0, 0, 0), ) * num, 'random weights')  # yapf: disable


@pytest.mark.slow
@pytest.mark.parametrize('head', HEADS)
def test_label_maps_are_those_of_the_model(head: str, tmp_path: Path) -> None:
    model = segmenter(head)
    compared, whole = export(model, model.cfg, tmp_path / 'out', ExportOptions())
    assert compared.name == 'model' and compared.relative < 1e-4
    assert whole.number == 192 * 144 + 192 * 112 and whole.different < 2e-3 * whole.number
    exported = load(tmp_path / 'out', threads=1)
    assert exported.classes == model.classes
    for size in SIZES:
        found, expected = exported.predict(noise(*size)), model.predict(noise(*size))
        assert found.labels.dtype == expected.labels.dtype
        assert (found.labels != expected.labels).mean() < 2e-3  # logits that are equal to rounding


@pytest.mark.slow
def test_a_folder_that_answers_otherwise_is_refused(tmp_path: Path) -> None:
    model = segmenter('sem_fpn')
    export(model, model.cfg, tmp_path / 'out', ExportOptions())
    path = tmp_path / 'out/model.json'
    about = json.loads(path.read_text())
    about['preprocess']['mean'] = [0., 0., 0.]
    path.write_text(json.dumps(about))
    with pytest.raises(ExportError, match=r'of 49,152 pixels are other than in torch'):
        require_agreement(model, tmp_path / 'out')


@pytest.mark.parametrize('number, length', [(1, 5), (2, 5), (3, 7), (6, 4)])
def test_regions_of_pooling(number: int, length: int) -> None:
    line = torch.randn(length)
    expected = nn.functional.adaptive_avg_pool1d(line[None], number)[0]
    torch.testing.assert_close(means(number, length) @ line, expected)


def test_what_cannot_be_exported_says_why() -> None:
    model = segmenter('linear').module
    model.decode_head.predict_by_feat = print
    with pytest.raises(ExportError, match='decode_head LinearHead .* predict_by_feat of its own'):
        require_plain(model)
    model.decode_head = nn.Identity()
    with pytest.raises(ExportError, match="decode_head Identity .* no BaseDecodeHead of mmseg's"):
        require_plain(model)
    with pytest.raises(ExportError, match='Identity cannot be exported: the runtime has Encoder'):
        require_plain(nn.Identity())


def test_graphs_of_whole_numbers(tmp_path: Path) -> None:
    """Calibrated on images, with the labels of float32 but for few pixels."""
    folder, images = write_folder(tmp_path / 'folder'), tmp_path / 'images'
    images.mkdir()
    for index, size in enumerate(SIZES):
        Image.fromarray(noise(*size)).save(images / f'{index}.png')
    before = load(folder).predict(images / '0.png')
    quantise(folder, calibration_images(images, 100))
    found = load(folder)
    assert b'QuantizeLinear' in (folder / 'model.onnx').read_bytes()
    assert sorted(path.name for path in folder.iterdir()) == ['model.json', 'model.onnx']
    assert (found.predict(images / '0.png').labels != before.labels).mean() < 0.05


def test_images_to_calibrate_on(tmp_path: Path) -> None:
    assert calibration_images(None, 3) == []
    with pytest.raises(ExportError, match='--calibrate: no folder .*none'):
        calibration_images(tmp_path / 'none', 3)
    with pytest.raises(ExportError, match='--calibrate: no images in'):
        calibration_images(tmp_path, 3)
    with pytest.raises(ExportError, match='--num-images must be at least 1, got 0'):
        calibration_images(tmp_path, 0)
    for index in range(7):
        (tmp_path / f'{index}.jpg').write_text('no image')
    assert [path.stem for path in calibration_images(tmp_path, 3)] == ['0', '3', '6']
    with pytest.raises(ExportError, match='--calibrate: .*0.jpg is no image that can be read'):
        quantise(write_folder(tmp_path / 'folder'), calibration_images(tmp_path, 1))


def test_graphs_of_openvino(tmp_path: Path) -> None:
    """The same logits, with the weights in a file of their own."""
    pytest.importorskip('openvino')
    folder, image = write_folder(tmp_path / 'folder'), noise(*SIZES[0])
    expected = load(folder).predict(image)
    to_openvino(folder / 'model.onnx', folder / 'model.xml')
    files = [
        dict(file=name, sha256=compute_sha256(folder / name)) for name in ('model.xml', 'model.bin')
    ]
    about = json.loads((folder / 'model.json').read_text())
    about['graphs']['model'].update(files[0], weights=files[1:])
    (folder / 'model.json').write_text(json.dumps(about))
    assert sorted(path.suffix for path in folder.iterdir()) == ['.bin', '.json', '.xml']
    assert (load(folder, threads=1).predict(image).labels != expected.labels).mean() < 1e-3
    with pytest.raises(ValueError, match="providers are onnxruntime's, and .*xml is .*OpenVINO's"):
        load(folder, providers=['CPUExecutionProvider'])


@pytest.mark.slow
def test_a_segmenter_for_openvino(tmp_path: Path) -> None:
    pytest.importorskip('openvino')
    model = segmenter('linear')
    export(model, model.cfg, tmp_path / 'out', ExportOptions(format='openvino'))
    found = load(tmp_path / 'out').predict(noise(*SIZES[0]))
    assert (found.labels != model.predict(noise(*SIZES[0])).labels).mean() < 2e-3
