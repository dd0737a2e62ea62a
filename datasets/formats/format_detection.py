"""Forms of data sets that the tools take, and which of them a folder has."""
from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from colonnade.common.errors import MissingFileError, UserError
from colonnade.common.name_lists import format_names

from ..options import DataOptions
from ..validation.validation_report import Report
from .conversion import keep_options
from .data_format import DataFormat, Kind
from .instance_formats import INSTANCE_FORMATS, open_files
from .instance_records import SPLITS
from .label_folders import IMAGES, MASKS
from .label_map_formats import LABEL_MAP_FORMATS, open_folders
from .voc import start_of

FORMATS: tuple[DataFormat, ...] = (*INSTANCE_FORMATS, *LABEL_MAP_FORMATS)
WHAT = dict(instances='instances, for a detector', labels='label maps, for a segmenter')
ARCHIVES = ('.zip', '.tar', '.gz', '.tgz', '.bz2', '.xz', '.7z', '.rar')
#: words that names of folders consist of that are parts of a data set, such as ``train2017``
PARTS = {*sum(SPLITS.values(), ()), *IMAGES, *MASKS, 'imagesets', 'leftimg', 'bit', 'gtfine'}


def detect_format(path: Path, kind: Kind) -> DataFormat:
    """The form of a file or folder.

    Args:
        path: What the user named.
        kind: What the model learns from.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it has no known form of this kind, or more than one.
    """
    if not os.path.exists(path):
        raise MissingFileError(f'--data: there is no {path}')
    found = [data_format for data_format in FORMATS if data_format.detect(path)]
    fitting = [data_format for data_format in found if data_format.kind == kind]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise UserError(
            f'{path} has more than one form: {_join_names(fitting)}. Keep one of them in '
            'the folder, or name the folder or file of one')
    if path.suffix.lower() in ARCHIVES and path.is_file():
        raise UserError(f'{path} is an archive: unpack it, and name the folder')
    seen = f'is read as {_join_names(found)}, which has {WHAT[found[0].kind]}' if found else \
        _describe_contents(path)
    forms = '\n'.join(f'  {data_format.name}: {data_format.layout}' for data_format in FORMATS
                      if data_format.kind == kind)
    near = _find_nearby(path, kind)
    advice = f'Did you mean {" or ".join(near)}?' if near else f'The forms are\n{forms}'
    raise UserError(f'{path} {seen}. Wanted: {WHAT[kind]}. {advice}')


def _find_nearby(path: Path, kind: Kind) -> list[str]:
    """Folders of known form that are within a folder, or that it is a part of by its name."""
    places = [path.parent] if path.is_file() else sorted(filter(Path.is_dir, path.iterdir()))
    while _is_part(path):
        path = Path(os.path.normpath(path / '..'))
        places.append(path)
    names: list[str] = []
    for place in dict.fromkeys(places):
        with suppress(OSError):  # what cannot be read is no advice
            found = [
                data_format for data_format in FORMATS
                if data_format.kind == kind and data_format.detect(place)
            ]
            names += [f'{place} ({_join_names(found)})'] * bool(found)
    return names


def _is_part(path: Path) -> bool:
    words = re.findall('[a-z]+', Path(os.path.abspath(path)).name.lower())
    return bool(words) and PARTS.issuperset(words)


def _join_names(formats: list[DataFormat]) -> str:
    return ' and '.join(data_format.name for data_format in formats)


def _describe_contents(path: Path) -> str:
    """What a folder looks like to somebody who does not know its form."""
    files = (path, path / 'annotations.xml', path / 'annotations/annotations.xml')
    if any(b'<annotations>' in start_of(file) for file in files):
        return ("holds CVAT's own XML (CVAT for images), which is not read: export COCO from CVAT, "
                'or Segmentation mask for label maps')
    if path.is_file():
        return f'is a file{path.suffix and f" {path.suffix}"} of no known form'
    names = sorted(entry.name + '/' * entry.is_dir() for entry in os.scandir(path)
                   if not entry.name.startswith('.'))
    return f'has no known form, it holds {format_names(names, 6) or "nothing"}'


def find_kind(path: Path) -> Kind:
    """What a data set has where a tool takes both: instances, if it has both."""
    found = {data_format.kind for data_format in FORMATS if data_format.detect(path)}
    return 'instances' if 'instances' in found else 'labels'


@contextmanager
def open_dataset(args: DataOptions, kind: Kind | None, report: Report) -> Iterator[None]:
    """While open, the options are as if the user had named COCO files or label maps.

    A conversion of data with faults is removed at the end: it is of no use once they are mended.

    Args:
        args: Options of a tool; changed.
        kind: What the model learns from; ``None`` takes what there is.
        report: Takes what is wrong, and what a conversion loses.

    Raises:
        OSError: If something cannot be read or written.
        ValueError: If the data have no known form, or no two parts.
    """
    written = None
    keep_options(args)
    if args.data:
        written = _open_format(args, kind, report)
    elif args.coco:
        written = open_files(args, report)
    elif args.masks:
        written = open_folders(args, report)
    yield
    if written and report.num_faults:
        shutil.rmtree(written)


def _open_format(args: DataOptions, kind: Kind | None, report: Report) -> Path | None:
    """Read the dataset of ``--data``; returns the folder of a conversion that was written."""
    data_format = detect_format(args.data[0], kind or find_kind(args.data[0]))
    for path in args.data[1:]:
        if detect_format(path, data_format.kind) is not data_format:
            raise UserError(
                f'{args.data[0]} and {path} must have the same form, got {data_format.name} '
                f'and {detect_format(path, data_format.kind).name}')
    if data_format.kind == 'instances' and (args.zero or args.suffixes or args.colours
                                            or args.ignore_255):
        raise UserError('--zero, --suffixes, --colours and --ignore-255 are for label maps, and '
                        f'{args.data[0]} has instances')
    report.remark(f'{args.data[0]} is read as {data_format.name}')
    return data_format.open(args, report)
