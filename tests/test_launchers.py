"""Processes of clusters: restarts, what launchers set, and the examples of the page."""
from __future__ import annotations

import ast
import re
import socket
from argparse import ArgumentParser
from pathlib import Path

import pytest
import yaml
from conftest import NO_VAL, ROOT, SHORT, TWO_PROCESSES, config, run_python
from mmengine.config import Config
from torch.distributed.run import get_args_parser

from colonnade.configs import find_config
from colonnade.engine.optim.batch_size import set_total_batch_size
from colonnade.engine.runner.launch import gather_by_messages, set_timeout
from colonnade.engine.runner.launchers import check_launcher, get_torch_variables, has_several_hosts
from colonnade.engine.training import TrainOptions
from colonnade.settings.reading import read_config
from colonnade.tools.command_line import parse_options
from colonnade.tools.train import TrainCommand

ELASTIC = ('-m', 'torch.distributed.run', '--nnodes', '1:2', '--nproc-per-node', 2,
           '--rdzv-backend', 'c10d', '--rdzv-conf', 'last_call_timeout=1',
           '--max-restarts', 2)  # yapf: disable


@pytest.mark.slow
@pytest.mark.parametrize('rank', [0, 1])
def test_torchrun_restart_resumes(rank: int, shapes: Path, tmp_path: Path) -> None:
    (tmp_path / 'own.py').write_text(
        f'_base_ = {str(config("sem_fpn"))!r}\n'
        "custom_imports = dict(imports=['helpers.killed_once'])\n"
        f"custom_hooks = [dict(type='KilledOnce', rank={rank}, iteration=4, "
        f'done={str(tmp_path / "done")!r})]\n')
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        endpoint = f'127.0.0.1:{free.getsockname()[1]}'
    command = [
        *ELASTIC, '--rdzv-endpoint', endpoint, '--rdzv-id', 'run', 'tools/train.py',
        tmp_path / 'own.py', '--data-root', shapes / 'ade', '--work-dir', tmp_path / 'run',
        '--launcher', 'pytorch', '--resume', '--total-batch-size', 4, *SHORT[:1],
        'train_cfg.max_iters=6', 'default_hooks.checkpoint.interval=2',
        'default_hooks.logger.interval=1', 'optim_wrapper.clip_grad=None', *NO_VAL
    ]
    environ = dict(
        TWO_PROCESSES, TORCH_DISABLE_SHARE_RDZV_TCP_STORE='1', PYTHONPATH=str(ROOT / 'tests'))
    printed = run_python(*command, **environ)
    assert (tmp_path / 'done').exists()
    logs = sorted((tmp_path / 'run').glob('*/*.log'))
    iterations = [re.findall(r'Iter\(train\) \[(\d)/6\]', log.read_text()) for log in logs]
    assert iterations[0][:3] == ['1', '2', '3']
    assert iterations[1] in (['3', '4', '5', '6'], ['5',
                                                    '6'])  # the other may have saved the fourth
    assert (tmp_path / 'run/last_checkpoint').read_text().endswith('iter_6.pth')
    assert 'no checkpoint in' in printed


