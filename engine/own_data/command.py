"""What ``tools/new_config.py`` does, from its arguments to a config."""
from __future__ import annotations

import argparse
import os
import re
import shlex
from pathlib import Path

from mmengine.config import Config

from ..atomic import write_text
from ..data_doors.door import Kind
from ..data_doors.doors import opened
from ..data_validation.findings import Report, repeated
from .config import config_source, load_recipe, loads_masks, settings
from .describe import OwnData, describe_instances
from .describe_labels import describe_label_maps

LAYOUT = (('images', 'annotations'), ('training', 'validation'))  # of ADE20k
TOOLS = Path(__file__).resolve().parents[2] / 'tools'


def complete(args: argparse.Namespace) -> Config:
    """Check the options, fill in what follows from others, and read the recipe.

    Args:
        args: Of ``tools/new_config.py``; changed.

    Raises:
        OSError: If a file is missing, or the one to write exists.
        ValueError: If the options do not go together or with the recipe.
    """
    args.out = args.out or Path(f'{args.leaf.stem}_own.py')
    check_options(args)
    scopes = [scope for scope, data in (('mmdet', args.coco), ('mmseg', args.masks)) if data]
    cfg = load_recipe(args.leaf, scopes or ['mmdet', 'mmseg'])
    check_batch_size(cfg, args)
    complete_data_options(args)
    return cfg


def complete_data_options(args: argparse.Namespace) -> None:
    """Fill in the folders and names of classes that follow from other options.

    Args:
        args: Options that say where the data are; changed.

    Raises:
        OSError: If the file of classes cannot be read.
        ValueError: If the options are not enough, or name a class twice.
    """
    args.classes = names_of_classes(args.classes)
    if args.data:  # a door sets the rest
        return
    args.images = folders_of_images(args)
    if args.masks and len(args.masks) == 1 and args.split is None:
        args.masks = [args.masks[0] / LAYOUT[0][1] / split for split in LAYOUT[1]]


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
    check_data_options(args)


def check_data_options(args: argparse.Namespace) -> None:
    """Raise a ValueError if the options that say where the data are do not go together."""
    check_split_options(args)
    if args.data and args.images:
        raise ValueError('--images is for --coco and --masks: --data finds images')
    if args.data and len(args.data) > 2:
        raise ValueError('--data takes one path, or two: training and validation')
    if args.coco and len(args.coco) != (1 if args.split else 2):
        raise ValueError('--coco takes two files, training and validation, or one with --split 0.2')
    if args.coco and (args.zero or args.suffixes or args.ignore_255 or args.colours):
        raise ValueError('--zero, --suffixes, --ignore-255 and --colours are for --masks')
    if args.masks and args.boxes:
        raise ValueError('--boxes is for --coco')
    for path in args.masks or ():
        if path.is_file():
            raise ValueError(f"{path} is a file and --masks takes folders of label maps. Instances "
                             "in COCO's form are for --coco, with a config of a detector")


def check_split_options(args: argparse.Namespace) -> None:
    """Raise a ValueError if the options that split one data set do not go together."""
    if args.split is None and (args.group or args.split_seed):
        raise ValueError('--group and --split-seed are for --split')
    if args.split is not None and not 0 < args.split < 1:
        raise ValueError(f'--split must be between 0 and 1, got {args.split}')
    if args.group is not None:
        try:
            groups = re.compile(args.group).groups
        except re.error as error:
            raise ValueError(f'--group {args.group} is no regular expression: {error}') from error
        if not groups:
            raise ValueError(f"--group {args.group} has no group in brackets, as '^([^_]+)_' has")
    if args.data_out and not (args.data or args.split or args.colours):
        raise ValueError('--data-out is for --data, --split and --colours')


def check_batch_size(cfg: Config, args: argparse.Namespace) -> None:
    """Raise a ValueError if the recipe's heads need more than one image."""
    head = cfg.model.get('decode_head')
    pools_to_one = isinstance(head, dict) and 1 in head.get('pool_scales', ())
    if pools_to_one and args.batch_size == args.gpus == 1:
        raise ValueError(f'--batch-size 1 is too small: {head.type} normalises one value per image')


