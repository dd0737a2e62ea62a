"""Detection of dataset formats, and their conversion to what mmdet and mmseg read."""
from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from colonnade.common.errors import MissingFileError, UserError
from colonnade.common.name_lists import format_names

from ..options import DataOptions
from ..validation.validation_report import Report
from .conversion import get_folder
from .data_format import SPLITS, AnnotationType, DataFormat, OpenedData
from .datumaro_formats import INSTALL, find_datumaro_format, is_cvat
from .drawn_instances import DRAWN_FORMATS
from .instance_formats import INSTANCE_FORMATS, PANOPTIC_FORMATS, open_coco_files
from .label_conversion import convert_label_maps
from .label_map_formats import IMAGES, LABEL_MAP_FORMATS, MASKS, read_folders

FORMATS: tuple[DataFormat, ...] = (*INSTANCE_FORMATS, *PANOPTIC_FORMATS, *LABEL_MAP_FORMATS)
DESCRIPTIONS = dict(
    instances='instances, for a detector',
    labels='label maps, for a segmenter',
    panoptic='panoptic segments, for a config that ends in _panoptic')
MODELS = dict(instances='a detector', labels='a segmenter', panoptic='a panoptic model')
ARCHIVES = ('.zip', '.tar', '.gz', '.tgz', '.bz2', '.xz', '.7z', '.rar')
#: words in the names of folders that are inside a dataset, such as ``train2017``
INNER_FOLDERS = {*sum(SPLITS.values(), ()), *IMAGES, *MASKS,
                 'imagesets', 'leftimg', 'bit', 'gtfine'}  # yapf: disable


def detect_formats(path: Path) -> list[DataFormat]:
    """Return all formats that a file or folder has."""
    return [data_format for data_format in FORMATS if data_format.detect(path)]


def detect_format(path: Path,
                  annotation_type: AnnotationType,
                  datumaro_format: str | None = None) -> DataFormat:
    """Return the format of a file or folder: one of :data:`FORMATS`, else one of datumaro.

    Args:
        datumaro_format: Name of a format of datumaro, which then reads the dataset.

    Raises:
        FileNotFoundError: If it does not exist.
        ValueError: If it has no known format of this type, or several.
    """
    if not os.path.exists(path):
        raise MissingFileError(f'--data: no such file or folder: {path}')
    formats = [] if datumaro_format else detect_formats(path)
    fitting = [each for each in formats if each.type == annotation_type]
    if not fitting and annotation_type == 'labels' and not datumaro_format:
        found = [each.name for each in formats]
        fitting = [each for each in DRAWN_FORMATS if each.name in found]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise UserError(f'{path} matches several dataset formats: {_join_names(fitting)}. Pass the '
                        'subfolder or file of the one you want')
    if path.suffix.lower() in ARCHIVES and path.is_file():
        raise UserError(f'{path} is an archive: unpack it, and pass the folder')
    if not formats and (other := find_datumaro_format(path, annotation_type, datumaro_format)):
        return other
    actual = f'is in {_join_names(formats)} format, which has {DESCRIPTIONS[formats[0].type]}' \
        if formats else _describe_contents(path)
    if annotation_type == 'panoptic' and any(each.type == 'instances' for each in formats):
        advice = 'Pass label maps of stuff with --stuff and --stuff-classes to make them from ' \
            'instances'
    elif nearby := _find_nearby(path, annotation_type):
        advice = f'Did you mean {" or ".join(nearby)}?'
    elif formats:
        advice = f'Start from the config of {MODELS[formats[0].type]} to train on this dataset'
    else:
        advice = 'Supported formats:\n' + '\n'.join(f'  {each.name}: {each.layout}'
                                                    for each in (*FORMATS, *DRAWN_FORMATS)
                                                    if each.type == annotation_type)
        if annotation_type != 'panoptic' and find_spec('datumaro') is None:
            advice += f'\n  others, such as CVAT, KITTI and Open Images: {INSTALL}'
    raise UserError(f'{path} {actual}. Expected {DESCRIPTIONS[annotation_type]}. {advice}')


