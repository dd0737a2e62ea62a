"""Write a config that trains a recipe of ours on your own data, and check the data on the way.

    python tools/new_config.py configs/mask_rcnn/xcit_small_12_p16_3x_coco.py \\
        --coco train.json val.json --images train/ val/
    python tools/new_config.py configs/sem_fpn/xcit_small_12_p16_80k_ade20k.py \\
        --masks masks/train masks/val --images images/train images/val --classes road sky tree
"""
from __future__ import annotations

import argparse
import os
import sys
import textwrap
from pathlib import Path
from typing import Any

from mmdet.visualization import get_palette
from mmengine.config import Config
from yapf.yapflib.yapf_api import FormatCode

from colonnade.engine.data_files import Report, repeated
from colonnade.engine.launch import write_text
from colonnade.engine.own_data import OwnData, describe_instances, describe_label_maps
from colonnade.engine.schedule import schedule

SPLITS = ('train', 'val')
LAYOUT = (('images', 'annotations'), ('training', 'validation'))  # of ADE20k


class Name(str):
    """A variable of the config, written as it is."""
    __repr__ = str.__str__


def parse_args() -> argparse.Namespace:
    """The command line, and as ``cfg`` the recipe."""
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
        help='folders of training and validation images, or one for both')
    parser.add_argument(
        '--classes',
        nargs='+',
        metavar='NAME',
        help='names of the labels in their order, or a file with one per line;\n'
        'with --coco those of its categories to train, instead of all')
    parser.add_argument(
        '--zero',
        choices=['unlabelled', 'class'],
        help='what label 0 of label maps is, where the data do not tell')
    parser.add_argument(
        '--suffixes',
        nargs=2,
        metavar=('IMAGE', 'MASK'),
        help='how names of images and of label maps end where it is more than\n'
        'the extension, e.g. _leftImg8bit.png _labelTrainIds.png')
    parser.add_argument('--batch-size', type=int, help="images a GPU (the recipe's)")
    parser.add_argument('--gpus', type=int, default=1, help='GPUs, or processes (1)')
    parser.add_argument('--epochs', type=int, help="passes over the data (the recipe's, or more)")
    parser.add_argument('--out', type=Path, help='file to write (LEAF_own.py, here)')
    args = parser.parse_args()
    args.out = args.out or Path(f'{args.leaf.stem}_own.py')
    try:
        args.cfg = load_leaf(args)
        args.images = folders_of_images(args)
        if args.masks and len(args.masks) == 1:
            args.masks = [args.masks[0] / LAYOUT[0][1] / split for split in LAYOUT[1]]
        args.classes = names_of_classes(args.classes)
    except (ValueError, OSError) as error:
        parser.exit(1, f'new_config: {error}\n')
    return args


def load_leaf(args: argparse.Namespace) -> Config:
    """The recipe, if it is one for these data.

    Raises:
        FileNotFoundError: If there is none.
        FileExistsError: If the file to write is there.
        ValueError: If recipe, data and numbers do not go together.
    """
    if not args.leaf.is_file():
        raise FileNotFoundError(f'no config file {args.leaf}')
    if args.out.exists():
        raise FileExistsError(f'{args.out} exists: name another --out')
    for option in ('batch_size', 'gpus', 'epochs'):
        if getattr(args, option) is not None and getattr(args, option) < 1:
            raise ValueError(f'--{option.replace("_", "-")} must be at least 1')
    cfg = Config.fromfile(args.leaf)
    scope = 'mmdet' if args.coco else 'mmseg'
    if cfg.default_scope != scope:
        raise ValueError('--coco is for detectors, --masks for segmenters, and '
                         f'{args.leaf} is a config of {cfg.default_scope}')
    if args.coco and (args.zero or args.suffixes):
        raise ValueError('--zero and --suffixes are for --masks')
    for split in SPLITS:
        dataset = cfg[f'{split}_dataloader'].dataset
        if 'pipeline' not in dataset:
            raise ValueError(f'{args.leaf}: {split}_dataloader.dataset must be one data set, not a '
                             f'{dataset.type}')
        if any('reduce_zero_label' in step for step in dataset.pipeline):
            raise ValueError(f'{args.leaf}: LoadAnnotations of the {split} pipeline must leave '
                             'reduce_zero_label to the data set')
    pools_to_one = 1 in cfg.model.get('decode_head', {}).get('pool_scales', ())
    if pools_to_one and args.batch_size == args.gpus == 1:
        raise ValueError(f'--batch-size 1 is too small: {cfg.model.decode_head.type} normalises '
                         'one value per image')
    return cfg


