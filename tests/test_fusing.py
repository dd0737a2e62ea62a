"""Fusion of full models: equal outputs, and exceptions."""
from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from mmcv.cnn import ConvModule
from mmengine.registry import MODELS, DefaultScope
from mmseg.models.decode_heads import PSPHead
from mmseg.models.segmentors import EncoderDecoder
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from colonnade.backbones import XCiT
from colonnade.backbones.kernels import memory_format
from colonnade.backbones.kernels.devices import force_accelerator_forms
from colonnade.backbones.kernels.folding import FusedError
from colonnade.configs import find_config
from colonnade.models.complexity import build_blank_sample
from colonnade.models.fusion import fuse, maybe_fuse
from colonnade.models.fusion.bottlenecks import UpsamplingConvolution
from colonnade.necks import ColumnarPyramid, SimplePyramid
from colonnade.settings.reading import read_config

ARCH = dict(embed_dim=16, depth=2, num_heads=2, patch_size=16)
MERGED = ('stride 4, 8 with the lateral ones', )


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def randomised(model: nn.Module) -> nn.Module:
    """Convert to float64 and evaluation mode, with norms that are not the identity."""
    for module in model.double().eval().modules():
        if isinstance(module, (nn.modules.batchnorm._BatchNorm, nn.LayerNorm)):
            for name, value in (*module.named_parameters(), *module.named_buffers()):
                if value.is_floating_point():
                    value.uniform_(0.5, 2) if name != 'bias' else value.normal_()
    return model


def build_model(head: str, *, backbone: str = 'xcit') -> nn.Module:
    """Build the slim model of a head on a backbone of two blocks."""
    cfg = read_config(find_config(f'{head}/{backbone}_nano_12_p16_slim_shapes'))
    cfg.model.backbone.update(out_indices=[0] *
                              (len(cfg.model.backbone.get('out_indices') or range(4)) - 1) + [1])
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        model = MODELS.build(cfg.model)
    model.init_weights()
    return randomised(model)


def outputs(model: nn.Module, size: tuple[int, int]) -> list[Tensor]:
    """Return outputs of heads before post-processing; of an R-CNN, their inputs."""
    images = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(1)).double()
    if hasattr(model, 'roi_head'):
        return list(model.extract_feat(images))
    return tree_leaves(model(images, [build_blank_sample(*size)] * 2, mode='tensor'))


def check_same(found: list[Tensor], expected: list[Tensor]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9 * theirs.abs().max().item())


@pytest.mark.parametrize('head, size, says', [
    ('mask_rcnn', (75, 101), MERGED),
    ('sem_fpn', (75, 101), (*MERGED, '7 batch norms folded')),
    ('upernet', (75, 101), (*MERGED, '13 batch norms folded', 'FusedUPerHead: bottlenecks')),
    ('segformer', (75, 101), ('5 batch norms folded', )),
    ('vitdet', (75, 101), ('SimplePyramid: layers merged', )),
    ('rtmdet_ins', (64, 96), ('batch norms folded', )),
])
def test_fused_models_give_equal_outputs(head: str, size: tuple[int, int], says: tuple) -> None:
    model = build_model(head)
    expected = outputs(model, size)
    lines = '; '.join(fuse(model))
    assert 'XCiT: norms and scales folded' in lines and all(part in lines for part in says), lines
    check_same(outputs(model, size), expected)
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert fuse(model) == []


def test_fused_model_passes_gradients_to_images() -> None:
    model, found = build_model('upernet'), []
    image = torch.randn(1, 3, 75, 101).double().requires_grad_()
    for _ in range(2):
        with torch.enable_grad():
            found.append(torch.autograd.grad(model(image, mode='tensor')[:, 0].sum(), image)[0])
        fuse(model)
    check_same(found[1:], found[:1])


def pyramid(make: Callable[..., nn.Module], **options: object) -> nn.Module:
    neck = make(16, 16, **options)
    neck.init_weights()
    return randomised(neck)


@pytest.mark.parametrize('make', [
    lambda: pyramid(SimplePyramid, out_channels=8),
    lambda: pyramid(SimplePyramid, out_channels=8, norm_cfg=dict(type='BN')),
    lambda: pyramid(ColumnarPyramid, norm_cfg=dict(type='SyncBN')),
    lambda: pyramid(ColumnarPyramid, norm_cfg=dict(type='GN', num_groups=2)),
    lambda: pyramid(ColumnarPyramid, out_strides=(4, 4, 8, 64)),
])
def test_fused_pyramids_give_equal_levels(make: Callable[[], nn.Module]) -> None:
    neck = make()
    maps = [torch.randn(2, 16, 5, 7).double() for _ in range(4)]
    expected = neck(maps)
    neck.fuse()
    check_same(neck(maps), expected)
    assert not any(isinstance(m, nn.BatchNorm2d) for m in neck.modules())
    with pytest.raises(FusedError, match='cannot be trained: build it again'):
        neck.train()
    with pytest.raises(FusedError, match=r'cannot load weights: load them first'):
        neck.load_state_dict(make().state_dict())


