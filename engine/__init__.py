"""What the command-line tools share; configs name its constructor and wrapper of optimizers
and its runners.

Importing it registers trunks and necks too, makes mmengine read checkpoints safely, and data sets
on object storage and in shards.
"""
from .config_scopes import use_installed_packages
from .half_precision import Bfloat16OptimWrapper
from .layer_decay import LayerDecayConstructor
from .runner import StrictRunner
from .sharding import ShardedRunner
from .storage import FsspecBackend, ShardsBackend

__all__ = [
    'Bfloat16OptimWrapper', 'FsspecBackend', 'LayerDecayConstructor', 'ShardedRunner',
    'ShardsBackend', 'StrictRunner'
]

use_installed_packages()  # from here on, _base_ = 'mmseg::…' works
