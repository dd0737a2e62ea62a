"""Runs that go on, start from a model, or are evaluated: averaged weights, other batches, files."""
from __future__ import annotations

import multiprocessing
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from conftest import LAYOUTS, NO_WORKERS, ROOT, SHORT, config, latest_log
from mmengine.config import Config
from mmengine.registry import MODELS
from test_weight_tools import published_state

from colonnade.common.locking import lock_folder
from colonnade.engine.runner.hooks import (BATCH, BatchSizeHook, is_ema_hook, iter_hook_configs,
                                           remove_ema_hooks)
from colonnade.settings.reading import read_config
from colonnade.weights.formats import convert_published_model

HEAD = 'sem_fpn'
LONGER = [*SHORT[:1], 'train_cfg.max_iters=3', *SHORT[2:]]


@pytest.fixture
def averaging(tmp_path: Path) -> Path:
    """A short recipe that averages weights, as the ``_ema`` leaves do."""
    leaf = ROOT / 'configs/sem_fpn/xcit_small_12_p16_80k_ade20k_ema.py'
    hooks = Config.fromfile(leaf).custom_hooks
    assert [is_ema_hook(hook) for hook in hooks] == [True]
    (tmp_path / 'ema.py').write_text(f'_base_ = {str(config(HEAD))!r}\ncustom_hooks = {hooks}\n')
    return tmp_path / 'ema.py'


@pytest.fixture
def train(run_tool: Callable, shapes: Path, tmp_path: Path) -> Callable[..., Path]:
    """Train a config in ``tmp_path / 'run'``, by default two iterations."""

    def run(path: Path, *arguments: Any, options: list[str] = SHORT) -> Path:
        run_tool('train', path, '--data-root', shapes / LAYOUTS[HEAD], '--work-dir',
                 tmp_path / 'run', *arguments, *options, *NO_WORKERS)
        return tmp_path / 'run'

    return run


def saved(path: Path) -> dict[str, Any]:
    return torch.load(path, weights_only=False)


@pytest.mark.slow
def test_ema_weights_resume_and_are_tested(averaging: Path, train: Callable, shapes: Path,
                                           tmp_path: Path, run_tool: Callable) -> None:
    work_dir = train(averaging)
    train(averaging, '--resume', options=LONGER)
    checkpoint = saved(work_dir / 'iter_3.pth')
    assert checkpoint['ema_state_dict']['steps'] == 3
    assert any(not torch.equal(value, checkpoint['ema_state_dict'][f'module.{key}'])
               for key, value in checkpoint['state_dict'].items())  # yapf: disable

    run_tool('test', averaging, work_dir / 'iter_3.pth', '--data-root', shapes / 'ade',
             '--work-dir', tmp_path / 'test', '--tta', '--fuse', '--out', tmp_path / 'm.json',
             '--cfg-options', 'test_dataloader.dataset.indices=1', *NO_WORKERS)
    assert (tmp_path / 'm.json').is_file()


slowly = pytest.mark.slow  # partly covered by other tests


@pytest.mark.slow
@pytest.mark.parametrize('layout', ['published', 'ours', 'bare', 'safetensors'])
def test_ema_starts_from_any_checkpoint_format(layout: str, averaging: Path, train: Callable,
                                               tmp_path: Path) -> None:
    state = MODELS.build(read_config(averaging).model).state_dict()
    path = tmp_path / ('a.safetensors' if layout == 'safetensors' else 'a.pth')
    if layout == 'safetensors':
        safetensors.torch.save_file(state, path)
    elif layout == 'published':
        torch.save(dict(state_dict=published_state()), path)
        state = convert_published_model(torch.load(path)['state_dict'])
    else:
        torch.save(state if layout == 'bare' else dict(state_dict=state), path)

    options = [*SHORT, 'optim_wrapper.optimizer.lr=0', 'model.backbone.norm_eval=True']
    work_dir = train(averaging, '--load-from', path, options=options)

    checkpoint = saved(work_dir / 'iter_2.pth')
    for key, value in state.items():
        if 'running_' not in key and 'num_batches' not in key:
            assert torch.equal(checkpoint['state_dict'][key], value), key
            assert torch.equal(checkpoint['ema_state_dict'][f'module.{key}'], value), key


def test_is_ema_hook() -> None:
    cfg = Config(
        dict(
            default_hooks=dict(a=dict(type='EMAHook'), logger=dict(type='LoggerHook'), b=None),
            custom_hooks=[dict(type='EMAHook'),
                          dict(type='NumClassCheckHook')]))
    assert [is_ema_hook(hook) for hook in iter_hook_configs(cfg)] == [True, False, True, False]
    remove_ema_hooks(cfg)
    assert [hook['type'] for hook in iter_hook_configs(cfg)] == ['LoggerHook', 'NumClassCheckHook']
    assert list(iter_hook_configs(Config(dict(custom_hooks=None, default_hooks=None)))) == []
    for wrong in ('EMAHook', dict(momentum=1)):
        with pytest.raises(ValueError, match='hooks in a config must be dicts with a type'):
            list(iter_hook_configs(Config(dict(custom_hooks=[wrong]))))


@slowly
def test_resume_without_ema_hook_warns(averaging: Path, train: Callable) -> None:
    work_dir = train(averaging)
    train(config(HEAD), '--resume', options=LONGER)
    assert 'contains EMA weights, but this run has no EMAHook' in latest_log(work_dir)