def test_total_batch_size(monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = Config(dict(launcher='pytorch', train_dataloader=dict(batch_size=2)))
    for processes, share in ((4, 4), (2, 8)):
        monkeypatch.setenv('WORLD_SIZE', str(processes))
        set_total_batch_size(cfg, 16)
        assert cfg.train_dataloader.batch_size == share
    monkeypatch.setenv('WORLD_SIZE', '3')
    for total in (16, 0):
        with pytest.raises(
                ValueError, match=f'--total-batch-size must be a multiple .* 3, got {total}'):
            set_total_batch_size(cfg, total)
    with pytest.raises(ValueError, match='needs train_dataloader.batch_size'):
        set_total_batch_size(Config(dict(launcher='none', train_dataloader={})), 16)


EXAMPLES = ROOT / 'docs/examples'


def test_kubernetes_example_is_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    job = yaml.safe_load((EXAMPLES / 'pytorchjob.yaml').read_text())
    assert job['kind'] == 'PyTorchJob'
    worker = job['spec']['pytorchReplicaSpecs']['Worker']
    elastic = job['spec']['elasticPolicy']
    assert elastic['minReplicas'] <= worker['replicas'] <= elastic['maxReplicas']
    container, = worker['template']['spec']['containers']
    volumes = {volume['name'] for volume in worker['template']['spec']['volumes']}
    assert {mount['name'] for mount in container['volumeMounts']} == volumes
    words = [*container['command'], *container['args']]
    launcher = get_args_parser().parse_args(words[1:])
    assert (launcher.module, launcher.training_script) == (True, 'colonnade')
    args = parse_options(ArgumentParser(), TrainCommand, words=launcher.training_script_args[1:])
    find_config(args.config)
    assert (args.resume, args.total_batch_size, args.data_root) == ('auto', 64, 's3://bucket/coco')


def test_ray_example_is_valid() -> None:
    tree = ast.parse((EXAMPLES / 'ray_train.py').read_text())
    calls = {ast.unparse(node.func): {key.arg for key in node.keywords} - {None}
             for node in ast.walk(tree) if isinstance(node, ast.Call)}  # yapf: disable
    known = set(TrainOptions.__dataclass_fields__)
    assert calls['dict'] | calls['colonnade.train'] <= known
    assert {'launcher', 'resume', 'total_batch_size'} <= calls['dict'] | calls['colonnade.train']


SLURM = dict(SLURM_PROCID='0', SLURM_NTASKS='1', SLURM_LOCALID='0', SLURM_NODELIST='here')


def test_slurm_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    assert get_torch_variables(SLURM) == dict(
        RANK='0', WORLD_SIZE='1', LOCAL_RANK='0', MASTER_ADDR='127.0.0.1', MASTER_PORT='29500')
    given = dict(SLURM, SLURM_PROCID='5', SLURM_NTASKS='8', MASTER_ADDR='a', MASTER_PORT='1')
    assert get_torch_variables(given) == dict(
        RANK='5', WORLD_SIZE='8', LOCAL_RANK='0', MASTER_ADDR='a', MASTER_PORT='1')
    monkeypatch.setenv('PATH', '')
    with pytest.raises(ValueError, match='did not print the first host .*: set MASTER_ADDR'):
        get_torch_variables(dict(SLURM, SLURM_NTASKS='2'))


@pytest.mark.slow
def test_slurm_training_on_cpu(shapes: Path, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        port = str(free.getsockname()[1])
    log = run_python('tools/train.py', config('sem_fpn'), '--data-root', shapes / 'ade',
                     '--work-dir', tmp_path, '--launcher', 'slurm', *SHORT,
                     'optim_wrapper.clip_grad=None', *NO_VAL, MASTER_PORT=port,
                     CUDA_VISIBLE_DEVICES='', **SLURM)  # yapf: disable
    assert 'Iter(train) [2/2]' in log


@pytest.mark.parametrize('launcher, variable, starter', [
    ('pytorch', 'RANK', 'torchrun'),
    ('slurm', 'SLURM_PROCID', 'srun'),
    ('mpi', 'OMPI_COMM_WORLD_RANK', 'mpirun'),
])
def test_missing_launcher_variable(launcher: str, variable: str, starter: str,
                                   monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(variable, raising=False)
    with pytest.raises(ValueError, match=f'{variable} is not set: .* with {starter}'):
        check_launcher(launcher)
    check_launcher('none')


@pytest.mark.parametrize('own, expected', [
    ({}, 30),
    (dict(env_cfg=None), 30),
    (dict(env_cfg=dict(dist_cfg=dict(backend='nccl'))), 30),
    (dict(env_cfg=dict(dist_cfg=dict(timeout=20))), 20),
])
def test_timeout_of_config(own: dict, expected: int) -> None:
    cfg = Config(own)
    set_timeout(cfg, 30)
    assert cfg.env_cfg.dist_cfg.timeout == expected


def test_metrics_are_gathered_between_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in dict(WORLD_SIZE='4', LOCAL_WORLD_SIZE='4', SLURM_NNODES='2').items():
        monkeypatch.setenv(name, value)
    assert not has_several_hosts('none') and not has_several_hosts('pytorch')
    assert has_several_hosts('slurm')
    monkeypatch.setenv('LOCAL_WORLD_SIZE', '2')
    assert has_several_hosts('pytorch')
    for head in ('mask_rcnn', 'sem_fpn'):
        cfg = read_config(config(head))
        cfg.test_evaluator.collect_dir = '/shared'
        gather_by_messages(cfg)
        assert cfg.val_evaluator.collect_device == 'gpu'
        assert 'collect_device' not in cfg.test_evaluator
