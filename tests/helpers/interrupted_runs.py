"""Short trainings that are stopped, and what they leave."""
from __future__ import annotations

import csv
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from conftest import LAYOUTS, ROOT, config

from colonnade.weights.downloads import fetch

#: all that follows from the seed is switched on: averaged weights, drop path, crops and flips
AVERAGING = "[dict(type='EMAHook', momentum=0.1)]"
PARTS = ('state_dict', 'ema_state_dict', 'optimizer', 'param_schedulers')
WORKERS = ['train_dataloader.num_workers=2', 'train_dataloader.persistent_workers=True']


def differences(one: Any, other: Any, path: str = '') -> list[str]:
    """Yield where two checkpoints are not equal bit for bit."""
    if isinstance(one, torch.Tensor):
        return [] if torch.equal(one, other) else [path]
    if isinstance(one, dict):
        assert one.keys() == other.keys(), path
        return [d for key in one for d in differences(one[key], other[key], f'{path}/{key}')]
    if isinstance(one, (list, tuple)):
        assert len(one) == len(other), path
        return [d for i, (a, b) in enumerate(zip(one, other, strict=True))
                for d in differences(a, b, f'{path}/{i}')]  # yapf: disable
    return [] if one == other else [path]


def assert_same(one: Path, other: Path) -> None:
    """Two checkpoints have the same state of training."""
    a, b = (fetch(path) for path in (one, other))
    assert 'optimizer' in a
    for part in PARTS:
        assert (part in a) == (part in b), part
        assert not (found := differences(a.get(part), b.get(part), part)), found[:5]
    for key in ('iter', 'epoch', 'seed'):
        assert a['meta'][key] == b['meta'][key], key


@dataclass
class Runs:
    """Short trainings in a folder.

    Attributes:
        folder: Folder of the config and of all work dirs.
        shapes: The data.
    """
    folder: Path
    shapes: Path

    def config(self, head: str, *lines: str, averaging: bool = True, **signalled: Any) -> Path:
        """Write a config: of a head, with lines besides, and a signal."""
        hooks = AVERAGING if averaging else '[]'
        if signalled:
            settings = dict(type='SignalledOnce', done=str(self.folder / 'done'), **signalled)
            hooks = f'[{settings!r}] + {hooks}'
        text = [
            f'_base_ = {str(config(head))!r}',
            "custom_imports = dict(imports=[*_base_.custom_imports.imports, "
            "'helpers.signalled_once'])",
            f"custom_hooks = [*_base_.get('custom_hooks', []), *{hooks}]",
            'model = dict(backbone=dict(drop_path_rate=0.2))', *lines
        ]
        (self.folder / 'own.py').write_text('\n'.join(text))
        return self.folder / 'own.py'

    def words(self,
              name: str,
              *options: str,
              head: str = 'sem_fpn',
              iters: int = 4,
              start: tuple[Any, ...] = ()) -> list[str]:
        """The command line of a training with checkpoints of every second iteration."""
        loop = [f'train_cfg.max_iters={iters}', 'train_cfg.val_interval=2',
                'default_hooks.checkpoint.interval=2'] if iters else []  # yapf: disable
        return [str(word) for word in (
            self.folder / 'own.py', '--data-root', self.shapes / LAYOUTS.get(head, 'coco'),
            '--work-dir', self.folder / name, *start, '--no-report', '--cfg-options', *loop,
            'randomness.seed=3', 'default_hooks.logger.interval=1',
            'train_dataloader.batch_size=2', *options)]  # yapf: disable


def start(*command: Any, **environ: str) -> subprocess.Popen:
    """Start Python in a group of processes of its own."""
    return subprocess.Popen([sys.executable, '-W', 'ignore', *map(str, command)],
                            env={
                                **os.environ, 'PYTHONPATH': str(ROOT / 'tests'),
                                **environ
                            },
                            cwd=ROOT,
                            stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT,
                            text=True,
                            start_new_session=True)


def run(*command: Any, **environ: str) -> tuple[int, str]:
    """Run Python so; returns its status and output."""
    program = start(*command, **environ)
    printed = program.communicate(timeout=500)[0]
    return program.returncode, printed


def evaluations(work_dir: Path) -> list[dict[str, str]]:
    """The rows of evaluations, without times."""
    with (work_dir / 'metrics.csv').open() as file:
        rows = list(csv.DictReader(file))
    return [{key: value for key, value in row.items() if 'time' not in key}
            for row in rows if not row['loss']]  # yapf: disable
