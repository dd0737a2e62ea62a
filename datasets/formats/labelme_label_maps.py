"""Label maps drawn from LabelMe files."""
from __future__ import annotations

from pathlib import Path

from ..data_index import LabelSet
from ..options import DataOptions
from ..validation.validation_report import Report
from .data_format import find_split_folders
from .drawn_label_maps import draw_label_maps, make_drawing_context
from .labelme import read_labelme_folder


def read_labelme_label_maps(args: DataOptions, report: Report) -> LabelSet:
    """Return label maps to be drawn; ``--classes`` names the labels from 1 on."""
    folders = [folder for root in args.data for folder in _find_folders(root)]
    context = make_drawing_context('LabelMe', folders, args, report)
    splits = [(folder, read_labelme_folder(folder, context)) for folder in folders]
    return draw_label_maps(
        'LabelMe', splits, args, context, get_file=lambda image: context.root / image.source)


def _find_folders(root: Path) -> list[Path]:
    """Return the folders of training and validation, or of training, or the folder itself."""
    splits = find_split_folders(root)
    return [splits[split] for split in ('train', 'val') if split in splits] \
        if 'train' in splits else [root]
