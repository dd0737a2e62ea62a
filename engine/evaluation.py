"""From the arguments of ``tools/test.py`` to a runner that is ready to test, and its metrics."""
from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from mmengine.config import Config
from mmengine.dist import is_main_process
from mmengine.evaluator import BaseMetric
from mmengine.runner import Runner
from torch import nn

from colonnade.weights.files import trusting

from .atomic import check_writable, write_json
from .checks import check_config
from .data_sources import check_data
from .hooks import drop_averaging
from .launch import build_runner, check_metrics, load_config
from .runner import StrictRunner, compile_parts, fuse_trunks
from .tta import augment_tests

AVERAGES = ('mAP', 'mAP_50', 'mAP_75')


def testing_config(args: argparse.Namespace) -> Config:
    """The config that the command line asks for, checked as far as it can be without a model.

    Args:
        args: Of ``tools/test.py``.

    Raises:
        OSError: If a file or folder is missing.
        ValueError: If the config, the options and the data do not fit each other.
    """
    cfg = load_config(args)
    check_metrics(cfg, 'test_evaluator')
    drop_averaging(cfg)
    cfg.load_from, cfg.resume = args.checkpoint, False
    check_data(cfg, ('test_dataloader', ))
    check_config(cfg, ('test_dataloader', ))
    if args.tta:
        augment_tests(cfg)
    if '://' not in args.checkpoint and not Path(args.checkpoint).expanduser().is_file():
        raise FileNotFoundError(f'no checkpoint {args.checkpoint}')
    return cfg


@contextmanager
def prepared_runner(args: argparse.Namespace) -> Iterator[Runner]:
    """A runner that is ready to test.

    Args:
        args: Of ``tools/test.py``.

    Raises:
        OSError: If a file or folder is missing, or cannot be written.
        ValueError: If the config, the options, the data and the weights do not fit each other.
    """
    cfg = testing_config(args)
    Path(cfg.work_dir).mkdir(parents=True, exist_ok=True)
    if args.out:
        check_writable(args.out)
    with trusting(args.trust):
        runner = build_runner(cfg)
        if (args.fuse or args.compile) and not isinstance(runner, StrictRunner):
            raise ValueError('--fuse and --compile need the default runner, the config asks for '
                             f'{type(runner).__name__}')
        runner.prepare = partial(prepare, fuse=args.fuse, compile=args.compile)
        if isinstance(runner, StrictRunner):
            runner.check_weights()
        yield runner


def prepare(model: nn.Module, *, fuse: bool, compile: bool) -> None:
    """Fuse or compile a model whose weights are loaded."""
    if fuse:
        fuse_trunks(model)
    if compile:
        compile_parts(model)


def complete(metrics: dict[str, float],
             evaluators: Iterable[BaseMetric]) -> dict[str, float | None]:
    """``metrics`` with an mAP of 0 where nothing was detected, and None for what is undefined.

    mmdet's CocoMetric gives no numbers at all for a model without a single detection.

    Args:
        metrics: What the evaluators computed.
        evaluators: Of the test.
    """
    absent: dict[str, float] = {}
    for evaluator in evaluators:
        if type(evaluator).__name__ not in ('CocoMetric', 'FasterCocoMetric'):
            continue
        prefix = f'{evaluator.prefix}/' if evaluator.prefix else ''
        if evaluator.format_only or any(key.startswith(prefix) for key in metrics):
            continue
        names = [name for name in AVERAGES if name in (evaluator.metric_items or AVERAGES)]
        kinds = [kind for kind in evaluator.metrics if kind in ('bbox', 'segm')]
        absent |= {f'{prefix}{kind}_{name}': 0. for kind in kinds for name in names}
    metrics = {**absent, **metrics}
    return {key: float(v) if math.isfinite(v) else None for key, v in metrics.items()}


def report(found: dict[str, float], runner: Runner, args: argparse.Namespace) -> None:
    """Print the metrics of a test, then write them; in the first process alone.

    Args:
        found: What the evaluators computed.
        runner: That computed it.
        args: Of ``tools/test.py``.

    Raises:
        OSError: If they cannot be written.
    """
    if not is_main_process():
        return
    metrics = complete(found, runner.test_loop.evaluator.metrics)
    if not metrics:
        print('no metrics: the evaluators of the config compute none')
    for key, value in metrics.items():
        print(f'{key:24} {"undefined" if value is None else f"{value:.4g}"}')
    out = args.out or Path(runner.log_dir, 'metrics.json')
    content = dict(config=str(args.config), checkpoint=args.checkpoint, metrics=metrics)
    try:
        write_json(out, content)
    except OSError as error:
        raise OSError(f'the metrics cannot be written: {error}') from error
    print(f'written to {out}')
