"""More devices and processes: compiled backbones, mixed precision, several processes, shards."""
from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import (LAUNCH, LAYOUTS, METRICS, NO_WORKERS, SHORT, config, latest_log, run_python,
                      run_two)
from helpers.backbones import every_class, tiny
from mmdet.structures import DetDataSample
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import InstanceData, PixelData
from mmseg.structures import SegDataSample
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from colonnade.engine.runner.loops import get_copier
from colonnade.models.fusion import fuse
from colonnade.models.fusion.full_model import find_columnar_modules
from colonnade.settings.reading import read_config


def test_fused_backbone_metrics(shapes: Path, tmp_path: Path, run_tool: Callable) -> None:
    head = 'sem_fpn'
    cfg = Config.fromfile(config(head))
    init_default_scope(cfg.default_scope)
    torch.save(dict(state_dict=MODELS.build(cfg.model).state_dict()), tmp_path / 'random.pth')
    metrics = []
    for options in (['--no-fuse'], ['--fuse']):
        run_tool('test', config(head), tmp_path / 'random.pth', '--data-root',
                 shapes / LAYOUTS[head], '--work-dir', tmp_path, *options, '--out',
                 tmp_path / 'm.json', '--cfg-options', *NO_WORKERS)
        metrics.append(json.loads((tmp_path / 'm.json').read_text())['metrics'])
    assert metrics[0]['aAcc'] == pytest.approx(metrics[1]['aAcc'], abs=0.1)


