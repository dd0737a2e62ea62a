"""Exported backbones and pyramids: the maps of torch, for images of any size in batches of any."""
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
from colonnade.export import ExportError, ExportOptions, export, exporter, to_archive
from colonnade.export.features import Features, names_of_maps, sides_of
from colonnade.export.graphs import Graph, ImageSizeLimits, images_of, to_onnx
from colonnade.export.verification import compare, verify
from colonnade.inference import Model
from colonnade.necks import ColumnarPyramid, SimplePyramid
from colonnade.runtime import load
from colonnade.settings.reading import read_config


def graph_of(backbone: nn.Module, neck: nn.Module | None) -> Graph:
    """A backbone and its pyramid, in three sizes, each alone and in a batch."""
    model = nn.Module()
    model.backbone, model.neck = backbone, neck
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)
    model.eval()
    features, sides = Features(model).eval(), sides_of(model)
    return Graph('features', features, images_of, (sides.dims(), ), ('image', ),
                 names_of_maps(features), sides.sizes())  # yapf: disable


def of_family(kind: str) -> Graph:
    backbone = randomised(tiny(MAKERS[kind])).eval()
    strides = (4, 8, 16, 32)
    with DefaultScope.overwrite_default_scope('mmdet'):
        neck = ColumnarPyramid(backbone.embed_dim, backbone.patch_size, strides,
                               fpn=dict(type='FPN', out_channels=16, num_outs=5))  # yapf: disable
    return graph_of(backbone, neck)


@pytest.mark.slow
@pytest.mark.parametrize('kind', MAKERS)
@pytest.mark.parametrize('suffix', ['.onnx', '.pt2'])
def test_every_family(kind: str, suffix: str, tmp_path: Path) -> None:
    graph, path = of_family(kind), tmp_path / f'features{suffix}'
    examples = graph.make_inputs(graph.sizes[0])
    if suffix == '.pt2':
        to_archive(graph.module, examples, graph.dynamic_shapes, path)
    else:
        to_onnx(graph.module, examples, graph.dynamic_shapes, path, graph.input_names,
                graph.output_names)
    print(verify(graph, path, 1e-4))


@pytest.mark.slow
def test_simple_pyramid(tmp_path: Path) -> None:
    graph = graph_of(tiny(MAKERS['PlainViT']), SimplePyramid(32, 16, 16))
    to_onnx(graph.module, graph.make_inputs(graph.sizes[0]), graph.dynamic_shapes,
            tmp_path / 'features.onnx', graph.input_names, graph.output_names)
    verify(graph, tmp_path / 'features.onnx', 1e-4)


@pytest.fixture(scope='module')
def model() -> Model:
    """A segmenter on one block."""
    torch.manual_seed(0)
    cfg = read_config(find_config('sem_fpn/xcit_nano_12_p16_slim_shapes'))
    cfg.model.backbone.out_indices = (0, ) * 4
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        module = MODELS.build(cfg.model).eval()
    module.init_weights()
    num = module.decode_head.num_classes
    return Model(module.requires_grad_(False), cfg, tuple(map(str, range(num))),
                 ((0, 0, 0), ) * num, 'random weights')  # yapf: disable


@pytest.mark.parametrize('format', ['archive', pytest.param('onnx', marks=pytest.mark.slow)])
def test_features_of_a_model(model: Model, format: str, tmp_path: Path) -> None:
    """Maps are those of torch; a second export does not overwrite the first."""
    out, options = tmp_path / 'out', ExportOptions(format=format, what='features')
    compared, = export(model, model.cfg, out, options)
    assert compared.relative < 1e-4 and compared.num_sizes == 6
    about = json.loads((out / 'model.json').read_text())
    assert about['task'] == 'features' and about['preprocess']['multiple'] == 1
    assert about['graphs']['features']['outputs'] == ['map1', 'map2', 'map3', 'map4']
    if format == 'onnx':
        check_runtime(model, out)
    with pytest.raises(UserError, match='out exists'):
        export(model, model.cfg, out, options)


def check_runtime(model: Model, folder: Path) -> None:
    """Compare the maps of an image of no special size."""
    image = np.random.default_rng(0).integers(0, 256, (70, 99, 3), dtype=np.uint8)
    found = load(folder, threads=1).predict(image).maps
    inputs = dict(inputs=[model.prepare(image)['inputs']], data_samples=None)
    with torch.no_grad():
        expected = model.module.extract_feat(model.module.data_preprocessor(inputs)['inputs'])
    for ours, theirs in zip(found.values(), expected, strict=True):
        np.testing.assert_allclose(ours, theirs[0].numpy(), rtol=1e-3, atol=1e-4)


