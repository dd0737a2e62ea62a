"""Options of recipes for custom datasets, without slow imports."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, Literal

from colonnade.common.options import (ALLOW_EXTERNAL_FILES, CONFIG, DATA_ROOT, TRUST, ConfigOptions,
                                      argument, option)
from colonnade.datasets.options import DataOptions
from colonnade.engine.options import TrainingSettings


@dataclass(kw_only=True)
class NewConfigOptions(DataOptions):
    """Options of ``colonnade create-config``."""
    base_config: Path = argument(f'{CONFIG}, to start from; with --update, the config to replace')
    update: bool = option(
        'replace a config that this command has written, with the same options and the present '
        'data', False)
    batch_size: int | None = option('images per GPU (default: as in the base config)', metavar='N')
    gpus: int = option('number of GPUs or processes (default: %(default)s)', 1, metavar='N')
    band_suffixes: list[str] | None = option(
        'ends of the names of the files of an image, one per band, of which the annotations name '
        'the first, e.g. _B02.tif _B03.tif; requires --in-channels',
        metavar='SUFFIX')
    rgb_channels: tuple[int, int, int] | None = option(
        'bands that get the pretrained weights of red, green and blue, and are shown in pictures, '
        'e.g. 2 1 0 (default: weights are repeated for all bands, and the first three shown)',
        metavar=('R', 'G', 'B'))
    unlabeled: Path | None = option(
        'folder of unlabeled images to train on as well, with labels predicted by averaged weights',
        metavar='DIR')
    epochs: int | None = option(
        'passes over the dataset (default: as in the base config, more for small datasets)',
        metavar='N')
    out: Path | None = option(
        'file to write (default: BASE_CONFIG_own.py in the current directory)', metavar='FILE')
    allow_external_files: bool = option(ALLOW_EXTERNAL_FILES, False)
    command: str = ''  # command line that is recorded in the config

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.unlabeled is not None:
            self.unlabeled = Path(self.unlabeled)


@dataclass(kw_only=True)
class RankOptions(DataOptions):
    """Options of ``colonnade rank-backbones``."""
    backbones: Sequence[str] = option(
        'NAME.TAG from timm, NAME=FILE with your own weights, or NAME=random; NAME is a timm name '
        'or CLASS:ARCH',
        MISSING,
        metavar='BACKBONE')
    random: bool = option('use random weights for backbones given without =FILE', False)
    out: Path = option('folder to create', MISSING, metavar='DIR')
    max_images: int = option('maximum number of images per split (default: %(default)s)', 500)
    size: int = option('shorter side of images in pixels (default: %(default)s)', 512)
    out_indices: Sequence[int] = option(
        'blocks whose concatenated outputs are the features; negative numbers count from the '
        'last (default: -1)', (-1, ))
    probe_steps: int = option('number of training steps of the linear probe (default: %(default)s)',
                              1000)
    knn_patches: int = option('maximum number of patches searched by k-NN (default: %(default)s)',
                              50000)
    knn_k: int = option('number of neighbors that vote for a patch (default: %(default)s)', 30)
    knn_temperature: float = option('temperature of the vote weights (default: %(default)s)', 0.02)
    cost: Literal['time', 'multiply-adds',
                  'parameters'] = option('cost axis of the plot (default: %(default)s)', 'time')
    seed: int = option('random seed (default: %(default)s)', 0)
    device: Literal['cpu', 'cuda'] | None = option('device (default: a GPU if available)')
    cache: Path | None = option(
        'folder of cached features (default: $XDG_CACHE_HOME or ~/.cache/colonnade)',
        metavar='DIR',
        exclusive='cache')
    no_cache: bool = option('do not cache features', False, exclusive='cache')
    trust: bool = option(TRUST, False)


@dataclass
class TuneOptions(TrainingSettings, ConfigOptions):
    """Options of ``colonnade tune``."""
    work_dir: Path = option('folder of the search, with a work dir per trial',
                            MISSING, metavar='DIR')  # yapf: disable
    trials: int = option(
        'total number of trials, including those of earlier commands (default: %(default)s)', 20)
    search: dict[str, Any] | None = option(
        'settings to search: KEY=LOW:HIGH, KEY=LOW:HIGH:log or KEY=A,B,C (default: the learning '
        'rate, and layer decay and drop path if the config sets them)',
        metavar='KEY=RANGE')
    pruning: bool = option('train all trials to the end, instead of stopping those whose metric '
                           'is worse than the median of the others', True)  # yapf: disable
    resume: bool = option('continue a search', False)
    seed: int = option('seed of the search, not of the trainings (default: %(default)s)', 0)
    data_root: str | Path | None = option(DATA_ROOT, metavar='DIR')
    allow_external_files: bool = option(ALLOW_EXTERNAL_FILES, False)
    trust: bool = option(TRUST, False)
