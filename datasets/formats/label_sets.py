"""Label maps of any format, and their conversion to label maps and lists that mmseg reads."""
from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from colonnade.common.errors import UserError
from colonnade.common.progress import Progress
from colonnade.runtime.images import SUFFIXES

from ..custom.file_pairs import (Listing, find_pairs, find_suffixes, list_files, pair_label_maps,
                                 report_empty_folders)
from ..custom.label_maps import IGNORED
from ..data_index import DataIndex
from ..options import DataOptions
from ..validation.conversion_sources import RECORD
from ..validation.image_files import read_image_size, read_label_values
from ..validation.validation_report import Report
from .conversion import convert_once, describe_split, split_images
from .data_format import report_skipped

SPLITS = ('train', 'val')
Pair = tuple[Path, Path]  # folders of images and of label maps
#: (label file, image size (width, height)) -> labels (H, W), uint8
Reader = Callable[[Path, tuple[int, int]], np.ndarray]


class ConversionError(Exception):
    """A conversion found errors, which are in the report."""


@dataclass(frozen=True)
class LabelSet:
    """Label maps of a dataset in some format."""
    format: str
    splits: Sequence[DataIndex]  # training and validation, or one split to be divided
    # Endings of image and label map names; required for lists.
    suffixes: tuple[str, str] | None = None
    lists: Sequence[Path] | None = None  # text files that list the images of both splits
    read: Reader | None = None  # reader of label files; None if they are label maps
    classes: Sequence[str] | None = None  # names of the classes
    palette: Sequence[tuple[int, int, int]] | None = None  # colors of the classes
    label_zero: Literal['ignore', 'class'] | None = None  # meaning of label 0
    ignore_255: bool = False  # whether 255 stands for unlabeled pixels
    meaning: Any = None  # JSON content that determines the labels, in addition to the files
    tables: Sequence[Path] = ()  # files with this content
    # What a conversion omits, and how often.
    dropped: Mapping[str, int] = field(default_factory=dict)

    @property
    def split_names(self) -> Sequence[str]:
        """Names of the folders of converted splits."""
        return SPLITS if len(self.splits) == 2 else ('', )


def find_child(folder: Path,
               names: Iterable[str],
               normalize: Callable[[str], str] = str.lower) -> Path | None:
    """Return the subfolder whose normalized name is one of some names, or None."""
    if not folder.is_dir():
        return None
    expected = set(names)
    children = sorted(
        Path(entry.path) for entry in os.scandir(folder)
        if normalize(entry.name) in expected and entry.is_dir())
    if len(children) > 1:
        children = list(filter(has_images, children))
    if len(children) > 1:
        raise UserError(f'{folder} has several folders of images or label maps, '
                        f'{" and ".join(map(str, children))}: pass --masks and --images')
    return children[0] if children else None


def has_images(folder: Path) -> bool:
    """Return True if there is an image in or below a folder."""
    return any(name.lower().endswith(SUFFIXES) and not name.startswith('.')
               for _, _, names in os.walk(folder, followlinks=True) for name in names)


def find_common_folder(paths: Sequence[Path]) -> Path:
    """Return the common parent of folders."""
    return Path(os.path.commonpath(list(map(os.path.abspath, paths))))


def pair_files(folders: Sequence[Pair],
               suffixes: tuple[str, str] | None,
               report: Report,
               *,
               skips_bad_data: bool = False) -> tuple[list[DataIndex], tuple[str, str] | None]:
    """Return images and label maps paired by their names, and the suffixes of these.

    Args:
        folders: Folders of images and label maps.
        suffixes: Suffixes of the names; None infers them.
        skips_bad_data: Whether to skip images without a label map.

    Returns:
        The splits, and the suffixes by which mmseg finds label maps, or None if it cannot.
    """
    listings = [list_files(*pair, report) for pair in folders]
    report_empty_folders(listings, report)
    if report.num_errors:
        return [], None
    quiet, pairs = Report(), None
    if not suffixes and (not find_suffixes(listings, quiet) or quiet.num_errors):
        pairs = find_pairs(listings)
    if pairs is None and not (suffixes := suffixes or find_suffixes(listings, report)):
        return [], None
    missing, splits = Report() if skips_bad_data else report, []
    for index, listing in enumerate(listings):
        if pairs is None:
            assert suffixes is not None  # otherwise nothing would be paired
            files = pair_label_maps(listing, suffixes, missing)
        else:
            files = _pair_by_names(listing, pairs[index], missing)
        label_maps = {str(image.relative_to(listing.images)): mask for image, mask in files}
        splits.append(DataIndex(listing.images, label_maps=label_maps, masks=listing.masks))
    if skips_bad_data:
        report_skipped([finding.message for finding in missing.findings], report)
    return splits, suffixes


def _pair_by_names(listing: Listing, pairs: Mapping[str, str], report: Report) -> list[Pair]:
    """Return images and label maps whose names mmseg cannot derive from each other."""
    image, mask = next(iter(pairs.items()))
    report.add_warning(
        f'{listing.masks}: label maps are found by the common part of their names, e.g. {mask} for '
        f'{image}, and copied to names that mmseg can find')
    existing, files = set(listing.mask_names), []
    for image, mask in pairs.items():
        if mask in existing:
            files.append((listing.images / image, listing.masks / mask))
        else:
            report.add_error(f'{listing.images / image} has no label map {listing.masks / mask}')
    for mask in sorted(existing - set(pairs.values())):
        report.add_warning(f'{listing.masks / mask} is not used: it has no image')
    return files


