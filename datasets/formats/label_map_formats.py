"""Formats of label maps, which segmenters take."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from colonnade.common.errors import UserError

from ..options import DataOptions
from ..validation.image_files import labels_of, read_labels
from ..validation.label_map_files import IGNORED
from ..validation.validation_report import Report
from . import cityscapes, labelme_label_maps, roboflow_masks, voc_label_maps
from .color_masks import ColourReader, table_for
from .data_format import DataFormat
from .label_folders import Pair, find_folders, find_test_folders
from .label_sets import LabelSet, convert_label_set, pair_files
from .labelme import is_labelme
from .roboflow_masks import renumbering

Finder = Callable[[DataOptions, Report], LabelSet]


def open_labels(find: Finder, args: DataOptions, report: Report) -> Path | None:
    """Set the options that say where label maps are, which are converted and split where needed.

    Args:
        find: What is there.
        args: Options of a tool; changed.
        report: Takes faults and what is lost.

    Returns:
        The folder of a conversion if it was written now.

    Raises:
        OSError: If something cannot be read or written.
        ValueError: If options do not go together, or a table of colours is wrong.
    """
    if args.boxes:
        raise UserError('--boxes is for detectors')
    return convert_label_set(find(args, report), args, report)


def open_folders(args: DataOptions, report: Report) -> Path | None:
    """As :func:`open_labels`, for ``--masks``, unless mmseg can read them in place."""
    pairs = list(zip(args.images, args.masks, strict=True))
    is_needed = args.split or args.colours or args.on_bad_data == 'skip'
    own = report if is_needed else Report()
    found = _of_folders(pairs, args, (), own)
    if not is_needed:
        if own.num_faults or found.read is None:  # which is reported with all that is in them
            return None
        for text in own.remarks:
            report.remark(text)
    return convert_label_set(found, args, report)


def _cityscapes(args: DataOptions, report: Report) -> LabelSet:
    _refuse(args, 'Cityscapes', 'classes', 'zero', 'colours', 'suffixes')
    return cityscapes.read_cityscapes(
        [pair for root in args.data for pair in cityscapes.find_cityscapes_folders(root)], report)


def _roboflow(args: DataOptions, report: Report) -> LabelSet:
    _refuse(args, "Roboflow's masks", 'classes', 'zero', 'colours', 'suffixes')
    _remark_on_tests(args.data, report)
    return roboflow_masks.read_roboflow(
        [folder for root in args.data for folder in roboflow_masks.find_roboflow_folders(root)],
        report)


def _labelme(args: DataOptions, report: Report) -> LabelSet:
    _refuse(args, 'LabelMe', 'colours', 'suffixes')
    _remark_on_tests(args.data, report)
    folders = [
        folder for root in args.data for folder in labelme_label_maps.find_labelme_folders(root)
    ]
    classes, args.classes = args.classes, None
    return labelme_label_maps.read_labelme_label_maps(
        folders, classes, args.zero, report, skips_bad_data=args.on_bad_data == 'skip')


def _voc(args: DataOptions, report: Report) -> LabelSet:
    if len(args.data) > 1:
        raise UserError("--data: one folder in Pascal VOC's layout, its lists name both parts")
    _refuse(args, 'Pascal VOC', 'suffixes')
    root = args.data[0]
    masks = sorted((root / voc_label_maps.MASKS).rglob('*.png'))
    table = table_for(args.colours, [root], masks, report) if masks else None
    if table:
        _refuse(args, 'the table of colours', 'classes', 'zero')
    return voc_label_maps.read_voc_label_maps(root, voc_label_maps.find_lists(root), table, report)


def _folders(args: DataOptions, report: Report) -> LabelSet:
    pairs = [pair for root in args.data for pair in find_folders(root)]
    _remark_on_tests(args.data, report)
    return _of_folders(pairs, args, args.data, report)


def _remark_on_tests(roots: Sequence[Path], report: Report) -> None:
    for root in roots:
        for folder in find_test_folders(root):
            report.remark(f'{folder} is left for tests')


def _of_folders(pairs: list[Pair], args: DataOptions, roots: Sequence[Path],
                report: Report) -> LabelSet:
    """Label maps as they are, or to be made of colours."""
    form = 'images and label maps'
    parts, suffixes = pair_files(
        pairs,
        args.suffixes and (args.suffixes[0], args.suffixes[1]),
        report,
        skips_bad_data=args.on_bad_data == 'skip')
    sources = [source for part in parts for source in part.label_maps.values()]
    table = table_for(args.colours, roots, sources, report) if sources else None
    if not table and (values := _two_values(sources, args)):
        low, high = values
        names = ['background', *(args.classes or ())][-2:]
        report.remark(f'label maps hold {low} and {high}: {low} becomes label 0, {names[0]!r}, and '
                      f'{high} label 1, {names[1]!r}')
        return LabelSet(
            form,
            parts,
            suffixes,
            read=renumbering([low, high]),
            classes=names,
            zero='class',
            ignore_255=True,
            meaning=values)
    if not table:
        return LabelSet(form, parts, suffixes, read=None if suffixes else read_labels)
    _refuse(args, 'the table of colours', 'classes', 'zero')
    return LabelSet(
        form,
        parts,
        suffixes,
        read=ColourReader(table),
        classes=table.classes,
        palette=table.colours,
        zero='class',
        ignore_255=True,
        meaning=[table.classes, table.colours, table.unlabelled],
        tables=[table.file] if table.file else [])


def _two_values(sources: Sequence[Path], args: DataOptions) -> tuple[int, int] | None:
    """Return the values of the background and of one class, if these are not labels 0 and 1.

    Reading ends with the first label maps that show that there are more values, or just these.
    """
    classes = args.classes or ()
    if len(classes) not in (1, 2) or args.zero or args.ignore_255:
        return None
    values: set[int] = set()
    for source in sources:
        with suppress(OSError, ValueError):  # reported when they are used
            values |= labels_of(source, None)
        if len(values) > 2 or values == {0, 1}:
            return None
    low, high = min(values, default=0), max(values, default=0)
    are_labels = (low, high) == (1, len(classes))  # which need no conversion
    is_void = low > 0 and high == IGNORED  # one class, and unlabelled pixels
    return None if len(values) < 2 or are_labels or is_void else (low, high)


def _refuse(args: DataOptions, form: str, *options: str) -> None:
    """Raise a ValueError if an option is given that the form decides itself."""
    for option in options:
        if vars(args)[option] is not None:
            raise UserError(f'--{option} has no effect: {form} says it')


def _format(name: str, layout: str, detect: Callable[[Path], bool], find: Finder) -> DataFormat:
    return DataFormat(name, 'labels', layout, detect, partial(open_labels, find))


def _is_only_folders(root: Path) -> bool:
    """Whether there are folders of images and of label maps, and no other form."""
    if any(data_format.detect(root) for data_format in _SPECIAL):
        return False
    try:
        return bool(find_folders(root))
    except ValueError:  # several folders may be meant, which is said when it is read
        return True


_SPECIAL = (
    _format('Cityscapes', 'leftImg8bit/{train,val}/ and gtFine/{train,val}/',
            lambda root: bool(cityscapes.find_cityscapes_folders(root)), _cityscapes),
    _format('Pascal VOC', 'JPEGImages/, SegmentationClass/ and ImageSets/Segmentation/*.txt',
            lambda root: bool(voc_label_maps.find_lists(root)), _voc),
    _format("Roboflow's semantic masks", 'train/ and valid/ with *_mask.png and _classes.csv',
            lambda root: bool(roboflow_masks.find_roboflow_folders(root)), _roboflow),
    _format('LabelMe', '*.json beside images, one an image', is_labelme, _labelme),
)
LABEL_MAP_FORMATS: tuple[DataFormat, ...] = (
    *_SPECIAL,
    _format(
        'images and label maps',
        'images/ and masks/ (or labels/, annotations/ ...), perhaps with train/ and val/; or '
        'train/, train_labels/, val/ and val_labels/; if masks are in colours, with a table',
        _is_only_folders, _folders))
