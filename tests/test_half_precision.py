"""Mixed precision (``--amp``): types per device, cast weights, training and prediction."""
from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import NO_WORKERS, config, latest_log
from helpers.backbones import tiny
from mmdet.models.roi_heads.roi_extractors import SingleRoIExtractor
from mmengine.config import Config
from mmengine.registry import MODELS
from torch import nn

from colonnade import load
from colonnade.backbones import XCiT
from colonnade.engine.training import set_amp
from colonnade.models import half_precision
from colonnade.models.fusion.full_model import cast_weights
from colonnade.models.fusion.region_heads import fuse_regions
from colonnade.models.half_precision import (Bfloat16OptimWrapper, cast_to_float32, compute_in,
                                             get_half_type, keep_outputs_float32)
from colonnade.settings.reading import read_config

HEAD = 'sem_fpn'
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason='a GPU is there')


@pytest.fixture
def fast_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the processor: what is slow is right all the same."""
    monkeypatch.setattr(half_precision, 'explain_missing_bfloat16', lambda: '')


def set_processor(monkeypatch: pytest.MonkeyPatch, *flags: str, limit: str = '') -> None:
    monkeypatch.setattr(half_precision, 'get_instruction_sets', lambda: set(flags))
    monkeypatch.setattr('platform.machine', lambda: 'x86_64')
    monkeypatch.delenv('DNNL_MAX_CPU_ISA', raising=False)
    monkeypatch.setenv('ONEDNN_MAX_CPU_ISA', limit)


@pytest.mark.parametrize('flags, limit, reason', [
    (('avx512_bf16', ), '', None),
    (('amx_bf16', 'amx_tile'), 'AVX512_CORE_AMX', None),
    (('avx2', 'avx512_f'), '', 'this CPU has neither AMX nor AVX512-BF16'),
    ((), '', 'this CPU has neither AMX nor AVX512-BF16'),
    (('amx_bf16', 'avx512_bf16'), 'avx2', 'ONEDNN_MAX_CPU_ISA=avx2 allows neither'),
])
def test_amp_on_cpus(flags: tuple[str, ...], limit: str, reason: str | None,
                     monkeypatch: pytest.MonkeyPatch) -> None:
    set_processor(monkeypatch, *flags, limit=limit)
    for amp in (True, 'bfloat16'):
        if reason is None:
            assert get_half_type(amp, 'cpu') == torch.bfloat16
        else:
            with pytest.raises(ValueError, match=f'--amp: {reason}.*slower than float32'):
                get_half_type(amp, 'cpu')
    assert get_half_type(False, 'cpu') is None


@pytest.mark.parametrize('machine', ['aarch64', 'arm64'])
def test_amp_on_arm(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    set_processor(monkeypatch)
    monkeypatch.setattr('platform.machine', lambda: machine)
    with pytest.raises(ValueError, match=f'^--amp: .* not measured on {machine} CPUs.*remove it$'):
        get_half_type(True, 'cpu')


def test_instruction_sets_of_earlier_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cpu, 'get_capabilities', raising=False)
    monkeypatch.setattr(torch.cpu, '_is_avx512_bf16_supported', lambda: False)
    for supported, expected in ((True, {'amx_bf16'}), (False, set())):
        monkeypatch.setattr(torch.cpu, '_is_amx_tile_supported', lambda is_so=supported: is_so)
        assert half_precision.get_instruction_sets() == expected


def test_rejects_unsupported_types(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match='--amp-dtype float16 is for GPUs: for bfloat16'):
        get_half_type('float16', 'cpu')
    with pytest.raises(
            ValueError, match="must be True, False, 'bfloat16' or 'float16', got 'int8'"):
        get_half_type('int8', 'cpu')
    assert get_half_type(True, 'cuda') == get_half_type('float16', 'cuda') == torch.float16
    for supported in (True, False):
        monkeypatch.setattr(
            torch.cuda, 'is_bf16_supported', lambda *_, is_so=supported, **__: is_so)
        if supported:
            assert get_half_type('bfloat16', 'cuda') == torch.bfloat16
        else:
            with pytest.raises(ValueError, match='--amp-dtype bfloat16: this GPU .* pass --amp'):
                get_half_type('bfloat16', 'cuda')


@no_gpu
@pytest.mark.parametrize('tool', ['train', 'test', 'predict', 'serve', 'benchmark'])
def test_tools_reject_amp_on_slow_cpu(tool: str, trained_once: Path, shapes: Path, tmp_path: Path,
                                      run_tool: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    set_processor(monkeypatch, 'avx2')
    model = [config(HEAD), *([] if tool == 'train' else [trained_once / 'iter_2.pth'])]
    data = ['--data-root', shapes / 'ade', '--work-dir', tmp_path]
    arguments: dict[str, list] = dict(
        train=[*model, *data],
        test=[*model, *data],
        predict=[*model, shapes / 'ade/images/validation', '--out', tmp_path / 'out'],
        serve=[*model, '--port', 0],
        benchmark=['--backbones', 'XCiT:nano_12_p16'])
    with pytest.raises(SystemExit, match=f'{tool}: --amp: this CPU has neither AMX'):
        run_tool(tool, *arguments[tool], '--amp')


@pytest.mark.parametrize('wrapper, device, amp, expected', [
    (dict(accumulative_counts=2), 'cpu', True, dict(
        type='Bfloat16OptimWrapper', accumulative_counts=2)),
    (dict(type='AmpOptimWrapper', loss_scale=512., dtype='float16'), 'cuda', 'bfloat16',
     dict(type='Bfloat16OptimWrapper')),
    (dict(type='OptimWrapper'), 'cuda', True, dict(type='AmpOptimWrapper', loss_scale='dynamic')),
    (dict(type='AmpOptimWrapper', loss_scale=512.), 'cuda', 'float16',
     dict(type='AmpOptimWrapper', loss_scale=512., dtype='float16')),
])  # yapf: disable
def test_optimizer_wrappers(wrapper: dict, device: str, amp: Any, expected: dict,
                            fast_bfloat16: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('colonnade.engine.training.get_device', lambda: device)
    monkeypatch.setattr(torch.cuda, 'is_bf16_supported', lambda *_, **__: True)
    cfg = Config(dict(optim_wrapper=wrapper))
    set_amp(cfg, amp)
    assert cfg.optim_wrapper.to_dict() == expected
    cfg.optim_wrapper.type = 'Mine'
    with pytest.raises(ValueError, match='--amp needs optim_wrapper.type OptimWrapper.* Mine'):
        set_amp(cfg, amp)


def test_gpu_wrapper_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = Config(dict(optim_wrapper=dict(type='AmpOptimWrapper')))
    monkeypatch.setattr('colonnade.engine.training.get_device', lambda: 'cpu')
    with pytest.raises(
            ValueError, match='AmpOptimWrapper needs a GPU, .* pass --amp, which trains in'):
        set_amp(cfg, False)
    monkeypatch.setattr('colonnade.engine.training.get_device', lambda: 'cuda')
    set_amp(cfg, False)
    assert cfg.optim_wrapper == dict(type='AmpOptimWrapper')


def test_reports_settings_without_effect(fast_bfloat16: None, monkeypatch: pytest.MonkeyPatch,
                                         capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr('colonnade.engine.training.get_device', lambda: 'cpu')
    lost = {'loss_scale': 512., 'dtype': 'float16'}
    for options, dropped in ((lost, lost), ({'dtype': 'bfloat16'}, {})):
        set_amp(Config(dict(optim_wrapper=dict(type='AmpOptimWrapper', **options))), True)
        assert capsys.readouterr().out.splitlines() == [
            f'--amp: optim_wrapper.{name}={value!r} in the config has no effect'
            for name, value in dropped.items()]  # yapf: disable
    monkeypatch.setattr('colonnade.engine.training.get_device', lambda: 'mps')
    for amp in (True, 'bfloat16'):
        with pytest.raises(ValueError, match='^--amp does not support training on mps: remove it$'):
            set_amp(Config(dict(optim_wrapper=dict())), amp)


def test_cast_to_float32() -> None:
    half, labels = torch.ones(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.long)
    found = cast_to_float32(dict(a=[half, (labels, None)], b=half.double(), c='text'))
    assert found['a'][0].dtype == torch.float32 and found['b'].dtype == torch.float64
    assert found['a'][1][0] is labels and found['a'][1][1] is None and found['c'] == 'text'


def test_cast_weights() -> None:

    class Own(nn.Linear):
        """Adds something, as LoRA's layers do."""

    layers = nn.ModuleDict(
        dict(
            linear=nn.Linear(4, 4),
            conv=nn.Conv2d(4, 4, 3, bias=False),
            up=nn.ConvTranspose2d(4, 4, 2),
            norm=nn.BatchNorm2d(4),
            hooked=nn.Linear(4, 4),
            first=nn.Linear(4, 4),
            second=nn.Linear(4, 4),
            own=Own(4, 4),
            attention=nn.MultiheadAttention(4, 1),
            precise=nn.Linear(4, 4).double(),
            backbone=tiny(XCiT)))
    layers.hooked.register_forward_hook(lambda *_: None)
    layers.second.weight = layers.first.weight
    before = {name: tensor.dtype for name, tensor in layers.state_dict().items()}
    line, = cast_weights(layers, torch.bfloat16)
    after = {name: tensor.dtype for name, tensor in layers.state_dict().items()}
    assert line == 'weights of 3 layers outside the backbone are bfloat16'
    changed = {name.split('.')[0] for name, dtype in after.items() if dtype != before[name]}
    assert changed == {'linear', 'conv', 'up'}
    assert cast_weights(layers, torch.bfloat16) == []


