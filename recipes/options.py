"""Options of recipes on a user's own data; importing them takes no time."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Literal

from colonnade.common.options import ALLOW_EXTERNAL_FILES, TRUST, argument, option
from colonnade.datasets.options import DataOptions


@dataclass(kw_only=True)
class NewConfigOptions(DataOptions):
    """What a new config is made of, as ``colonnade create_config --help`` says it."""
    leaf: Path = argument('the config to start from: a file, or the name of one of ours')
    batch_size: int | None = option("images a GPU (the recipe's)")
    gpus: int = option('GPUs, or processes (%(default)s)', 1)
    epochs: int | None = option("passes over the data (the recipe's, or more)")
    out: Path | None = option('file to write (LEAF_own.py, here)')
    allow_external_files: bool = option(ALLOW_EXTERNAL_FILES, False)


@dataclass(kw_only=True)
class RankOptions(DataOptions):
    """What backbones are compared on, as ``colonnade rank_backbones --help`` says it."""
    backbones: Sequence[str] = option(
        "timm's NAME.TAG, NAME=FILE with weights of your own, or NAME=random; NAME as timm has it, "
        'or CLASS:ARCH',
        MISSING,
        metavar='BACKBONE')
    random: bool = option('random weights for backbones without =', False)
    out: Path = option('folder to write, a new one', MISSING)
    max_images: int = option('images of each split at most (%(default)s)', 500)
    size: int = option('pixels of the shorter side of images (%(default)s)', 512)
    out_indices: Sequence[int] = option(
        'blocks whose outputs are the features, side by side; negative numbers count from the '
        'last (-1)', (-1, ))
    steps: int = option('of the linear probe (%(default)s)', 1000)
    memory: int = option('patches that neighbours are among (%(default)s)', 50000)
    neighbours: int = option('patches that vote for a patch (%(default)s)', 30)
    temperature: float = option('of the weights of their votes (%(default)s)', 0.02)
    cost: Literal['time', 'multiply-adds',
                  'parameters'] = option('what the picture shows quality against (%(default)s)',
                                         'time')
    seed: int = option('of all that is drawn (%(default)s)', 0)
    device: Literal['cpu', 'cuda'] | None = option('cuda if there is one')
    cache: Path | None = option(
        'folder of features ($XDG_CACHE_HOME or ~/.cache/colonnade)', exclusive='cache')
    no_cache: bool = option('keep no features', False, exclusive='cache')
    trust: bool = option(TRUST, False)
