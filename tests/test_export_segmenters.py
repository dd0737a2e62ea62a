"""Exported segmenters, whose label maps equal those of torch for images of any size."""
from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from helpers.exported_by_hand import write_folder
from helpers.query_models import build_query_model
from mmengine.registry import MODELS, DefaultScope
from PIL import Image
from torch import nn

from colonnade.common.hashing import compute_sha256
from colonnade.configs import find_config
from colonnade.export import ExportError, ExportOptions, export
from colonnade.export.end_to_end import verify_predictions
from colonnade.export.graphs import to_openvino
from colonnade.export.quantization import find_calibration_images, quantize_model
from colonnade.export.segmenters import build_pooling_matrix, check_exportable
from colonnade.inference import Model
from colonnade.runtime import load
from colonnade.settings.reading import read_config

SIZES = ((97, 70), (64, 143))
HEADS = ('linear', 'sem_fpn', 'upernet', 'segformer', 'segmenter', 'mask2former_semantic',
         'eomt_semantic', 'pmt_semantic')  # yapf: disable


def draw_noise(height: int, width: int) -> np.ndarray:
    """Draw a smooth random RGB image."""
    pixels = np.random.default_rng(height).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return cv2.resize(pixels, (width, height), interpolation=cv2.INTER_CUBIC)


def build_segmenter(head: str) -> Model:
    """Build a slim config with one block, whose predictions vary between pixels."""
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
        with torch.no_grad():  # otherwise one class could win everywhere
            classifier.bias -= module(torch.randn(1, 3, 64, 96)).mean((0, 2, 3))
    num = module.decode_head.num_classes
    return Model(module.requires_grad_(False), cfg, tuple(map(str, range(num))),
                 ((0, 0, 0), ) * num, 'random weights')  # yapf: disable


@pytest.mark.slow
@pytest.mark.parametrize('head', HEADS)
def test_label_maps_equal_torch(head: str, tmp_path: Path) -> None:
    queries = head in ('eomt_semantic', 'pmt_semantic')
    model = build_query_model(head) if queries else build_segmenter(head)
    comparison, predictions = export(model, model.cfg, tmp_path / 'out', ExportOptions())
    assert comparison.name == 'model' and comparison.relative < 1e-4
    assert predictions.number == 192 * 144 + 192 * 112
    assert predictions.different < 2e-3 * predictions.number
    exported = load(tmp_path / 'out', threads=1)
    assert exported.classes == model.classes
    for size in SIZES:
        found, expected = exported.predict(draw_noise(*size)), model.predict(draw_noise(*size))
        assert found.labels.dtype == expected.labels.dtype
        assert (found.labels
                != expected.labels).mean() < 2e-3  # some logits are equal up to rounding errors


@pytest.mark.slow
def test_export_with_other_predictions_is_rejected(tmp_path: Path) -> None:
    model = build_segmenter('sem_fpn')
    export(model, model.cfg, tmp_path / 'out', ExportOptions())
    path = tmp_path / 'out/model.json'
    about = json.loads(path.read_text())
    about['preprocess']['mean'] = [0., 0., 0.]
    path.write_text(json.dumps(about))
    with pytest.raises(ExportError, match=r'of 49,152 pixels differ from torch'):
        verify_predictions(model, tmp_path / 'out')


@pytest.mark.parametrize('number, length', [(1, 5), (2, 5), (3, 7), (6, 4)])
def test_pooling_matrix(number: int, length: int) -> None:
    line = torch.randn(length)
    expected = nn.functional.adaptive_avg_pool1d(line[None], number)[0]
    torch.testing.assert_close(build_pooling_matrix(number, length) @ line, expected)


def test_unsupported_heads_are_rejected() -> None:
    model = build_segmenter('linear').module
    model.decode_head.predict_by_feat = print
    with pytest.raises(ExportError, match='decode_head LinearHead .* its custom predict_by_feat'):
        check_exportable(model)
    model.decode_head = nn.Identity()
    with pytest.raises(
            ExportError, match="decode_head Identity .* subclass of mmseg's BaseDecodeHead"):
        check_exportable(model)
    with pytest.raises(
            ExportError, match='Identity cannot be exported: the runtime supports only Enc'):
        check_exportable(nn.Identity())


def test_quantized_graph(tmp_path: Path) -> None:
    """Few labels differ from float32."""
    folder, images = write_folder(tmp_path / 'folder'), tmp_path / 'images'
    images.mkdir()
    for index, size in enumerate(SIZES):
        Image.fromarray(draw_noise(*size)).save(images / f'{index}.png')
    before = load(folder).predict(images / '0.png')
    quantize_model(folder, find_calibration_images(images, 100))
    found = load(folder)
    assert b'QuantizeLinear' in (folder / 'model.onnx').read_bytes()
    assert sorted(path.name for path in folder.iterdir()) == ['model.json', 'model.onnx']
    assert (found.predict(images / '0.png').labels != before.labels).mean() < 0.05


def test_calibration_images(tmp_path: Path) -> None:
    assert find_calibration_images(None, 3) == []
    with pytest.raises(ExportError, match='--calibration-images: no such file or folder: .*none'):
        find_calibration_images(tmp_path / 'none', 3)
    with pytest.raises(ExportError, match='--calibration-images: no images in'):
        find_calibration_images(tmp_path, 3)
    with pytest.raises(ExportError, match='--num-images must be at least 1, got 0'):
        find_calibration_images(tmp_path, 0)
    for index in range(7):
        (tmp_path / f'{index}.jpg').write_text('no image')
    assert [path.stem for path in find_calibration_images(tmp_path, 3)] == ['0', '3', '6']
    with pytest.raises(ExportError, match='--calibration-images: .*0.jpg is not a readable image'):
        quantize_model(write_folder(tmp_path / 'folder'), find_calibration_images(tmp_path, 1))


def test_openvino_graph(tmp_path: Path) -> None:
    """Weights are in a second file."""
    pytest.importorskip('openvino')
    folder, image = write_folder(tmp_path / 'folder'), draw_noise(*SIZES[0])
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
    with pytest.raises(
            ValueError,
            match="providers apply only to onnxruntime, but .*xml is an OpenVINO graph"):
        load(folder, providers=['CPUExecutionProvider'])


@pytest.mark.slow
def test_openvino_segmenter(tmp_path: Path) -> None:
    pytest.importorskip('openvino')
    model = build_segmenter('linear')
    export(model, model.cfg, tmp_path / 'out', ExportOptions(format='openvino'))
    found = load(tmp_path / 'out').predict(draw_noise(*SIZES[0]))
    assert (found.labels != model.predict(draw_noise(*SIZES[0])).labels).mean() < 2e-3
