"""Pictures of what a model looks at: their values, and that models stay as they were."""
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
from torch import Tensor

from colonnade.backbones import CaiT, ResMLP, XCiT
from colonnade.backbones.attention_maps import mixing_rows, query_key_magnitude
from colonnade.backbones.kernels.folding import FusibleBlock
from colonnade.inference import Model
from colonnade.settings.reading import read_config
from colonnade.visualization.figures import as_bytes, available_methods, picture, pictures
from colonnade.visualization.figures.activations import see
from colonnade.visualization.figures.feature_figures import PrincipalComponents
from colonnade.visualization.figures.figure_options import Options
from colonnade.visualization.figures.grad_cam import (chosen_scores, detection_scores, grad_cam,
                                                      maps_and_scores)
from colonnade.visualization.figures.layout import Drawing, Panel, PanelRow, figure_of
from colonnade.visualization.figures.methods import KINDS
from colonnade.visualization.figures.scales import Scale

RNG = np.random.default_rng(0)
IMAGE = RNG.integers(0, 256, (40, 56, 3), dtype=np.uint8)
HEADS = ('faster_rcnn', 'dino', 'rtmdet_ins', 'mask2former', 'mask2former_semantic')


def model_of(head: str, backbone: torch.nn.Module | None = None, **options: object) -> Model:
    """A slim model with random weights, and another backbone of its width if wanted."""
    cfg = read_config(ROOT / f'configs/{head}/xcit_nano_12_p16_slim_shapes.py')
    cfg.merge_from_dict(options)
    torch.manual_seed(0)
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        module = MODELS.build(deepcopy(cfg.model)).eval()
    if head == 'dino':
        module.init_weights()  # its embedding of levels holds anything before
    if backbone is not None:
        module.backbone = backbone.eval()
    classes = ('background', 'disc', 'square', 'triangle')
    classes = classes if cfg.default_scope == 'mmseg' else classes[1:]
    return Model(module, cfg, classes, ((0, 0, 0), ) * len(classes), 'nowhere')


def tiny_model(make: type | partial = XCiT, **kwargs: object) -> Model:
    """A linear segmenter on a tiny backbone, for images as they are."""
    model = model_of('linear', tiny(make, **kwargs), **{'model.decode_head.in_channels': 32})
    model.pipeline = lambda data: dict(
        inputs=torch.from_numpy(data['img']).permute(2, 0, 1),
        data_samples=sample_of(data['img'].shape[:2]))
    return model


def sample_of(size: tuple[int, int]) -> object:
    from mmseg.structures import SegDataSample
    return SegDataSample(metainfo=dict(img_shape=size, ori_shape=size))


def drawing_of(model: Model, name: str, image: np.ndarray = IMAGE, **options: object) -> Drawing:
    made = Options.of(options)
    seen = see(model, image, made.size)
    return KINDS[name].panels(model, made, lambda: [seen])(seen)


def panels_of(drawing: Drawing) -> list[Panel]:
    return [panel for row in drawing.rows for panel in row.panels]


@every_backbone
def test_every_backbone_has_pictures_and_stays_as_it_was(make: partial) -> None:
    model = tiny_model(make)
    before = {name: value.clone() for name, value in model.module.state_dict().items()}
    seen = see(model, IMAGE)
    with torch.no_grad():
        expected = model.module.extract_feat(seen.inputs)
    names = available_methods(model)
    assert names[-2:] == ('features', 'grad-cam')
    for name in names:
        figure = picture(model, IMAGE, name)
        assert len(figure.axes) >= 3 - (name == 'features')
    for name, value in model.module.state_dict().items():
        assert torch.equal(value, before[name]), name
    for module in model.module.modules():
        assert not module._forward_hooks and not module.training
    assert all(parameter.grad is None for parameter in model.module.parameters())
    with torch.no_grad():
        for got, wanted in zip(model.module.extract_feat(seen.inputs), expected, strict=True):
            assert torch.equal(got, wanted)


FUSIBLE = {
    name: make
    for name, make in MAKERS.items() if isinstance(tiny(make).blocks[0], FusibleBlock)
}


@pytest.mark.parametrize('make', FUSIBLE.values(), ids=FUSIBLE)
def test_fused_models(make: partial) -> None:
    model = tiny_model(make)
    names = [name for name in available_methods(model) if name != 'features']
    before = [drawing_of(model, name) for name in names]
    model.module.backbone.fuse()
    for name, expected in zip(names, before, strict=True):
        found = zip(panels_of(drawing_of(model, name)), panels_of(expected), strict=True)
        for got, wanted in found:
            np.testing.assert_allclose(got.values, wanted.values, rtol=1e-3, atol=1e-3)


