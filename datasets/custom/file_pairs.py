"""Pairing of images and label maps by their names: mmseg replaces the suffix of the image."""
from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from colonnade.common.name_lists import format_names
from colonnade.runtime.images import SUFFIXES

from ..formats.data_format import find_files
from ..validation.validation_report import Report, find_repeated

NUM_PROBES = 5  # images whose names are compared with those of all label maps
MAX_CANDIDATES = 10  # naming schemes that are tested on all images
JPEGS = {'.jpg', '.jpeg'}


@dataclass(frozen=True)
class NamingScheme:
    """Different parts of the names of an image and its label map, without extensions."""
    image_start: str
    image_end: str
    mask_start: str
    mask_end: str

    def get_mask_name(self, image: str) -> str | None:
        """Return the name of the label map of an image, or None if the image does not match."""
        folder, name = os.path.split(image)
        start, end = len(self.image_start), len(name) - len(self.image_end)
        if not (name.startswith(self.image_start) and name.endswith(self.image_end)
                and start < end):
            return None
        return os.path.join(folder, f'{self.mask_start}{name[start:end]}{self.mask_end}')


@dataclass
class Listing:
    """Files in a folder of images and in the folder of their label maps."""
    images: Path
    masks: Path
    image_names: list[str]
    mask_names: list[str]

    @property
    def is_one_folder(self) -> bool:
        """True if images and label maps are in the same folder."""
        return os.path.realpath(self.images) == os.path.realpath(self.masks)

    @property
    def looks_swapped(self) -> bool:
        """True if only the label maps are JPEGs."""
        images, masks = ({os.path.splitext(name)[1].lower() for name in names}
                         for names in (self.image_names, self.mask_names))  # yapf: disable
        return bool(masks) and masks <= JPEGS and not images & JPEGS


def list_files(images: Path, masks: Path, report: Report) -> Listing:
    """Return all images in and below both folders, except hidden ones, as mmseg does."""
    return Listing(images, masks, _list_images(images, report), _list_images(masks, report))


def list_named(images: Path, masks: Path, names: Path, suffixes: tuple[str, str],
               report: Report) -> Listing:
    """Return the images in a text file with one name without suffix per line, as mmseg reads it.

    Args:
        images, masks: Folders of images and of label maps.
        suffixes: Suffixes of images and of label maps.
    """
    listing = Listing(images, masks, [], [])
    try:
        lines = names.read_text(encoding='utf-8').removesuffix('\n').split('\n')
    except (OSError, UnicodeDecodeError) as error:
        report.add_error(f'{names} cannot be read: {error}')
        return listing
    if lines[0].startswith('\ufeff'):
        report.add_error(f'{names} starts with a byte order mark, which mmseg reads as a part of '
                         'the first name: remove it')
        return listing
    for number, line in enumerate(lines, 1):
        image, mask = (line.strip() + suffix for suffix in suffixes)
        if not line.strip():
            report.add_error(f'{names}:{number}: the line is empty, which mmseg cannot read')
        elif not os.path.isfile(images / image):
            report.add_error(f'{names}:{number}: image {images / image} does not exist')
        else:
            listing.image_names.append(image)
            listing.mask_names += [mask] * os.path.isfile(masks / mask)
    if repeated := find_repeated(listing.image_names):
        report.add_warning(f'{names}: duplicate images: {format_names(repeated)}')
    return listing


def _list_images(folder: Path, report: Report) -> list[str]:
    if not os.path.isdir(folder):
        reason = 'is a file, but --masks and --images take folders: pass COCO annotations with ' \
            "--coco, and a detector's config" if os.path.isfile(folder) else 'is not a folder'
        report.add_error(f'{folder} {reason}')
        return []
    files = find_files(
        folder, SUFFIXES, lambda path: report.add_error(
            f'{path} links to a folder that was already read, so mmseg would list its files '
            'twice: remove it'), lambda error: report.add_error(f'cannot be read: {error}'))
    return sorted(os.path.relpath(path, folder) for path in files)


def report_empty_folders(listings: Sequence[Listing], report: Report) -> None:
    """Report folders without images or label maps."""
    for listing in listings:
        for folder, names in ((listing.images, listing.image_names),
                              (listing.masks, listing.mask_names)):  # yapf: disable
            if folder.is_dir() and not names:
                report.add_error(f'{folder} has no images')