@slowly
def test_resume_with_metainfo_of_dataset(train: Callable, tmp_path: Path) -> None:
    dataset = "dict(metainfo=dict(source=dict(name='x', parts=[dict(a=1)])))"
    (tmp_path / 'own.py'
     ).write_text(f'_base_ = {str(config(HEAD))!r}\ntrain_dataloader = dict(dataset={dataset})\n')
    work_dir = train(tmp_path / 'own.py')
    train(tmp_path / 'own.py', '--resume', options=LONGER)
    meta = torch.load(work_dir / 'iter_3.pth', weights_only=False)['meta']['dataset_meta']
    assert type(meta['source']) is dict and meta['source']['parts'] == [dict(a=1)]


@pytest.mark.slow
@pytest.mark.parametrize('options', [[], ['--grad-accum', '2']])
def test_config_without_default_hooks(options: list[str], train: Callable, tmp_path: Path) -> None:
    (tmp_path / 'own.py').write_text(f'_base_ = {str(config(HEAD))!r}\ncustom_hooks = None\n'
                                     'default_hooks = dict(visualization=None)\n')
    work_dir = train(tmp_path / 'own.py', *options)
    assert list(work_dir.glob('iter_*.pth'))


@pytest.mark.slow
def test_resume_refuses_other_batch_size(train: Callable, trained: Path) -> None:
    assert saved(trained / 'iter_2.pth')['meta'][BATCH] == dict(
        images_per_iteration=2, iterations_per_step=1)
    four_images = [*LONGER[:-1], 'train_dataloader.batch_size=4']
    for arguments, options, says in (
        (['--grad-accum', '2'], LONGER,
         '2 images per iteration and 2 iterations per step, .* no --grad'),
        ([], four_images,
         '2 images per iteration and 1 iteration per step in the checkpoint to 4 images'),
    ):  # yapf: disable
        with pytest.raises(SystemExit, match=f'train: .*{says}.*--load-from'):
            train(config(HEAD), '--resume', *arguments, options=options)
    train(config(HEAD), '--resume', options=LONGER)
    assert (trained / 'iter_3.pth').is_file()


@pytest.mark.parametrize('then, processes, images, says', [
    ((16, 1), 4, 2, '--cfg-options train_dataloader.batch_size=4'),
    ((16, 2), 8, 2, '--grad-accum 2, or'),
    ((16, 1), 3, 2, 'a number of processes that divides 16, or'),
])
def test_batch_size_error_suggests_options(then: tuple[int, int], processes: int, images: int,
                                           says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('colonnade.engine.runner.hooks.get_world_size', lambda: processes)
    before = dict(zip(('images_per_iteration', 'iterations_per_step'), then, strict=True))
    with pytest.raises(ValueError, match=f'resume with {says}'):
        BatchSizeHook(images, 1).compare(dict(meta={BATCH: before}))


@pytest.mark.parametrize('processes, images', [(8, 2), (4, 4), (1, 16)])
def test_resume_accepts_same_batch_size_of_other_processes(processes: int, images: int,
                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('colonnade.engine.runner.hooks.get_world_size', lambda: processes)
    batch = dict(images_per_iteration=16, iterations_per_step=1)
    BatchSizeHook(images, 1).compare(dict(meta={BATCH: batch}))
    BatchSizeHook(images, 1).compare(dict(meta={}))  # an older run


@pytest.mark.slow
def test_resume_of_finished_run_warns(train: Callable, trained: Path) -> None:
    train(config(HEAD), '--resume')
    log = latest_log(trained)
    assert 'training is already complete: the checkpoint is at iteration 2 of 2' in log


@pytest.mark.parametrize('keep', [('state_dict', ), ('state_dict', 'meta')])
def test_resume_refuses_weights_without_training_state(keep: tuple[str, ...], train: Callable,
                                                       trained: Path, tmp_path: Path) -> None:
    checkpoint = saved(trained / 'iter_2.pth')
    torch.save({key: checkpoint[key] for key in keep}, tmp_path / 'converted.pth')
    with pytest.raises(
            SystemExit,
            match='converted.pth contains weights, but no training state '
            r'\(no optimizer, message_hub.*--load-from'):
        train(config(HEAD), '--resume', tmp_path / 'converted.pth')


@pytest.mark.slow
def test_work_dir_is_locked(train: Callable, tmp_path: Path) -> None:
    (tmp_path / 'run').mkdir()
    code = ('import fcntl, os, sys, time; fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), '
            'fcntl.LOCK_EX); print(flush=True); time.sleep(99)')
    with subprocess.Popen([sys.executable, '-c', code, tmp_path / 'run'],
                          stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        with pytest.raises(SystemExit, match='another run is training in .*run: wait'):
            train(config(HEAD))
        other.kill()
    train(config(HEAD))
    assert {path.name[0] for path in (tmp_path / 'run').iterdir()}.isdisjoint('.')


def test_orphaned_worker_holds_no_lock(tmp_path: Path) -> None:
    context = multiprocessing.get_context('fork')
    started, ended = context.Event(), context.Event()
    with lock_folder(tmp_path, ''):
        worker = context.Process(target=lambda: (started.set(), ended.wait(99)))
        worker.start()
        started.wait(99)
    with lock_folder(tmp_path, 'the worker locks it'):
        ended.set()
    worker.join()


def test_log_omits_paramwise_options(trained: Path) -> None:
    log = latest_log(trained)
    assert 'paramwise_options' not in log
    assert '2 parameter groups with different learning rates or weight decay' in log