def test_magnitudes_and_mixing_are_shown_as_they_are() -> None:
    model = tiny_model()
    found = panels_of(drawing_of(model, 'query-key', blocks=[1, -1], heads=[3, 0]))
    seen = see(model, IMAGE)
    for row, block in enumerate((1, 3)):
        for kind, values in enumerate(
                query_key_magnitude(model.module.backbone, seen.inputs, block)):
            shown = [found[4 * row + 2 * kind + column].values for column in (0, 1)]
            assert np.array_equal(np.stack(shown), values[0, [3, 0]].numpy())
    model = tiny_model(ResMLP)
    panel, = panels_of(drawing_of(model, 'mixing', point=(30, 10), blocks=[2]))
    assert panel.title == 'row 2, column 4'  # of 8 rows and 8 columns on 40 x 56 pixels
    assert np.array_equal(panel.values, mixing_rows(model.module.backbone, 2)[2, 4].numpy())


def test_attention_is_relative_to_uniform_weights() -> None:
    model = tiny_model(CaiT)
    drawing = drawing_of(model, 'attention', point=(55, 0))
    mean, *heads = panels_of(drawing)
    assert drawing.marks == ((55, 0), ) and [p.title for p in heads][-1] == 'head 3'
    np.testing.assert_allclose([p.values.mean() for p in heads], 1, rtol=1e-5)
    np.testing.assert_allclose(mean.values, np.mean([p.values for p in heads], 0), rtol=1e-5)
    assert mean.values.shape == (3, 4) and mean.stride == 16
    with pytest.raises(ValueError, match=r'56 x 40 pixels, and no point \(56, 0\)'):
        drawing_of(model, 'attention', point=(56, 0))


def test_class_attention_needs_a_classifier(tmp_path: Path) -> None:
    model = tiny_model()
    assert 'class-attention' not in available_methods(model)
    assert available_methods(model, classifier='a.pth')[0] == 'class-attention'
    with pytest.raises(ValueError, match='needs the weights of a classifier'):
        picture(model, IMAGE, 'class-attention')
    torch.manual_seed(1)
    backbone = model.module.backbone
    torch.save(backbone.build_timm_module(64, num_classes=3).state_dict(), tmp_path / 'a.pth')
    drawing = drawing_of(model, 'class-attention', classifier=tmp_path / 'a.pth', blocks=[-1])
    assert [row.label for row in drawing.rows] == ['layer 1']
    assert len(panels_of(drawing)) == 5


def test_principal_components_are_numpys() -> None:
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
    scaled = left[:, :3] * signs[:3] * 70**0.5  # of variance 1
    expected = np.clip(0.5 + scaled / 4, 0, 1).reshape(7, 10, 3)
    np.testing.assert_allclose(found.colors(image), expected, atol=1e-6)


def test_maps_without_variance_are_gray() -> None:
    principal = PrincipalComponents()
    principal.add(torch.ones(1, 2))
    assert (principal.fit().colors(torch.ones(2, 1, 1)) == 0.5).all()


def test_features_of_a_call_share_their_colours() -> None:
    model, other = tiny_model(), np.full_like(IMAGE, 9)

    def colours(images: list[np.ndarray]) -> list[np.ndarray]:
        draw = KINDS['features'].panels(model, Options(), lambda: [see(model, i) for i in images])
        return [panels_of(draw(see(model, image)))[0].values for image in images]

    first, second, again = colours([IMAGE, other, IMAGE])
    assert np.array_equal(first, again) and not np.array_equal(first, colours([IMAGE])[0])
    assert first.shape == second.shape == (5, 7, 3)
    assert len(list(pictures(model, [IMAGE, other], 'features'))) == 2


def test_grad_cam_is_its_definition() -> None:
    values, gradients = torch.randn(1, 5, 3, 4), torch.randn(1, 5, 3, 4)
    expected = np.zeros((3, 4))
    for channel in range(5):
        weight = gradients[0, channel].sum().item() / 12  # Eq. 1
        expected += weight * values[0, channel].numpy()
    np.testing.assert_allclose(grad_cam(values, gradients), expected.clip(0), atol=1e-5)


