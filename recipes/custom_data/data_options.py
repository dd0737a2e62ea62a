"""Options that say where the data are, checked before anything is imported that takes time."""
from __future__ import annotations

import os
import re
from pathlib import Path

from colonnade.common.errors import UserError
from colonnade.common.name_lists import format_names
from colonnade.datasets.options import DataOptions
from colonnade.datasets.validation.validation_report import find_repeated

from ..options import NewConfigOptions

LAYOUT = (('images', 'annotations'), ('training', 'validation'))  # of ADE20k


def check_options(args: NewConfigOptions) -> Path:
    """Check the options of ``create_config``.

    Args:
        args: Options of the tool; ``out`` is filled in.

    Returns:
        The file to write.

    Raises:
        UserError: If the file to write exists.
        ValueError: If the options do not go together, or if a path does not exist.
    """
    args.out = args.out or Path(f'{args.leaf.stem}_own.py')
    if args.out.suffix != '.py':
        raise UserError(f'--out must end in .py, got {args.out}')
    if os.path.lexists(args.out):
        raise UserError(f'{args.out} exists: name another --out')
    for option in ('batch_size', 'gpus', 'epochs'):
        if (value := vars(args)[option]) is not None and value < 1:
            raise UserError(f'--{option.replace("_", "-")} must be at least 1')
    check_data_options(args)
    return args.out


def check_data_options(args: DataOptions) -> None:
    """Raise a ValueError if the options that say where the data are do not go together."""
    check_split_options(args)
    if args.data and args.images:
        raise UserError('--images is for --coco and --masks: --data finds images')
    if args.data and len(args.data) > 2:
        raise UserError('--data takes one path, or two: training and validation')
    if args.coco and len(args.coco) != (1 if args.split else 2):
        raise UserError('--coco takes two files, training and validation, or one with --split 0.2')
    if args.coco and (args.zero or args.suffixes or args.ignore_255 or args.colours):
        raise UserError('--zero, --suffixes, --ignore-255 and --colours are for --masks')
    if args.masks and args.boxes:
        raise UserError('--boxes is for --coco')
    for path in args.masks or ():
        if path.is_file():
            raise UserError(f"{path} is a file and --masks takes folders of label maps. Instances "
                            "in COCO's form are for --coco, with a config of a detector")
    if not args.data and not (args.masks and len(args.masks) == 1) and not args.images:
        raise UserError('--images must name the folders of training and validation images')
    check_paths(args)


def check_paths(args: DataOptions) -> None:
    """Raise a ValueError that lists the files and folders that do not exist."""
    paths = [(option, path) for option in ('data', 'coco', 'masks', 'images')
             for path in vars(args)[option] or ()]  # yapf: disable
    if missing := [f'--{option} {path}' for option, path in paths if not path.exists()]:
        raise UserError(f'no such file or folder: {format_names(missing)}')


def check_split_options(args: DataOptions) -> None:
    """Raise a ValueError if the options that split one data set do not go together."""
    if args.split is None and (args.group or args.split_seed):
        raise UserError('--group and --split-seed are for --split')
    if args.split is not None and not 0 < args.split < 1:
        raise UserError(f'--split must be between 0 and 1, got {args.split}')
    if args.group is not None:
        try:
            groups = re.compile(args.group).groups
        except re.error as error:
            raise UserError(f'--group {args.group} is no regular expression: {error}') from error
        if not groups:
            raise UserError(f"--group {args.group} has no group in brackets, as '^([^_]+)_' has")


def complete_data_options(args: DataOptions) -> None:
    """Fill in the folders and names of classes that follow from other options.

    Args:
        args: Options that say where the data are; changed.

    Raises:
        OSError: If the file of classes cannot be read.
        ValueError: If the options are not enough, or name a class twice.
    """
    args.classes = read_class_names(args.classes)
    if args.data:  # the format's reader sets the rest
        return
    args.images = folders_of_images(args)
    if args.masks and len(args.masks) == 1 and args.split is None:
        args.masks = [args.masks[0] / LAYOUT[0][1] / split for split in LAYOUT[1]]


def folders_of_images(args: DataOptions) -> list[Path]:
    """The folders of training and validation images.

    Raises:
        ValueError: If that is not what the command line says.
    """
    if args.masks and args.split:
        if len(args.masks) > 1 or len(args.images or ()) != 1:
            raise UserError('--split takes one folder of --masks and one of --images')
        return args.images
    if args.masks and len(args.masks) == 1 and not args.images:
        if not (args.masks[0] / LAYOUT[0][1] / LAYOUT[1][0]).is_dir():
            raise UserError(f'{args.masks[0]} is not laid out as ADE20k (annotations/training, '
                            'images/training ...): name two folders of --masks and of --images')
        return [args.masks[0] / LAYOUT[0][0] / split for split in LAYOUT[1]]
    if not args.images:
        raise UserError('--images must name the folders of training and validation images')
    if len(args.images) > 2 or len(args.masks or ()) > 2:
        raise UserError('--images and --masks take two folders, training and validation')
    if args.masks and len(args.images) != 2:
        raise UserError('--images must name two folders, training and validation, or say --split '
                        '0.2 for one of --images and one of --masks')
    return args.images * (2 // len(args.images))


def read_class_names(given: list[str] | None) -> list[str] | None:
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
            raise UserError(f'--classes: {given[0]} is no text in UTF-8: {error}') from error
        names = [line.strip() for line in text.splitlines() if line.strip()]
    if not names or find_repeated(names):
        raise UserError(f'--classes must be names that differ, got {names}')
    return names
