"""Compare training iterations with mmengine's stock runner on the same config, in turns.

    python docs/measure_steps.py sem_fpn/xcit_nano_12_p16_slim_shapes data/shapes/ade

Prints the seconds of an iteration, and which part of it is neither model nor optimizer: waiting for
data, hooks, logging, and checks. Times are medians without the first iterations.
"""
from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import Tensor

CONTESTANTS = ('colonnade', 'mmengine')
WARM_UP = 5


class Stopwatch(Hook):
    """A hook that records the time of iterations, and of the model and the optimizer in them."""
    priority = 'LOWEST'  # so that the model's time starts after all other hooks

    def __init__(self) -> None:
        self.starts: list[float] = []
        self.model: list[float] = []

    def before_train_iter(self, *_: Any, **__: Any) -> None:
        self.starts.append(time.perf_counter())


class Stop(Hook):
    """A hook that ends the model's time before all other hooks, and frees the model's graph."""
    priority = 0

    def __init__(self, stopwatch: Stopwatch) -> None:
        self.stopwatch = stopwatch

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any,
                         outputs: dict[str, Any]) -> None:
        outputs.update({
            name: value.detach()
            for name, value in outputs.items() if isinstance(value, Tensor)
        })
        self.stopwatch.model.append(time.perf_counter() - self.stopwatch.starts[-1])


def run(name: str, config: Path, data: Path, iterations: int, work_dir: Path) -> None:
    """Train, and print the medians as JSON."""
    from colonnade.engine.options import TrainOptions
    from colonnade.engine.training import load_training_settings, prepare_runner
    options = TrainOptions(
        config=config,
        data_root=data,
        work_dir=work_dir,
        report=False,
        cfg_options={
            'train_cfg.max_iters': iterations,
            'randomness.seed': 0,
            'val_dataloader': None,
            'val_cfg': None,
            'val_evaluator': None
        })
    stopwatch = Stopwatch()

    def train(runner: Runner) -> None:
        runner.register_hook(stopwatch)
        runner.register_hook(Stop(stopwatch))
        runner.train()

    if name == 'mmengine':
        cfg = load_training_settings(options).config
        cfg.pop('runner_type', None)
        train(Runner.from_cfg(cfg))
    else:
        with prepare_runner(options) as runner:
            train(runner)
    starts = stopwatch.starts
    whole = [end - start for start, end in zip(starts, starts[1:], strict=False)][WARM_UP:]
    rest = [each - part for each, part in zip(whole, stopwatch.model[WARM_UP:], strict=False)]
    print(json.dumps([statistics.median(whole), statistics.fmean(rest) / statistics.fmean(whole)]))


def main() -> None:
    """Measure the contestants in turns, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('config', type=Path)
    parser.add_argument('data', type=Path)
    parser.add_argument('--iterations', type=int, default=40)
    parser.add_argument('--rounds', type=int, default=3)
    parser.add_argument('--only', choices=CONTESTANTS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if args.only:
            from colonnade.configs import find_config
            run(args.only, find_config(args.config), args.data, args.iterations, Path(folder))
            return
    measured: dict[str, list[list[float]]] = {name: [] for name in CONTESTANTS}
    for _ in range(args.rounds):
        for name, rows in measured.items():
            command = [sys.executable, *sys.argv, '--only', name]
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            rows.append(json.loads(output.splitlines()[-1]))
    for name, rows in measured.items():
        whole, rest = (statistics.median(values) for values in zip(*rows, strict=True))
        print(f'{name:10} {whole:.3f} s, {rest:.1%} neither model nor optimizer')


if __name__ == '__main__':
    main()