def folders_of_images(args: argparse.Namespace) -> list[Path]:
    """The folders of training and validation images.

    Raises:
        ValueError: If that is not what the command line says.
    """
    if args.masks and args.split:
        if len(args.masks) > 1 or len(args.images or ()) != 1:
            raise ValueError('--split takes one folder of --masks and one of --images')
        return args.images
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
        raise ValueError('--images must name two folders, training and validation, or say --split '
                         '0.2 for one of --images and one of --masks')
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


def look_at_data(args: argparse.Namespace,
                 report: Report,
                 *,
                 masks: bool,
                 filter_cfg: dict,
                 polygons_alone: bool = False,
                 kind: Kind | None = None) -> OwnData | None:
    """What the data set is; None if it cannot be used.

    Args:
        args: After :func:`complete_data_options`; changed if a door opens for them.
        report: Takes what is wrong.
        masks: Whether to use the segmentations of a COCO file.
        filter_cfg: Which of its images mmdet leaves out of training.
        polygons_alone: Whether training takes polygons and no RLE.
        kind: What the model learns from; ``None`` takes what there is.

    Raises:
        OSError: If a conversion cannot be read or written, or differs from one that is there.
        ValueError: If ``--data`` has no known form, or cannot be split.
    """
    with opened(args, kind, report):
        if report.num_faults:
            return None
        return _described(
            args, report, masks=masks, filter_cfg=filter_cfg, polygons_alone=polygons_alone)


def _described(args: argparse.Namespace, report: Report, *, masks: bool, filter_cfg: dict,
               polygons_alone: bool) -> OwnData | None:
    if args.coco:
        return describe_instances(
            args.coco,
            args.images,
            args.classes,
            masks=masks and not args.boxes,
            filter_cfg=filter_cfg,
            report=report,
            polygons_alone=polygons_alone)
    data = describe_label_maps(
        args.masks,
        args.images,
        args.suffixes and tuple(args.suffixes),
        args.classes,
        zero=args.zero,
        ignore_255=args.ignore_255,
        report=report,
        lists=args.lists)
    if data and args.palette and len(args.palette) == len(data.classes):
        data.palette = args.palette
    return data


def look_at_recipes_data(cfg: Config, args: argparse.Namespace, report: Report) -> OwnData | None:
    """As :func:`look_at_data`, with what a recipe uses of a COCO file."""
    filter_cfg = cfg.train_dataloader.dataset.get('filter_cfg') or {}
    steps = cfg.train_dataloader.dataset.pipeline
    return look_at_data(
        args,
        report,
        masks=loads_masks(cfg),
        filter_cfg=filter_cfg,
        polygons_alone=any(step.get('poly2mask') is False for step in steps),
        kind='labels' if cfg.default_scope == 'mmseg' else 'instances')


def write_config(cfg: Config, args: argparse.Namespace, data: OwnData) -> None:
    """Write the config, if it is one.

    Raises:
        OSError: If it cannot be written.
        ValueError: If it cannot be made of the recipe.
    """
    content = settings(
        cfg, data, out=args.out, batch_size=args.batch_size, num_gpus=args.gpus, epochs=args.epochs)
    write_text(args.out, config_source(args.leaf, args.out, content, data))
    try:
        Config.fromfile(args.out)
    except Exception as error:  # a config is a program, and so is the recipe that it starts from
        args.out.unlink()
        raise ValueError(f'no config can start from {args.leaf}: {error}') from error


def train_command(config: Path, num_gpus: int = 1) -> str:
    """What trains a config, from the current directory on."""
    ours, below = TOOLS / 'train.py', Path('tools/train.py')
    is_here = below.is_file() and ours.is_file() and below.samefile(ours)
    train = 'tools/train.py' if is_here else '-m colonnade.tools.train'
    name = shlex.quote(str(config))
    if num_gpus == 1:
        return f'python {train} {name}'
    return f'torchrun --nproc-per-node {num_gpus} {train} {name} --launcher pytorch'
