"""Pairing of images and label maps by their names."""
from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path

from colonnade.common.name_lists import format_count, format_names
from colonnade.runtime.images import SUFFIXES

from ..data_index import DataIndex
from ..validation.validation_report import Report, find_repeated
from .data_format import find_files, report_skipped

NUM_PROBES = 5  # images whose names are compared with those of all label maps
MAX_CANDIDATES = 10  # naming schemes that are tested on all images
JPEGS = {'.jpg', '.jpeg'}
Pair = tuple[Path, Path]  # folders of images and of label maps
Suffixes = tuple[str, str]  # ends of image and label map names, which mmseg replaces


@dataclass(frozen=True)
class NamingScheme:
    """Different parts of the names of an image and its label map, without extensions."""
    image_start: str = ''
    image_end: str = ''
    mask_start: str = ''
    mask_end: str = ''

    def get_mask_name(self, image: str) -> str | None:
        """Return the name of the label map of an image, or None if the image does not match."""
        folder, name = os.path.split(image)
        start, end = len(self.image_start), len(name) - len(self.image_end)
        if not (name.startswith(self.image_start) and name.endswith(self.image_end)
                and start < end):
            return None
        return os.path.join(folder, f'{self.mask_start}{name[start:end]}{self.mask_end}')

    @property
    def has_only_suffixes(self) -> bool:
        """True if names differ only at their end, as mmseg requires."""
        return not self.image_start and not self.mask_start


@dataclass
class Listing:
    """Names of the files in a folder of images and in the folder of their label maps."""
    images: Path
    masks: Path
    image_names: list[str]
    mask_names: list[str]


def pair_files(folders: Sequence[Pair],
               suffixes: Suffixes | None,
               report: Report,
               *,
               skips_bad_data: bool = False,
               image_suffix: str = '') -> tuple[list[DataIndex], Suffixes | None]:
    """Return images and label maps paired by their names, and the suffixes of these.

    Args:
        folders: Folders of images and label maps, for training and perhaps validation.
        suffixes: Suffixes of the names; None infers them.
        skips_bad_data: Whether to skip images without a label map.
        image_suffix: Suffix of the image names; other files hold further bands of the images.

    Returns:
        The splits, or none after reporting an error; and the suffixes by which mmseg finds label
        maps, or None if it cannot.
    """
    listings = [Listing(*pair, *(_list_images(each, report) for each in pair)) for pair in folders]
    if not all(each.image_names and each.mask_names for each in listings):
        return [], None
    for each in listings:
        each.image_names = [name for name in each.image_names if name.endswith(image_suffix)]
        if not each.image_names:
            report.add_error(f'{each.images} has no images that end in {image_suffix}')
            return [], None
    scheme = None
    if suffixes is None:
        scheme = _find_scheme(listings, report)
        if scheme is None:
            return [], None
        suffixes = _find_suffixes(scheme, listings, report)
        if suffixes and scheme.image_end + scheme.mask_end:
            report.add_warning(f'image names end in {suffixes[0]}, and those of their label maps '
                               f'in {suffixes[1]} (use --suffixes to change this)')
    missing, splits = Report() if skips_bad_data else report, []
    for listing in listings:
        if suffixes:
            label_maps = _pair_by_suffixes(listing, suffixes, report, missing)
        else:
            assert scheme is not None  # otherwise there are suffixes
            label_maps = _pair_by_scheme(listing, scheme, report, missing)
        splits.append(DataIndex(listing.images, label_maps=label_maps, masks=listing.masks))
    report_skipped([finding.message for finding in missing.findings] * skips_bad_data, report)
    return splits, suffixes


def _list_images(folder: Path, report: Report) -> list[str]:
    """Return all images in and below a folder, except hidden ones, as mmseg does."""
    if not folder.is_dir():
        reason = 'is a file, but --masks and --images take folders: pass COCO annotations with ' \
            "--coco, and a detector's config" if folder.is_file() else 'is not a folder'
        report.add_error(f'{folder} {reason}')
        return []
    files = find_files(
        folder, SUFFIXES, lambda path: report.add_error(
            f'{path} links to a folder that was already read, so mmseg would list its files '
            'twice: remove the link'),
        lambda error: report.add_error(f'a folder cannot be read: {error}'))
    if not files:
        report.add_error(f'{folder} has no images')
    return sorted(os.path.relpath(path, folder) for path in files)


def _pair_by_suffixes(listing: Listing, suffixes: Suffixes, report: Report,
                      missing: Report) -> dict[str, Path]:
    """Return image name -> label map, whose names are equal except for the suffixes."""
    others = [name for name in listing.image_names if not name.endswith(suffixes)]
    if others:
        report.add_warning(f'{listing.images}: not used: {format_count(len(others), "file")} '
                           f'without the suffix {suffixes[0]}: {format_names(others)}')
    pairs = {
        name: name.removesuffix(suffixes[0]) + suffixes[1]
        for name in listing.image_names if name.endswith(suffixes[0])
    }
    if not pairs:
        report.add_error(f'{listing.images} has no images that end in {suffixes[0]}')
    masks = [name for name in listing.mask_names if name.endswith(suffixes[1])]
    return find_existing_pairs(replace(listing, mask_names=masks), pairs, report, missing)


