"""Figures: their values and layout, and that they leave models unchanged."""
from __future__ import annotations

from copy import deepcopy
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ROOT
from helpers.backbones import MAKERS, every_backbone, tiny
from mmengine.registry import MODELS, DefaultScope
from mmseg.structures import SegDataSample
from torch import Tensor

from colonnade.backbones import CaiT, ResMLP, XCiT
from colonnade.backbones.attention_maps import mixing_rows, query_key_magnitude
from colonnade.backbones.kernels.folding import FusibleBlock
from colonnade.inference import Model
from colonnade.settings.reading import read_config
from colonnade.visualization.figures import (VisualizationOptions, available_methods,
                                             figure_to_bytes, visualize, visualize_batch)
from colonnade.visualization.figures.feature_figures import PrincipalComponents
from colonnade.visualization.figures.figure_inputs import prepare_image
from colonnade.visualization.figures.grad_cam import (compute_grad_cam, compute_maps_and_scores,
                                                      score_detections, select_scores)
from colonnade.visualization.figures.layout import Drawing, Panel, Scale, build_figure
from colonnade.visualization.figures.methods import METHODS

RNG = np.random.default_rng(0)
IMAGE = RNG.integers(0, 256, (40, 56, 3), dtype=np.uint8)
HEADS = ('faster_rcnn', 'dino', 'rtmdet_ins', 'mask2former', 'mask2former_semantic')


def build_model(head: str, backbone: torch.nn.Module | None = None, **options: object) -> Model:
    """Return a slim model with random weights, with the given backbone of its width if any."""
    cfg = read_config(ROOT / f'configs/{head}/xcit_nano_12_p16_slim_shapes.py')
    cfg.merge_from_dict(options)
    torch.manual_seed(0)
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        module = MODELS.build(deepcopy(cfg.model)).eval()
    if head == 'dino':
        module.init_weights()  # Its level embedding is uninitialized before.
    if backbone is not None:
        module.backbone = backbone.eval()
    classes = ('background', 'disc', 'square', 'triangle')
    classes = classes if cfg.default_scope == 'mmseg' else classes[1:]
    return Model(module, cfg, classes, ((0, 0, 0), ) * len(classes), 'nowhere')


def build_tiny_model(make: type | partial = XCiT, **kwargs: object) -> Model:
    """Return a linear segmenter with a tiny backbone, whose pipeline does not resize."""
    model = build_model('linear', tiny(make, **kwargs), **{'model.decode_head.in_channels': 32})
    model.pipeline = lambda data: dict(
        inputs=torch.from_numpy(data['img']).permute(2, 0, 1),
        data_samples=SegDataSample(
            metainfo=dict(img_shape=data['img'].shape[:2], ori_shape=data['img'].shape[:2])))
    return model


def draw(model: Model, name: str, image: np.ndarray = IMAGE, **options: object) -> Drawing:
    checked = VisualizationOptions(**options)
    prepared = prepare_image(model, image, checked.size)
    return METHODS[name].make_drawer(model, checked, lambda: [prepared])(prepared)


def list_panels(drawing: Drawing) -> list[Panel]:
    return [panel for _, panels in drawing.rows for panel in panels]


@every_backbone
def test_figures_leave_every_backbone_unchanged(make: partial) -> None:
    model = build_tiny_model(make)
    before = {name: value.clone() for name, value in model.module.state_dict().items()}
    prepared = prepare_image(model, IMAGE)
    with torch.no_grad():
        expected = model.module.extract_feat(prepared.inputs)
    names = available_methods(model)
    assert names[-2:] == ('features', 'grad-cam')
    for name in names:
        figure = visualize(model, IMAGE, name)
        assert len(figure.axes) >= 3 - (name == 'features')
    for name, value in model.module.state_dict().items():
        assert torch.equal(value, before[name]), name
    for module in model.module.modules():
        assert not module._forward_hooks and not module.training
    assert all(parameter.grad is None for parameter in model.module.parameters())
    with torch.no_grad():
        for got, wanted in zip(model.module.extract_feat(prepared.inputs), expected, strict=True):
            assert torch.equal(got, wanted)


