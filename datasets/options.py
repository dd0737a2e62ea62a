"""Options for data files, their validation and sharding; importing this module takes no time."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from colonnade.common.errors import UserError
from colonnade.common.options import (ALLOW_EXTERNAL_FILES, CONFIG, DATA_ROOT, ConfigOptions,
                                      UsageError, argument, option)

SPLITS = ('train', 'val', 'test')


@dataclass(kw_only=True)
class DataOptions:
    """Location of a custom dataset, meaning of its labels, and how it is split.

    Attributes:
        out: File that the command writes; a conversion goes next to it.
        band_suffixes: Ends of the names of the files of an image, if each band has one.
    """
    data: list[Path] = option(
        'dataset in any supported format (detected automatically): a folder, its data.yaml, or '
        'one folder each for training and validation', (),
        exclusive='data',
        metavar='PATH')
    coco: list[Path] = option(
        'COCO annotations for a detector: training and validation', (),
        exclusive='data',
        metavar='JSON')
    masks: list[Path] = option(
        'label maps for a segmenter: one folder each for training and validation, or one folder '
        "with ADE20K's directory structure", (),
        exclusive='data',
        metavar='DIR')
    stuff: list[Path] = option(
        'label maps of stuff, to merge with the instances into panoptic segments: one folder for '
        'all images, or one each for training and validation', (),
        metavar='DIR')
    stuff_classes: list[str] | None = option(
        'names of all labels of --stuff in order, or a file with one name per line', metavar='NAME')
    images: list[Path] = option(
        'folders of training and validation images; with --coco, one folder can serve both', (),
        metavar='DIR')
    classes: list[str] | None = option(
        'names of all labels in order, or a file with one name per line; for instances, the '
        'classes to train on (default: all)',
        metavar='NAME')
    label_zero: Literal['ignore', 'class'] | None = option(
        'meaning of label 0 in label maps: unlabeled pixels, or a class (default: inferred)')
    suffixes: tuple[str, str] | None = option(
        'suffixes of image and label map names, e.g. _leftImg8bit.png _labelTrainIds.png (default: '
        'inferred)',
        metavar=('IMAGE', 'MASK'))
    color_map: Path | None = option(
        'table of classes and colors for color-coded masks: CSV with name,r,g,b, or JSON '
        '(default: found in the dataset)',
        metavar='FILE')
    ignore_255: bool = option('treat label 255 as unlabeled even if some classes have no pixels',
                              False)
    boxes_only: bool = option('train on boxes and ignore segmentations', False)
    on_bad_data: Literal['error', 'skip'] = option(
        'how to handle images that cannot be read or whose annotations cannot be repaired '
        '(default: %(default)s)', 'error')
    val_fraction: float | None = option(
        'fraction of the images to use for validation if the dataset has no validation split, '
        'e.g. 0.2',
        metavar='FRACTION')
    split_seed: int = option('seed of the random split (default: %(default)s)', 0, metavar='N')
    group_regex: str | None = option(
        'keep images in the same split if the first group of this pattern matches the same text '
        "in their names, e.g. a patient ID: '^(\\d+)_'",
        metavar='REGEX')
    in_channels: int | None = option(
        'load all N bands of the images, of any depth, instead of RGB; their mean and standard '
        'deviation are measured',
        metavar='N')
    datumaro_format: str | None = option(
        'read --data with datumaro, as this format of it, e.g. kitti_detection (default: detected '
        'automatically, if it is installed)',
        metavar='NAME')
    converted_dir: Path | None = option(
        'folder for converted, repaired or split annotations (default: OUT_data)', metavar='DIR')
    out: Path | None = None
    band_suffixes: list[str] | None = None

    def __post_init__(self) -> None:
        # Python callers pass text, and a single path alone.
        for name in ('data', 'coco', 'masks', 'stuff', 'images'):
            paths = vars(self)[name] or ()
            setattr(self, name, [Path(paths)] if isinstance(paths, (str, Path)) else
                    list(map(Path, paths)))  # yapf: disable
        for name in ('color_map', 'converted_dir', 'out'):
            if (path := vars(self)[name]) is not None:
                setattr(self, name, Path(path))
        for name in ('classes', 'stuff_classes'):
            if isinstance(names := vars(self)[name], (str, Path)):
                setattr(self, name, [str(names)])
        for name, choices in (('label_zero', (None, 'ignore', 'class')),
                              ('on_bad_data', ('error', 'skip'))):  # yapf: disable
            if (value := vars(self)[name]) not in choices:
                raise UserError(f'{name} must be one of {choices}, got {value!r}')
        if sum(map(bool, (self.data, self.coco, self.masks))) > 1:
            raise UserError('pass only one of data, coco and masks')

    @property
    def num_bands(self) -> int | None:
        """Number of bands of each image file, 0 for any, or None for RGB images."""
        return 0 if self.band_suffixes else self.in_channels


@dataclass
class CheckDataOptions(ConfigOptions):
    """Options of ``colonnade check-dataset``."""
    data_root: str | Path | None = option(DATA_ROOT, metavar='DIR')
    split: Sequence[str] = option('splits to check (default: all)', SPLITS, choices=SPLITS)
    json: Path | None = option('also write all findings to this JSON file', metavar='FILE')
    allow_external_files: bool = option(ALLOW_EXTERNAL_FILES, False)
    reconvert: bool = option(
        'first rerun the colonnade create-config conversions that the config uses', False)
    workers: int | None = option(
        'number of decoding threads (default: one per core, at most 8)', metavar='N')


@dataclass(kw_only=True)
class ShardOptions:
    """Options of ``colonnade make-shards``."""
    config: Path | None = argument(f'{CONFIG}; omit with --verify', None)
    out: str = argument('folder to create; with --verify, the folder or URL to check')
    data_root: str | Path | None = option(DATA_ROOT, metavar='DIR')
    shard_size: float = option('size of a shard in MB (default: %(default)g)', 256., metavar='MB')
    verify: bool = option(
        'write nothing, but compare all files in OUT with their checksums, e.g. after copying',
        False)
    cfg_options: dict[str, Any] | None = option(
        'settings that override the config, e.g. train_dataloader.dataset.data_root=/data')

    def __post_init__(self) -> None:
        if self.verify == (self.config is not None):
            raise UsageError('pass CONFIG and OUT, or only OUT with --verify')
