"""Exported backbones and pyramids, compared with torch at several sizes and batch sizes."""
from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.backbones import MAKERS, randomised, tiny
from mmengine.registry import MODELS, DefaultScope
from torch import nn
from torch.nn import functional as F

from colonnade.backbones.kernels.resampling import build_matrix_from_sizes
from colonnade.backbones.plain_vit.window_attention import (Heads, attend_in_padded_windows,
                                                            attend_in_windows)
from colonnade.common.errors import UserError
from colonnade.configs import find_config
from colonnade.export import ExportError, ExportOptions, export, exporter, graphs, to_pt2
from colonnade.export.features import Features, get_size_limits, list_map_names
from colonnade.export.graphs import Graph, ImageSizeLimits, to_onnx
from colonnade.export.verification import compare, verify
from colonnade.inference import Model
from colonnade.necks import ColumnarPyramid, SimplePyramid
from colonnade.runtime import load
from colonnade.settings.reading import read_config

LIMITS = ImageSizeLimits(multiple=1, minimum=8)


def build_graph(backbone: nn.Module, neck: nn.Module | None) -> Graph:
    model = nn.Module()
    model.backbone, model.neck = backbone, neck
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)
    model.eval()
    features, limits = Features(model).eval(), get_size_limits(model)
    return Graph('features', features, limits.make_images, (limits.get_dims(), ), ('image', ),
                 list_map_names(features, limits), limits.list_sizes())  # yapf: disable


@pytest.mark.slow
@pytest.mark.parametrize('kind', MAKERS)
@pytest.mark.parametrize('suffix', ['.onnx', '.pt2'])
def test_all_backbones(kind: str, suffix: str, tmp_path: Path) -> None:
    backbone, path = randomised(tiny(MAKERS[kind])).eval(), tmp_path / f'features{suffix}'
    with DefaultScope.overwrite_default_scope('mmdet'):
        neck = ColumnarPyramid(backbone.embed_dim, backbone.patch_size, (4, 8, 16, 32),
                               fpn=dict(type='FPN', out_channels=16, num_outs=5))  # yapf: disable
    graph = build_graph(backbone, neck)
    examples = graph.make_inputs(graph.sizes[0])
    if suffix == '.pt2':
        to_pt2(graph.module, examples, graph.dynamic_shapes, path)
    else:
        to_onnx(graph.module, examples, graph.dynamic_shapes, path, graph.input_names,
                graph.output_names)
    print(verify(graph, path, 10))


@pytest.mark.slow
def test_simple_pyramid(tmp_path: Path) -> None:
    graph = build_graph(tiny(MAKERS['PlainViT']), SimplePyramid(32, 16, 16))
    to_onnx(graph.module, graph.make_inputs(graph.sizes[0]), graph.dynamic_shapes,
            tmp_path / 'features.onnx', graph.input_names, graph.output_names)
    verify(graph, tmp_path / 'features.onnx', 10)


@pytest.fixture(scope='module')
def model() -> Model:
    """Segmenter with one block."""
    torch.manual_seed(0)
    cfg = read_config(find_config('sem_fpn/xcit_nano_12_p16_slim_shapes'))
    cfg.model.backbone.out_indices = (0, ) * 4
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        module = MODELS.build(cfg.model).eval()
    module.init_weights()
    num = module.decode_head.num_classes
    return Model(module.requires_grad_(False), cfg, tuple(map(str, range(num))),
                 ((0, 0, 0), ) * num, 'random weights')  # yapf: disable


@pytest.mark.parametrize('format', ['pt2', pytest.param('onnx', marks=pytest.mark.slow)])
def test_features(model: Model, format: str, tmp_path: Path) -> None:
    out, options = tmp_path / 'out', ExportOptions(format=format, component='features')
    comparison, = export(model, model.cfg, out, options)
    assert comparison.relative < 1e-4 and comparison.num_sizes == 6
    content = json.loads((out / 'model.json').read_text())
    assert content['task'] == 'features' and content['preprocess']['multiple'] == 1
    assert content['graphs']['features']['outputs'] == ['map1', 'map2', 'map3', 'map4']
    if format == 'onnx':
        check_runtime(model, out)
    with pytest.raises(UserError, match='out already exists'):
        export(model, model.cfg, out, options)


def check_runtime(model: Model, folder: Path) -> None:
    """Compare the feature maps of an image of an odd size."""
    image = np.random.default_rng(0).integers(0, 256, (70, 99, 3), dtype=np.uint8)
    maps = load(folder, threads=1).predict(image).maps
    inputs = dict(inputs=[model.prepare(image)['inputs']], data_samples=None)
    with torch.no_grad():
        expected = model.module.extract_feat(model.module.data_preprocessor(inputs)['inputs'])
    for actual, each in zip(maps.values(), expected, strict=True):
        np.testing.assert_allclose(actual, each[0].numpy(), rtol=1e-3, atol=1e-4)


