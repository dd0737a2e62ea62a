"""Checks of options for custom datasets, without slow imports."""
from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

from colonnade.common.channels import check_channels
from colonnade.common.errors import MissingFileError, UserError
from colonnade.common.name_lists import format_names
from colonnade.common.options import format_words
from colonnade.configs import find_config
from colonnade.datasets.options import DataOptions
from colonnade.datasets.validation.validation_report import find_repeated

from ..options import NewConfigOptions

ADE20K_FOLDERS = (('images', 'annotations'), ('training', 'validation'))

COMMAND = 'colonnade create-config'  # begins the first line of a config, after "# "


def read_command(config: Path) -> list[str]:
    """Return the options with which a config was created.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it does not record them.
    """
    if not config.is_file():
        raise MissingFileError(f'no such config file: {config}')
    try:
        line = config.read_text(encoding='utf-8-sig').partition('\n')[0]
        words = line.removeprefix(f'# {COMMAND} ')
        options = shlex.split(words)
    except ValueError as error:
        raise UserError(f'{config} cannot be read: {error}') from error
    if words == line:
        raise UserError(f'{config} does not begin with the command that created it, # {COMMAND} '
                        '...: create it again, with another --out')
    return options


def check_folder(config: Path, out: Path | None) -> None:
    """Raise a UserError if the relative paths of a config's command do not begin in this folder.

    Args:
        config: Path of the config.
        out: Its path as recorded, or None for the default.
    """
    parts = () if out is None else out.parts
    real = Path(os.path.realpath(config))
    if out is not None and (out.is_absolute() or real.parts[-len(parts):] != parts):
        return  # it was moved, or has an absolute path
    folder = real.parents[max(len(parts), 1) - 1]
    if folder != Path.cwd().resolve():
        raise UserError(f'the command that created {config} was run in {folder}: run it there')


def complete_options(args: NewConfigOptions) -> Path:
    """Check the options of ``create_config``, fill in inferred ones, and return the file to write.

    Args:
        args: Options, modified in place.

    Raises:
        OSError: If the file of class names cannot be read.
        ValueError: If options contradict each other, a path does not exist, or ``out`` exists.
    """
    args.command = args.command or shlex.join([*COMMAND.split(), *format_words(args)])
    args.base_config = find_config(args.base_config)
    args.out = args.out or Path(f'{args.base_config.stem}_own.py')
    if args.out.suffix != '.py':
        raise UserError(f'--out must end in .py, got {args.out}')
    if os.path.lexists(args.out):
        raise UserError(f'{args.out} already exists: choose another --out, or repeat the command '
                        f'that created it with colonnade create-config {args.out} --update')
    for option in ('batch_size', 'gpus', 'epochs'):
        if (value := vars(args)[option]) is not None and value < 1:
            raise UserError(f'--{option.replace("_", "-")} must be at least 1, got {value}')
    if args.in_channels is None and (args.band_suffixes or args.rgb_channels):
        raise UserError('--band-suffixes and --rgb-channels require --in-channels')
    if args.band_suffixes and args.data:
        raise UserError('--band-suffixes requires --coco or --masks')
    if args.in_channels is not None:
        check_channels(args.in_channels, args.rgb_channels)
    if args.unlabeled is not None and not args.unlabeled.is_dir():
        raise UserError(f'no such folder: --unlabeled {args.unlabeled}')
    complete_data_options(args)
    return args.out


