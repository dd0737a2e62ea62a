"""Options of pages and pictures; importing them takes no time."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Literal

from colonnade.common.options import ConfigOptions, ModelOptions, argument, option

METHODS = ('class-attention', 'attention', 'query-key', 'channel-attention', 'mixing', 'features',
           'grad-cam')  # yapf: disable


@dataclass
class VisualizeOptions(ModelOptions):
    """What is drawn of a model, as ``colonnade visualize --help`` says it."""
    images: Sequence[str] = argument(
        'images, folders of them, and patterns in quotes', (), metavar='image')
    what: Sequence[str] | None = option(
        'of %(choices)s (all that the model has)', choices=METHODS, metavar='NAME')
    out: Path = option('folder for IMAGE.NAME.png', MISSING)
    format: Sequence[str] = option('of files (png)', ('png', ), choices=('png', 'pdf'))
    dpi: int = option('pixels of an inch, 10 to 1200 (%(default)s)', 150)
    size: tuple[int, int] | None = option(
        'resize images to this, instead of what the test pipeline does', metavar=('H', 'W'))
    blocks: Sequence[int] | None = option('from 0, negative from the last (-1)', metavar='N')
    heads: Sequence[int] | None = option('from 0 (all)', metavar='N')
    point: tuple[float, float] | None = option(
        'attention of the token at this pixel of the image (the class token, or the middle of the '
        'image where there is none)',
        metavar=('X', 'Y'))
    classifier: str | None = option(
        'file, URL or timm://NAME of the backbone as a classifier, for class-attention')
    target: str | None = option(
        'for grad-cam: a class, or for detectors a detection, 0 is the most certain (the three '
        'most certain detections or most frequent classes)')
    nearest: bool = option('show each token as a square (interpolate)', False)


@dataclass
class BrowseOptions(ConfigOptions):
    """What is shown of a dataset, as ``colonnade browse_dataset --help`` says it."""
    out: Path | str = option('file to write (%(default)s)', Path('browse.html'))
    split: Literal['train', 'val', 'test'] = option('whose images are shown (%(default)s)', 'train')
    num: int = option('images to show (%(default)s)', 24, metavar='N')
    index: Sequence[int] = option('show these images, from 0', (), exclusive='images', metavar='N')
    image: Sequence[str] = option(
        'show the images of these names', (), exclusive='images', metavar='NAME')
    class_name: str | None = option(
        'show only images that have this class', name='class', metavar='NAME')
    draws: int = option('of the training pipeline, each image (%(default)s)', 3, metavar='N')
    limit: int = option(
        'images of a split that are decoded for duplicates and label maps, drawn at random '
        '(%(default)s); annotations of objects are all looked at',
        5000,
        metavar='N')
    seed: int = option('of all that is drawn at random (%(default)s)', 0)
    data_root: Path | str | None = option('where the data set lies')

    @property
    def splits(self) -> tuple[str, str]:
        """Splits that are compared."""
        return 'train', 'test' if self.split == 'test' else 'val'
