"""Label maps of any form, and how they become what mmseg reads: label maps, lists and names."""
from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from colonnade.common.errors import UserError
from colonnade.common.progress import Progress

from ..custom.file_pairs import Listing, find_pairs, find_suffixes, list_files
from ..custom.label_map_datasets import report_empty_folders
from ..custom.label_maps import IGNORED, pair_label_maps
from ..data_index import DataIndex
from ..options import DataOptions
from ..validation.conversion_sources import RECORD
from ..validation.image_files import image_size, labels_of
from ..validation.validation_report import Report
from .conversion import convert_once, describe_split, split_images
from .instance_records import report_skipped

SPLITS = ('train', 'val')
#: from the file of an image's labels and the image's size (width, height) to labels (H, W), uint8
Reader = Callable[[Path, tuple[int, int]], np.ndarray]


class Unusable(Exception):
    """A conversion found faults, which are in the report."""


@dataclass(frozen=True)
class LabelSet:
    """Label maps as the reader of a format finds them.

    Attributes:
        form: Name of the format.
        parts: Training and validation, or one to split.
        suffixes: Ends of the names of images and label maps; needed for lists.
        lists: Text files that name the images of both parts.
        read: Makes a label map; ``None`` if the sources are label maps.
        classes: Their names.
        palette: Their colours.
        zero: What label 0 is, as ``--zero``.
        ignore_255: Whether 255 stands for unlabelled pixels.
        meaning: What the labels depend on beside the files.
        tables: Files that say so.
        lost: What a conversion leaves out, and how often.
    """
    form: str
    parts: Sequence[DataIndex]
    suffixes: tuple[str, str] | None = None
    lists: Sequence[Path] | None = None
    read: Reader | None = None
    classes: Sequence[str] | None = None
    palette: Sequence[tuple[int, int, int]] | None = None
    zero: str | None = None
    ignore_255: bool = False
    meaning: Any = None
    tables: Sequence[Path] = ()
    lost: Mapping[str, int] = field(default_factory=dict)


def read_known_classes(name: str) -> tuple[tuple[str, ...], list[tuple[int, int, int]]]:
    """Return the classes and colors of a benchmark that mmseg knows."""
    from mmseg.utils import get_classes, get_palette  # takes a second
    return tuple(get_classes(name)), [tuple(color) for color in get_palette(name)]


def pair_files(folders: Sequence[tuple[Path, Path]],
               suffixes: tuple[str, str] | None,
               report: Report,
               *,
               skips_bad_data: bool = False) -> tuple[list[DataIndex], tuple[str, str] | None]:
    """Return images and label maps by their names, and how these end.

    Args:
        folders: Of images and of label maps.
        suffixes: How names end; ``None`` finds it.
        report: Takes what is wrong, such as images without a label map.
        skips_bad_data: Whether images without a label map are left out.

    Returns:
        The parts, and suffixes by which mmseg finds label maps in place, or None if it cannot.
    """
    listings = [list_files(*pair, report) for pair in folders]
    report_empty_folders(listings, report)
    if report.num_faults:
        return [], None
    quiet, pairs = Report(), None
    if not suffixes and (not find_suffixes(listings, quiet) or quiet.num_faults):
        pairs = find_pairs(listings)
    if pairs is None and not (suffixes := suffixes or find_suffixes(listings, report)):
        return [], None
    missing, parts = Report() if skips_bad_data else report, []
    for place, found in enumerate(listings):
        if pairs is None:
            assert suffixes is not None  # or nothing would be paired
            files = pair_label_maps(found, suffixes, missing)
        else:
            files = _by_name(found, pairs[place], missing)
        parts.append(
            DataIndex(
                found.images,
                label_maps={
                    str(image.relative_to(found.images)): mask
                    for image, mask in files
                },
                masks=found.masks))
    if skips_bad_data:
        report_skipped([finding.message for finding in missing.findings], report)
    return parts, suffixes


def _by_name(listing: Listing, pairs: Mapping[str, str], report: Report) -> list[tuple[Path, Path]]:
    """Return images and label maps whose names mmseg cannot derive from each other."""
    image, mask = next(iter(pairs.items()))
    report.remark(
        f'{listing.masks}: label maps are found by the rest of their names, as {mask} for '
        f'{image}, and copied to the names that mmseg needs')
    there, found = set(listing.mask_names), []
    for image, mask in pairs.items():
        if mask in there:
            found.append((listing.images / image, listing.masks / mask))
        else:
            report.fault(f'{listing.images / image} has no label map {listing.masks / mask}')
    for mask in sorted(there - set(pairs.values())):
        report.remark(f'{listing.masks / mask} is not used: there is no such image')
    return found


def convert_label_set(found: LabelSet, args: DataOptions, report: Report) -> Path | None:
    """Convert and split what has to be, and set the options that say where label maps are.

    Args:
        found: The data set.
        args: Options of a tool; changed.
        report: Takes what is wrong, and what is lost.

    Returns:
        The folder of a conversion, if it was written now.

    Raises:
        OSError: If that cannot be written.
        ValueError: If there are no two parts.
    """
    if report.num_faults:
        return None
    check_num_parts(found, args)
    for what, number in found.lost.items():
        report.remark(f'{found.form}: {number} {what}')
    images = [part.images for part in found.parts]
    masks = [part.masks for part in found.parts if part.masks]
    suffixes, lists, written = found.suffixes, found.lists and list(found.lists), False
    if found.read is not None or len(found.parts) == 1 or args.on_bad_data == 'skip':
        folder, written = _convert_label_maps(found, args, report)
        if report.num_faults:
            return None
        record = json.loads((folder / RECORD).read_text(encoding='utf-8'))
        report_skipped(record.get('skipped') or (), report)
        what = 'label maps and lists' if found.read else 'lists of images'
        report.remark(f'{folder} is {"written" if written else "used again"}: {what}')
        lists = [folder / f'{name}.txt' for name in SPLITS]
        if found.read is not None:
            suffixes = ('', '.png')
            masks = [folder / 'masks' / name for name in _names_of_parts(found)]
    args.images, args.masks = (folders * (3 - len(folders)) for folders in (images, masks))
    args.suffixes, args.lists = suffixes, lists
    args.classes = args.classes or list(found.classes or ()) or None
    args.palette = list(found.palette) if found.palette else None
    args.zero = args.zero or found.zero
    args.ignore_255 = args.ignore_255 or found.ignore_255
    return folder if written else None