def test_prediction(trained_once: Path, shapes: Path, fast_bfloat16: None) -> None:
    image = next((shapes / 'ade/images/validation').iterdir())
    checkpoint = trained_once / 'iter_2.pth'
    exact, half = (
        load(config(HEAD), checkpoint, device='cpu', amp=amp) for amp in (False, 'bfloat16'))
    assert half.module.decode_head.conv_seg.weight.dtype == torch.bfloat16
    seen = []
    half.module.decode_head.conv_seg.register_forward_hook(
        lambda _, __, out: seen.append(out.dtype))
    found, expected = half.predict(image), exact.predict(image)
    assert seen == [torch.bfloat16]
    assert not torch.is_autocast_enabled('cpu')
    assert np.mean(found.labels == expected.labels) > 0.95


@torch.no_grad()
def test_copies_use_their_own_weights() -> None:
    torch.manual_seed(0)
    model = MODELS.build(read_config(config(HEAD)).model)
    model.init_weights()
    nn.init.normal_(model.decode_head.conv_seg.weight)
    compute_in(model.eval(), torch.bfloat16)
    images = torch.randn(1, 3, 64, 64)
    expected = model(images)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert twin(images).equal(expected) and expected.dtype == torch.float32
        nn.init.zeros_(twin.decode_head.conv_seg.weight)
        assert not twin(images).equal(expected)
        assert model(images).equal(expected)


