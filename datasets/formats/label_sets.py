"""Label maps of any form, and how they become what mmseg reads: label maps, lists and names."""
from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from colonnade.common.errors import UserError
from colonnade.common.progress import Progress

from ..custom.file_pairs import Listing, find_pairs, find_suffixes, list_files
from ..custom.label_map_datasets import report_empty_folders
from ..custom.label_maps import IGNORED, paired
from ..options import DataOptions
from ..validation.conversion_sources import RECORD
from ..validation.image_files import image_size, labels_of
from ..validation.validation_report import Report
from .conversion import convert_once, data_out, recorded_options
from .instance_formats import groups_of
from .instance_records import report_skipped
from .splitting import split

SPLITS = ('train', 'val')
#: from the file of an image's labels and the image's size (width, height) to labels (H, W), uint8
Reader = Callable[[Path, tuple[int, int]], np.ndarray]


class Unusable(Exception):
    """A conversion found faults, which are in the report."""


@dataclass(frozen=True)
class Part:
    """Training or validation, or both where they are to be split.

    Attributes:
        images: Folder of images.
        masks: Folder that ``sources`` are in.
        sources: Name of an image below ``images``, and the file that says its labels.
    """
    images: Path
    masks: Path
    sources: Mapping[str, Path] = field(default_factory=dict)


@dataclass(frozen=True)
class LabelSet:
    """What a door finds.

    Attributes:
        form: The door's name.
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
    parts: Sequence[Part]
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


def sources_of(folders: Sequence[tuple[Path, Path]],
               suffixes: tuple[str, str] | None,
               report: Report,
               *,
               skips_bad_data: bool = False) -> tuple[list[Part], tuple[str, str] | None]:
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
            files = paired(found, suffixes, missing)
        else:
            files = _by_name(found, pairs[place], missing)
        parts.append(
            Part(found.images, found.masks, {
                str(image.relative_to(found.images)): mask
                for image, mask in files
            }))
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


def use(found: LabelSet, args: DataOptions, report: Report) -> Path | None:
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
    check_parts(found, args)
    for what, number in found.lost.items():
        report.remark(f'{found.form}: {number} {what}')
    images, masks = ([getattr(part, key) for part in found.parts] for key in ('images', 'masks'))
    suffixes, lists, folder = found.suffixes, found.lists and list(found.lists), None
    if found.read is not None or len(found.parts) == 1 or args.on_bad_data == 'skip':
        folder = data_out(args)
        written = _convert(found, args, folder, report)
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
    return folder if folder and written else None


def folder_of(paths: Sequence[Path]) -> Path:
    """The folder that all of them are or are in."""
    return Path(os.path.commonpath(list(map(os.path.abspath, paths))))


def check_parts(found: LabelSet, args: DataOptions) -> None:
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


def _convert(found: LabelSet, args: DataOptions, folder: Path, report: Report) -> bool:
    """Write what mmseg reads, if it is not there; returns whether it was written."""
    record: dict[str, Any] = dict(
        kind='labels',
        options=recorded_options(args, folder),
        source=[os.path.abspath(part.masks) for part in found.parts],
        form=found.form,
        fingerprint=_fingerprint(found, args.on_bad_data == 'skip'),
        split=_split_options(args, found),
        lost=dict(found.lost))
    sources = [file for part in found.parts for file in part.sources.values()]
    try:
        with Progress('label maps', len(sources)) as progress:
            return convert_once(
                folder,
                record,
                lambda scratch: _write(scratch, found, args, report, record, progress),
                tables=[*found.tables, *(found.lists or ())],
                labels=sources if found.read else (),
                listed=() if found.read else sources)
    except Unusable:
        return False


def _split_options(args: DataOptions, found: LabelSet) -> dict[str, Any] | None:
    if len(found.parts) == 2:
        return None
    return dict(fraction=args.split, seed=args.split_seed, group=args.group)


def _fingerprint(found: LabelSet, skips_bad_data: bool) -> str:
    """Another text where files of labels were changed, or what they mean.

    Images count too where those that cannot be used are left out.
    """
    digest = hashlib.sha256(json.dumps([found.meaning, found.suffixes]).encode())
    for part in found.parts:
        for image, source in sorted(part.sources.items()):
            name = os.path.relpath(source, part.masks)
            files = [source, part.images / image] if skips_bad_data else [source]
            states = [file.stat() for file in files]
            line = '\0'.join(
                (image, name, *(f'{state.st_size}\0{state.st_mtime_ns}' for state in states)))
            digest.update(f'{line}\n'.encode(errors='surrogateescape'))
    return digest.hexdigest()


def _write(scratch: Path, found: LabelSet, args: DataOptions, report: Report,
           record: dict[str, Any], progress: Progress) -> None:
    """Label maps and lists of images.

    Raises:
        Unusable: If there are faults.
    """
    skips_bad_data = args.on_bad_data == 'skip'
    faults = Report() if skips_bad_data else report
    labels: list[dict[str, list[str]]] = []
    done = iter(range(1, 1 + sum(len(part.sources) for part in found.parts)))
    for name, part in zip(_names_of_parts(found), found.parts, strict=True):
        labels.append({})
        for image, label_map in _label_maps(part, found.read, faults):
            labels[-1][image] = [str(label) for label in np.unique(label_map) if label != IGNORED]
            if found.read is not None:
                file = scratch / 'masks' / name / f'{image}.png'
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(label_map).save(file)
            progress(next(done))
    if skips_bad_data:
        record['skipped'] = [finding.message for finding in faults.findings]
    if report.num_faults:
        raise Unusable
    names = [list(images) for images in labels]
    if len(names) == 1:
        groups = groups_of(labels[0], args.group)
        assert args.split is not None  # see check_parts
        names = list(split(labels[0], args.split, groups=groups, seed=args.split_seed))
    end = '' if found.read is not None or found.suffixes is None else found.suffixes[0]
    for name, images in zip(SPLITS, names, strict=True):
        _write_list(scratch / f'{name}.txt', [image.removesuffix(end) for image in images])
    record['counts'] = {name: len(images) for name, images in zip(SPLITS, names, strict=True)}
    record['images'] = dict(zip(SPLITS, names, strict=True))


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


def _label_maps(part: Part, read: Reader | None,
                report: Report) -> Iterator[tuple[str, np.ndarray]]:
    """The images of a part and their label maps; those that cannot be used become faults."""
    for image, source in part.sources.items():
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
