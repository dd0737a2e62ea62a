"""Evaluate a checkpoint: box and mask mAP of a detector, mIoU of a segmenter.

    python tools/test.py configs/mask_rcnn/xcit_small_12_p16_3x_coco.py epoch_36.pth
"""
from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

from mmengine.config import Config
from mmengine.dist import is_main_process

from colonnade.engine.launch import (add_launch_arguments, build_runner, check_data, evaluators,
                                     load_config, write_json)
from colonnade.engine.runner import compile_parts, fuse_trunks
from colonnade.engine.test_time_augmentation import augment_tests


def parse_args() -> argparse.Namespace:
    """The command line, and as ``cfg`` the config that it asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_launch_arguments(parser)
    parser.add_argument(
        'checkpoint', help='file or address, also of a published detector or segmenter')
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
        check_data(args.cfg, ('test_dataloader', ))
        if args.tta:
            augment_tests(args.cfg)
        if '://' not in args.checkpoint and not Path(args.checkpoint).expanduser().is_file():
            raise FileNotFoundError(f'no checkpoint {args.checkpoint}')
        Path(args.cfg.work_dir).mkdir(parents=True, exist_ok=True)
    except (ValueError, OSError) as error:
        parser.exit(1, f'test: {error}\n')
    return args


def complete(metrics: dict[str, float], cfg: Config) -> dict[str, float | None]:
    """``metrics`` with an mAP of 0 where nothing was detected, and None for what is undefined.

    CocoMetric gives no numbers at all for a model without a single detection.
    """
    absent = {}
    for evaluator in evaluators(cfg):
        if evaluator.type in ('CocoMetric', 'FasterCocoMetric'):
            kinds = evaluator.get('metric', 'bbox')
            for kind in [kinds] if isinstance(kinds, str) else kinds:
                absent |= {f'coco/{kind}_{name}': 0. for name in ('mAP', 'mAP_50', 'mAP_75')}
    metrics = {**absent, **metrics}
    return {key: float(v) if math.isfinite(v) else None for key, v in metrics.items()}


def main() -> None:
    """Evaluate, print the metrics and write them."""
    args = parse_args()
    args.cfg.load_from = None
    runner = build_runner(args.cfg)
    try:
        runner.load_checkpoint(args.checkpoint, map_location='cpu', strict=True)
        if args.fuse:
            fuse_trunks(runner.model)
        if args.compile:
            compile_parts(runner.model)
    except (ValueError, OSError) as error:
        sys.exit(f'test: {error}')
    metrics = complete(runner.test(), args.cfg)
    if is_main_process():
        out = args.out or Path(runner.log_dir, 'metrics.json')
        write_json(out, dict(config=str(args.config), checkpoint=args.checkpoint, metrics=metrics))
        for key, value in metrics.items():
            print(f'{key:24} {"undefined" if value is None else f"{value:.4g}"}')
        print(f'written to {out}')


if __name__ == '__main__':
    main()
