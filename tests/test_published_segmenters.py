"""Published segmenters of mmseg on ViT, BEiT and MAE: features, weights and test pipelines."""
from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import mmseg
import pytest
import torch
from conftest import ROOT
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope
from mmseg.models.backbones import MAE, BEiT, VisionTransformer
from torch import nn

from colonnade.backbones import PlainViT
from colonnade.backbones.plain_vit import relative_positions
from colonnade.settings.config_values import remove_key
from colonnade.settings.reading import read_config
from colonnade.weights import load_weights
from colonnade.weights.loading import plan_loading

THEIRS = Path(mmseg.__file__).parent / '.mim/configs'
#: shipped config, * for its schedule -> mmseg's config
CONFIGS = {
    'upernet/vit_base_patch16_224*': 'vit/vit_vit-b16_mln_upernet_8xb2-160k_ade20k-512x512',
    'upernet/vit_base_patch16_224*_normed':
    'vit/vit_vit-b16-ln_mln_upernet_8xb2-160k_ade20k-512x512',
    'upernet/deit_base_patch16_224*': 'vit/vit_deit-b16_upernet_8xb2-160k_ade20k-512x512',
    'upernet/deit_base_patch16_224*_mln': 'vit/vit_deit-b16_mln_upernet_8xb2-160k_ade20k-512x512',
    'upernet/deit_base_patch16_224*_normed':
    'vit/vit_deit-b16-ln_mln_upernet_8xb2-160k_ade20k-512x512',
    'upernet/deit_small_patch16_224*': 'vit/vit_deit-s16_upernet_8xb2-160k_ade20k-512x512',
    'upernet/deit_small_patch16_224*_mln': 'vit/vit_deit-s16_mln_upernet_8xb2-160k_ade20k-512x512',
    'upernet/deit_small_patch16_224*_normed':
    'vit/vit_deit-s16-ln_mln_upernet_8xb2-160k_ade20k-512x512',
    'upernet/vit_base_patch16_224*_beit': 'beit/beit-base_upernet_8xb2-160k_ade20k-640x640',
    'upernet/vit_large_patch16_224*_beit': 'beit/beit-large_upernet_8xb1-amp-160k_ade20k-640x640',
    'upernet/vit_base_patch16_224*_mae': 'mae/mae-base_upernet_8xb2-amp-160k_ade20k-512x512',
    'setr_naive/vit_large_patch16_384*': 'setr/setr_vit-l_naive_8xb2-160k_ade20k-512x512',
    'setr_pup/vit_large_patch16_384*': 'setr/setr_vit-l_pup_8xb2-160k_ade20k-512x512',
    'setr_mla/vit_large_patch16_384*': 'setr/setr_vit-l_mla_8xb2-160k_ade20k-512x512',
    'segmenter/vit_tiny_patch16_384*': 'segmenter/segmenter_vit-t_mask_8xb1-160k_ade20k-512x512',
    'segmenter/vit_small_patch16_384*': 'segmenter/segmenter_vit-s_mask_8xb1-160k_ade20k-512x512',
    'segmenter/vit_base_patch16_384*': 'segmenter/segmenter_vit-b_mask_8xb1-160k_ade20k-512x512',
    'segmenter/vit_large_patch16_384*': 'segmenter/segmenter_vit-l_mask_8xb1-160k_ade20k-512x512',
    'dpt/vit_base_patch16_224*': 'dpt/dpt_vit-b16_8xb2-160k_ade20k-512x512',
}
PAIRS = {ours.replace('*', '_160k_ade20k'): theirs for ours, theirs in CONFIGS.items()}
SIZES: dict[str, Any] = dict(img_size=(64, 64), embed_dims=16, num_layers=3, num_heads=2)
ARCH = dict(embed_dim=16, depth=3, num_heads=2)


def randomize(module: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)
    module.eval()  # returns None in mmseg
    return module


