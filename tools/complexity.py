"""Count parameters and multiply-adds of a config, or of all shipped configs.

    colonnade complexity configs/upernet/xcit_small_12_p16_160k_ade20k.py --size 512 512
    colonnade complexity configs/dino/xcit_small_12_p16_12ep_coco.py --time
    colonnade complexity --table     # all trunks and published configs beside the papers'

One multiply-add counts once, as in the papers.
"""
from __future__ import annotations

import argparse
from pathlib import Path

from colonnade.configs import find_config
from colonnade.tools.command_line import stoppable, user_errors


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        'config',
        nargs='?',
        type=Path,
        help='config file of mmdet or mmseg, or the name of one of ours')
    parser.add_argument(
        '--size',
        nargs=2,
        type=int,
        metavar=('HEIGHT', 'WIDTH'),
        help='input in pixels (800 1280 for detectors, 512 512 for segmenters)')
    parser.add_argument(
        '--time',
        action='store_true',
        help='also time and peak memory of the whole model, and time by part, as it is built\n'
        'and fused: random weights, on the CPU')
    parser.add_argument('--table', action='store_true', help='everything that the papers list')
    args = parser.parse_args()
    if args.table == bool(args.config):
        parser.error('either a config or --table')
    if args.table and args.time:
        parser.error('--time is for a config')
    return args


@stoppable('complexity')
def main() -> None:
    """Count what the command line names."""
    args = parse_args()
    with user_errors('complexity'):
        if not args.table:
            args.config = find_config(args.config)
        from colonnade.models.complexity import model_table, published_table  # takes seconds
        lines = published_table() if args.table else list(model_table(args.config, args.size))
    for line in lines:
        print(line, flush=True)
    if args.time:
        with user_errors('complexity'):
            from colonnade.evaluation.benchmark.full_models import cost_of
            from colonnade.evaluation.benchmark.model_profile import part_table
            print(
                '\nas it is built, in a process of its own; its heads find what random weights find'
            )
            print(f'{"time and peak memory":24} {cost_of(args.config, args.size)}', flush=True)
            print('\nby part, in turns; RoI heads find as many objects as they may', flush=True)
            for line in part_table(args.config, args.size):
                print(line)


if __name__ == '__main__':
    main()
