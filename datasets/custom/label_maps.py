"""Label maps of one's own: what is in them, and all that is wrong with them."""
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from colonnade.common.name_lists import format_names

from ..bit_depth import Depths
from ..validation.image_files import image_size, labels_of
from ..validation.label_map_files import IGNORED
from ..validation.validation_report import Report
from .file_pairs import Listing


@dataclass
class LabelMaps:
    """What a folder of label maps holds."""
    labels: dict[Path, frozenset[int]]  # label map -> values in it

    def values(self) -> set[int]:
        """All labels but the ignored one."""
        return set().union(*self.labels.values()) - {IGNORED}

    def ignores(self) -> bool:
        """Whether there are pixels of the ignored label."""
        return any(IGNORED in labels for labels in self.labels.values())


def read_label_maps(listing: Listing, suffixes: tuple[str, str], depths: Depths,
                    report: Report) -> LabelMaps:
    """Read all label maps of a folder and the headers of the images that they belong to.

    Args:
        listing: The folders and the files in them.
        suffixes: Ends of the names of images and of label maps, the rest of the names being equal.
        depths: Takes what images have beyond three channels of 8 bits.
        report: Takes what is wrong.
    """
    labels = {}
    for image, mask in pair_label_maps(listing, suffixes, report):
        try:
            size = image_size(image, depths)
        except OSError as error:
            report.fault(f'{image} cannot be read: {error}')
            continue
        try:
            labels[mask] = labels_of(mask, size)
        except (OSError, ValueError) as error:
            report.fault(f'{mask} cannot be used: {error}')
            continue
        if labels[mask] <= {IGNORED}:
            report.remark(f'{mask}: every pixel is {IGNORED}, which is ignored')
    return LabelMaps(labels)


def pair_label_maps(listing: Listing, suffixes: tuple[str, str],
                    report: Report) -> list[tuple[Path, Path]]:
    """Images and their label maps.

    Args:
        listing: See :func:`read_label_maps`, as for ``suffixes``.
        suffixes: Ends of names.
        report: Takes what has no partner.
    """
    image_end, mask_end = suffixes
    stems = [{
        name.removesuffix(suffix)
        for name in names if name.endswith(suffix)
    } for names, suffix in zip((listing.image_names, listing.mask_names), suffixes, strict=True)]

    def files(stem: str) -> tuple[Path, Path]:
        return listing.images / (stem + image_end), listing.masks / (stem + mask_end)

    others = [name for name in listing.image_names if not name.endswith(suffixes)]
    if others:
        report.remark(f'{listing.images}: {len(others)} files are not used, which do not end with '
                      f'{image_end}: {format_names(others)}')
    if not stems[0]:
        report.fault(f'{listing.images}: no images *{image_end}')
    for image, mask in map(files, sorted(stems[0] - stems[1])):
        report.fault(f'{image} has no label map {mask}')
    for _, mask in map(files, sorted(stems[1] - stems[0])):
        report.remark(f'{mask} is not used: there is no such image')
    return [files(stem) for stem in sorted(stems[0] & stems[1])]