@pytest.mark.parametrize('pair', PAIRS.items(), ids=PAIRS)
def test_files_load_and_pipelines_are_equal(pair: tuple[str, str],
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    # mmseg reads its values, which the meta device does not have
    monkeypatch.setattr(torch, 'linspace', partial(torch.linspace, device='cpu'))
    ours, theirs = read_config(ROOT / f'configs/{pair[0]}.py'), Config.fromfile(THEIRS /
                                                                                f'{pair[1]}.py')
    models = []
    for settings in (ours.model, theirs.model):
        settings = remove_key(settings.to_dict(), 'init_cfg')
        settings.pop('pretrained', None)
        text = repr(settings).replace('SyncBN', 'BN')
        with DefaultScope.overwrite_default_scope('mmseg'), torch.device('meta'):
            models.append(MODELS.build(eval(text)))
    plan = plan_loading(models[0], dict(state_dict=models[1].state_dict()), 'theirs.pth')
    assert not plan.resized
    assert plan.state.keys() == models[0].state_dict().keys()
    assert set(plan.dropped) <= {'backbone.cls_token'}
    assert ours.model.test_cfg == theirs.model.test_cfg
    for key in ('mean', 'std', 'bgr_to_rgb'):
        assert ours.model.data_preprocessor[key] == theirs.model.data_preprocessor[key]
    for step, other in zip(ours.test_pipeline, theirs.test_pipeline, strict=True):
        other.pop('reduce_zero_label', None)  # the class of the dataset sets it
        assert step == other


@pytest.mark.parametrize('name', [name for name in PAIRS if name.startswith('setr')])
def test_rates_and_batch_of_setr_are_equal(name: str) -> None:
    ours = read_config(ROOT / f'configs/{name}.py')
    theirs = Config.fromfile(THEIRS / f'{PAIRS[name]}.py')
    assert theirs.optim_wrapper.pop('clip_grad') is None
    assert ours.optim_wrapper == theirs.optim_wrapper
    assert ours.auto_scale_lr.base_batch_size == 8 * theirs.train_dataloader.batch_size
    assert ours.train_dataloader.batch_size == theirs.train_dataloader.batch_size


@pytest.mark.parametrize('kind', [BEiT, MAE])
def test_features_with_tables(kind: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    norm = dict(type='LN', eps=1e-6)
    theirs = randomize(kind(**SIZES, out_indices=(0, 1, 2), init_values=0.1, norm_cfg=norm))
    arch = ARCH | dict(init_values=0.1) | (dict(pos_embed='none') if kind is BEiT else {})
    ours = PlainViT(
        arch, img_size=64, rel_pos_size=4, rel_pos_type='table', out_indices=(0, 1, 2)).eval()
    torch.save(dict(state_dict=theirs.state_dict()), tmp_path / 'theirs.pth')
    load_weights(ours, tmp_path / 'theirs.pth')
    image = torch.randn(2, 3, 64, 64)
    monkeypatch.setattr(relative_positions, 'MAX_BIASES', 2 * 4 * 4**2)  # one row of queries
    for with_gradients in (True, False):
        with torch.set_grad_enabled(with_gradients):
            torch.testing.assert_close(ours(image), theirs(image), rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        in_rows = ours(image[..., :75])
        monkeypatch.setattr(relative_positions, 'MAX_BIASES', 2**24)
        torch.testing.assert_close(ours(image[..., :75]), in_rows, rtol=1e-5, atol=1e-5)
    larger = PlainViT(arch, img_size=96, rel_pos_size=6, rel_pos_type='table')
    load_weights(larger, tmp_path / 'theirs.pth')
    table, = (ours.blocks[0].attn.rel_pos_table, )
    assert torch.equal(larger.blocks[0].attn.rel_pos_table[-3:], table[-3:])
    center = larger.blocks[0].attn.rel_pos_table[60]  # no distance: the middle of 11 x 11
    torch.testing.assert_close(center, table[24], rtol=0.5, atol=0.2)


@pytest.mark.parametrize('with_class_token', [True, False])
@pytest.mark.parametrize('normed', [True, False])
def test_features_of_vision_transformer(with_class_token: bool, normed: bool,
                                        tmp_path: Path) -> None:
    theirs = randomize(
        VisionTransformer(
            **SIZES,
            out_indices=(0, 2),
            final_norm=normed,
            with_cls_token=with_class_token,
            output_cls_token=with_class_token,
            norm_cfg=dict(type='LN', eps=1e-6)))
    ours = PlainViT(
        ARCH | (dict() if with_class_token else dict(class_token=False)),
        img_size=64,
        out_indices=(0, 2),
        norm_features='last' if normed else False,
        return_prefix_tokens='class' if with_class_token else False).eval()
    torch.save(dict(state_dict=theirs.state_dict()), tmp_path / 'theirs.pth')
    load_weights(ours, tmp_path / 'theirs.pth')
    image = torch.randn(2, 3, 64, 64)
    for mine, other in zip(ours(image), theirs(image), strict=True):
        mine, other = (list(each) if with_class_token else [each] for each in (mine, other))
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)


def test_wrong_arguments() -> None:
    for arguments, message in ((dict(rel_pos_type='tables'), "must be 'decomposed' or 'table'"),
                               (dict(rel_pos_type='table', window_size=2,
                                     global_blocks=[]), 'no windows')):
        with pytest.raises(ValueError, match=message):
            PlainViT(ARCH, img_size=64, rel_pos_size=4, **arguments)
    for arguments in (dict(out_indices=(0, 1)), dict(defer_blocks=True)):
        with pytest.raises(ValueError, match='requires the feature map of the last block'):
            PlainViT(ARCH, norm_features='last', **arguments)
    with pytest.raises(ValueError, match="return_prefix_tokens='class' requires a class token"):
        PlainViT(ARCH | dict(class_token=False), return_prefix_tokens='class')
    with pytest.raises(ValueError, match="norm_features must be True, False or 'last'"):
        PlainViT(ARCH, norm_features='first')
