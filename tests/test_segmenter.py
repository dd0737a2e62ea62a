"""Segmenter on plain vision transformers: the authors' and mmseg's files."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mmseg
import pytest
import torch
from conftest import ROOT
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope
from test_reference import Case, cases
from torch import nn

from colonnade.backbones import PlainViT
from colonnade.settings.reading import read_config
from colonnade.weights.loading import load_weights
from colonnade.weights.state_dicts import WeightsError

SIZES = dict(num_layers=3, embed_dims=16, num_heads=2)


def build_segmentor(backbone: dict[str, Any], head: dict[str, Any]) -> nn.Module:
    """Build mmseg's segmentor with a mask transformer."""
    with DefaultScope.overwrite_default_scope('mmseg'):
        return MODELS.build(
            dict(
                type='EncoderDecoder',
                backbone=backbone,
                decode_head=dict(
                    type='SegmenterMaskTransformerHead',
                    channels=head['embed_dims'],
                    dropout_ratio=0.,
                    in_channels=head['embed_dims'],
                    **head))).eval()


@cases('segmenter_*')
@torch.no_grad()
def test_reference_outputs(name: str, tmp_path: Path) -> None:
    case = Case(name)
    made, decoder = (case.json['constructor'][key] for key in ('encoder', 'decoder'))
    distilled = made['distilled']
    model = 'deit_small_distilled_patch16_224' if distilled else 'vit_base_patch16_224'
    segmentor = build_segmentor(
        dict(
            type='PlainViT',
            arch=dict(
                model=model,
                embed_dim=made['d_model'],
                depth=made['n_layers'],
                num_heads=made['n_heads']),
            img_size=made['image_size'][0],
            out_indices=[-1],
            norm_features=True,
            norm_eps=1e-5,
            pos_embed_resize='bilinear'),
        dict(
            num_layers=decoder['n_layers'],
            num_heads=decoder['n_heads'],
            embed_dims=decoder['d_model'],
            num_classes=decoder['n_cls']))
    load_weights(segmentor, case.checkpoint(tmp_path))
    for dtype in (torch.float32, torch.float64):
        segmentor.to(dtype)
        image = case.image().to(dtype)
        height, width = image.shape[2:]
        maps = segmentor.extract_feat(image)
        case.compare('tokens', maps[-1], 1e-5)
        masks = segmentor.decode_head(maps)
        case.compare('masks', masks, 3e-5)
        padded = [16 * side for side in masks.shape[2:]]
        logits = nn.functional.interpolate(masks, padded, mode='bilinear')
        case.compare('logits', logits[..., :height, :width], 3e-5)


@pytest.mark.parametrize('alone', [False, True])
@torch.no_grad()
def test_files_of_mmseg(alone: bool, tmp_path: Path) -> None:
    """The features and logits of mmseg's own backbone, at several sizes."""
    torch.manual_seed(0)
    head = dict(num_layers=2, num_heads=2, embed_dims=16, num_classes=5)
    theirs = build_segmentor(
        dict(
            type='VisionTransformer',
            img_size=(64, 64),
            final_norm=True,
            norm_cfg=dict(type='LN', eps=1e-6),
            out_indices=2,
            **SIZES), head)
    for parameter in theirs.parameters():
        parameter.normal_(std=0.3)
    ours = build_segmentor(
        dict(
            type='PlainViT',
            arch=dict(embed_dim=16, depth=3, num_heads=2),
            img_size=64,
            out_indices=[-1],
            norm_features=True,
            pos_embed_resize='bicubic'), head)
    module, path = (theirs.backbone if alone else theirs), tmp_path / 'model.pth'
    torch.save(dict(state_dict=module.state_dict()), path)
    load_weights(ours.backbone if alone else ours, path)
    theirs.double()
    ours.double()
    for size in ((64, 64), (96, 48), (75, 101)):
        image = torch.randn(2, 3, *size, dtype=torch.float64)
        pairs = [(model.backbone(image), model) for model in (ours, theirs)]
        torch.testing.assert_close(pairs[0][0][-1], pairs[1][0][-1], rtol=1e-6, atol=1e-6)
        if not alone:
            logits = [model.decode_head(maps) for maps, model in pairs]
            torch.testing.assert_close(*logits, rtol=1e-5, atol=1e-5)

    state = module.state_dict()
    del state[next(key for key in state if key.endswith('layers.1.ln2.bias'))]
    torch.save(dict(state_dict=state), path)
    with pytest.raises(WeightsError, match=r'missing: .*blocks\.1\.norm2\.bias'):
        load_weights(ours.backbone if alone else ours, path)


def test_published_config_loads_mmseg_model(tmp_path: Path, run_tool: Callable) -> None:
    path = Path(mmseg.__file__).parent / (
        '.mim/configs/segmenter/segmenter_vit-t_mask_8xb1-160k_ade20k-512x512.py')
    with DefaultScope.overwrite_default_scope('mmseg'):
        theirs = Config.fromfile(path).model
        theirs.pretrained = None
        state = MODELS.build(theirs).state_dict()
        ours = read_config(ROOT / 'configs/segmenter/vit_tiny_patch16_384_160k_ade20k.py')
        model = MODELS.build(ours.model)
    torch.save(dict(state_dict=state), tmp_path / 'model.pth')
    load_weights(model, tmp_path / 'model.pth')
    run_tool('convert_checkpoint', tmp_path / 'model.pth', tmp_path / 'out.pth')
    converted = torch.load(tmp_path / 'out.pth')['state_dict']
    assert all(torch.equal(value, converted[key]) for key, value in model.state_dict().items())


@cases('segmenter_vit_*')
def test_backbone_of_original_file(name: str, tmp_path: Path) -> None:
    case = Case(name)
    made = case.json['constructor']['encoder']
    backbone = PlainViT(
        dict(embed_dim=made['d_model'], depth=made['n_layers'], num_heads=made['n_heads']),
        img_size=made['image_size'][0],
        norm_features=True)
    plan = load_weights(backbone, case.checkpoint(tmp_path))
    assert plan.layout == 'Segmenter, original'