def pair_label_maps(listing: Listing, suffixes: tuple[str, str],
                    report: Report) -> list[tuple[Path, Path]]:
    """Return images and label maps whose names are equal except for the suffixes."""
    images, masks = ({name.removesuffix(suffix): folder / name
                      for name in names if name.endswith(suffix)}
                     for folder, names, suffix in ((listing.images, listing.image_names,
                                                    suffixes[0]),
                                                   (listing.masks, listing.mask_names,
                                                    suffixes[1])))  # yapf: disable
    others = [name for name in listing.image_names if not name.endswith(suffixes)]
    if others:
        report.add_warning(f'{listing.images}: {len(others)} files that do not end in '
                           f'{suffixes[0]} are not used: {format_names(others)}')
    if not images:
        report.add_error(f'{listing.images} has no images *{suffixes[0]}')
    for stem in sorted(images.keys() - masks.keys()):
        mask = listing.masks / (stem + suffixes[1])
        report.add_error(f'{images[stem]} has no label map {mask}')
    for stem in sorted(masks.keys() - images.keys()):
        report.add_warning(f'{masks[stem]} is not used: it has no image')
    return [(images[stem], masks[stem]) for stem in sorted(images.keys() & masks.keys())]


def find_suffixes(listings: Sequence[Listing], report: Report) -> tuple[str, str] | None:
    """Return the suffixes by which images and label maps can be paired.

    Args:
        listings: Files of training and validation.

    Returns:
        None if they cannot be inferred.
    """
    first = listings[0]
    if any(listing.is_one_folder for listing in listings):
        report.add_error(f'{first.images} has images and label maps: pass the endings of their '
                         'names with --suffixes, e.g. --suffixes .jpg _gt.png')
        return None
    if all(listing.looks_swapped for listing in listings):
        report.add_error(f'{first.masks} has only JPEGs, which cannot be label maps, and '
                         f'{first.images} has none: --images and --masks look swapped')
        return None
    extensions = (_find_extension([(each.images, each.image_names) for each in listings], report),
                  _find_extension([(each.masks, each.mask_names) for each in listings], report))
    images = _remove_extension(extensions[0], [each.image_names for each in listings])
    masks = set(_remove_extension(extensions[1], [each.mask_names for each in listings]))
    num_equal = len(masks.intersection(images))
    if not images or not masks or 2 * num_equal >= len(images):
        return extensions
    schemes = _find_schemes(images, masks)
    ends = [(scheme.image_end + extensions[0], scheme.mask_end + extensions[1])
            for scheme in schemes if not scheme.image_start and not scheme.mask_start]
    if len(ends) == 1:
        report.add_warning(f'image names end in {ends[0][0]}, and those of their label maps in '
                           f'{ends[0][1]} (use --suffixes to change this)')
        return ends[0]
    names = f'images are named {format_names(first.image_names, 3)}; label maps ' \
            f'{format_names(first.mask_names, 3)}'
    if ends:
        options = ' or '.join(f'--suffixes {shlex.join(pair)}' for pair in ends)
        report.add_error(f'images have several label maps each: pass {options}; {names}')
    elif schemes:
        report.add_error(f'label map names start with {schemes[0].mask_start!r} where image names '
                         f'start with {schemes[0].image_start!r}, and several share the rest of '
                         f'an image name: {names}')
    else:
        report.add_error(f'{num_equal or "none"} of {len(images)} images in {first.images} and '
                         f'{listings[-1].images} have a label map with the same name: {names}. '
                         'Pass the suffixes of their names with --suffixes IMAGE MASK')
    return None


