"""XCiT: batch norms and architectures."""
from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from helpers.backbones import ARCHS, tiny
from helpers.rounding import check_rounding, doubled
from mmcv.ops import sync_bn
from mmengine.model.utils import convert_sync_batchnorm, revert_sync_batchnorm
from torch import Tensor, distributed, nn
from torch.nn import functional as F

from colonnade.backbones import XCiT
from colonnade.backbones.kernels import memory_format
from colonnade.necks import ColumnarPyramid

TINY = ARCHS[XCiT]


@pytest.mark.parametrize('batch', [1, 2])
@torch.no_grad()
def test_default_memory_format_for_compiled_mmcv(batch: int,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_format, 'operators_read_any_order', lambda: False)
    backbone = tiny(XCiT).eval()
    pyramid = ColumnarPyramid(backbone.embed_dim, backbone.patch_size).eval()
    maps = backbone(torch.randn(batch, 3, 64, 48))
    for x in (*maps, *pyramid(maps)):
        assert x.stride() == torch.empty(x.shape).stride()


def test_norm_eval_keeps_running_statistics() -> None:
    backbone = tiny(XCiT, norm_eval=True).train()
    before = backbone.patch_embed.proj[0][1].running_mean.clone()
    backbone(torch.randn(2, 3, 40, 56))
    assert torch.equal(before, backbone.patch_embed.proj[0][1].running_mean)
    assert backbone.blocks[0].training
    assert not backbone.blocks[0].local_mp.bn.training


@pytest.mark.parametrize('norm_cfg, kind', [
    (None, nn.BatchNorm2d),
    (dict(type='BN'), nn.BatchNorm2d),
    (dict(type='SyncBN'), nn.SyncBatchNorm),
    (dict(type='GN', num_groups=2), nn.GroupNorm),
])
def test_norm_cfg(norm_cfg: dict | None, kind: type) -> None:
    backbone = tiny(XCiT, norm_cfg=norm_cfg)
    norms = [backbone.patch_embed.proj[i][1] for i in (0, 2, 4)]
    norms += [block.local_mp.bn for block in backbone.blocks]
    assert all(isinstance(norm, kind) and norm.eps == 1e-5 for norm in norms)
    assert {block.norm1.eps for block in backbone.blocks} == {1e-6}


@pytest.mark.parametrize('norm_cfg', [
    dict(type='BN', track_running_stats=False),
    dict(type='BN', affine=False),
    dict(type='GN', num_groups=2),
])
@torch.no_grad()
def test_norms_that_cannot_be_folded(norm_cfg: dict) -> None:
    backbone = tiny(XCiT, norm_cfg=norm_cfg).eval()
    image = torch.randn(2, 3, 40, 56)
    with torch.enable_grad():
        plain = backbone(image)[-1].detach()
    check_rounding(backbone(image)[-1], plain, doubled(backbone)(image.double())[-1])


class OneProcess:
    """mmcv's synchronized norm in one process; its operators need a GPU."""

    @staticmethod
    def apply(x: Tensor, mean: Tensor, var: Tensor, weight: Tensor, bias: Tensor, momentum: float,
              eps: float, *_: object) -> Tensor:
        return F.batch_norm(x, mean, var, weight, bias, True, momentum, eps)


@pytest.fixture
def synchronize(request: pytest.FixtureRequest,
                monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[nn.Module], nn.Module]]:
    """Put synchronized batch norms into a model, in one of the ways in which users do."""
    if request.param != 'mmcv':
        yield dict(
            torch=nn.SyncBatchNorm.convert_sync_batchnorm,
            reverted=lambda model: revert_sync_batchnorm(convert_sync_batchnorm(model)))[
                request.param]
        return
    monkeypatch.setattr(sync_bn, 'SyncBatchNormFunction', OneProcess)
    distributed.init_process_group('gloo', store=distributed.HashStore(), rank=0, world_size=1)
    yield lambda model: convert_sync_batchnorm(model, 'mmcv')
    distributed.destroy_process_group()


every_synchronized = pytest.mark.parametrize(
    'synchronize', ['torch', 'reverted', 'mmcv'], indirect=True)


@pytest.mark.parametrize('momentum, with_cp', [(0.1, False), (None, True)])
@every_synchronized
def test_synchronized_norms_train_like_batch_norms(synchronize: Callable, momentum: float | None,
                                                   with_cp: bool) -> None:
    plain = tiny(XCiT)
    for module in plain.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = momentum
    synchronized = synchronize(copy.deepcopy(plain))
    synchronized.with_cp = with_cp
    images = torch.randn(2, 2, 3, 40, 56)
    results = []
    for backbone in (plain.train(), synchronized.train()):
        maps = [backbone(image) for image in images]
        sum(m.square().mean() for step in maps for m in step).backward()
        results.append((maps[1], [p.grad for p in backbone.parameters()], backbone.state_dict()))

    (maps, grads, state), (sync_maps, sync_grads, sync_state) = results
    assert not any(isinstance(module, nn.BatchNorm2d) for module in synchronized.modules())
    assert all(torch.equal(a, b) for a, b in zip(maps, sync_maps, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(grads, sync_grads, strict=True))
    assert all(torch.equal(state[name], sync_state[name]) for name in state)
    assert state['blocks.3.local_mp.bn.num_batches_tracked'] == 2


@every_synchronized
def test_synchronized_norms_run_once(synchronize: Callable,
                                     monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = synchronize(tiny(XCiT)).train()
    kind, calls = type(backbone.blocks[0].local_mp.bn), []
    forward = kind.forward
    monkeypatch.setattr(kind, 'forward', lambda norm, x: calls.append(norm) or forward(norm, x))
    backbone(torch.randn(2, 3, 40, 56))[-1].square().mean().backward()
    assert len(calls) == len(set(calls)) == 3 + 4  # stem and blocks


@every_synchronized
def test_norm_eval_of_synchronized_norms(synchronize: Callable) -> None:
    backbone = synchronize(tiny(XCiT, norm_eval=True)).train()
    before = copy.deepcopy(backbone.state_dict())
    backbone(torch.randn(2, 3, 40, 56))
    assert all(torch.equal(value, before[name]) for name, value in backbone.state_dict().items())


def test_norm_cfg_can_freeze_affine() -> None:
    backbone = tiny(XCiT, norm_cfg=dict(type='BN', requires_grad=False))
    assert not backbone.blocks[0].local_mp.bn.weight.requires_grad


def test_layer_scale_of_arch() -> None:
    plain = {key: value for key, value in TINY.items() if key != 'layer_scale_init_value'}
    assert XCiT(plain).blocks[0].gamma1.eq(1.).all()
    assert XCiT(TINY | dict(layer_scale_init_value=1e-5)).blocks[0].gamma3.eq(1e-5).all()
