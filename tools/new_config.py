"""Write a config that trains a recipe of ours on your own data, and check the data on the way.

    python tools/new_config.py configs/mask_rcnn/xcit_small_12_p16_3x_coco.py \\
        --coco train.json val.json --images train/ val/
    python tools/new_config.py configs/sem_fpn/xcit_small_12_p16_80k_ade20k.py \\
        --masks masks/train masks/val --images images/train images/val --classes road sky tree
"""
from __future__ import annotations

import argparse
import sys
from io import TextIOWrapper
from pathlib import Path

from colonnade.tools.command_line import require_config, user_errors


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.split('\n\n')[0], formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument('leaf', type=Path, help='the config to start from')
    kind = parser.add_mutually_exclusive_group(required=True)
    kind.add_argument(
        '--coco',
        nargs=2,
        type=Path,
        metavar=('TRAIN_JSON', 'VAL_JSON'),
        help="instances in COCO's form, for a detector")
    kind.add_argument(
        '--masks',
        nargs='+',
        type=Path,
        metavar='DIR',
        help='label maps, for a segmenter: folders of training and validation,\n'
        "or one that is laid out as ADE20k's")
    parser.add_argument(
        '--images',
        nargs='+',
        type=Path,
        metavar='DIR',
        help='folders of training and validation images, with --coco, one for both')
    parser.add_argument(
        '--classes',
        nargs='+',
        metavar='NAME',
        help='names of the labels in their order, or a file with one per line;\n'
        'with --coco those of its categories to train, instead of all')
    parser.add_argument(
        '--zero',
        choices=['unlabelled', 'class'],
        help='what label 0 of label maps is (found where the data tell)')
    parser.add_argument(
        '--suffixes',
        nargs=2,
        metavar=('IMAGE', 'MASK'),
        help='how names of images and of label maps end, the rest being equal, e.g.\n'
        '_leftImg8bit.png _labelTrainIds.png (found where the names tell)')
    parser.add_argument(
        '--ignore-255',
        action='store_true',
        help='label 255 stands for unlabelled pixels, though classes have none')
    parser.add_argument(
        '--boxes', action='store_true', help='train boxes alone, whatever segmentations there are')
    parser.add_argument('--batch-size', type=int, help="images a GPU (the recipe's)")
    parser.add_argument('--gpus', type=int, default=1, help='GPUs, or processes (1)')
    parser.add_argument('--epochs', type=int, help="passes over the data (the recipe's, or more)")
    parser.add_argument('--out', type=Path, help='file to write (LEAF_own.py, here)')
    return parser.parse_args()


def main() -> None:
    """Check the data, list all that is wrong, and write the config if nothing is."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # names of files may be in any encoding
            stream.reconfigure(errors='backslashreplace')
    args = parse_args()
    with user_errors('new_config'):
        require_config(args.leaf)
        from colonnade.engine.own_data import command  # takes seconds
        cfg, report = command.complete(args), command.Report()
    print('reading annotations and the headers of images ...', flush=True)
    data = command.look_at_data(cfg, args, report)
    for remark in report.remarks:
        print(f'remark: {remark}')
    for fault in report.faults:
        print(f'fault: {fault}', file=sys.stderr)
    if report.num_faults:
        faults = 'fault' if report.num_faults == 1 else 'faults'
        sys.exit(f'new_config: {report.num_faults} {faults}, no config was written')
    with user_errors('new_config'):
        command.write_config(cfg, args, data)
    print('\n'.join((f'{len(data.classes)} classes: {", ".join(data.classes)}', *data.reasons)))
    print(f'written: {args.out}\ntrain with: {command.command(args)}')


if __name__ == '__main__':
    main()
