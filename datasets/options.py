"""Options that say where data are and what is done with them; importing them takes no time."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from colonnade.common.options import (ALLOW_EXTERNAL_FILES, CONFIG, ConfigOptions, UsageError,
                                      argument, option)

SPLITS = ('train', 'val', 'test')


@dataclass(kw_only=True)
class DataOptions:
    """Where a user's own images and annotations are, what these mean, and how they are split.

    Attributes:
        out: What the tool writes; a conversion goes beside it.
        lists: Text files that name the images of both parts, which formats of label maps find.
        palette: Colours of the classes, which formats of label maps find.
        given: The options as they were before a format has changed them.
    """
    data: list[Path] = option(
        'a data set in any common form, which is found: a folder, its data.yaml, or folders of '
        'training and validation', (),
        exclusive='data',
        required=True,
        metavar='PATH')
    coco: list[Path] = option(
        "instances in COCO's form, for a detector: training and validation", (),
        exclusive='data',
        metavar='JSON')
    masks: list[Path] = option(
        'label maps, for a segmenter: folders of training and validation, or one that is laid out '
        "as ADE20k's", (),
        exclusive='data',
        metavar='DIR')
    images: list[Path] = option(
        'folders of training and validation images, with --coco, one for both', (), metavar='DIR')
    classes: list[str] | None = option(
        'names of the labels in their order, or a file with one per line; of instances those to '
        'train, instead of all',
        metavar='NAME')
    zero: str | None = option(
        'what label 0 of label maps is (found where the data tell)',
        choices=('unlabelled', 'class'))
    suffixes: tuple[str, str] | None = option(
        'how names of images and of label maps end, the rest being equal, e.g. _leftImg8bit.png '
        '_labelTrainIds.png (found where the names tell)',
        metavar=('IMAGE', 'MASK'))
    colours: Path | None = option(
        'table of classes and their colours, where masks are pictures in colours: CSV of '
        'name,r,g,b, or JSON (found in the folder of the data)',
        metavar='FILE')
    ignore_255: bool = option('label 255 stands for unlabelled pixels, though classes have none',
                              False)
    boxes: bool = option('train boxes alone, whatever segmentations there are', False)
    on_bad_data: Literal['stop', 'skip'] = option(
        'what to do with images that cannot be used, or whose annotations cannot be repaired: stop '
        'and list them, or leave them out (default: %(default)s)', 'stop')
    split: float | None = option(
        'part of the images for validation, where data have no such part: 0.2', metavar='FRACTION')
    split_seed: int = option('of that choice (%(default)s)', 0)
    group: str | None = option(
        'images whose names agree in its first group stay together in a split, such as a '
        "patient's: '^(\\d+)_'",
        metavar='REGEX')
    data_out: Path | None = option(
        'folder for what is converted, repaired or split (default: OUT_data)')
    out: Path | None = None
    lists: Sequence[Path] | None = None
    palette: Sequence[tuple[int, int, int]] | None = None
    given: dict[str, Any] = field(default_factory=dict)


@dataclass
class CheckDataOptions(ConfigOptions):
    """What a check of data is told, as ``colonnade check_dataset --help`` says it."""
    data_root: str | Path | None = option(
        'where the data set lies: a folder, shards or a URL', metavar='DIR')
    split: Sequence[str] = option('whose files are looked at (all)', SPLITS, choices=SPLITS)
    json: Path | None = option('write the whole report to this file too', metavar='FILE')
    allow_external_files: bool = option(ALLOW_EXTERNAL_FILES, False)
    convert_again: bool = option(
        'first repeat the conversions of create_config.py that the config reads', False)
    workers: int | None = option('threads that decode (one a core, at most 8)', metavar='N')


@dataclass(kw_only=True)
class ShardOptions:
    """What the making of shards is told, as ``colonnade make_shards --help`` says it."""
    config: Path | None = argument(f'{CONFIG}; left out with --verify', None)
    out: str = argument('folder to make; with --verify also a URL')
    data_root: str | Path | None = option(
        'where the data set lies: a folder or a URL', metavar='DIR')
    shard_size: float = option('megabytes of a shard (%(default)g)', 256., metavar='MB')
    verify: bool = option(
        'write nothing: compare all files in OUT with their checksums, after a copy', False)
    cfg_options: dict[str, Any] | None = option(
        'settings that override the config, e.g. train_dataloader.dataset.data_root=/data')

    def __post_init__(self) -> None:
        if self.verify == (self.config is not None):
            raise UsageError('name CONFIG and OUT, or OUT alone with --verify')