FUSIBLE = {
    name: make
    for name, make in MAKERS.items() if isinstance(tiny(make).blocks[0], FusibleBlock)
}


@pytest.mark.parametrize('make', FUSIBLE.values(), ids=FUSIBLE)
def test_figures_of_fused_models(make: partial) -> None:
    model = build_tiny_model(make)
    names = [name for name in available_methods(model) if name != 'features']
    before = [draw(model, name) for name in names]
    model.module.backbone.fuse()
    for name, expected in zip(names, before, strict=True):
        found = zip(list_panels(draw(model, name)), list_panels(expected), strict=True)
        for got, wanted in found:
            np.testing.assert_allclose(got.values, wanted.values, rtol=1e-3, atol=1e-3)


def test_panels_show_magnitudes_and_mixing() -> None:
    model = build_tiny_model()
    found = list_panels(draw(model, 'query-key', blocks=[1, -1], heads=[3, 0]))
    prepared = prepare_image(model, IMAGE)
    for row, block in enumerate((1, 3)):
        for kind, values in enumerate(
                query_key_magnitude(model.module.backbone, prepared.inputs, block)):
            shown = [found[4 * row + 2 * kind + column].values for column in (0, 1)]
            assert np.array_equal(np.stack(shown), values[0, [3, 0]].numpy())
    model = build_tiny_model(ResMLP)
    panel, = list_panels(draw(model, 'mixing', point=(30, 10), blocks=[2]))
    assert panel.title == 'row 2, column 4'  # The grid has 8 rows and columns on 40 x 56 pixels.
    assert np.array_equal(panel.values, mixing_rows(model.module.backbone, 2)[2, 4].numpy())


def test_attention_is_relative_to_uniform_weights() -> None:
    model = build_tiny_model(CaiT)
    drawing = draw(model, 'attention', point=(55, 0))
    mean, *heads = list_panels(drawing)
    assert drawing.marks == ((55, 0), ) and [p.title for p in heads][-1] == 'head 3'
    np.testing.assert_allclose([p.values.mean() for p in heads], 1, rtol=1e-5)
    np.testing.assert_allclose(mean.values, np.mean([p.values for p in heads], 0), rtol=1e-5)
    assert mean.values.shape == (3, 4) and mean.stride == 16
    with pytest.raises(
            ValueError, match=r'point \(56, 0\) is outside the image, which has 56 x 40 pixels'):
        draw(model, 'attention', point=(56, 0))


def test_class_attention_needs_a_classifier(tmp_path: Path) -> None:
    model = build_tiny_model()
    assert 'class-attention' not in available_methods(model)
    assert available_methods(model, classifier='a.pth')[0] == 'class-attention'
    with pytest.raises(ValueError, match='needs the class-attention stage of a classifier'):
        visualize(model, IMAGE, 'class-attention')
    torch.manual_seed(1)
    backbone = model.module.backbone
    torch.save(backbone.build_timm_module(64, num_classes=3).state_dict(), tmp_path / 'a.pth')
    drawing = draw(model, 'class-attention', classifier=tmp_path / 'a.pth', blocks=[-1])
    assert [label for label, _ in drawing.rows] == ['layer 1']
    assert len(list_panels(drawing)) == 5