class Copies(TorchDispatchMode):
    """Records of each copy to a GPU whether the host waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[bool] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        settings = kwargs or {}
        if func is torch.ops.aten._to_copy.default and settings.get('device') not in (
                None, args[0].device):
            self.waits.append(not settings.get('non_blocking'))
        return func(*args, **settings)


def test_batches_are_copied_without_waiting() -> None:
    """The preprocessor finds them on the GPU already; hooks keep the batch of the host."""
    cfg = Config.fromfile(config('sem_fpn'))
    init_default_scope(cfg.default_scope)
    boxes = InstanceData(bboxes=torch.ones(1, 4), labels=torch.zeros(1, dtype=torch.long))
    labels = PixelData(data=torch.zeros(1, 64, 64))
    samples: list[Any] = [DetDataSample(gt_instances=boxes), SegDataSample(gt_sem_seg=labels)]
    for sample in samples:
        sample.set_metainfo(dict(img_shape=(64, 64)))
    batch = dict(inputs=[torch.zeros(3, 64, 64, dtype=torch.uint8)], data_samples=samples[1:])
    device = torch.device('cuda:0')
    with FakeTensorMode(allow_non_fake_inputs=True):
        with device:
            preprocessor = MODELS.build(cfg.model.data_preprocessor).to(device)
        with Copies() as copies:
            boxes = get_copier(device).cast_data(samples[:1])[0].gt_instances.bboxes
            copied = get_copier(device).cast_data(batch)
        with Copies() as more:
            inputs = preprocessor(copied, True)['inputs']
    assert len(copies.waits) == 4 and not any(copies.waits)
    assert len(more.waits) == 1  # mmseg exchanges the channels by an index of the host
    assert boxes.is_cuda and inputs.is_cuda and not batch['inputs'][0].is_cuda


@pytest.mark.slow
def test_compile_and_fuse() -> None:
    cfg = Config.fromfile(config('sem_fpn'))
    init_default_scope(cfg.default_scope)
    model = MODELS.build(cfg.model)
    keys = set(model.state_dict())
    for part in find_columnar_modules(model):
        part.compile()
    compiled = {name for name, part in model.named_modules() if part._compiled_call_impl}
    blocks = {f'backbone.blocks.{index}' for index in range(len(model.backbone.blocks))}
    assert compiled == blocks | {'neck.stride4'}
    assert set(model.state_dict()) == keys
    fuse(model.eval())
    assert model.backbone.fused
    with pytest.raises(ValueError, match='neither a Colonnade backbone nor a Colonnade pyramid'):
        find_columnar_modules(nn.Linear(2, 2))


@pytest.mark.gpu
@pytest.mark.parametrize('amp', [['--amp'], ['--amp-dtype', 'bfloat16']])
@pytest.mark.parametrize('head', LAYOUTS)
def test_mixed_precision_training(head: str, amp: list[str], shapes: Path, tmp_path: Path) -> None:
    log = run_python('tools/train.py', config(head), '--data-root', shapes / LAYOUTS[head],
                     '--work-dir', tmp_path, *amp, *SHORT)
    assert 'Iter(train) [2/2]' in log


@pytest.mark.gpu
@pytest.mark.parametrize('options', [[], ['--amp'], ['--fsdp'], ['--grad-accum', '2']])
def test_sync_bn_on_gpu(options: list[str], shapes: Path, tmp_path: Path) -> None:
    data = ['--data-root', shapes / 'ade', '--work-dir', tmp_path, '--launcher', 'pytorch']
    launch = [*LAUNCH[:-1], 1]
    log = run_python(*launch, 'tools/train.py', config('sem_fpn'), *data, *options, *SHORT,
                     'sync_bn=torch', 'model.backbone.with_cp=True')
    assert 'batch norms are synchronized across 1 process' in log
    assert re.search(r'Iter\(train\) \[(2/2|4/4)\]', log)
    run_python(*launch, 'tools/test.py', config('sem_fpn'),
               (tmp_path / 'last_checkpoint').read_text(), *data)


@pytest.mark.gpu
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16, torch.float16])
@every_class
def test_feature_maps_on_gpu(cls: type, dtype: torch.dtype) -> None:
    on_cpu = tiny(cls).train()
    on_gpu = copy.deepcopy(on_cpu).cuda()
    images = torch.rand(2, 3, 40, 56)
    found = []
    for backbone, batch in ((on_cpu, images), (on_gpu, images.cuda())):
        with torch.autocast('cuda', dtype, enabled=batch.is_cuda and dtype != torch.float32):
            maps = backbone(batch)
        sum(m.float().square().mean() for m in maps).backward()
        found.append([m.float().cpu() for m in maps])
        assert all(p.grad.isfinite().all() for p in backbone.parameters())
    limit = {torch.float32: 1e-3, torch.bfloat16: 6e-2, torch.float16: 1e-2}[dtype]
    for got, expected in zip(*found[::-1], strict=True):
        assert (got - expected).norm() < limit * expected.norm()


@pytest.mark.parametrize('head, options', [
    ('sem_fpn', []),
    pytest.param('mask_rcnn', [], marks=pytest.mark.slow),
    pytest.param('upernet', ['--fsdp', '--checkpoint-format', 'sharded'], marks=pytest.mark.slow),
])
def test_two_process_training(head: str, options: list[str], shapes: Path, tmp_path: Path,
                              run_tool: Callable) -> None:
    data = ['--data-root', shapes / LAYOUTS[head], '--work-dir', tmp_path]
    state = MODELS.build(read_config(config(head)).model).state_dict()
    torch.save(dict(state_dict=state, made_by=Path('here')), tmp_path / 'start.pth')
    start = ['--load-from', tmp_path / 'start.pth', '--trust']

    training = [config(head), *data, '--launcher', 'pytorch', *options, *start, *SHORT]
    log = run_two('tools/train.py', *training, out=tmp_path)
    dumped = tmp_path / config(head).name  # by the first run
    test = [dumped, tmp_path / 'iter_2.pth', *data, '--launcher', 'pytorch']
    printed = run_two('tools/test.py', *test, '--out', tmp_path / 'm.json', out=tmp_path)

    assert 'batch norms are not synchronized across processes' in log
    assert re.search(r'Iter\(val\) \[2/2\]', log)  # four images
    metrics = json.loads((tmp_path / 'm.json').read_text())['metrics']
    assert set(METRICS[head]) <= set(metrics)
    assert printed.count('written: ') == 1

    resumed = ['train', config(head), *data, '--resume', *SHORT[:1], 'train_cfg.max_iters=3']
    with pytest.raises(SystemExit) as stopped:
        run_tool(*resumed, 'train_dataloader.batch_size=2', *NO_WORKERS)
    assert 'changed from 4 images per iteration' in str(stopped.value)
    assert 'resume with --cfg-options train_dataloader.batch_size=4' in str(stopped.value)
    run_tool(*resumed, *SHORT[2:-1], 'train_dataloader.batch_size=4', *NO_WORKERS)
    assert 'Iter(train) [3/3]' in latest_log(tmp_path)