def test_a_deviation_leaves_no_folder(model: Model, tmp_path: Path,
                                      monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the file is of a module with other weights."""
    wrong, right = nn.Conv2d(3, 1, 1), nn.Conv2d(3, 1, 1)
    dims = (ImageSizeLimits(1, 8).dims(), )
    graph = Graph('features', right, images_of, dims, ('image', ), ('map1', ),
                  ((2, 16, 24), (1, 9, 8)))  # yapf: disable

    def to_wrong(module: nn.Module, *given: object) -> None:
        to_archive(wrong, *given)

    monkeypatch.setattr(exporter, 'to_archive', to_wrong)
    monkeypatch.setattr('colonnade.export.features.plan',
                        lambda *_: exporter.Plan('features', (graph, )))
    options = ExportOptions(format='archive', what='features')
    with pytest.raises(ExportError, match=r'output map1 deviates .* pass --tolerance \d+, and'):
        export(model, model.cfg, tmp_path / 'out', options)
    assert not list(tmp_path.iterdir())


class Cancelling(nn.Module):
    """Subtracts what it has added, so that rounding is large beside what is left."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Conv2d(3, 16, 3, bias=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        added = 1000 * self.layer.weight.sum((1, 2, 3))
        return self.layer(images + 1000) - added[:, None, None]


class Wrong(Cancelling):
    """Deviates by a little more than rounding, relative to the largest value of an output."""
    share = 0.

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found = super().forward(images)
        return found + self.share * found.abs().max()


@pytest.mark.parametrize('share, says', [(0., ''), (0.02, 'warning'), (0.5, 'error')])
def test_rounding_is_judged_by_what_it_costs_torch(share: float, says: str, tmp_path: Path) -> None:
    """Here 1e-4 of the largest value, by which a limit for all models refused trained ones."""
    module = Cancelling().eval()
    graph = Graph('one', module, images_of, (ImageSizeLimits(1, 8).dims(), ), ('image', ), ('map1', ),
                  ((2, 16, 24), (1, 9, 8)))  # yapf: disable
    other = Wrong().eval()
    other.share = share
    to_onnx(other, images_of((2, 16, 24)), graph.dynamic_shapes, tmp_path / 'one.onnx',
            graph.input_names, graph.output_names)  # yapf: disable
    if says == 'error':
        with pytest.raises(
                ExportError, match='map1 deviates from float64 by .* nothing is written'):
            verify(graph, tmp_path / 'one.onnx', 10)
        return
    found = verify(graph, tmp_path / 'one.onnx', 10)
    assert found.relative > 1e-4 and found.output == 'map1'
    assert bool(found.warning) == (says == 'warning') == (found.factor > 10)


def test_tolerances_are_factors() -> None:
    with pytest.raises(UserError, match='--tolerance must be at least 1, .* got 0.001'):
        ExportOptions(tolerance=0.001)


def test_outputs_that_cannot_be_compared(tmp_path: Path) -> None:
    graph = Graph('one', nn.Conv2d(3, 1, 1), images_of, (ImageSizeLimits(1, 8).dims(), ), ('image', ),
                  ('map1', ), ((2, 16, 24), (1, 9, 8)))  # yapf: disable
    path = tmp_path / 'one.pt2'
    to_archive(graph.module, graph.make_inputs((2, 16, 24)), graph.dynamic_shapes, path)
    assert compare(graph, path).absolute < 1e-5
    other = dataclasses.replace(graph, module=nn.Conv2d(3, 1, 1, padding=1))
    with pytest.raises(ExportError, match='one for 2 x 3 x 16 x 24: map1 is float32 .*1, 16, 24'):
        compare(other, path)


@pytest.mark.parametrize('given, message', [
    (dict(format='tflite'), "format must be onnx or .*, got 'tflite'"),
    (dict(what='head'), "what must be model or features, got 'head'"),
    (dict(precision='int8'), '--precision int8 needs --calibrate'),
    (dict(calibrate=Path('images')), '--calibrate is for --precision int8'),
])
def test_options_that_do_not_fit(given: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        ExportOptions(**given)


def test_fused_and_foreign_backbones_are_refused() -> None:
    holder = nn.Module()
    holder.backbone = tiny().eval().fuse()
    with pytest.raises(ExportError, match='XCiT is fused, and packed weights cannot'):
        sides_of(holder)
    holder.backbone = nn.Conv2d(3, 8, 3)
    with pytest.raises(ExportError, match='no backbone of colonnade: its backbone is a Conv2d'):
        sides_of(holder)


@pytest.mark.parametrize('old, new', [(14, 14), (14, 5), (5, 14), (14, 1), (7, 20)])
def test_matrices_of_exports_are_torchs(old: int, new: int) -> None:
    lines = torch.eye(old, dtype=torch.float64)[None, None]
    expected = F.interpolate(lines, size=(new, old), mode='bicubic', antialias=True)[0, 0]
    found = build_matrix_from_sizes(old, new, lines)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize('grid', [(7, 9), (6, 6), (1, 2)])
@pytest.mark.parametrize('prefix', [0, 5])
def test_whole_windows_of_exports(prefix: int, grid: tuple[int, int]) -> None:
    shape = (2, 3, prefix + grid[0] * grid[1], 4)
    heads = Heads(*(torch.randn(shape, dtype=torch.float64) for _ in range(3)))
    torch.testing.assert_close(
        attend_in_padded_windows(heads, grid, 3), attend_in_windows(heads, grid, 3))
