"""Write a config that trains a recipe of ours on your own data, and check the data on the way.

    python tools/new_config.py configs/mask_rcnn/xcit_small_12_p16_3x_coco.py \\
        --coco train.json val.json --images train/ val/
    python tools/new_config.py configs/sem_fpn/xcit_small_12_p16_80k_ade20k.py \\
        --masks masks/train masks/val --images images/train images/val --classes road sky tree
"""
from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path

from mmengine.config import Config

from colonnade.engine.atomic import write_text
from colonnade.engine.own_data.config import config_source, load_recipe, loads_masks, settings
from colonnade.engine.own_data.describe import OwnData, describe_instances, describe_label_maps
from colonnade.engine.own_data.files import Report, repeated

LAYOUT = (('images', 'annotations'), ('training', 'validation'))  # of ADE20k


def make_parser() -> argparse.ArgumentParser:
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
    return parser


def parse_args() -> argparse.Namespace:
    """The command line, and as ``cfg`` the recipe."""
    parser = make_parser()
    args = parser.parse_args()
    args.out = args.out or Path(f'{args.leaf.stem}_own.py')
    try:
        check_options(args)
        args.cfg = load_recipe(args.leaf, 'mmdet' if args.coco else 'mmseg')
        check_batch_size(args)
        args.classes = names_of_classes(args.classes)
        args.images = folders_of_images(args)
        if args.masks and len(args.masks) == 1:
            args.masks = [args.masks[0] / LAYOUT[0][1] / split for split in LAYOUT[1]]
    except (ValueError, OSError) as error:
        parser.exit(1, f'new_config: {error}\n')
    return args


def check_options(args: argparse.Namespace) -> None:
    """Whether the options go together.

    Raises:
        FileExistsError: If the file to write is there.
        ValueError: If they do not.
    """
    if args.out.suffix != '.py':
        raise ValueError(f'--out must end in .py, got {args.out}')
    if os.path.lexists(args.out):
        raise FileExistsError(f'{args.out} exists: name another --out')
    for option in ('batch_size', 'gpus', 'epochs'):
        if getattr(args, option) is not None and getattr(args, option) < 1:
            raise ValueError(f'--{option.replace("_", "-")} must be at least 1')
    if args.coco and (args.zero or args.suffixes or args.ignore_255):
        raise ValueError('--zero, --suffixes and --ignore-255 are for --masks')
    if args.masks and args.boxes:
        raise ValueError('--boxes is for --coco')
    for path in args.masks or ():
        if path.is_file():
            raise ValueError(f"{path} is a file and --masks takes folders of label maps. Instances "
                             "in COCO's form are for --coco, with a config of a detector")


def check_batch_size(args: argparse.Namespace) -> None:
    """Raise a ValueError if the recipe's heads need more than one image."""
    head = args.cfg.model.get('decode_head')
    pools_to_one = isinstance(head, dict) and 1 in head.get('pool_scales', ())
    if pools_to_one and args.batch_size == args.gpus == 1:
        raise ValueError(f'--batch-size 1 is too small: {head.type} normalises one value per image')


def folders_of_images(args: argparse.Namespace) -> list[Path]:
    """The folders of training and validation images.

    Raises:
        ValueError: If that is not what the command line says.
    """
    if args.masks and len(args.masks) == 1 and args.images is None:
        if not (args.masks[0] / LAYOUT[0][1] / LAYOUT[1][0]).is_dir():
            raise ValueError(f'{args.masks[0]} is not laid out as ADE20k (annotations/training, '
                             'images/training ...): name two folders of --masks and of --images')
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
        OSError: If the file cannot be read.
        ValueError: If it is no text, or if a name stands there twice, or none.
    """
    if given is None:
        return None
    names = given
    if len(given) == 1 and os.path.isfile(given[0]):
        try:
            text = Path(given[0]).read_text(encoding='utf-8-sig')
        except UnicodeDecodeError as error:
            raise ValueError(f'--classes: {given[0]} is no text in UTF-8: {error}') from error
        names = [line.strip() for line in text.splitlines() if line.strip()]
    if not names or repeated(names):
        raise ValueError(f'--classes must be names that differ, got {names}')
    return names


def look_at_data(args: argparse.Namespace, report: Report) -> OwnData | None:
    """What the data set is; None if it cannot be used."""
    if args.coco:
        return describe_instances(
            args.coco,
            args.images,
            args.classes,
            masks=loads_masks(args.cfg) and not args.boxes,
            filter_cfg=args.cfg.train_dataloader.dataset.get('filter_cfg') or {},
            report=report)
    return describe_label_maps(
        args.masks,
        args.images,
        args.suffixes and tuple(args.suffixes),
        args.classes,
        zero=args.zero,
        ignore_255=args.ignore_255,
        report=report)


def write_config(args: argparse.Namespace, data: OwnData) -> None:
    """Write the config, if it is one.

    Raises:
        OSError: If it cannot be written.
        ValueError: If it cannot be made of the recipe.
    """
    content = settings(
        args.cfg,
        data,
        out=args.out,
        batch_size=args.batch_size,
        num_gpus=args.gpus,
        epochs=args.epochs)
    write_text(args.out, config_source(args.leaf, args.out, content, data))
    try:
        Config.fromfile(args.out)
    except Exception as error:  # a config is a program, and so is the recipe that it starts from
        args.out.unlink()
        raise ValueError(f'no config can start from {args.leaf}: {error}') from error


def command(args: argparse.Namespace) -> str:
    """What trains the config, from the current directory on."""
    ours, below = Path(__file__).with_name('train.py'), Path('tools/train.py')
    is_here = below.is_file() and ours.is_file() and below.samefile(ours)
    train = 'tools/train.py' if is_here else '-m colonnade.tools.train'
    config = shlex.quote(str(args.out))
    if args.gpus == 1:
        return f'python {train} {config}'
    return f'torchrun --nproc-per-node {args.gpus} {train} {config} --launcher pytorch'


def main() -> None:
    """Check the data, list all that is wrong, and write the config if nothing is."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors='backslashreplace')  # names of files may be in any encoding
    args, report = parse_args(), Report()
    print('reading annotations and the headers of images ...', flush=True)
    data = look_at_data(args, report)
    for remark in report.remarks:
        print(f'remark: {remark}')
    for fault in report.faults:
        print(f'fault: {fault}', file=sys.stderr)
    if report.num_faults:
        faults = 'fault' if report.num_faults == 1 else 'faults'
        sys.exit(f'new_config: {report.num_faults} {faults}, no config was written')
    try:
        write_config(args, data)
    except (ValueError, OSError) as error:
        sys.exit(f'new_config: {error}')
    print('\n'.join((f'{len(data.classes)} classes: {", ".join(data.classes)}', *data.reasons)))
    print(f'written: {args.out}\ntrain with: {command(args)}')


if __name__ == '__main__':
    main()