def _find_nearby(path: Path, annotation_type: AnnotationType) -> list[str]:
    """Return folders of a known format in a folder, or above it if it is inside a dataset."""
    folders = [path.parent] if path.is_file() else sorted(filter(Path.is_dir, path.iterdir()))
    while (words := re.findall('[a-z]+', Path(os.path.abspath(path)).name.lower())) and \
            INNER_FOLDERS.issuperset(words):
        path = Path(os.path.normpath(path / '..'))
        folders.append(path)
    names: list[str] = []
    for folder in dict.fromkeys(folders):
        with suppress(OSError):  # unreadable folders are not suggested
            formats = [each for each in detect_formats(folder) if each.type == annotation_type]
            names += [f'{folder} ({_join_names(formats)})'] * bool(formats)
    return names


def _join_names(formats: Iterable[DataFormat]) -> str:
    return ' and '.join(each.name for each in formats)


def _describe_contents(path: Path) -> str:
    """Return what a path of unknown format looks like."""
    files = (path, path / 'annotations.xml', path / 'annotations/annotations.xml')
    if any(map(is_cvat, files)):
        return f'is in the XML format of CVAT, which requires another package: {INSTALL}'
    if path.is_file():
        return f'is a file{path.suffix and f" {path.suffix}"} of unknown format'
    names = sorted(entry.name + '/' * entry.is_dir() for entry in os.scandir(path)
                   if not entry.name.startswith('.'))
    return f'has an unknown format, it contains {format_names(names, 6) or "nothing"}'


@contextmanager
def open_dataset(args: DataOptions, annotation_type: AnnotationType | None,
                 report: Report) -> Iterator[OpenedData]:
    """Context manager that returns training and validation of a dataset, converted where needed.

    A conversion with errors is removed at the end, because it is useless once they are fixed.

    Args:
        args: Options of a command.
        annotation_type: What the model learns from. None accepts both, and prefers instances.
        report: Collects errors and warnings.

    Returns:
        Instances, label maps, or None after an error.

    Raises:
        OSError: If a file cannot be read or written.
        ValueError: If the data have no known format, or no two splits.
    """
    folder = get_folder(args)
    existed = os.path.lexists(folder)
    if args.stuff and annotation_type != 'panoptic':
        raise UserError('--stuff requires a config for panoptic segmentation')
    if args.data:
        yield _open_format(args, annotation_type, report)
    elif args.coco:
        yield open_coco_files(args, report, annotation_type == 'panoptic' and not args.stuff)
    else:
        yield convert_label_maps(read_folders(args, report), args, report)
    if report.num_errors and not existed:
        shutil.rmtree(folder, ignore_errors=True)


def _open_format(args: DataOptions, annotation_type: AnnotationType | None,
                 report: Report) -> OpenedData:
    first = args.data[0]
    if annotation_type is None:
        types = {each.type for each in detect_formats(first)}
        annotation_type = 'instances' if not types or 'instances' in types else 'labels'
    if args.stuff:
        annotation_type = 'instances'
    data_format = detect_format(first, annotation_type, args.datumaro_format)
    for path in args.data[1:]:
        if (other := detect_format(path, annotation_type,
                                   args.datumaro_format)).name != data_format.name:
            raise UserError(f'{first} and {path} must have the same format, got '
                            f'{data_format.name} and {other.name}')
    if annotation_type != 'labels' and not args.stuff and (args.label_zero or args.suffixes
                                                           or args.color_map or args.ignore_255):
        raise UserError(
            '--label-zero, --suffixes, --color-map and --ignore-255 apply only to label '
            f'maps, but {first} has instance annotations')
    report.add_result(f'{first} is in {data_format.name} format')
    return data_format.open(args, report)
