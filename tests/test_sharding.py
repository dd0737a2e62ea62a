"""FSDP: parameters sharded over processes, with clipped gradients and EMA weights."""
from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import LAYOUTS, NO_WORKERS, SHORT, config, latest_log, run_processes, run_python
from mmengine.registry import MODELS
from safetensors.torch import load_file, save_file

from colonnade.settings.classes import iter_class_heads
from colonnade.settings.reading import read_config
from colonnade.weights import WeightsError
from colonnade.weights.downloads import fetch

FSDP = ['--fsdp', '--launcher', 'pytorch']
SEED = ['randomness.seed=0', 'randomness.deterministic=True']

FCOS = """
model = dict(
    _delete_=True,
    type='FCOS',
    data_preprocessor=dict(type='DetDataPreprocessor', pad_size_divisor=32),
    backbone=dict(type='XCiT', arch='nano_12_p16'),
    neck=dict(type='ColumnarPyramid', in_channels=128, stride=16,
              fpn=dict(type='FPN', out_channels=64, num_outs=5)),
    bbox_head=dict(type='FCOSHead', num_classes=3, in_channels=64, stacked_convs=1,
                   feat_channels=64, strides=[4, 8, 16, 32, 64]),
    test_cfg=dict(nms_pre=10, score_thr=0.05, nms=dict(type='nms', iou_threshold=0.5),
                  max_per_img=10))
val_evaluator = dict(metric='bbox')
test_evaluator = val_evaluator
"""


def write_config(head: str, folder: Path) -> Path:
    """Write a config with EMA weights and clipped gradients."""
    path = folder / 'averaging.py'
    path.write_text(f"""
_base_ = {str(config('mask_rcnn' if head == 'fcos' else head))!r}
custom_hooks = [dict(type='EMAHook', momentum=0.1)]
optim_wrapper = dict(clip_grad=dict(max_norm=0.01))
{FCOS if head == 'fcos' else ''}
""")
    return path


@pytest.mark.slow
def test_resume_without_fsdp_from_sharded_checkpoint(shapes: Path, tmp_path: Path,
                                                     run_tool: Callable) -> None:
    """A single torchrun process writes it; a run without FSDP resumes."""
    cfg, run = write_config('sem_fpn', tmp_path), tmp_path / 'run'
    data = ['--data-root', shapes / 'ade', '--work-dir', run]
    training = [cfg, *data, *FSDP, '--checkpoint-format', 'sharded', *SHORT,
                'default_hooks.checkpoint.interval=2', *NO_WORKERS]  # yapf: disable
    run_processes(1, 'tools/train.py', *training, out=tmp_path)

    folder = run / 'iter_2.pth'
    assert folder.is_dir() and not list(run.glob('.*'))
    best, = run.glob('best_*.pth')
    content, weights = fetch(str(folder)), fetch(str(best))['state_dict']
    assert {state['step'].item() for state in content['optimizer']['state'].values()} == {2}
    assert all(torch.equal(value, weights[key]) for key, value in content['state_dict'].items())
    trained = content['ema_state_dict']
    assert any(not torch.equal(value, trained[f'module.{key}']) for key, value in weights.items())

    run_tool('train', cfg, *data, '--resume', SHORT[0], 'train_cfg.max_iters=3', *SHORT[2:],
             *NO_WORKERS)
    assert 'Iter(train) [3/3]' in latest_log(run)
    assert (run / 'iter_3.pth').is_file()
    image = shapes / 'ade/images/validation/000000.jpg'
    run_tool('predict', folder, image, '--out', tmp_path / 'predicted')  # its config is used

    file, = folder.glob('*.safetensors')
    tensors = load_file(file)
    tensors.pop(next(iter(tensors)))
    save_file(tensors, file)
    with pytest.raises(WeightsError, match='sharded checkpoint .* is damaged'):
        fetch(folder)


def parse_log(log: str) -> list[tuple[str, ...]]:
    """Return iterations with gradient norms and losses, and metrics."""
    return re.findall(r'Iter\(train\) \[(\d/\d)\].* (grad_norm: [\d.]+)? *loss: ([\d.]+)', log) + \
        re.findall(r'Iter\(val\).* (m?Acc|mIoU|coco/bbox_mAP): ([\d.]+)', log)


