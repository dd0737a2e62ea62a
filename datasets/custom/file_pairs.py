"""Which label map belongs to which image: mmseg replaces the end of the image's name."""
from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from colonnade.common.name_lists import format_names
from colonnade.runtime.images import SUFFIXES

from ..validation.validation_report import Report, find_repeated

PROBES = 5  # images whose names are compared with those of all label maps
JPEGS = {'.jpg', '.jpeg'}
CANDIDATES = 10  # ways of naming that are tried on all images


@dataclass(frozen=True)
class Naming:
    """How the names of an image and of its label map differ, extensions aside."""
    image_start: str
    image_end: str
    mask_start: str
    mask_end: str

    def mask_of(self, image: str) -> str | None:
        """The label map's name for an image's; None if images are not named so."""
        folder, name = os.path.split(image)
        start, end = len(self.image_start), len(name) - len(self.image_end)
        if not (name.startswith(self.image_start) and name.endswith(self.image_end)
                and start < end):
            return None
        return os.path.join(folder, f'{self.mask_start}{name[start:end]}{self.mask_end}')


@dataclass
class Listing:
    """The files of a folder of images and of that of their label maps."""
    images: Path
    masks: Path
    image_names: list[str]
    mask_names: list[str]


def list_files(images: Path, masks: Path, report: Report) -> Listing:
    """All files below both folders that Pillow may know, hidden ones left out, as mmseg does."""
    return Listing(images, masks, _files(images, report), _files(masks, report))


def list_named(images: Path, masks: Path, names: Path, suffixes: tuple[str, str],
               report: Report) -> Listing:
    """The images that a text file names, a line each without suffix, as mmseg reads it.

    Args:
        images: Folder of images.
        masks: Folder of label maps.
        names: The text file.
        suffixes: Ends of the names of images and of label maps.
        report: Takes what is wrong, such as images that are missing.
    """
    found = Listing(images, masks, [], [])
    try:
        lines = names.read_text(encoding='utf-8').removesuffix('\n').split('\n')
    except (OSError, UnicodeDecodeError) as error:
        report.fault(f'{names} cannot be read: {error}')
        return found
    if lines[0].startswith('\ufeff'):
        report.fault(f'{names} starts with a byte order mark, which mmseg takes for part of a name')
        return found
    for number, line in enumerate(lines, 1):
        image, mask = (line.strip() + suffix for suffix in suffixes)
        if not line.strip():
            report.fault(f'{names}:{number}: a line without a name, which mmseg cannot read')
        elif not os.path.isfile(images / image):
            report.fault(f'{names}:{number}: there is no image {images / image}')
        else:
            found.image_names.append(image)
            found.mask_names += [mask] * os.path.isfile(masks / mask)
    if twice := find_repeated(found.image_names):
        report.remark(f'{names}: images that stand there more than once: {format_names(twice)}')
    return found


def _files(folder: Path, report: Report) -> list[str]:
    if not os.path.isdir(folder):
        what = "is a file, --masks and --images take folders. Instances in COCO's form are for " \
               "--coco and a detector's config" if os.path.isfile(folder) else 'is no folder'
        report.fault(f'{folder} {what}')
        return []
    known, seen = SUFFIXES, {os.path.realpath(folder)}
    names: list[str] = []
    walk = os.walk(
        folder, followlinks=True, onerror=lambda error: report.fault(f'cannot be read: {error}'))
    for parent, below, files in walk:
        for name in list(below):
            path = os.path.join(parent, name)
            if os.path.realpath(path) in seen:
                report.fault(f'a link leads to {path} a second time: mmseg would list its files '
                             'twice')
                below.remove(name)
            seen.add(os.path.realpath(path))
        names += (
            os.path.relpath(os.path.join(parent, name), folder) for name in files
            if not name.startswith('.') and name.lower().endswith(known))
    return sorted(names)


def find_suffixes(listings: Sequence[Listing], report: Report) -> tuple[str, str] | None:
    """How names of images and of label maps end, the rest of the names being equal.

    Args:
        listings: The files of training and validation.
        report: Takes what is wrong, and what was found where it is more than the extensions.

    Returns:
        None if the names do not tell.
    """
    if any(map(_is_one_folder, listings)):
        report.fault(f'{listings[0].images} holds images and label maps: say with --suffixes how '
                     'the names of both end, e.g. --suffixes .jpg _gt.png')
        return None
    if all(map(_look_swapped, listings)):
        report.fault(f'{listings[0].masks} has JPEGs alone, which cannot be label maps, and '
                     f'{listings[0].images} has none: they look swapped. --images are the images, '
                     '--masks their label maps')
        return None
    extensions = (_extension([(found.images, found.image_names) for found in listings], report),
                  _extension([(found.masks, found.mask_names) for found in listings], report))
    images = _without(extensions[0], (found.image_names for found in listings))
    masks = set(_without(extensions[1], (found.mask_names for found in listings)))
    if not images or not masks or 2 * len(masks.intersection(images)) >= len(images):
        return extensions
    best = _best_namings(images, masks)
    usable = [naming for naming in best if not naming.image_start and not naming.mask_start]
    ends = [(naming.image_end + extensions[0], naming.mask_end + extensions[1])
            for naming in usable]
    if len(ends) == 1:
        report.remark(f'names of images end with {ends[0][0]}, those of their label maps with '
                      f'{ends[0][1]} (--suffixes says otherwise)')
        return ends[0]
    names = f'images are named {format_names(listings[0].image_names, 3)}; label maps ' \
            f'{format_names(listings[0].mask_names, 3)}'
    if ends:
        ways = ', or '.join(f'--suffixes {shlex.join(pair)}' for pair in ends)
        report.fault(f'images have more than one label map each: say {ways}; {names}')
    elif best:
        report.fault(f'the names of label maps start with {best[0].mask_start!r}, where those of '
                     f'images start with {best[0].image_start!r}, and more than one has the rest '
                     f'of an image\'s name: {names}')
    else:
        have = len(masks.intersection(images)) or 'none'
        report.fault(f'{have} of {len(images)} images in {listings[0].images} and '
                     f'{listings[-1].images} have a label map of their name: {names}. --suffixes '
                     'IMAGE MASK says how both end where the rest of the name is equal')
    return None


