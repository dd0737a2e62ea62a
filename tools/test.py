"""Evaluate a checkpoint: box and mask mAP of a detector, mIoU of a segmenter.

    python tools/test.py configs/mask_rcnn/xcit_small_12_p16_3x_coco.py epoch_36.pth
"""
from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from mmengine.dist import is_main_process
from mmengine.evaluator import BaseMetric
from torch import nn

from colonnade.engine.atomic import check_writable, write_json
from colonnade.engine.checks import check_config
from colonnade.engine.data_sources import check_data
from colonnade.engine.hooks import drop_averaging
from colonnade.engine.launch import add_launch_arguments, build_runner, load_config
from colonnade.engine.runner import StrictRunner, compile_parts, fuse_trunks
from colonnade.engine.tta import augment_tests
from colonnade.weights.files import trusting
from colonnade.weights.state_dicts import WeightsError

AVERAGES = ('mAP', 'mAP_50', 'mAP_75')


def parse_args() -> argparse.Namespace:
    """The command line, and as ``cfg`` the config that it asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_launch_arguments(parser)
    parser.add_argument('checkpoint', help='file or URL, also of a published detector or segmenter')
    parser.add_argument(
        '--out', type=Path, help='JSON file for the metrics (WORK_DIR/TIMESTAMP/metrics.json)')
    parser.add_argument('--tta', action='store_true', help='merge six scales, flipped and not')
    speed = parser.add_mutually_exclusive_group()
    speed.add_argument(
        '--fuse', action='store_true', help="fold the trunk's norms and scales into its layers")
    speed.add_argument('--compile', action='store_true', help='torch.compile trunk and pyramid')
    args = parser.parse_args()
    try:
        args.cfg = load_config(args)
        drop_averaging(args.cfg)
        args.cfg.load_from, args.cfg.resume = args.checkpoint, False
        check_data(args.cfg, ('test_dataloader', ))
        check_config(args.cfg, ('test_dataloader', ))
        if args.tta:
            augment_tests(args.cfg)
        if '://' not in args.checkpoint and not Path(args.checkpoint).expanduser().is_file():
            raise FileNotFoundError(f'no checkpoint {args.checkpoint}')
        Path(args.cfg.work_dir).mkdir(parents=True, exist_ok=True)
        if args.out:
            check_writable(args.out)
    except (ValueError, OSError) as error:
        parser.exit(1, f'test: {error}\n')
    return args


def complete(metrics: dict[str, float],
             evaluators: Iterable[BaseMetric]) -> dict[str, float | None]:
    """``metrics`` with an mAP of 0 where nothing was detected, and None for what is undefined.

    mmdet's CocoMetric gives no numbers at all for a model without a single detection.

    Args:
        metrics: What the evaluators computed.
        evaluators: Of the test.
    """
    absent = {}
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


def prepare(model: nn.Module, *, fuse: bool, compile: bool) -> None:
    """Fuse or compile a model whose weights are loaded."""
    if fuse:
        fuse_trunks(model)
    if compile:
        compile_parts(model)


def report(metrics: dict[str, float | None], args: argparse.Namespace, log_dir: str) -> None:
    """Print metrics, then write them."""
    if not metrics:
        print('no metrics: the evaluators of the config compute none')
    for key, value in metrics.items():
        print(f'{key:24} {"undefined" if value is None else f"{value:.4g}"}')
    out = args.out or Path(log_dir, 'metrics.json')
    write_json(out, dict(config=str(args.config), checkpoint=args.checkpoint, metrics=metrics))
    print(f'written to {out}')


def main() -> None:
    """Evaluate, print the metrics and write them."""
    args = parse_args()
    with trusting(args.trust):
        try:
            runner = build_runner(args.cfg)
            if (args.fuse or args.compile) and not isinstance(runner, StrictRunner):
                raise ValueError(f'--fuse and --compile need the default runner, the config asks '
                                 f'for {type(runner).__name__}')
            runner.prepare = partial(prepare, fuse=args.fuse, compile=args.compile)
            if isinstance(runner, StrictRunner):
                runner.check_weights()
        except (ValueError, OSError) as error:
            sys.exit(f'test: {error}')
        try:
            found = runner.test()
        except (WeightsError, FileNotFoundError) as error:
            sys.exit(f'test: {error}')
    if is_main_process():
        try:
            report(complete(found, runner.test_loop.evaluator.metrics), args, runner.log_dir)
        except OSError as error:
            sys.exit(f'test: the metrics cannot be written: {error}')


if __name__ == '__main__':
    main()