def test_grad_cam_of_a_linear_head_by_hand() -> None:
    """The mean logit is linear in the map: its gradient is the class's weights over the tokens."""
    model = tiny_model()
    head = model.module.decode_head
    torch.nn.init.normal_(head.norm.weight)
    torch.nn.init.normal_(head.norm.running_mean)
    torch.nn.init.normal_(head.conv_seg.weight)
    with torch.no_grad():
        values = model.module.extract_feat(see(model, IMAGE).inputs)[-1][0]  # (C, h, w)
        gain = head.norm.weight / (head.norm.running_var + head.norm.eps).sqrt()
        weights = head.conv_seg.weight[:, :, 0, 0] * gain  # (K, C)
        expected = torch.einsum('kc,chw->khw', weights, values).relu()
    assert expected.amax((1, 2)).count_nonzero() >= 2
    for name, wanted in zip(model.classes, expected, strict=True):
        drawing = drawing_of(model, 'grad-cam', target=name)
        assert drawing.rows[0].label.startswith(f'{name} ')
        panel, = panels_of(drawing)
        np.testing.assert_allclose(panel.values, wanted / (wanted.max() or 1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('head', HEADS)
def test_grad_cam_of_every_way_to_predict(head: str) -> None:
    """Scores are those of the prediction, and maps that they depend on have gradients."""
    options = {'model.test_cfg.score_thr': 0.} if head == 'rtmdet_ins' else {}
    model = model_of(head, **options)
    seen = see(model, IMAGE, size=(64, 96))
    maps, scores = maps_and_scores(model, seen)
    if model.kind != 'labels':
        with torch.no_grad():
            sample, = model.module.predict(seen.inputs, seen.samples, rescale=False)
        expected = sample.pred_instances.scores.sort(descending=True)[0]
        found = torch.stack([score.value.detach() for score in scores])
        torch.testing.assert_close(found, expected)
    assert len(maps.taps) == len(model.module.backbone.out_indices)
    assert all(values.requires_grad and values.is_leaf for values in maps.taps)
    drawing = drawing_of(model, 'grad-cam', size=(64, 96))
    assert 1 <= len(drawing.rows) <= 3
    for row in drawing.rows:
        assert len(row.panels) >= 2 and {panel.values.max() for panel in row.panels} <= {0, 1}
    assert (drawing.rows[0].panels[0].box is None) == (model.kind == 'labels')


def test_targets_of_grad_cam() -> None:
    model = model_of('faster_rcnn')
    seen = see(model, IMAGE, size=(64, 64))
    with torch.enable_grad():
        scores = detection_scores(model, seen)
    third, = chosen_scores(scores, 3)
    assert third is scores[3] and chosen_scores(scores, 1000) == []
    name = scores[-1].name
    best, = chosen_scores(scores, name)
    assert best is next(score for score in scores if score.name == name)
    assert scores[0].value.item() >= best.value.item() >= scores[-1].value.item()
    with pytest.raises(
            ValueError,
            match=f'no detection 1000, counted from 0; there are {len(scores)} in the image'):
        drawing_of(model, 'grad-cam', target='1000', size=(64, 64))
    with pytest.raises(
            ValueError,
            match='cat is no class of the model or the number of a detection; it has disc, sq'):
        drawing_of(model, 'grad-cam', target='cat')


def test_a_target_that_some_images_lack(caplog: pytest.LogCaptureFixture) -> None:
    model = model_of('faster_rcnn', **{'model.test_cfg.rcnn.nms.iou_threshold': 0.01})
    images, size = (IMAGE, np.zeros_like(IMAGE)), (64, 64)
    with torch.no_grad():
        least, most = sorted(
            len(detection_scores(model, see(model, image, size))) for image in images)
    assert least < most
    figures = pictures(model, images, 'grad-cam', target=least, size=size)
    assert sorted(len(figure.axes) > 1 for figure in figures) == [False, True]
    assert [each.getMessage() for each in caplog.records] == \
        [f'the image: there is no detection {least}, counted from 0; there are {least}']
    with pytest.raises(ValueError, match=f'no detection {most}, counted from 0; there are .* in '):
        pictures(model, images, 'grad-cam', target=most, size=size)


def test_figures_of_too_many_pixels() -> None:
    with pytest.raises(ValueError, match='178,956,970 pixels at 10000 dpi: choose less'):
        as_bytes(figure_of(Drawing('title', IMAGE, [])), dpi=10000)


def test_nothing_is_detected() -> None:
    model = model_of('faster_rcnn', **{'model.test_cfg.rcnn.score_thr': 1.})
    drawing = drawing_of(model, 'grad-cam', size=(64, 64))
    assert drawing.title == 'Grad-CAM: there is no detection' and not drawing.rows
    assert len(figure_of(drawing).axes) == 1


def test_size_is_that_of_the_image_before_the_network() -> None:
    model = model_of('sem_fpn')
    assert see(model, IMAGE).inputs.shape == (1, 3, 128, 179)  # as the test pipeline
    seen = see(model, IMAGE, size=(48, 80))
    assert seen.inputs.shape == (1, 3, 48, 80) and seen.image.shape == (48, 80, 3)
    assert seen.samples[0].img_shape == (48, 80) and seen.original == (40, 56)
    assert seen.to_seen((28, 10)) == (40, 12)
    whole = see(model, IMAGE, size=(40, 56))
    assert np.array_equal(whole.image, IMAGE)
    mean, std = Tensor([123.675, 116.28, 103.53]), Tensor([58.395, 57.12, 57.375])
    expected = (torch.from_numpy(IMAGE).float() - mean) / std
    torch.testing.assert_close(whole.inputs[0], expected.permute(2, 0, 1))


def test_padding_is_not_shown() -> None:
    """Maps reach over the padding, and are cut off where the image ends."""
    figure = picture(tiny_model(), IMAGE[:, :50], 'query-key', heads=[0])
    image, queries, *_ = figure.axes
    assert queries.images[0].get_extent() == [0, 56, 40, 0]  # 7 by 5 tokens of 8 pixels
    assert queries.get_xlim() == (0, 50) and queries.get_ylim() == (40, 0)
    assert queries.images[0].get_interpolation() == 'bilinear'
    nearest = picture(tiny_model(), IMAGE, 'query-key', heads=[0], nearest=True)
    assert nearest.axes[1].images[0].get_interpolation() == 'nearest'


@pytest.mark.parametrize('shape', [(5, 900), (900, 5), (64, 64), (1, 1)])
def test_figures_of_every_shape(shape: tuple[int, int]) -> None:
    """All panels lie in the figure and apart from each other."""
    image, values = np.zeros((*shape, 3), np.uint8), np.zeros((2, 3))
    rows = [PanelRow('a', [Panel(values, str(i), 1.) for i in range(count)]) for count in (1, 7)]
    figure = figure_of(Drawing('title', image, rows, Scale('value', 0, 1)))
    boxes = [axes.get_position(original=True) for axes in figure.axes]
    assert len(boxes) == 1 + 8 + 1
    for index, box in enumerate(boxes):
        assert 0 <= box.x0 < box.x1 <= 1 and 0 <= box.y0 < box.y1 <= 1
        assert not any(box.overlaps(other) for other in boxes[:index])
    assert max(figure.get_size_inches()) < 30


def test_scales_leave_out_what_is_rare() -> None:
    values = [np.arange(101.), np.array([])]
    from_zero, between = Scale.from_zero('', values, 0.9), Scale.between('', values, 0.9)
    assert (from_zero.low, from_zero.high) == pytest.approx((0, 90))
    assert (between.low, between.high) == pytest.approx((10, 90))
    around = Scale.around_zero('', [np.array([-3., 1.])])
    assert (around.low, around.high) == (-3, 3)
    for scale in (Scale.between('', [np.ones(3)], 0.9), Scale.from_zero('', [np.zeros(3)])):
        assert scale.high == scale.low + 1
    colours = Scale('', 0., 1., 'YlOrRd', transparent=True).mappable().to_rgba([0., 0.25, 1.])
    np.testing.assert_allclose(colours[:, 3], [0, 0.425, 0.85], atol=0.01)


def test_text_of_a_pdf_is_text() -> None:
    figure = figure_of(Drawing('title', IMAGE, [PanelRow('row', [Panel(IMAGE, 'panel', 1.)])]))
    assert as_bytes(figure, 'pdf').startswith(b'%PDF') and b'/FontFile2' in as_bytes(figure, 'pdf')
    assert as_bytes(figure).startswith(b'\x89PNG')


@pytest.mark.parametrize('name, options, message', [
    ('mixing', {}, 'XCiT has no picture mixing; it has class-attention, query-key, channel-att'),
    ('painting', {}, 'XCiT has no picture painting'),
    ('features', dict(point=(1, 1), heads=[1]),
     'no effect on features: leave out the option heads and the option point'),
    ('features', dict(colour=1), 'no option of pictures: colour; there are blocks, classifier,'),
    ('features', dict(size=(0, 5)), 'the option size must be .*, got 0 x 5'),
    ('features', dict(size=(20000, 20000)), 'of at most 178,956,970 pixels in all, got 20000 x'),
    ('query-key', dict(blocks=[4]), r'there is no block 4: there are 0 \.\.\. 3'),
    ('query-key', dict(heads=[-5]), r'there is no head -5: there are 0 \.\.\. 3'),
    ('grad-cam', dict(target='squares'), 'squares is no class of the model; did you mean square?'),
    ('grad-cam', dict(target='0'), '0 is no class of the model; it has background, disc'),
])
def test_errors_say_what_there_is(name: str, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        picture(tiny_model(), IMAGE, name, **options)
