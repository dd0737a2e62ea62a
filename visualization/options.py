"""Options of pages and figures; importing them is fast."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Literal

from colonnade.common.options import DATA_ROOT, TRUST, ConfigOptions, ModelOptions, argument, option

METHODS = ('class-attention', 'attention', 'query-key', 'channel-attention', 'mixing', 'features',
           'grad-cam')  # yapf: disable


@dataclass
class VisualizationOptions:
    """Options of figures.

    Attributes:
        blocks: Block indices of the backbone, or of the class-attention stage. Defaults to the last
            block, or all blocks of that stage.
        heads: Indices of attention heads. Defaults to all.
        point: Pixel ``(x, y)`` of the image whose token attends. Defaults to the class token, or
            the middle of the image for backbones without one.
        classifier: Weights of a classifier for ``class-attention``: file, URL or ``timm://NAME``.
        target: Class name for ``grad-cam``, or index of a detection in order of descending
            score. Defaults to the three best detections or most frequent classes.
        size: Height and width to resize images to. Defaults to the test pipeline's.
        interpolation: Whether to interpolate maps bilinearly instead of drawing a square per token.
        trust: Whether to run code pickled in the classifier's file. Trust its author first.
    """
    blocks: Sequence[int] | None = option(
        'block indices, where -1 is the last (default: -1)', metavar='N')
    heads: Sequence[int] | None = option('indices of attention heads (default: all)', metavar='N')
    point: tuple[float, float] | None = option(
        'pixel that selects the query token (default: the class token, or the center of the image)',
        metavar=('X', 'Y'))
    classifier: str | Path | None = option(
        'file, URL or timm://NAME of classifier weights, for class-attention', metavar='FILE')
    target: str | int | None = option(
        'class for grad-cam, or index of a detection in order of descending score (default: the '
        'three highest-scoring detections or most frequent classes)')
    size: tuple[int, int] | None = option(
        'resize images to this size (default: as in the test pipeline)',
        metavar=('HEIGHT', 'WIDTH'))
    interpolation: bool = option('draw one square per token', True)
    trust: bool = option(TRUST, False)

    def list_changed(self) -> set[str]:
        """Return the names of options of figures that differ from their defaults."""
        return {field.name for field in fields(VisualizationOptions)
                if vars(self)[field.name] != field.default}  # yapf: disable


@dataclass
class VisualizeOptions(VisualizationOptions, ModelOptions):
    """Options of ``colonnade visualize``."""
    images: Sequence[str] = argument(
        'images, folders of them, or quoted glob patterns', (), metavar='IMAGE')
    methods: Sequence[str] | None = option(
        'methods to use: %(choices)s (default: all that the model supports)',
        choices=METHODS,
        metavar='NAME')
    out: Path = option('output folder for the files IMAGE.METHOD.png', MISSING, metavar='DIR')
    format: Sequence[str] = option(
        'output formats (default: png)', ('png', ), choices=('png', 'pdf'))
    dpi: int = option('dots per inch, 10 to 1200 (default: %(default)s)', 150)


@dataclass
class BrowseOptions(ConfigOptions):
    """Options of ``colonnade browse-dataset``."""
    out: Path | str = option(
        'HTML file to write (default: %(default)s)', Path('browse.html'), metavar='FILE')
    split: Literal['train', 'val',
                   'test'] = option('split whose images are shown (default: %(default)s)', 'train')
    num: int = option('number of images to show (default: %(default)s)', 24, metavar='N')
    index: Sequence[int] = option(
        'show the images with these indices', (), exclusive='images', metavar='N')
    image: Sequence[str] = option(
        'show the images with these names', (), exclusive='images', metavar='NAME')
    class_name: str | None = option(
        'show only images that contain this class', name='class', metavar='NAME')
    num_views: int = option(
        'number of augmented views of each image (default: %(default)s)', 3, metavar='N')
    max_decoded: int = option(
        'maximum number of images per split, chosen at random, to decode when checking label '
        'maps and looking for duplicates; all object annotations are checked (default: '
        '%(default)s)',
        5000,
        metavar='N')
    seed: int = option('random seed (default: %(default)s)', 0)
    data_root: Path | str | None = option(DATA_ROOT, metavar='DIR')

    @property
    def splits(self) -> tuple[str, str]:
        """Splits to compare."""
        return 'train', 'test' if self.split == 'test' else 'val'