def test_principal_components_match_svd() -> None:
    vectors = RNG.normal(size=(70, 6)) * [5, 1, 3, 0.1, 2, 0.5] + 7
    principal = PrincipalComponents()
    for part in np.split(vectors, [10, 40]):
        principal.add(torch.from_numpy(part))
    found = principal.fit()
    left, sizes, right = np.linalg.svd(vectors - vectors.mean(0), full_matrices=False)
    signs = np.sign(right[np.arange(6), np.abs(right).argmax(1)])
    np.testing.assert_allclose(found.vectors, (right * signs[:, None])[:3].T, atol=1e-9)
    np.testing.assert_allclose(found.variances, sizes[:3]**2 / 70)
    assert found.share == pytest.approx((sizes[:3]**2).sum() / (sizes**2).sum())
    image = torch.from_numpy(vectors.T.reshape(6, 7, 10))
    scaled = left[:, :3] * signs[:3] * 70**0.5  # variance 1
    expected = np.clip(0.5 + scaled / 4, 0, 1).reshape(7, 10, 3)
    np.testing.assert_allclose(found.to_colors(image), expected, atol=1e-6)


def test_maps_without_variance_are_gray() -> None:
    principal = PrincipalComponents()
    principal.add(torch.ones(1, 2))
    assert (principal.fit().to_colors(torch.ones(2, 1, 1)) == 0.5).all()


def test_features_of_batch_share_colors() -> None:
    model, other = build_tiny_model(), np.full_like(IMAGE, 9)

    def colors(images: list[np.ndarray]) -> list[np.ndarray]:
        draw = METHODS['features'].make_drawer(model, VisualizationOptions(),
                                               lambda: [prepare_image(model, i) for i in images])
        return [list_panels(draw(prepare_image(model, image)))[0].values for image in images]

    first, second, again = colors([IMAGE, other, IMAGE])
    assert np.array_equal(first, again) and not np.array_equal(first, colors([IMAGE])[0])
    assert first.shape == second.shape == (5, 7, 3)
    assert len(list(visualize_batch(model, [IMAGE, other], 'features'))) == 2


def test_grad_cam_matches_definition() -> None:
    values, gradients = torch.randn(1, 5, 3, 4), torch.randn(1, 5, 3, 4)
    expected = np.zeros((3, 4))
    for channel in range(5):
        weight = gradients[0, channel].sum().item() / 12  # Eq. 1
        expected += weight * values[0, channel].numpy()
    np.testing.assert_allclose(compute_grad_cam(values, gradients), expected.clip(0), atol=1e-5)


