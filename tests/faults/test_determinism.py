"""The same seed on the same machine gives the same result to the bit."""
from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import LAYOUTS, NO_WORKERS, ROOT, config
from helpers.independent_processes import run_independently
from helpers.interrupted_runs import assert_same, run
from torch import nn

from colonnade.engine.runner.seeding import DATA, MODEL, Seed, SeededBatch


def drawn() -> tuple[float, ...]:
    """A number of each generator."""
    import random

    import numpy as np
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_seeds_are_distinct() -> None:
    seeds = [Seed(run, rank, iteration, purpose)
             for run in (0, 1) for rank in (0, 1) for iteration in (0, 7, 8)
             for purpose in (DATA, MODEL)]  # yapf: disable
    found = []
    for seed in seeds:
        seed.seed_generators()
        found.append(drawn())
        seed.seed_generators()
        assert drawn() == found[-1]
    assert all(len(set(each)) == len(seeds) for each in zip(*found, strict=True))


def test_batch_uses_its_seed() -> None:
    seed = Seed(3, 0, 5, DATA)
    batch = SeededBatch([4, 2], seed)
    assert list(batch) == [4, 2] and len(batch) == 2
    first = drawn()
    nn.Linear(2, 2)  # draws too
    assert list(batch) == [4, 2] and drawn() == first


@pytest.mark.parametrize('diff_rank_seed', [False, True])
def test_processes_share_initial_values(diff_rank_seed: bool, tmp_path: Path) -> None:
    command = [ROOT / 'tests/helpers/seeded_processes.py', tmp_path, diff_rank_seed]
    ended = run_independently(command, command, out=tmp_path, timeout=60)
    assert [each.status for each in ended] == [0, 0], ended
    one, other = (json.loads(each.printed.partition('FOUND ')[2].splitlines()[0])
                  for each in ended)  # yapf: disable
    for name in ('linear.weight', 'linear.bias', 'saved', 'unsaved'):
        assert one[name] == other[name]
    assert one['dropped'] != other['dropped']
    assert sorted(one['images'] + other['images']) == list(range(12))


@pytest.mark.slow
@pytest.mark.parametrize('head', ['mask_rcnn', 'sem_fpn', 'upernet'])
def test_training_is_deterministic(head: str, shapes: Path, tmp_path: Path) -> None:
    data, metrics = shapes / LAYOUTS[head], []
    for name, workers in (('one', 1), ('two', 2)):
        status, printed = run(
            'tools/train.py', config(head), '--data-root', data, '--work-dir', tmp_path / name,
            '--no-report', '--cfg-options', 'train_cfg.max_iters=4', 'train_cfg.val_interval=4',
            'randomness.seed=1', f'train_dataloader.num_workers={workers}',
            'model.backbone.drop_path_rate=0.2', OMP_NUM_THREADS='2',
            PYTHONHASHSEED=str(workers))  # yapf: disable
        assert not status, printed[-3000:]
        status, printed = run(
            'tools/test.py', config(head), tmp_path / name / 'iter_4.pth', '--data-root', data,
            '--work-dir', tmp_path / 'test', '--out', tmp_path / f'{name}.json',
            OMP_NUM_THREADS='2')  # yapf: disable
        assert not status, printed[-3000:]
        metrics.append(json.loads((tmp_path / f'{name}.json').read_text())['metrics'])
    assert_same(tmp_path / 'one/iter_4.pth', tmp_path / 'two/iter_4.pth')
    assert metrics[0] == metrics[1] and metrics[0]


@pytest.mark.slow
def test_seed_changes_training(shapes: Path, tmp_path: Path, run_tool: Callable) -> None:
    weights = []
    for seed in (1, 2):
        out = tmp_path / str(seed)
        run_tool('train', config('sem_fpn'), '--data-root', shapes / 'ade', '--work-dir', out,
                 '--no-report', '--cfg-options', 'train_cfg.max_iters=1', f'randomness.seed={seed}',
                 *NO_WORKERS)  # yapf: disable
        weights.append(torch.load(out / 'iter_1.pth', weights_only=False)['state_dict'])
    assert any(not torch.equal(value, weights[1][key]) for key, value in weights[0].items())
