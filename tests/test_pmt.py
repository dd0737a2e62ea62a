"""PMT's decoder: the authors' numbers, every backbone, and its published files."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.backbones import ARCHS, OURS
from mmengine.structures import InstanceData
from test_eomt import Case
from test_reference import cases

from colonnade.backbones import ColumnarBackbone, PlainViT
from colonnade.heads import PMTHead, SemanticPMTHead
from colonnade.heads.mask_annealing import AnnealedMasks
from colonnade.weights.loading import load_weights, plan_loading
from colonnade.weights.state_dicts import WeightsError, strip_prefix


def build_published(case: Case, path: Path) -> SemanticPMTHead:
    settings = case.json['constructor']
    head = SemanticPMTHead(
        64,
        num_classes=settings['num_classes'],
        num_queries=settings['num_q'],
        num_blocks=settings['num_blocks'],
        num_heads=4,
        init_cfg=dict(type='Pretrained', checkpoint=str(path)))
    head.init_weights()
    return head.eval()


def build_backbone(case: Case) -> PlainViT:
    """Build the frozen backbone, whose file is the published one of DINOv3, or that of the case."""
    backbone = case.build_backbone(
        out_indices=case.json['constructor']['interaction_indices'], return_prefix_tokens=True)
    state = case.state('base_keys') if 'base_keys' in case.json else strip_prefix(
        case.state(), 'network.encoder.backbone.')
    backbone.load_state_dict(plan_loading(backbone, state, 'file').state)
    return backbone.eval()


@cases('pmt_*')
@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
@torch.no_grad()
def test_image_to_masks_equals_original(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    case = Case(name)
    head = build_published(case, case.checkpoint(tmp_path)).to(dtype)
    features = build_backbone(case).to(dtype)(case.image().to(dtype))
    (classes, ), (masks, ) = head(features)
    outputs = dict(class_logits=classes, mask_logits=masks)
    for index, (map_, prefix) in enumerate(features):
        outputs[f'tap_{index}'] = torch.cat((prefix, map_.flatten(2).mT), dim=1)
    probabilities = [1.] * len(head.decoder.blocks)
    for index, pair in enumerate(zip(*head.decode(features, probabilities), strict=True)):
        for kind, logits in zip(('class', 'mask'), pair, strict=True):
            outputs[f'masked.{kind}_logits_{index}'] = logits
    assert outputs.keys() == case.json['outputs'].keys()
    for key, output in outputs.items():
        case.compare(key, output, 1e-5)


@cases('pmt_*')
def test_published_file_is_strict(name: str, tmp_path: Path) -> None:
    case = Case(name)
    path = case.checkpoint(tmp_path)
    checkpoint = torch.load(path)
    del checkpoint['state_dict']['network.decoder.scalers.2']
    torch.save(checkpoint, tmp_path / 'incomplete.pth')
    with pytest.raises(WeightsError, match=r'decoder\.scalers\.2'):
        build_published(case, tmp_path / 'incomplete.pth')
    torch.save(dict(state_dict={'backbone.norm.weight': torch.ones(1)}), tmp_path / 'other.pth')
    with pytest.raises(WeightsError, match='is not a weights file of a SemanticPMTHead'):
        build_published(case, tmp_path / 'other.pth')
    with pytest.raises(WeightsError, match='head but no backbone'):
        load_weights(PlainViT('vit_small_patch16_dinov3'), path)


def make_targets(num_images: int, size: tuple[int, int]) -> tuple[list[InstanceData], list[dict]]:
    masks = torch.zeros(2, *size, dtype=torch.long)
    masks[0, :20], masks[1, 20:] = 1, 1
    return [InstanceData(labels=torch.tensor([0, 2]), masks=masks)] * num_images, [{}] * num_images


@pytest.mark.parametrize('cls', OURS)
def test_every_backbone(cls: type[ColumnarBackbone]) -> None:
    """Rectangles of any size; the frozen backbone gets no gradient, all of the head does."""
    torch.manual_seed(0)
    prefix: dict[str, Any] = dict(return_prefix_tokens=True) if cls is PlainViT else {}
    backbone = cls(ARCHS[cls], out_indices=[0, -1], frozen_stages=4, **prefix).train()
    head = PMTHead(
        backbone.embed_dim,
        patch_size=backbone.patch_size,
        num_features=2,
        num_blocks=2,
        num_heads=2,
        num_queries=5,
        num_things_classes=2,
        num_stuff_classes=1,
        train_cfg=dict(num_points=64)).train()
    images = torch.randn(2, 3, 40, 75)
    classes, masks = head(backbone(images))
    assert [tuple(part.shape) for part in classes] == [(2, 5, 4)] * 3
    losses = head.loss_by_feat(classes, masks, *make_targets(2, (40, 75)))
    assert set(losses) == {
        f'{prefix}loss_{part}'
        for prefix in ('', 'd0.', 'd1.')
        for part in ('cls', 'mask', 'dice')
    }
    sum(losses.values()).backward()
    assert all(parameter.grad is None for parameter in backbone.parameters())
    for name, parameter in head.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
    with torch.no_grad():
        masks = head.eval()(backbone.eval()(images))[1][-1]
    assert head.resize_masks(masks, (40, 75)).shape == (2, 5, 40, 75)


def test_masked_queries_see_their_patches_only() -> None:
    torch.manual_seed(0)
    head = PMTHead(32, num_blocks=1, num_queries=3, num_things_classes=2, num_stuff_classes=0)
    attention = head.decoder.blocks[0].attn
    x = torch.randn(1, 3 + 4, 32, requires_grad=True)
    rope = head.decoder.embed_positions((2, 2))
    open_patches = torch.tensor([[[True, False, False, True], [False] * 4, [True] * 4]])
    grads = [
        torch.autograd.grad(attention(x, (2, 2), rope, open_patches)[0, row].sum(), x)[0]
        for row in range(7)
    ]
    seen = torch.stack([grad[0].abs().sum(1) > 0 for grad in grads])
    expected = torch.ones(7, 7, dtype=torch.bool)
    expected[:3, 3:] = open_patches[0]
    assert seen.equal(expected)


def test_probability_of_masks() -> None:
    """After annealing, the last prediction is that without masks."""
    torch.manual_seed(0)
    head = PMTHead(32, num_queries=3, num_things_classes=2, num_stuff_classes=0).eval()
    features = [torch.randn(2, 32, 3, 4) for _ in range(4)]
    free = head.decode(features, [0.] * 6)[1][-1]
    assert free.equal(head.decode(features, None)[1][-1])
    assert not free.allclose(head.decode(features, [1.] * 6)[1][-1])


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match=r'multiple of 4 \* num_heads.* got 36 and 4 heads'):
        PMTHead(36, num_heads=4)
    head = PMTHead(32, num_features=3)
    with pytest.raises(ValueError, match='expected 3 feature maps .* got 2'):
        head([torch.randn(1, 32, 2, 2)] * 2)


def test_annealing() -> None:
    """The published steps of ADE20k: 6 phases for 4 blocks, from 6520 * (1 to 4) iterations."""
    masks = AnnealedMasks()
    assert masks.compute_probabilities(4) == [1.] * 4
    for iteration, expected in ((6520, (1., 1., 1., 1.)), (9780, (0.5**0.9, 1., 1., 1.)),
                                (13040, (0., 1., 1., 1.)), (32600, (0., 0., 0., 0.))):
        masks.progress = iteration, 6 * 6520
        assert masks.compute_probabilities(4) == pytest.approx(expected)