def test_grad_cam_of_linear_head() -> None:
    """The mean logit is linear in the map, so its gradient is the weights over the tokens."""
    model = build_tiny_model()
    head = model.module.decode_head
    torch.nn.init.normal_(head.norm.weight)
    torch.nn.init.normal_(head.norm.running_mean)
    torch.nn.init.normal_(head.conv_seg.weight)
    with torch.no_grad():
        values = model.module.extract_feat(prepare_image(model, IMAGE).inputs)[-1][0]  # (C, h, w)
        gain = head.norm.weight / (head.norm.running_var + head.norm.eps).sqrt()
        weights = head.conv_seg.weight[:, :, 0, 0] * gain  # (K, C)
        expected = torch.einsum('kc,chw->khw', weights, values).relu()
    assert expected.amax((1, 2)).count_nonzero() >= 2
    for name, wanted in zip(model.classes, expected, strict=True):
        drawing = draw(model, 'grad-cam', target=name)
        assert drawing.rows[0][0].startswith(f'{name} ')
        panel, = list_panels(drawing)
        np.testing.assert_allclose(panel.values, wanted / (wanted.max() or 1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('head', HEADS)
def test_grad_cam_of_detectors_and_segmenters(head: str) -> None:
    """Scores match the prediction, and the maps that they depend on have gradients."""
    options = {'model.test_cfg.score_thr': 0.} if head == 'rtmdet_ins' else {}
    model = build_model(head, **options)
    prepared = prepare_image(model, IMAGE, size=(64, 96))
    maps, scores = compute_maps_and_scores(model, prepared)
    if model.kind != 'labels':
        with torch.no_grad():
            sample, = model.module.predict(prepared.inputs, prepared.samples, rescale=False)
        expected = sample.pred_instances.scores.sort(descending=True)[0]
        found = torch.stack([score.value.detach() for score in scores])
        torch.testing.assert_close(found, expected)
    assert len(maps.backbone) == len(model.module.backbone.out_indices)
    assert all(values.requires_grad and values.is_leaf for values in maps.backbone)
    drawing = draw(model, 'grad-cam', size=(64, 96))
    assert 1 <= len(drawing.rows) <= 3
    for _, panels in drawing.rows:
        assert len(panels) >= 2 and {panel.values.max() for panel in panels} <= {0, 1}
    assert (list_panels(drawing)[0].box is None) == (model.kind == 'labels')


def test_grad_cam_targets() -> None:
    model = build_model('faster_rcnn')
    prepared = prepare_image(model, IMAGE, size=(64, 64))
    with torch.enable_grad():
        scores = score_detections(model, prepared)
    third, = select_scores(scores, 3)
    assert third is scores[3] and select_scores(scores, 1000) == []
    name = scores[-1].name
    best, = select_scores(scores, name)
    assert best is next(score for score in scores if score.name == name)
    assert scores[0].value.item() >= best.value.item() >= scores[-1].value.item()
    with pytest.raises(
            ValueError,
            match=f'no detection with index 1000; detections: {len(scores)} in the image'):
        draw(model, 'grad-cam', target='1000', size=(64, 64))
    with pytest.raises(ValueError, match="'cat' is neither a class of the model nor an index of"):
        draw(model, 'grad-cam', target='cat')


def test_warn_about_missing_target(caplog: pytest.LogCaptureFixture) -> None:
    model = build_model('faster_rcnn', **{'model.test_cfg.rcnn.nms.iou_threshold': 0.01})
    images, size = (IMAGE, np.zeros_like(IMAGE)), (64, 64)
    with torch.no_grad():
        least, most = sorted(
            len(score_detections(model, prepare_image(model, image, size))) for image in images)
    assert least < most
    figures = visualize_batch(model, images, 'grad-cam', target=least, size=size)
    assert sorted(len(figure.axes) > 1 for figure in figures) == [False, True]
    assert [each.getMessage() for each in caplog.records] == \
        [f'the image: no detection with index {least}; detections: {least}']
    with pytest.raises(ValueError, match=f'no detection with index {most}; detections: .* in '):
        visualize_batch(model, images, 'grad-cam', target=most, size=size)


def test_reject_huge_figures() -> None:
    with pytest.raises(
            ValueError, match='at 10000 dpi exceeds 178,956,970 pixels: choose a lower dpi'):
        figure_to_bytes(build_figure(Drawing('title', IMAGE, [])), dpi=10000)


def test_grad_cam_without_detections() -> None:
    model = build_model('faster_rcnn', **{'model.test_cfg.rcnn.score_thr': 1.})
    drawing = draw(model, 'grad-cam', size=(64, 64))
    assert drawing.title == 'Grad-CAM: no detections' and not drawing.rows
    assert len(build_figure(drawing).axes) == 1


def test_size_of_prepared_image() -> None:
    model = build_model('sem_fpn')
    assert prepare_image(model,
                         IMAGE).inputs.shape == (1, 3, 128, 179)  # resized by the test pipeline
    prepared = prepare_image(model, IMAGE, size=(48, 80))
    assert prepared.inputs.shape == (1, 3, 48, 80) and prepared.pixels.shape == (48, 80, 3)
    assert prepared.samples[0].img_shape == (48, 80) and prepared.original_size == (40, 56)
    assert prepared.scale_point((28, 10)) == (40, 12)
    whole = prepare_image(model, IMAGE, size=(40, 56))
    assert np.array_equal(whole.pixels, IMAGE)
    mean, std = Tensor([123.675, 116.28, 103.53]), Tensor([58.395, 57.12, 57.375])
    expected = (torch.from_numpy(IMAGE).float() - mean) / std
    torch.testing.assert_close(whole.inputs[0], expected.permute(2, 0, 1))


def test_padding_is_cropped() -> None:
    figure = visualize(build_tiny_model(), IMAGE[:, :50], 'query-key', heads=[0])
    image, queries, *_ = figure.axes
    assert queries.images[0].get_extent() == [0, 56, 40, 0]  # 7 x 5 tokens of 8 pixels
    assert queries.get_xlim() == (0, 50) and queries.get_ylim() == (40, 0)
    assert queries.images[0].get_interpolation() == 'bilinear'
    squares = visualize(build_tiny_model(), IMAGE, 'query-key', heads=[0], interpolation=False)
    assert squares.axes[1].images[0].get_interpolation() == 'nearest'


@pytest.mark.parametrize('shape', [(5, 900), (900, 5), (64, 64), (1, 1)])
def test_layout_of_any_shape(shape: tuple[int, int]) -> None:
    """All panels are inside of the figure and do not overlap."""
    image, values = np.zeros((*shape, 3), np.uint8), np.zeros((2, 3))
    rows = [('a', [Panel(values, str(i), 1.) for i in range(count)]) for count in (1, 7)]
    figure = build_figure(Drawing('title', image, rows, Scale('value', 0, 1)))
    boxes = [axes.get_position(original=True) for axes in figure.axes]
    assert len(boxes) == 1 + 8 + 1
    for index, box in enumerate(boxes):
        assert 0 <= box.x0 < box.x1 <= 1 and 0 <= box.y0 < box.y1 <= 1
        assert not any(box.overlaps(other) for other in boxes[:index])
    assert max(figure.get_size_inches()) < 30


def test_scales_ignore_outliers() -> None:

    def fit(values: np.ndarray, *kind: str) -> tuple[float, float]:
        scale = Scale.fit('', [('', [Panel(values)])], *kind)
        return scale.low, scale.high

    assert fit(np.arange(1001.)) == pytest.approx((0, 995))
    assert fit(np.arange(1001.), 'range') == pytest.approx((5, 995))
    assert fit(np.arange(-1000., 1.), 'diverging') == pytest.approx((-995, 995))
    assert fit(np.ones(3), 'range') == (1, 2) and fit(np.zeros(3)) == (0, 1)
    colors = Scale(
        '', 0., 1., 'YlOrRd', is_transparent=True).build_mappable().to_rgba([0., 0.25, 1.])
    np.testing.assert_allclose(colors[:, 3], [0, 0.425, 0.85], atol=0.01)


def test_pdf_keeps_text_as_text() -> None:
    figure = build_figure(Drawing('title', IMAGE, [('row', [Panel(IMAGE, 'panel', 1.)])]))
    assert figure_to_bytes(figure, 'pdf').startswith(b'%PDF') and b'/FontFile2' in figure_to_bytes(
        figure, 'pdf')
    assert figure_to_bytes(figure).startswith(b'\x89PNG')


@pytest.mark.parametrize('name, options, message', [
    ('mixing', {},
     "XCiT does not support the method 'mixing': expected one of class-attention, query-key, ch"),
    ('painting', {}, "XCiT does not support the method 'painting'"),
    ('features', dict(point=(1, 1),
                      heads=[1]), 'heads and point would have no effect on features: remove them'),
    ('features', dict(size=(0, 5)), 'size must be .*, got 0 x 5'),
    ('features', dict(size=(20000, 20000)), 'at most 178,956,970 pixels in all .* got 20000 x'),
    ('query-key', dict(blocks=[4]), 'block must be between -4 and 3, got 4'),
    ('query-key', dict(heads=[-5]), 'head must be between -4 and 3, got -5'),
    ('grad-cam', dict(target='squares'),
     "'squares' is not a class of the model: did you mean square?"),
    ('grad-cam', dict(target='0'),
     "'0' is not a class of the model: expected one of background, disc"),
])
def test_invalid_options(name: str, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        visualize(build_tiny_model(), IMAGE, name, **options)
