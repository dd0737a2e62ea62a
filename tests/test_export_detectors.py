"""Exported detectors, whose predictions with onnxruntime equal those of torch."""
from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ROOT
from helpers.query_models import build_query_model, check_same_segments, run_in_torch
from mmcv.ops import batched_nms
from mmdet.models.detectors import RTMDet
from mmdet.models.roi_heads.mask_heads import FCNMaskHead
from mmdet.models.roi_heads.roi_extractors import SingleRoIExtractor
from mmdet.models.task_modules.coders import DeltaXYWHBBoxCoder
from mmdet.models.task_modules.prior_generators import AnchorGenerator
from mmengine.config import ConfigDict
from mmengine.registry import MODELS
from torch import nn

from colonnade import runtime
from colonnade.common.hashing import compute_sha256
from colonnade.export.detectors import build_plan
from colonnade.export.end_to_end import (count_differences, count_different_pixels, draw_images,
                                         verify_predictions)
from colonnade.export.exporter import ExportOptions, export
from colonnade.export.graphs import ExportError, to_onnx
from colonnade.inference.model import Model
from colonnade.models.cascade_roi_head import MeanScoreCascadeRoIHead
from colonnade.runtime.boxes import Coder, assign_levels, build_anchors, decode_deltas, suppress
from colonnade.runtime.detection import compute_mask_boxes, paste
from colonnade.settings.reading import read_config

SIZES = ((150, 211), (77, 300), (128, 128))  # resized to fit 128 x 128, with the same aspect ratio
STDS = {  # standard deviation of weights of heads, so that scores and boxes differ
    'fc_cls.weight': 0.5, 'fc_reg.weight': 0.1, 'conv_logits.weight': 0.5, 'rpn_cls.weight': 0.1,
    'rpn_reg.weight': 0.05, 'rtm_cls.weight': 0.2, 'rtm_cls.bias': 1., 'rtm_reg.weight': 0.05,
    'rtm_kernel.weight': 0.2, 'cls_embed.weight': 0.5, 'mask_embed.weight': 0.3,
    'sampling_offsets.weight': 0.2,
}  # yapf: disable


def build_detector(head: str, num_classes: int | None = None) -> Model:
    """Build a slim config on a backbone with one block, random weights and statistics."""
    torch.manual_seed(0)
    cfg = read_config(next(ROOT.glob(f'configs/{head}/xcit*_slim_shapes.py')))
    backbone, model = cfg.model.backbone, cfg.model
    backbone.arch = dict(embed_dim=32, depth=1, num_heads=2, patch_size=16)
    backbone.out_indices = [0] * len(backbone.get('out_indices') or range(4))
    model.neck.in_channels = 32
    if head == 'mask2former':
        model.panoptic_head.in_channels = [32] * 4
    if num_classes:
        model.roi_head.bbox_head.num_classes = model.roi_head.mask_head.num_classes = num_classes
    module = MODELS.build(model)
    module.init_weights()
    randomize_heads(module)
    names = ('disc', 'square', 'triangle')[:num_classes]
    return Model(module.eval(), cfg, names, ((0, 0, 0), ) * len(names), 'random weights')


@torch.no_grad()
def randomize_heads(module: nn.Module) -> None:
    for name, value in module.state_dict().items():
        for part, std in STDS.items():
            if re.sub(r'\.\d+', '', name).endswith(part):
                value.normal_(std=std)
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.momentum = 1.
    maps = module.train().extract_feat(torch.randn(2, 3, 128, 128))  # sets statistics of norms
    if isinstance(module, RTMDet):
        module.bbox_head(maps)