def complete_data_options(args: DataOptions) -> None:
    """Check the options of a dataset, and fill in inferred folders and class names.

    Args:
        args: Options of a dataset, modified in place.

    Raises:
        OSError: If the file of class names cannot be read.
        ValueError: If options are missing or contradict each other, a path does not exist, or class
            names are duplicated.
    """
    if not (args.data or args.coco or args.masks):
        raise UserError('pass the dataset as --data, --coco or --masks')
    _check_split_options(args)
    if args.data and args.images:
        raise UserError('--images requires --coco or --masks: --data finds images itself')
    if args.datumaro_format and not args.data:
        raise UserError('--datumaro-format requires --data')
    if args.data and len(args.data) > 2:
        raise UserError('--data takes one path, or two: training and validation')
    if args.coco and len(args.coco) != (1 if args.val_fraction else 2):
        raise UserError(
            '--coco takes two files, training and validation, or one with --val-fraction 0.2')
    if bool(args.stuff) != bool(args.stuff_classes):
        raise UserError('--stuff and --stuff-classes must be used together')
    if args.stuff and (args.masks or args.boxes_only or len(args.stuff) > 2):
        raise UserError('--stuff takes one or two folders and requires --data or --coco with masks')
    if args.coco and not args.stuff and (args.label_zero or args.suffixes or args.ignore_255
                                         or args.color_map):
        raise UserError('--label-zero, --suffixes, --ignore-255 and --color-map require --masks')
    if args.masks and args.boxes_only:
        raise UserError('--boxes-only requires --coco')
    for path in args.masks or ():
        if path.is_file():
            raise UserError(f'{path} is a file, but --masks takes folders of label maps. Pass COCO '
                            'annotations to --coco, with the config of a detector')
    paths = [(option, path) for option in ('data', 'coco', 'masks', 'stuff', 'images')
             for path in vars(args)[option] or ()]  # yapf: disable
    if missing := [f'--{option} {path}' for option, path in paths if not path.exists()]:
        raise UserError(f'no such file or folder: {format_names(missing)}')
    args.classes = _read_class_names(args.classes, '--classes')
    args.stuff_classes = _read_class_names(args.stuff_classes, '--stuff-classes')
    if not args.data:  # The reader of the format fills in the rest.
        _complete_folders(args)


def _check_split_options(args: DataOptions) -> None:
    if args.val_fraction is None and (args.group_regex or args.split_seed):
        raise UserError('--group-regex and --split-seed require --val-fraction')
    if args.val_fraction is not None and not 0 < args.val_fraction < 1:
        raise UserError(f'--val-fraction must be between 0 and 1, got {args.val_fraction}')
    if args.group_regex is not None:
        try:
            groups = re.compile(args.group_regex).groups
        except re.error as error:
            raise UserError(f'--group-regex {args.group_regex!r} is not a regular expression: '
                            f'{error}') from error
        if not groups:
            raise UserError(f'--group-regex {args.group_regex!r} has no group: use parentheses, '
                            "such as '^([^_]+)_'")


def _complete_folders(args: DataOptions) -> None:
    """Fill in the folders of training and validation images and label maps."""
    if args.masks and args.val_fraction:
        if len(args.masks) > 1 or len(args.images or ()) != 1:
            raise UserError('--val-fraction requires one folder each for --masks and --images')
        return
    if args.masks and len(args.masks) == 1:
        root, ((images, labels), splits) = args.masks[0], ADE20K_FOLDERS
        if not args.images and not (root / labels / splits[0]).is_dir():
            raise UserError(f'{root} does not have the directory structure of ADE20K '
                            '(annotations/training, images/training ...): pass two folders each to '
                            '--masks and --images')
        args.masks = [root / labels / split for split in splits]
        args.images = args.images or [root / images / split for split in splits]
    if not args.images:
        whose = 'of each annotation file' if args.coco else 'of training and validation'
        raise UserError(f'pass --images with the folders of the images {whose}')
    if len(args.images) > 2 or len(args.masks or ()) > 2:
        raise UserError('--images and --masks take two folders, training and validation')
    if args.masks and len(args.images) != 2:
        raise UserError('--images takes two folders, training and validation, or one with '
                        '--val-fraction 0.2')
    args.images = args.images * (2 // len(args.images))


def _read_class_names(classes: list[str] | None, option: str) -> list[str] | None:
    """Return names, which may be in a file."""
    if classes is None:
        return None
    if len(classes) == 1 and os.path.isfile(classes[0]):
        try:
            text = Path(classes[0]).read_text(encoding='utf-8-sig')
        except UnicodeDecodeError as error:
            raise UserError(f'{option}: {classes[0]} is not a UTF-8 file: {error}') from error
        classes = [line.strip() for line in text.splitlines() if line.strip()]
    elif len(classes) == 1 and classes[0].endswith('.txt'):
        raise MissingFileError(f'no such file: {option} {classes[0]}')
    elif len(classes) == 1 and re.search(r',\S', classes[0]):
        raise UserError(f'{option} takes names separated by spaces, or a file with one name per '
                        f'line, got {classes[0]}')
    if not classes or find_repeated(classes):
        raise UserError(f'{option} must be distinct names, got {", ".join(classes) or "none"}')
    return classes