def find_pairs(listings: Sequence[Listing]) -> list[dict[str, str]] | None:
    """Pair images with label maps whose names mmseg cannot derive from each other.

    Extensions can differ within a folder, and names can start differently.

    Args:
        listings: Files of training and validation.

    Returns:
        For each listing, image name -> label map name, which may be missing. None if the pairs
        cannot be inferred.
    """
    if any(listing.is_one_folder for listing in listings) or all(listing.looks_swapped
                                                                 for listing in listings):
        return None
    images, masks = ([{os.path.splitext(name)[0]: name for name in names} for names in each]
                     for each in ([listing.image_names for listing in listings],
                                  [listing.mask_names for listing in listings]))  # yapf: disable
    if any(
            len(by_stem[0]) < len(listing.image_names) or len(by_stem[1]) < len(listing.mask_names)
            for listing, *by_stem in zip(listings, images, masks, strict=True)):
        return None  # two files with the same stem are ambiguous
    all_images = [os.path.join(str(i), stem) for i, each in enumerate(images) for stem in each]
    all_masks = {os.path.join(str(i), stem) for i, each in enumerate(masks) for stem in each}
    if not all_images:
        return None
    schemes = [NamingScheme('', '', '', '')]
    if 2 * len(all_masks.intersection(all_images)) < len(all_images):
        schemes = _find_schemes(all_images, all_masks)
    if len(schemes) != 1:
        return None
    return [{
        name: own_masks.get(mask := str(schemes[0].get_mask_name(stem)), f'{mask}.png')
        for stem, name in own_images.items()
    } for own_images, own_masks in zip(images, masks, strict=True)]


def _find_extension(folders: list[tuple[Path, list[str]]], report: Report) -> str:
    """Return the extension of all files, of which mmseg supports only one."""
    extensions = []
    for folder, names in folders:
        counts = Counter(os.path.splitext(name)[1] for name in names).most_common()
        if len(counts) > 1:
            actual = ', '.join(f'{count} {extension}' for extension, count in counts)
            report.add_error(f'{folder}: all files must have the same extension, got {actual}: '
                             'choose one with --suffixes')
        extensions += [extension for extension, _ in counts[:1]]
    if len(set(extensions)) > 1:
        report.add_error(f'{folders[0][0]} and {folders[1][0]} must have files with the same '
                         f'extension, got {" and ".join(extensions)}')
    return extensions[0] if extensions else '.png'


def _remove_extension(extension: str, names_by_split: list[list[str]]) -> list[str]:
    """Return the names without their extension, below a folder for each split."""
    return [
        os.path.join(str(split), name.removesuffix(extension))
        for split, names in enumerate(names_by_split) for name in names if name.endswith(extension)
    ]


def _find_schemes(images: list[str], masks: set[str]) -> list[NamingScheme]:
    """Return the schemes by which the most images have a label map, but at least half of them."""
    by_folder: dict[str, list[str]] = {}
    for mask in masks:
        by_folder.setdefault(os.path.dirname(mask), []).append(os.path.basename(mask))
    candidates = Counter(scheme for image in images[:NUM_PROBES]
                         for mask in by_folder.get(os.path.dirname(image), ())
                         for scheme in _propose_schemes(os.path.basename(image), mask))
    likely = sorted(
        candidates, key=lambda scheme: (-candidates[scheme], sum(map(len, astuple(scheme)))))
    scores = {}
    for scheme in likely[:MAX_CANDIDATES]:
        names = [scheme.get_mask_name(image) for image in images]
        score = len(masks.intersection(filter(None, names)))
        # A single pair of names with a common start is not a pattern.
        min_score = 2 if scheme.image_start or scheme.image_end else 1
        if None not in names and score >= min_score and 2 * score >= len(images):
            scores[scheme] = score
    return [scheme for scheme, score in scores.items() if score == max(scores.values())]


def _propose_schemes(image: str, mask: str) -> Iterator[NamingScheme]:
    """Yield the schemes by which a label map can be named after an image."""
    start = len(os.path.commonprefix([image, mask]))
    end = len(os.path.commonprefix([image[::-1], mask[::-1]]))
    at = mask.find(image)
    schemes = set()
    if start:
        schemes.add(NamingScheme('', image[start:], '', mask[start:]))
    if end:
        schemes.add(NamingScheme(image[:len(image) - end], '', mask[:len(mask) - end], ''))
    if at >= 0:
        schemes.add(NamingScheme('', '', mask[:at], mask[at + len(image):]))
    for scheme in schemes:
        # Numbers count images, and are not a part of a pattern.
        ends = (scheme.image_start[-1:], scheme.mask_start[-1:], scheme.image_end[:1],
                scheme.mask_end[:1])
        if not any(map(str.isdigit, ends)):
            yield scheme