@pytest.fixture
def train(shapes: Path, tmp_path: Path) -> Callable:
    """Function that trains in several processes, and returns their log."""

    def run(processes: int, head: str, name: str, *arguments: str, images: int = 6,
            iters: int = 2) -> list[tuple[str, ...]]:  # yapf: disable
        options = [SHORT[0], f'train_cfg.max_iters={iters}', *SHORT[2:-1], *SEED, *NO_WORKERS,
                   f'train_dataloader.batch_size={images // processes}']  # yapf: disable
        data = ['--data-root', shapes / LAYOUTS.get(head, 'coco'), '--work-dir', tmp_path / name]
        training = [write_config(head, tmp_path), *data, '--launcher', 'pytorch', *arguments]
        return parse_log(
            run_processes(processes, 'tools/train.py', *training, *options, out=tmp_path))

    return run


@pytest.mark.slow
@pytest.mark.parametrize('options', [[], ['--grad-accum', '2']])
@pytest.mark.parametrize('head', ['sem_fpn', 'mask_rcnn'])
def test_fsdp_equals_replicas(head: str, options: list[str], train: Callable) -> None:
    replicas = train(2, head, 'replicas', *options)
    assert len(replicas) > 2 and train(2, head, 'shards', '--fsdp', *options) == replicas
    resumed = train(2, head, 'replicas', '--resume', *options, iters=4)
    assert train(2, head, 'shards', '--fsdp', '--resume', *options, iters=4) == resumed


@pytest.mark.slow
@pytest.mark.parametrize('checkpoints', ['full', 'sharded'])
def test_resume_with_any_number_of_processes(checkpoints: str, train: Callable, tmp_path: Path,
                                             shapes: Path) -> None:
    """The state of two processes is resumed as with replicas."""
    train(2, 'sem_fpn', 'start', '--fsdp', '--checkpoint-format', checkpoints)
    for processes in (1, 2, 3):
        found = []
        for name, options in (('shards', ['--fsdp', '--checkpoint-format',
                                          checkpoints]), ('plain', [])):
            work_dir = tmp_path / f'{name}_{processes}'
            shutil.copytree(tmp_path / 'start', work_dir)
            start = work_dir / 'iter_2.pth'
            found.append(
                train(processes, 'sem_fpn', work_dir.name, '--resume', start, *options, iters=3))
        assert found[0] == found[1] and found[0][0][0] == '3/3'
    last = tmp_path / 'shards_3/iter_3.pth'
    assert last.is_dir() == (checkpoints == 'sharded')
    run_python('tools/test.py', tmp_path / 'shards_3/averaging.py', last, '--data-root',
               shapes / 'ade', '--work-dir', tmp_path / 'test')
    run_python('tools/predict.py', tmp_path / 'shards_3/averaging.py', last,
               shapes / 'ade/images/validation', '--out', tmp_path / 'predicted')


@pytest.mark.slow
def test_fsdp_starts_from_any_weights(train: Callable, tmp_path: Path) -> None:
    fitted = read_config(config('sem_fpn'))
    state = MODELS.build(fitted.model).state_dict()
    torch.save(state, tmp_path / 'bare.pth')
    for _, part in iter_class_heads(fitted.model):
        part['num_classes'] = 9
    torch.save(MODELS.build(fitted.model).state_dict(), tmp_path / 'nine.pth')
    start = ['--load-from', str(tmp_path / 'bare.pth')]
    assert train(2, 'sem_fpn', 'a', '--fsdp', *start) == train(2, 'sem_fpn', 'b', *start)
    other = ['--load-from', str(tmp_path / 'nine.pth'), '--new-classes']
    assert train(2, 'sem_fpn', 'c', '--fsdp', *other) == train(2, 'sem_fpn', 'd', *other)


@pytest.mark.slow
@pytest.mark.parametrize('checkpoints', ['full', 'sharded'])
def test_scalar_parameters_are_sharded(checkpoints: str, train: Callable, tmp_path: Path) -> None:
    """FCOS multiplies predictions of each level by a scalar."""
    replicas = train(2, 'fcos', 'replicas')
    assert len(replicas) > 2
    assert train(2, 'fcos', 'shards', '--fsdp', '--checkpoint-format', checkpoints) == replicas
    content = fetch(str(tmp_path / 'shards/iter_2.pth'))
    plain = fetch(str(tmp_path / 'replicas/iter_2.pth'))
    scales = [name for name, value in plain['state_dict'].items() if value.ndim == 0]
    assert any('scales' in name for name in scales)
    assert all(content['state_dict'][name].shape == () for name in scales)
    resumed = train(2, 'fcos', 'replicas', '--resume', iters=3)
    start = ['--resume', str(tmp_path / 'shards/iter_2.pth')]
    assert train(
        1, 'fcos', 'one', *start, iters=3) == train(
            1, 'fcos', 'one_shard', *start, '--fsdp', iters=3)
    assert train(2, 'fcos', 'shards', '--resume', '--fsdp', iters=3) == resumed