def find_common_folder(paths: Sequence[Path]) -> Path:
    """The folder that all of them are or are in."""
    return Path(os.path.commonpath(list(map(os.path.abspath, paths))))


def check_num_parts(found: LabelSet, args: DataOptions) -> None:
    """Raise a ValueError if there is one part and no ``--split``, or two and one, or more."""
    if len(found.parts) > 2:
        raise UserError(f'{found.form}: the paths of --data have {len(found.parts)} parts, wanted '
                        'are two, training and validation')
    if len(found.parts) == 1 and args.split is None:
        raise UserError(f'{found.parts[0].images}: there is no validation set. --split 0.2 takes '
                        'a fifth of the images for validation')
    if len(found.parts) == 2 and args.split is not None:
        raise UserError(f'--split is for one set of images, and there are two: '
                        f'{found.parts[0].images} and {found.parts[1].images}')


def _names_of_parts(found: LabelSet) -> Sequence[str]:
    return SPLITS if len(found.parts) == 2 else ('', )


def _convert_label_maps(found: LabelSet, args: DataOptions, report: Report) -> tuple[Path, bool]:
    """Write what mmseg reads, if it is not there; return the folder and whether it was written."""
    with_images = args.on_bad_data == 'skip'  # those that cannot be used are left out
    states = [part.compute_fingerprint(with_images=with_images) for part in found.parts]
    record: dict[str, Any] = dict(
        kind='labels',
        source=[os.path.abspath(str(part.masks)) for part in found.parts],
        form=found.form,
        fingerprint=[found.meaning, found.suffixes, states],
        split=None if len(found.parts) == 2 else describe_split(args))
    files = [file for part in found.parts for file in part.label_maps.values()]
    try:
        with Progress('label maps', len(files)) as progress:
            return convert_once(
                args,
                record,
                partial(
                    _write_label_maps, found=found, args=args, report=report, progress=progress),
                tables=[*found.tables, *(found.lists or ())],
                labels=files if found.read else (),
                listed=() if found.read else files)
    except Unusable:
        return Path(), False


def _write_label_maps(scratch: Path, found: LabelSet, args: DataOptions, report: Report,
                      progress: Progress) -> dict[str, Any]:
    """Write label maps and lists of images; return what is to be recorded of them.

    Raises:
        Unusable: If there are faults.
    """
    skips_bad_data = args.on_bad_data == 'skip'
    faults = Report() if skips_bad_data else report
    labels: list[dict[str, list[str]]] = []
    done = iter(range(1, 1 + sum(len(part.label_maps) for part in found.parts)))
    for name, part in zip(_names_of_parts(found), found.parts, strict=True):
        labels.append({})
        for image, label_map in _read_label_maps(part, found.read, faults):
            labels[-1][image] = [str(label) for label in np.unique(label_map) if label != IGNORED]
            if found.read is not None:
                file = scratch / 'masks' / name / f'{image}.png'
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(label_map).save(file)
            progress(next(done))
    if report.num_faults:
        raise Unusable
    names = list(map(list, labels)) if len(labels) == 2 else split_images(labels[0], args)
    images = dict(zip(SPLITS, names, strict=True))
    end = '' if found.read is not None or found.suffixes is None else found.suffixes[0]
    for name, own in images.items():
        _write_list(scratch / f'{name}.txt', [image.removesuffix(end) for image in own])
    skipped = dict(skipped=[each.message for each in faults.findings]) if skips_bad_data else {}
    counts = {name: len(own) for name, own in images.items()}
    return dict(lost=dict(found.lost), counts=counts, images=images, **skipped)


def _write_list(file: Path, names: Sequence[str]) -> None:
    """Write names of images, a line each.

    Raises:
        ValueError: If mmseg would read one of them otherwise than it is.
    """
    for name in names:
        if name != name.strip() or set('\r\n') & set(name):
            raise UserError(f'{name!r}: mmseg takes names of images from a list, where they cannot '
                            'begin or end with a blank, or have several lines')
    file.write_text(''.join(f'{name}\n' for name in names), encoding='utf-8')


def _read_label_maps(part: DataIndex, read: Reader | None,
                     report: Report) -> Iterator[tuple[str, np.ndarray]]:
    """The images of a part and their label maps; those that cannot be used become faults."""
    for image, source in part.label_maps.items():
        try:
            size = image_size(part.images / image)
        except OSError as error:
            report.fault(f'{part.images / image} cannot be read: {error}')
            continue
        try:
            labels = read(source, size) if read else _labels_in(source, size)
        except (OSError, ValueError) as error:
            report.fault(f'{source} cannot be used: {error}')
            continue
        if labels.shape != size[::-1] and read:
            report.fault(f'{source} cannot be used: it has {labels.shape[1]} x {labels.shape[0]} '
                         f'pixels, the image {size[0]} x {size[1]}')
            continue
        yield image, labels


def _labels_in(source: Path, size: tuple[int, int]) -> np.ndarray:
    return np.array(sorted(labels_of(source, size)), np.uint8)