def find_pairs(listings: Sequence[Listing]) -> list[dict[str, str]] | None:
    """Pair images with label maps whose names mmseg cannot derive from each other.

    Extensions may differ within a folder, and names may start differently.

    Args:
        listings: The files of training and validation.

    Returns:
        For each listing, the names of images and of their label maps, or None if the names do not
        tell. Images without a label map have that of the name which is missing.
    """
    if any(map(_is_one_folder, listings)) or all(map(_look_swapped, listings)):
        return None
    images, masks = ([{
        os.path.splitext(name)[0]: name
        for name in names
    } for names in of_folders] for of_folders in ([found.image_names for found in listings],
                                                  [found.mask_names for found in listings]))
    if any(
            len(stems) < len(names)
            for found, *by_stem in zip(listings, images, masks, strict=True)
            for stems, names in zip(by_stem, (found.image_names, found.mask_names), strict=True)):
        return None  # of two files with one stem, either may be meant
    all_images = [
        os.path.join(str(split), stem) for split, own in enumerate(images) for stem in own
    ]
    all_masks = {os.path.join(str(split), stem) for split, own in enumerate(masks) for stem in own}
    if not all_images:
        return None
    best = [Naming('', '', '', '')]
    if 2 * len(all_masks.intersection(all_images)) < len(all_images):
        best = _best_namings(all_images, all_masks)
    if len(best) != 1:
        return None
    return [{
        image: of_masks.get(stem := str(best[0].mask_of(own)), f'{stem}.png')
        for own, image in of_images.items()
    } for of_images, of_masks in zip(images, masks, strict=True)]


def _is_one_folder(listing: Listing) -> bool:
    """Return True if images and label maps are in the same folder."""
    return os.path.realpath(listing.images) == os.path.realpath(listing.masks)


def _look_swapped(listing: Listing) -> bool:
    images, masks = ({os.path.splitext(name)[1].lower()
                      for name in names} for names in (listing.image_names, listing.mask_names))
    return bool(masks) and masks <= JPEGS and not images & JPEGS


def _without(extension: str, names_by_split: Iterator[list[str]]) -> list[str]:
    """All names that have the extension, without it, below a folder for each split."""
    return [
        os.path.join(str(split), name.removesuffix(extension))
        for split, names in enumerate(names_by_split) for name in names if name.endswith(extension)
    ]


def _extension(folders: list[tuple[Path, list[str]]], report: Report) -> str:
    """The one extension of the files, which mmseg needs to be one."""
    of_folders = []
    for folder, names in folders:
        counts = Counter(os.path.splitext(name)[1] for name in names).most_common()
        if len(counts) > 1:
            shown = ', '.join(f'{count} {extension}' for extension, count in counts)
            report.fault(f'{folder}: all files must have one extension, there are {shown} '
                         '(--suffixes takes one)')
        of_folders += [extension for extension, _ in counts[:1]]
    if len(set(of_folders)) > 1:
        report.fault(f'{folders[0][0]} and {folders[1][0]} must have files of the same extension, '
                     f'got {" and ".join(of_folders)}')
    return of_folders[0] if of_folders else '.png'


def _best_namings(images: list[str], masks: set[str]) -> list[Naming]:
    """The ways of naming by which most images have a label map, if at least half of them do."""
    of_folder: dict[str, list[str]] = {}
    for mask in masks:
        of_folder.setdefault(os.path.dirname(mask), []).append(os.path.basename(mask))
    candidates = Counter(naming for image in images[:PROBES]
                         for mask in of_folder.get(os.path.dirname(image), ())
                         for naming in _namings(os.path.basename(image), mask))
    likely = sorted(
        candidates, key=lambda naming: (-candidates[naming], sum(map(len, astuple(naming)))))
    scores = {}
    for naming in likely[:CANDIDATES]:
        names = [naming.mask_of(image) for image in images]
        number = len(masks.intersection(filter(None, names)))
        # one pair of names that begin alike is no pattern
        least = 2 if naming.image_start or naming.image_end else 1
        if None not in names and number >= least and 2 * number >= len(images):
            scores[naming] = number
    return [naming for naming, number in scores.items() if number == max(scores.values())]


def _namings(image: str, mask: str) -> Iterator[Naming]:
    """By which parts the name of a label map may differ from that of its image."""
    start = len(os.path.commonprefix([image, mask]))
    end = len(os.path.commonprefix([image[::-1], mask[::-1]]))
    at = mask.find(image)
    found = set()
    if start:
        found.add(Naming('', image[start:], '', mask[start:]))
    if end:
        found.add(Naming(image[:len(image) - end], '', mask[:len(mask) - end], ''))
    if at >= 0:
        found.add(Naming('', '', mask[:at], mask[at + len(image):]))
    for naming in found:
        # numbers count images: they are no part of a pattern
        ends = (naming.image_start[-1:], naming.mask_start[-1:], naming.image_end[:1],
                naming.mask_end[:1])
        if not any(map(str.isdigit, ends)):
            yield naming