def convert_label_set(labels: LabelSet, args: DataOptions, report: Report) -> Path | None:
    """Convert and split label maps where needed, and set the options for them.

    Returns:
        The folder of a conversion if it was written now.
    """
    if report.num_errors:
        return None
    _check_num_splits(labels, args)
    for what, count in labels.dropped.items():
        report.add_warning(f'{labels.format}: {count} {what}')
    images = [split.images for split in labels.splits]
    masks = [split.masks for split in labels.splits if split.masks]
    suffixes, lists, is_new = labels.suffixes, labels.lists and list(labels.lists), False
    if labels.read is not None or len(labels.splits) == 1 or args.on_bad_data == 'skip':
        try:
            folder, is_new = _convert_label_maps(labels, args, report)
        except ConversionError:
            return None
        record = json.loads((folder / RECORD).read_text(encoding='utf-8'))
        report_skipped(record.get('skipped') or (), report)
        what = 'label maps and image lists' if labels.read else 'image lists'
        report.add_warning(f'{folder}: {"wrote" if is_new else "reused"} {what}')
        lists = [folder / f'{name}.txt' for name in SPLITS]
        if labels.read is not None:
            suffixes = ('', '.png')
            masks = [folder / 'masks' / name for name in labels.split_names]
    args.images, args.masks = (folders * (3 - len(folders)) for folders in (images, masks))
    args.suffixes, args.lists = suffixes, lists
    args.classes = args.classes or list(labels.classes or ()) or None
    args.palette = list(labels.palette) if labels.palette else None
    args.label_zero = args.label_zero or labels.label_zero
    args.ignore_255 = args.ignore_255 or labels.ignore_255
    return folder if is_new else None


def _check_num_splits(labels: LabelSet, args: DataOptions) -> None:
    folders = [split.images for split in labels.splits]
    if len(folders) > 2:
        raise UserError(f'{labels.format}: the paths of --data must have two splits, training and '
                        f'validation, got {len(folders)}')
    if len(folders) == 1 and args.val_fraction is None:
        raise UserError(f'{folders[0]} has no validation images: pass --val-fraction 0.2 to use a '
                        'fraction of the training images')
    if len(folders) == 2 and args.val_fraction is not None:
        raise UserError('--val-fraction applies only to data without a validation split: remove '
                        f'it, since there are two, {folders[0]} and {folders[1]}')


def _convert_label_maps(labels: LabelSet, args: DataOptions, report: Report) -> tuple[Path, bool]:
    with_images = args.on_bad_data == 'skip'  # the images decide what is skipped
    states = [split.compute_fingerprint(with_images=with_images) for split in labels.splits]
    record: dict[str, Any] = dict(
        kind='labels',
        source=[os.path.abspath(str(split.masks)) for split in labels.splits],
        form=labels.format,
        fingerprint=[labels.meaning, labels.suffixes, states],
        split=None if len(labels.splits) == 2 else describe_split(args))
    files = [file for split in labels.splits for file in split.label_maps.values()]
    with Progress('label maps', len(files)) as progress:
        return convert_once(
            args,
            record,
            partial(_write_label_maps, labels=labels, args=args, report=report, progress=progress),
            tables=[*labels.tables, *(labels.lists or ())],
            labels=files if labels.read else (),
            listed=() if labels.read else files)


def _write_label_maps(scratch: Path, labels: LabelSet, args: DataOptions, report: Report,
                      progress: Progress) -> dict[str, Any]:
    """Write label maps and lists of images, and return content for the record."""
    skips_bad_data = args.on_bad_data == 'skip'
    errors = Report() if skips_bad_data else report
    classes: list[dict[str, list[str]]] = []
    num_written = 0
    for name, split in zip(labels.split_names, labels.splits, strict=True):
        classes.append({})
        for image, label_map in _read_label_maps(split, labels.read, errors):
            classes[-1][image] = [str(label) for label in np.unique(label_map) if label != IGNORED]
            if labels.read is not None:
                file = scratch / 'masks' / name / f'{image}.png'
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(label_map).save(file)
            num_written += 1
            progress(num_written)
    if report.num_errors:
        raise ConversionError
    names = list(map(list, classes)) if len(classes) == 2 else split_images(classes[0], args)
    images = dict(zip(SPLITS, names, strict=True))
    suffix = '' if labels.read is not None or labels.suffixes is None else labels.suffixes[0]
    for side, files in images.items():
        stems = [file.removesuffix(suffix) for file in files]
        for stem in stems:
            if stem != stem.strip() or set('\r\n') & set(stem):
                raise UserError(f'{stem!r}: mmseg reads image names from a list, in which they '
                                'cannot start or end with a space, or contain line breaks')
        (scratch / f'{side}.txt').write_text(
            ''.join(f'{stem}\n' for stem in stems), encoding='utf-8')
    skipped = dict(skipped=[each.message for each in errors.findings]) if skips_bad_data else {}
    counts = {side: len(files) for side, files in images.items()}
    return dict(lost=dict(labels.dropped), counts=counts, images=images, **skipped)


def _read_label_maps(split: DataIndex, read: Reader | None,
                     report: Report) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the images of a split with their label maps, or just their labels without a reader."""
    for image, source in split.label_maps.items():
        try:
            size = read_image_size(split.images / image)
        except OSError as error:
            report.add_error(f'{split.images / image} cannot be read: {error}')
            continue
        try:
            labels = read(source, size) if read else np.array(
                sorted(read_label_values(source, size)), np.uint8)
        except (OSError, ValueError) as error:
            report.add_error(f'{source} cannot be used: {error}')
            continue
        if labels.shape != size[::-1] and read:
            report.add_error(
                f'{source} cannot be used: it has {labels.shape[1]} x {labels.shape[0]} pixels, '
                f'but the image {size[0]} x {size[1]}')
            continue
        yield image, labels