class OwnExtractor(SingleRoIExtractor):
    """Custom subclass."""


@torch.no_grad()
@pytest.mark.parametrize('far', [False, True], ids=['near', 'with a far one'])
@pytest.mark.parametrize('kind, fused', [(SingleRoIExtractor, False), (SingleRoIExtractor, True),
                                         (OwnExtractor, False)])
def test_roi_corners_are_not_rounded(kind: type, fused: bool, far: bool) -> None:
    torch.manual_seed(0)
    layer = dict(type='RoIAlign', output_size=7, sampling_ratio=0)
    model = nn.ModuleDict(dict(extractor=kind(layer, 8, [4]))).eval()
    maps = torch.randint(2, (1, 8, 200, 304)).float()  # exact in half types
    regions = torch.tensor([[0, 1001.3, 501.3, 1031.6, 522.7], [0, 1101.3, 701.3, 1120.2, 719.9]])
    expected = model.extractor([maps], regions)
    assert len(fuse_regions(model) if fused else 'x') == 1
    keep_outputs_float32(model)
    more = torch.cat([regions, torch.tensor([[0, 0, 0, 1e5, 10.]])]) if far else regions
    found = model.extractor([maps.bfloat16()], more)[:2].float()
    assert (found - expected).abs().max() < 0.02 * expected.abs().max()


@pytest.mark.slow
@no_gpu
def test_training_resumes_in_other_precision(trained: Path, shapes: Path, tmp_path: Path,
                                             fast_bfloat16: None, run_tool: Callable) -> None:
    data = ['--data-root', shapes / 'ade', '--work-dir', trained]
    for last, amp in ((3, ['--amp']), (4, [])):
        run_tool('train', config(HEAD), *data, '--resume', *amp, '--cfg-options',
                 f'train_cfg.max_iters={last}', 'train_cfg.val_interval=9',
                 'default_hooks.checkpoint.interval=1', 'train_dataloader.batch_size=2',
                 'default_hooks.logger.interval=1', *NO_WORKERS)
        assert ('Bfloat16OptimWrapper' in latest_log(trained)) == bool(amp)
        state = torch.load(trained / f'iter_{last}.pth', weights_only=False)
        moments = [value for group in state['optimizer']['state'].values()
                   for value in group.values()]  # yapf: disable
        for tensor in (*state['state_dict'].values(), *moments):
            assert tensor.dtype != torch.bfloat16 and tensor.isfinite().all()


def test_training_step(fast_bfloat16: None) -> None:

    class Head(nn.Linear):
        """Head like those of mmdet and mmseg."""

        def predict_by_feat(self, logits: torch.Tensor) -> torch.Tensor:
            return logits

    torch.manual_seed(0)
    exact = nn.Sequential(nn.Linear(8, 8), Head(8, 4))
    half = copy.deepcopy(exact)
    x = torch.randn(5, 8)
    wrapper = Bfloat16OptimWrapper(optimizer=torch.optim.SGD(half.parameters(), lr=0.1))
    for _ in range(2):
        with wrapper.optim_context(half):
            assert half[0](x).dtype == torch.bfloat16
            out = half(x)
            assert out.dtype == torch.float32
    twin = copy.deepcopy(half)
    nn.init.zeros_(twin[1].weight)
    assert not twin(x).equal(half(x))
    out.square().sum().backward()
    exact(x).square().sum().backward()
    for got, expected in zip(half.parameters(), exact.parameters(), strict=True):
        assert (got.grad - expected.grad).norm() < 0.05 * expected.grad.norm()