def folders_of_images(args: argparse.Namespace) -> list[Path]:
    """The folders of training and validation images.

    Raises:
        ValueError: If that is not what the command line says.
    """
    if args.masks and len(args.masks) == 1 and args.images is None:
        return [args.masks[0] / LAYOUT[0][0] / split for split in LAYOUT[1]]
    if args.images is None:
        raise ValueError('--images must name the folders of training and validation images')
    if len(args.images) > 2 or len(args.masks or ()) > 2:
        raise ValueError('--images and --masks take two folders, training and validation')
    if args.masks and len(args.images) != 2:
        raise ValueError('--images must name two folders, training and validation')
    return args.images * (2 // len(args.images))


def names_of_classes(given: list[str] | None) -> list[str] | None:
    """The names themselves, or those in a file.

    Raises:
        ValueError: If a name stands there twice, or none.
    """
    if given is None:
        return None
    names = given
    if len(given) == 1 and Path(given[0]).is_file():
        names = [line.strip() for line in Path(given[0]).read_text().splitlines() if line.strip()]
    if not names or repeated(names):
        raise ValueError(f'--classes must be names that differ, got {names}')
    return names


def look_at_data(args: argparse.Namespace, report: Report) -> OwnData | None:
    """What the data set is; None if it cannot be used."""
    if args.coco:
        filter_cfg = args.cfg.train_dataloader.dataset.get('filter_cfg') or {}
        return describe_instances(args.coco, args.images, args.classes, filter_cfg, report)
    return describe_label_maps(args.masks, args.images, args.suffixes, args.classes, args.zero,
                               report)


def with_num_classes(model: Any, number: int) -> Any:
    """The part of ``model`` that says ``num_classes``, saying ``number``; None if there is none."""
    if isinstance(model, dict):
        changed = {key: with_num_classes(value, number) for key, value in model.items()}
        changed = {key: value for key, value in changed.items() if value is not None}
        return changed | (dict(num_classes=number) if 'num_classes' in model else {}) or None
    if isinstance(model, list) and any(with_num_classes(item, number) for item in model):
        # lists of a base config are replaced as a whole
        return [{**item, **(with_num_classes(item, number) or {})} for item in model]
    return None


def settings(args: argparse.Namespace, data: OwnData) -> dict[str, Any]:
    """All that the config sets, in order."""
    palette = [tuple(map(int, colour)) for colour in get_palette('random', len(data.classes))]
    common = dict(data_root=Name('data_root'), metainfo=Name('metainfo'))
    train, val = (dict(dataset=dict(dataset, **common)) for dataset in data.datasets)
    if args.batch_size:
        train = dict(batch_size=args.batch_size, **train)
    content = dict(
        data_root=str(data.root),
        metainfo=dict(classes=data.classes, palette=palette),
        model=with_num_classes(args.cfg.model, len(data.classes)),
        train_dataloader=train,
        val_dataloader=val,
        test_dataloader=Name('val_dataloader'))
    if data.evaluator:
        content |= dict(val_evaluator=data.evaluator, test_evaluator=Name('val_evaluator'))
    changes, reasons = schedule(
        args.cfg,
        data.num_images[0],
        images_per_gpu=args.batch_size,
        num_gpus=args.gpus,
        epochs=args.epochs)
    data.reasons += reasons
    return content | changes


def python_source(value: Any) -> str:
    """A value as configs write it."""
    if isinstance(value, dict):
        return f'dict({", ".join(f"{key}={python_source(item)}" for key, item in value.items())})'
    if isinstance(value, list):
        return f'[{", ".join(map(python_source, value))}]'
    return repr(value)


def leaf_source(args: argparse.Namespace, content: dict[str, Any], data: OwnData) -> str:
    """The config file."""
    leaf, folder = args.leaf.resolve(), args.out.resolve().parent
    if folder.is_relative_to(leaf.parent.parent):
        base = os.path.relpath(leaf, folder)  # among the configs: they may move together
    else:
        base = str(leaf)
    trained, evaluated = data.num_images
    comments = [
        f'{trained} training and {evaluated} validation images, {len(data.classes)} classes, as '
        'tools/new_config.py found them.', *data.reasons
    ]
    lines = [
        line for comment in comments
        for line in textwrap.wrap(comment, 98, initial_indent='# ', subsequent_indent='#   ')
    ]
    lines += [f'_base_ = {base!r}', '']
    lines += (f'{key} = {python_source(value)}' for key, value in content.items())
    style = '{based_on_style: pep8, column_limit: 100, ' \
            'split_before_expression_after_opening_paren: true}'
    return FormatCode('\n'.join(lines) + '\n', style_config=style)[0]


def main() -> None:
    """Check the data, list all that is wrong, and write the config if nothing is."""
    args, report = parse_args(), Report()
    print('reading annotations and the headers of images ...', flush=True)
    data = look_at_data(args, report)
    for remark in report.remarks:
        print(f'remark: {remark}')
    for fault in report.faults:
        print(f'fault: {fault}', file=sys.stderr)
    if report.faults:
        sys.exit(f'new_config: {len(report.faults)} faults, no config was written')
    try:
        content = settings(args, data)
        write_text(args.out, leaf_source(args, content, data))
    except (ValueError, OSError) as error:
        sys.exit(f'new_config: {error}')
    print('\n'.join((f'{len(data.classes)} classes: {", ".join(data.classes)}', *data.reasons)))
    print(f'written: {args.out}\ntrain with: python tools/train.py {args.out}')


if __name__ == '__main__':
    main()