def test_deviation_prevents_export(model: Model, tmp_path: Path,
                                   monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is written from a module with other weights."""
    wrong, right = nn.Conv2d(3, 1, 1), nn.Conv2d(3, 1, 1)
    dims = (ImageSizeLimits(1, 8).get_dims(), )
    graph = Graph('features', right, LIMITS.make_images, dims, ('image', ), ('map1', ),
                  ((2, 16, 24), (1, 9, 8)))  # yapf: disable

    def to_wrong(module: nn.Module, *args: object) -> None:
        to_pt2(wrong, *args)

    monkeypatch.setattr(graphs, 'to_pt2', to_wrong)
    monkeypatch.setattr('colonnade.export.features.build_plan',
                        lambda *_: exporter.ExportPlan('features', (graph, )))
    options = ExportOptions(format='pt2', component='features')
    with pytest.raises(ExportError, match=r'output map1 deviates .* pass --tolerance \d+ and'):
        export(model, model.cfg, tmp_path / 'out', options)
    assert not list(tmp_path.iterdir())


class Cancelling(nn.Module):
    """Module with cancellation, whose rounding error is large relative to its output."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Conv2d(3, 16, 3, bias=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        added = 1000 * self.layer.weight.sum((1, 2, 3))
        return self.layer(images + 1000) - added[:, None, None]


class Wrong(Cancelling):
    """Module with an additional deviation, relative to the largest value."""
    deviation = 0.

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        out = super().forward(images)
        return out + self.deviation * out.abs().max()


@pytest.mark.parametrize(
    'deviation, result',
    [(0., ''), pytest.param(0.02, 'warning', marks=pytest.mark.slow), (0.5, 'error')])
def test_tolerance_is_relative_to_rounding_of_torch(deviation: float, result: str,
                                                    tmp_path: Path) -> None:
    module = Cancelling().eval()
    dims = (ImageSizeLimits(1, 8).get_dims(), )
    graph = Graph('one', module, LIMITS.make_images, dims, ('image', ), ('map1', ),
                  ((2, 16, 24), (1, 9, 8)))  # yapf: disable
    other = Wrong().eval()
    other.deviation = deviation
    to_onnx(other, LIMITS.make_images((2, 16, 24)), graph.dynamic_shapes, tmp_path / 'one.onnx',
            graph.input_names, graph.output_names)  # yapf: disable
    if result == 'error':
        with pytest.raises(
                ExportError, match='map1 deviates from float64 by .* nothing was written'):
            verify(graph, tmp_path / 'one.onnx', 10)
        return
    comparison = verify(graph, tmp_path / 'one.onnx', 10)
    assert comparison.relative > 1e-4 and comparison.output == 'map1'
    assert bool(comparison.warning) == (result == 'warning') == (comparison.factor > 10)


def test_output_of_wrong_shape(tmp_path: Path) -> None:
    dims = (ImageSizeLimits(1, 8).get_dims(), )
    graph = Graph('one', nn.Conv2d(3, 1, 1), LIMITS.make_images, dims, ('image', ),
                  ('map1', ), ((2, 16, 24), (1, 9, 8)))  # yapf: disable
    path = tmp_path / 'one.pt2'
    to_pt2(graph.module, graph.make_inputs((2, 16, 24)), graph.dynamic_shapes, path)
    assert compare(graph, path).absolute < 1e-5
    other = dataclasses.replace(graph, module=nn.Conv2d(3, 1, 1, padding=1))
    with pytest.raises(
            ExportError, match='one for 2 images of 16 x 24: map1 is float32 .*1, 16, 24'):
        compare(other, path)


@pytest.mark.parametrize('options, message', [
    (dict(tolerance=0.001), '--tolerance must be at least 1, got 0.001'),
    (dict(format='tflite'), "format must be onnx or .*, got 'tflite'"),
    (dict(component='head'), "component must be model or features, got 'head'"),
    (dict(precision='int8'), '--precision int8 requires --calibration-images'),
    (dict(calibration_images=Path('images')), '--calibration-images requires --precision int8'),
])
def test_invalid_options(options: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        ExportOptions(**options)


def test_fused_and_third_party_backbones_are_rejected() -> None:
    holder = nn.Module()
    holder.backbone = tiny().eval().fuse()
    with pytest.raises(ExportError, match='XCiT is fused, and packed weights cannot'):
        get_size_limits(holder)
    holder.backbone = nn.Conv2d(3, 8, 3)
    with pytest.raises(ExportError, match='expected a Colonnade backbone, got Conv2d'):
        get_size_limits(holder)


@pytest.mark.parametrize('old, new', [(14, 14), (14, 5), (5, 14), (14, 1), (7, 20)])
def test_resampling_matrices(old: int, new: int) -> None:
    lines = torch.eye(old, dtype=torch.float64)[None, None]
    expected = F.interpolate(lines, size=(new, old), mode='bicubic', antialias=True)[0, 0]
    matrix = build_matrix_from_sizes(old, new, lines)
    torch.testing.assert_close(matrix, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize('grid', [(7, 9), (6, 6), (1, 2)])
@pytest.mark.parametrize('prefix', [0, 5])
def test_attention_in_whole_windows(prefix: int, grid: tuple[int, int]) -> None:
    shape = (2, 3, prefix + grid[0] * grid[1], 4)
    heads = Heads(*(torch.randn(shape, dtype=torch.float64) for _ in range(3)))
    torch.testing.assert_close(
        attend_in_padded_windows(heads, grid, 3), attend_in_windows(heads, grid, 3))