@pytest.mark.parametrize('strides, options, merged', [
    ((4, 8, 16, 32), dict(), '4, 8'),
    ((4, 8, 16, 32), dict(norm_cfg=dict(type='BN'), act_cfg=dict(type='ReLU')), '4, 8'),
    ((4, 8, 16, 32), dict(norm_cfg=dict(type='GN', num_groups=2)), '4, 8'),
    ((4, 8, 16, 32), dict(start_level=1), '8'),
    ((4, 8), dict(add_extra_convs='on_input'), '4'),
    ((4, 8), dict(add_extra_convs='on_output'), '4, 8'),
])
def test_merges_laterals_of_fpn_variants(strides: tuple, options: dict, merged: str) -> None:
    fpn = {'type': 'mmdet.FPN', 'out_channels': 8, 'num_outs': 5, **options}
    neck = pyramid(ColumnarPyramid, out_strides=strides, fpn=fpn)
    maps = [torch.randn(2, 16, 5, 7).double() for _ in strides]
    expected = neck(maps)
    assert fuse(nn.Sequential(neck).eval())[-1].endswith(f'stride {merged} with the lateral ones')
    check_same(neck(maps), expected)


def test_fusion_skips_hooked_layers() -> None:
    neck = pyramid(ColumnarPyramid, fpn=dict(type='mmdet.FPN', out_channels=8, num_outs=4))
    seen = []
    for layer in (neck.stride4[3], neck.fpn.lateral_convs[1]):
        layer.register_forward_hook(lambda layer, *_: seen.append(layer))
    maps = [torch.randn(1, 16, 4, 6).double() for _ in range(4)]
    expected = neck(maps)
    called = list(seen)
    fuse(nn.Sequential(neck).eval())
    check_same(neck(maps), expected)
    assert len(called) == 2 and seen == called * 2


@pytest.mark.parametrize('align_corners', [False, True])
@pytest.mark.parametrize(
    'sizes',
    [
        [(13, 10), (7, 5), (4, 3), (2, 2)],
        [(8, 8), (1, 1), (2, 2), (3, 3), (6, 6)],
        [(2, 3), (1, 1), (6, 6)],  # upsampling first
        [(1, 1), (1, 1)],
    ])
def test_upsampling_convolution(sizes: list, align_corners: bool) -> None:
    widths = [3, 5, 4, 6, 2][:len(sizes)]
    conv = nn.Conv2d(sum(widths), 7, 3, padding=1).double()
    maps = [
        torch.randn(2, width, *size).double() for width, size in zip(widths, sizes, strict=True)
    ]
    upsampled = [
        nn.functional.interpolate(x, sizes[0], mode='bilinear', align_corners=align_corners)
        for x in maps
    ]
    merged = UpsamplingConvolution(conv, widths, align_corners)
    check_same([merged(maps)], [conv(torch.cat(upsampled, dim=1))])
    assert merged([x[:0] for x in maps]).shape == (0, 7, *sizes[0])


def test_pspnet() -> None:
    head = PSPHead(in_channels=6, channels=4, num_classes=3, norm_cfg=dict(type='BN'))
    model = randomised(nn.ModuleDict(dict(neck=ColumnarPyramid(6, 16), decode_head=head)))
    x = [torch.randn(2, 6, 9, 12).double()]
    expected = head(x)
    assert fuse(model)[-1] == 'FusedPSPHead: bottlenecks before upsampling'
    check_same([model.decode_head(x)], [expected])


class SegmenterWithEdges(EncoderDecoder):
    """It may have more heads on its levels."""


@pytest.mark.parametrize('kind, index, merged', [
    (EncoderDecoder, 0, ', at stride 8 with the lateral ones'),
    (EncoderDecoder, 2, ', at stride 4, 8 with the lateral ones'),
    (SegmenterWithEdges, 2, ''),
])
def test_shared_levels_are_not_merged(kind: type, index: int, merged: str) -> None:
    options = dict(channels=4, num_classes=3)
    with DefaultScope.overwrite_default_scope('mmseg'):
        model = kind(
            backbone=dict(type='XCiT', arch=ARCH, out_indices=[0, 0, 1, 1]),
            neck=dict(type='ColumnarPyramid', in_channels=16, stride=16),
            decode_head=dict(
                type='UPerHead', in_channels=[16] * 4, in_index=[0, 1, 2, 3], **options),
            auxiliary_head=dict(type='PSPHead', in_channels=16, in_index=index, **options))
    assert f'ColumnarPyramid: layers merged{merged}' in fuse(randomised(model))