def _pair_by_scheme(listing: Listing, scheme: NamingScheme, report: Report,
                    missing: Report) -> dict[str, Path]:
    """Return image name -> label map, of names that mmseg cannot derive from each other."""
    masks = {os.path.splitext(name)[0]: name for name in listing.mask_names}
    pairs = {}
    for name in listing.image_names:
        mask = scheme.get_mask_name(os.path.splitext(name)[0])
        pairs[name] = masks.get(mask or '', f'{mask}.png')
    image, mask = next(iter(pairs.items()))
    report.add_warning(
        f'{listing.masks}: label maps are matched by the common part of their names, e.g. {mask} '
        f'for {image}, and copied under names that mmseg can find')
    return find_existing_pairs(listing, pairs, report, missing)


def find_existing_pairs(listing: Listing, pairs: Mapping[str, str], report: Report,
                        missing: Report) -> dict[str, Path]:
    """Return image name -> label map, and report files without a counterpart.

    Args:
        pairs: Image name -> label map name, which may be missing.
        report: Collects warnings about label maps without an image.
        missing: Collects errors about missing label maps.
    """
    existing, used = set(listing.mask_names), set(pairs.values())
    for image, mask in pairs.items():
        if mask not in existing:
            missing.add_skippable_error(
                f'{listing.images / image} has no label map {listing.masks / mask}')
    for mask in listing.mask_names:
        if mask not in used:
            report.add_warning(f'{listing.masks / mask} is not used: it has no image')
    return {image: listing.masks / mask for image, mask in pairs.items() if mask in existing}


def _find_suffixes(scheme: NamingScheme, listings: Sequence[Listing],
                   report: Report) -> Suffixes | None:
    """Return the suffixes by which mmseg finds label maps; it supports one extension each."""
    images, masks = (Counter(os.path.splitext(name)[1] for names in each for name in names)
                     for each in ([listing.image_names for listing in listings],
                                  [listing.mask_names for listing in listings]))  # yapf: disable
    # After errors, the most frequent extensions suffice to find more errors.
    if not scheme.has_only_suffixes or not report.num_errors and max(len(images), len(masks)) > 1:
        return None
    ends = [each.most_common(1)[0][0] for each in (images, masks)]
    return scheme.image_end + ends[0], scheme.mask_end + ends[1]


def _find_scheme(listings: Sequence[Listing], report: Report) -> NamingScheme | None:
    """Return how label maps are named after images, or None after reporting an error."""
    first = listings[0]
    if any(os.path.realpath(each.images) == os.path.realpath(each.masks) for each in listings):
        report.add_error(f'{first.images} contains both images and label maps: pass the '
                         'suffixes of their names with --suffixes, e.g. --suffixes .jpg _gt.png')
        return None
    if all(map(_looks_swapped, listings)):
        report.add_error(f'{first.masks} has only JPEGs, which cannot be label maps, and '
                         f'{first.images} has none: --images and --masks look swapped')
        return None
    for listing in listings:
        _check_stems(listing.images, listing.image_names, report)
        _check_stems(listing.masks, listing.mask_names, report)
    images = _get_stems([listing.image_names for listing in listings])
    masks = set(_get_stems([listing.mask_names for listing in listings]))
    num_equal = len(masks.intersection(images))
    if 2 * num_equal >= len(images):
        return NamingScheme()
    schemes = _rank_schemes(images, masks)
    by_suffixes = [scheme for scheme in schemes if scheme.has_only_suffixes]
    for unambiguous in (by_suffixes, schemes):
        if len(unambiguous) == 1:
            return unambiguous[0]
    names = f'images are named {format_names(first.image_names, 3)}; label maps ' \
            f'{format_names(first.mask_names, 3)}'
    if by_suffixes:
        ends = [os.path.splitext(each[0])[1] for each in (first.image_names, first.mask_names)]
        options = ' or '.join('--suffixes ' + shlex.join((scheme.image_end + ends[0],
                                                          scheme.mask_end + ends[1]))
                              for scheme in by_suffixes)  # yapf: disable
        report.add_error(f'images have several label maps each: pass {options}; {names}')
    elif schemes:
        report.add_error(f'label map names start with {schemes[0].mask_start!r} instead of '
                         f'{schemes[0].image_start!r}, and several match the same image: {names}')
    else:
        report.add_error(f'{num_equal or "none"} of {len(images)} images in {first.images} and '
                         f'{listings[-1].images} have a label map with the same name: {names}. '
                         'Pass the suffixes of their names with --suffixes IMAGE MASK')
    return None


def _looks_swapped(listing: Listing) -> bool:
    """Return True if only the label maps are JPEGs."""
    images, masks = ({os.path.splitext(name)[1].lower() for name in names}
                     for names in (listing.image_names, listing.mask_names))  # yapf: disable
    return masks <= JPEGS and not images & JPEGS


def _check_stems(folder: Path, names: Sequence[str], report: Report) -> None:
    """Report files that differ only in their extension, which cannot be paired."""
    if find_repeated(os.path.splitext(name)[0] for name in names):
        counts = Counter(os.path.splitext(name)[1] for name in names).most_common()
        actual = ', '.join(f'{count} {extension}' for extension, count in counts)
        report.add_error(f'{folder}: all files must have the same extension, got {actual}: '
                         'choose one with --suffixes')


def _get_stems(names_by_split: Sequence[Sequence[str]]) -> list[str]:
    """Return the names without their extension, below a folder for each split."""
    return [
        os.path.join(str(split),
                     os.path.splitext(name)[0]) for split, names in enumerate(names_by_split)
        for name in names
    ]


def _rank_schemes(images: list[str], masks: set[str]) -> list[NamingScheme]:
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