def write_export(model: Model, folder: Path) -> runtime.Model:
    """Write the graphs of a model without verification, and load them with the runtime."""
    plan = build_plan(model, model.cfg, ExportOptions())
    folder.mkdir()
    graphs = {}
    for graph in plan.graphs:
        path = folder / f'{graph.name}.onnx'
        to_onnx(graph.module, graph.make_inputs(graph.sizes[0]), graph.dynamic_shapes, path,
                graph.input_names, graph.output_names)
        graphs[graph.name] = dict(
            file=path.name,
            sha256=compute_sha256(path),
            inputs=graph.input_names,
            outputs=graph.output_names)
    about = dict(
        format=1,
        task=plan.task,
        graphs=graphs,
        preprocess=plan.preprocess,
        postprocess=plan.postprocess,
        classes=model.classes,
        palette=model.palette)
    (folder / 'model.json').write_text(json.dumps(about))
    return runtime.load(folder, threads=1)


@pytest.fixture(scope='module')
def mask_rcnn(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """Mask R-CNN and its export."""
    model = build_detector('mask_rcnn')
    folder = tmp_path_factory.mktemp('exported') / 'mask_rcnn'
    return SimpleNamespace(model=model, folder=folder, exported=write_export(model, folder))


def draw_image(size: tuple[int, int]) -> np.ndarray:
    """Draw random patches."""
    height, width = size
    patches = np.random.default_rng(0).integers(0, 255, (height // 8 + 1, width // 8 + 1, 3))
    return patches.astype(np.uint8).repeat(8, 0).repeat(8, 1)[:height, :width]


def check_same(model: Model, exported: runtime.Model, size: tuple[int, int]) -> int:
    """Compare predicted objects, in any order for equal scores, and return their number."""
    image = draw_image(size)
    expected, found = model.predict(image), exported.predict(image)
    assert found.size == expected.size == size and len(found) == len(expected)
    assert (found.boxes.dtype, found.scores.dtype,
            found.labels.dtype) == (expected.boxes.dtype, expected.scores.dtype,
                                    expected.labels.dtype)
    assert (np.diff(found.scores) <= 0).all()
    if not len(expected):
        return 0
    ours, theirs = (np.concatenate([r.boxes / 1e3, r.scores[:, None], r.labels[:, None]], 1)
                    for r in (found, expected))  # yapf: disable
    distance = abs(ours[:, None] - theirs).max(2)
    match = distance.argmin(1)
    assert distance.min(1).max() < 1e-4 and len(set(match)) == len(match)
    if expected.masks is None:
        assert found.masks is None
        return len(expected)
    masks = expected.decode_masks()[match]
    assert found.masks.shape == masks.shape and masks.any() and not masks.all()
    assert (found.masks != masks).sum() <= len(masks) / 5
    return len(expected)


@pytest.mark.parametrize('size', SIZES)
def test_mask_rcnn(mask_rcnn: SimpleNamespace, size: tuple[int, int]) -> None:
    assert check_same(mask_rcnn.model, mask_rcnn.exported, size) > 10


def copy_changed(source: Path, folder: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """Copy an exported model and change its ``model.json``."""
    folder.mkdir()
    for path in source.glob('*.onnx'):
        (folder / path.name).symlink_to(path)
    about = json.loads((source / 'model.json').read_text())
    change(about)
    (folder / 'model.json').write_text(json.dumps(about))
    return folder


@pytest.mark.parametrize('change, match', [
    (lambda about: about['postprocess'].update(kind='one'), 'postprocess.kind must be one of two_'),
    (lambda about: about['graphs'].pop('masks'), 'graphs.masks must be '),
    (lambda about: about['postprocess']['proposals']['levels'][1].update(anchors=[[1, 2]]),
     r'postprocess.proposals.levels\[1\].anchors must be a list of boxes of four numbers'),
])
def test_errors_in_model_json(mask_rcnn: SimpleNamespace, tmp_path: Path, change: Callable,
                              match: str) -> None:
    folder = copy_changed(mask_rcnn.folder, tmp_path / 'changed', change)
    with pytest.raises(runtime.ModelError, match=match):
        runtime.load(folder)


def test_no_objects(mask_rcnn: SimpleNamespace, tmp_path: Path) -> None:
    folder = copy_changed(mask_rcnn.folder, tmp_path / 'none',
                          lambda about: about['postprocess']['boxes'].update(least_score=1.))
    found = runtime.load(folder, threads=1).predict(draw_image((50, 60)))
    assert len(found) == 0 and found.masks.shape == (0, 50, 60)
    assert json.loads(found.save(tmp_path / 'found')[0].read_text())['instances'] == []


def test_saved_instances(mask_rcnn: SimpleNamespace, tmp_path: Path) -> None:
    found = mask_rcnn.exported.predict(draw_image(SIZES[0]))
    path, = found.save(tmp_path / 'found')
    content = json.loads(path.read_text())
    assert content['size'] == list(SIZES[0]) and len(content['instances']) == len(found)
    entry = content['instances'][0]
    assert entry['label'] == found.names[0] and entry['score'] == pytest.approx(found.scores[0])
    runs = np.repeat(np.arange(len(entry['mask']['counts'])) % 2, entry['mask']['counts'])
    assert np.array_equal(runs.reshape(SIZES[0][::-1]).T, found.masks[0])


@pytest.mark.parametrize('head, options', [
    ('pmt', {}),
    ('eomt', {}),
    ('eomt', {'model.backbone.patch_size': 14, 'model.backbone.img_size': 126,
              'model.panoptic_head.patch_size': 14}),
])  # yapf: disable
def test_masks_of_queries(head: str, options: dict[str, Any]) -> None:
    """Images of any size are padded to whole patches in the network."""
    model = build_query_model(head, **{'model.data_preprocessor.pad_size_divisor': 1}, **options)
    exported = run_in_torch(model)
    for size in SIZES:
        assert check_same(model, exported, size) > 10


@pytest.mark.slow
@pytest.mark.parametrize('head', ['pmt', 'eomt'])
def test_exported_masks_of_queries(head: str, tmp_path: Path) -> None:
    model = build_query_model(head, **{'model.data_preprocessor.pad_size_divisor': 1})
    export(model, model.cfg, tmp_path / 'out', ExportOptions())
    exported = runtime.load(tmp_path / 'out', threads=1)
    for size in SIZES:
        assert check_same(model, exported, size) > 10


@pytest.mark.slow
@pytest.mark.parametrize('head', ['mask2former', 'pmt', 'eomt'])
def test_exported_panoptic_models(head: str, tmp_path: Path) -> None:
    model = build_query_model(head, panoptic=True)
    exported = write_export(model, tmp_path / 'out')
    for size in SIZES:
        assert check_same_segments(model, exported, draw_image(size)) > 2


SLOW = ('faster_rcnn', 'cascade_mask_rcnn', 'vitdet', 'rtmdet_ins', 'dino', 'mask2former')


@pytest.mark.slow
@pytest.mark.parametrize('head', [*SLOW, 'mean scores'])
def test_other_detectors(head: str, tmp_path: Path) -> None:
    model = build_detector('cascade_mask_rcnn' if head == 'mean scores' else head)
    if head == 'mean scores':
        model.module.roi_head.__class__ = MeanScoreCascadeRoIHead
    export(model, model.cfg, tmp_path / head, ExportOptions())
    exported = runtime.load(tmp_path / head, threads=1)
    for size in SIZES:
        assert check_same(model, exported, size) > 10


@pytest.mark.slow
def test_one_class(tmp_path: Path) -> None:
    model = build_detector('mask_rcnn', num_classes=1)
    exported = write_export(model, tmp_path / 'one')
    assert check_same(model, exported, SIZES[0]) > 0


def test_unsupported_components_are_rejected(mask_rcnn: SimpleNamespace) -> None:
    model = copy.copy(mask_rcnn.model)

    def check_error(match: str) -> None:
        with pytest.raises(ExportError, match=match):
            build_plan(model, model.cfg, ExportOptions())

    model.module = copy.deepcopy(model.module)
    model.module.roi_head.test_cfg.nms = ConfigDict(type='soft_nms')
    check_error(r'model.test_cfg.rcnn.nms .* got .*soft_nms')
    model.module.roi_head.test_cfg.nms = ConfigDict(type='nms', iou_threshold=0.5)
    model.module.roi_head.test_cfg.mask_thr_binary = -1
    check_error('mask_thr_binary must be at least 0, got -1')
    model.module.rpn_head.__class__ = type('MyRPN', (type(model.module.rpn_head), ), {})
    check_error('MyRPN cannot be exported: the runtime supports only RPNHead')
    model.module = nn.Linear(2, 2)
    check_error(
        'Linear cannot be exported: expected one of TwoStageDetector, RTMDet, DINO, Mask2Former')


@pytest.mark.parametrize('rank, result', [(0, ''), (1, 'warning'), (9, 'error')])
def test_verification_of_predictions(rank: int, result: str, mask_rcnn: SimpleNamespace,
                                     tmp_path: Path) -> None:
    """Few missing objects are a warning, and many are an error."""
    model = mask_rcnn.model
    scores = np.sort(np.concatenate([model.predict(image).scores for image in draw_images()]))
    least = float(scores[rank * len(scores) // 20])

    def omit(about: dict[str, Any]) -> None:
        about['postprocess']['boxes'].update(least_score=least)

    folder = copy_changed(mask_rcnn.folder, tmp_path / 'omitting', omit)
    if result == 'error':
        with pytest.raises(
                ExportError, match='objects differ .* nothing was written. .* --component'):
            verify_predictions(model, folder)
        return
    comparison = verify_predictions(model, folder)
    is_different = comparison.different > 0.02 * comparison.number
    assert bool(comparison.warning) == bool(result) == is_different


def test_number_of_different_objects() -> None:
    """Objects are compared by class, score and box; duplicates count separately."""
    box = [[0, 0, 9, 9]]
    found = runtime.Instances((9, 9), ('a', 'b', 'c'), ((0, 0, 0), ) * 3,
                              np.array(box * 2 + [[0.5, 0, 9, 9.5]]),
                              np.array([0.9, 0.8, 0.5]), np.array([1, 2, 1]))  # yapf: disable
    assert count_differences(found, found) == 0

    changed = partial(replace, found)
    assert count_differences(found, changed(labels=np.array([1, 1, 1]))) == 1
    assert count_differences(found, changed(scores=np.array([0.9, 0.8, 0.4]))) == 1
    assert count_differences(found, changed(boxes=np.array(box * 2 + [[2, 0, 9, 9]]))) == 1
    none = changed(labels=found.labels[:0], scores=found.scores[:0], boxes=found.boxes[:0])
    assert count_differences(found, none) == count_differences(none, found) == 3
    twice = changed(labels=np.array([1, 2, 1, 1]), scores=np.array([0.9, 0.8, 0.5, 0.5]),
                    boxes=np.array(box * 4))  # yapf: disable
    assert count_differences(twice, found) == count_differences(found, twice) == 1


def test_number_of_different_pixels() -> None:
    """Segments are compared by class and overlap, whatever their numbers."""

    def build(segments: list[int], *labels: int) -> runtime.PanopticMap:
        return runtime.PanopticMap((1, 6), ('a', 'b'), ((0, 0, 0), ) * 2, np.array([segments]),
                                   np.array(labels, np.int64), 1)  # yapf: disable

    result = build([1, 1, 2, 2, 3, 0], 0, 0, 1)
    for other, number in ((result, 0), (build([3, 3, 1, 1, 2, 0], 0, 1,
                                              0), 0), (build([1, 1, 2, 2, 3, 0], 1, 0, 1), 2),
                          (build([1, 1, 1, 1, 2, 0], 0, 1), 2), (build([1, 1, 2, 2, 3, 3], 0, 0,
                                                                       1), 1), (build([0] * 6), 5)):
        assert count_different_pixels(result, other) == number
        assert count_different_pixels(other, result) == number


def draw_boxes(num: int, size: tuple[int, int]) -> np.ndarray:
    """Draw boxes in and around an image, the first two without area."""
    rng = np.random.default_rng(0)
    corners = (rng.random((num, 2, 2)) * 1.4 - 0.2) * size[::-1]
    boxes = np.concatenate([corners.min(1), corners.max(1)], 1).astype(np.float32)
    boxes[0, 2] = boxes[0, 0]
    boxes[1, 2:] = boxes[1, :2]
    return boxes


def test_anchors_equal_mmdet() -> None:
    generator = AnchorGenerator(strides=[4, 3.5], ratios=[0.5, 2.], scales=[8])
    expected = generator.grid_priors([(3, 5), (2, 1)], device='cpu')
    for level, size in enumerate([(3, 5), (2, 1)]):
        base = generator.base_anchors[level].numpy()
        assert np.array_equal(build_anchors(size, generator.strides[level], base), expected[level])


@pytest.mark.parametrize('limit', [None, 2.])
def test_decoding_equals_mmdet(limit: float | None) -> None:
    stds = (0.1, 0.1, 0.2, 0.2)
    coder = DeltaXYWHBBoxCoder(
        target_stds=stds, add_ctr_clamp=limit is not None, ctr_clamp=limit or 32)
    boxes, size = draw_boxes(30, (60, 90)), (60, 90)
    deltas = np.random.default_rng(1).normal(0, 20, (30, 12)).astype(np.float32)
    found = decode_deltas(boxes, deltas, Coder((0., ) * 4, stds, True, limit), size)
    expected = coder.decode(torch.tensor(boxes), torch.tensor(deltas), max_shape=size)
    np.testing.assert_allclose(found.reshape(30, 12), expected, rtol=1e-6, atol=1e-4)


def test_nms_equals_mmcv() -> None:
    boxes = draw_boxes(300, (60, 90)).clip(0)
    rng = np.random.default_rng(1)
    scores, groups = rng.random(300).astype(np.float32).round(2), rng.integers(0, 3, 300)
    _, expected = batched_nms(*map(torch.tensor, (boxes, scores, groups)), dict(iou_threshold=0.4))
    found = suppress(boxes, scores, groups, 0.4)
    assert len(found) < 250 and np.array_equal(found, expected)
    assert len(suppress(boxes[:0], scores[:0], groups[:0], 0.4)) == 0


def test_levels_equal_mmdet() -> None:
    layer = dict(type='RoIAlign', output_size=7, sampling_ratio=0)
    extractor = SingleRoIExtractor(layer, 2, [4, 8, 16])
    boxes = draw_boxes(200, (600, 900))
    rois = torch.tensor(np.pad(boxes, ((0, 0), (1, 0))))
    assert np.array_equal(assign_levels(boxes, 56, 3), extractor.map_roi_levels(rois, 3))


def test_pasted_masks_equal_mmdet() -> None:
    torch.manual_seed(0)
    head = FCNMaskHead(num_convs=0, in_channels=2, num_classes=1, class_agnostic=True)
    boxes, size = draw_boxes(25, (61, 83)).clip(0), (61, 83)
    logits = torch.randn(25, 1, 14, 14)
    expected = head._predict_by_feat_single(
        logits,
        torch.tensor(boxes),
        torch.zeros(25).long(),
        dict(scale_factor=(1., 1.), ori_shape=size),
        ConfigDict(mask_thr_binary=0.5),
        rescale=True)
    found = paste(logits[:, 0].sigmoid().numpy(), boxes, size, 0.5)
    assert found.shape == expected.shape and expected.any()
    assert (found != expected.numpy()).sum() <= 2
    assert compute_mask_boxes(found[:3] & False).tolist() == [[0.] * 4] * 3
    around = np.zeros((1, 5, 6), bool)
    around[0, 1:3, 2:5] = True
    assert compute_mask_boxes(around).tolist() == [[2., 1., 5., 3.]]