def test_shared_convolutions_keep_separate_norms() -> None:
    norm = dict(type='BN')
    model = nn.ModuleList(ConvModule(4, 4, 3, padding=1, norm_cfg=norm) for _ in range(2))
    model[1].conv = model[0].conv
    model.append(ColumnarPyramid(4, 16))
    randomised(model)
    x = torch.randn(2, 4, 5, 6).double()
    expected = [layer(x) for layer in model[:2]]
    assert fuse(model)[0] == '2 batch norms folded into convolutions'
    check_same([layer(x) for layer in model[:2]], expected)


def test_rejects_models_that_cannot_be_fused() -> None:
    with pytest.raises(ValueError, match='neither a Colonnade backbone nor a Colonnade pyramid'):
        fuse(nn.Linear(2, 2).eval())
    neck = ColumnarPyramid(4, 16)
    with pytest.raises(ValueError, match=r'for evaluation: call eval\(\) first'):
        fuse(nn.Sequential(neck))
    maybe_fuse(nn.Sequential(neck), False)
    assert not neck.fused
    maybe_fuse(nn.Linear(2, 2), None)
    with pytest.raises(ValueError, match='neither a Colonnade backbone nor a Colonnade pyramid'):
        maybe_fuse(nn.Linear(2, 2), True)


def test_failed_fusion_changes_nothing() -> None:
    parts = dict(student=XCiT(ARCH, out_indices=[1]), teacher=XCiT(ARCH, out_indices=[1]))
    model = nn.ModuleDict({**parts, 'neck': ColumnarPyramid(16, 16)}).eval()
    hook = model.teacher.blocks[0].attn.qkv.register_forward_hook(lambda *_: None)
    with pytest.raises(ValueError, match=r'have hooks.*: blocks\.0\.'):
        fuse(model)
    hook.remove()
    model.neck.train()
    with pytest.raises(ValueError, match='ColumnarPyramid cannot be fused in training mode'):
        fuse(model)
    assert not any(part.fused for part in model.values())


def test_separately_fused_parts() -> None:
    model = build_model('sem_fpn')
    expected = outputs(model, (75, 101))
    model.backbone.fuse()
    model.neck.fuse()
    assert fuse(model)[0] == '7 batch norms folded into convolutions'
    check_same(outputs(model, (75, 101)), expected)
    assert fuse(model) == []


def test_weights_are_channels_last() -> None:
    model = build_model('sem_fpn')
    with torch.enable_grad():
        fuse(model)
    weights = [
        layer.weight for layer in model.modules()
        if type(layer) is nn.Conv2d and layer.kernel_size != (1, 1) and layer.groups == 1
    ]
    assert weights and all(
        weight.is_contiguous(memory_format=torch.channels_last) for weight in weights)


@pytest.mark.parametrize('head', ['mask_rcnn', 'upernet'])
def test_cpu_fusions_are_skipped_on_accelerators(head: str) -> None:
    model = build_model(head)
    heads = [part for name, part in model.named_modules() if 'head' in name]
    kinds = [type(part) for part in heads]
    with force_accelerator_forms():
        expected = outputs(model, (75, 101))
        lines = '; '.join(fuse(model))
        check_same(outputs(model, (75, 101)), expected)
    assert 'norms and scales folded' in lines and MERGED[0] in lines
    assert not [part for part, kind in zip(heads, kinds, strict=True)
                if type(part) not in (kind, nn.Identity)]  # yapf: disable
    assert head == 'upernet' or 'split_thr' not in model.rpn_head.test_cfg.nms
    weights = [layer.weight for layer in model.modules() if type(layer) is nn.Conv2d]
    assert weights and all(weight.is_contiguous() for weight in weights)


def test_levels_of_input_stride_are_copies() -> None:
    x = torch.randn(1, 4, 5, 6).contiguous(memory_format=torch.channels_last)
    level = ColumnarPyramid(4, 16).eval().resample(x, 16)
    assert level.equal(x) and level.data_ptr() != x.data_ptr()


@pytest.mark.parametrize('avx512', [False, True])
@pytest.mark.parametrize('compiled, gradients', [(False, False), (True, False), (False, True)])
def test_memory_format_of_maps(compiled: bool, gradients: bool, avx512: bool,
                               monkeypatch: pytest.MonkeyPatch) -> None:
    assert memory_format.can_read_any_order()  # tools/mmcv_ext, or none
    monkeypatch.setattr(memory_format, 'can_read_any_order', lambda: not compiled)
    monkeypatch.setattr(memory_format, 'HAS_AVX512', avx512)
    is_default = compiled or gradients and not avx512
    wanted = torch.contiguous_format if is_default else torch.channels_last
    model, images = build_model('mask_rcnn'), torch.randn(2, 3, 75, 101).double()
    with torch.set_grad_enabled(gradients):
        maps = model.backbone(images)
        levels = model.neck.resample(maps[0], 4), model.neck.resample(maps[1], 8), *maps
    assert all(x.is_contiguous(memory_format=wanted) for x in levels)
