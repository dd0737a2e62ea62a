"""What the command-line tools share; configs name its constructor and wrapper of optimizers
and its runners.

Importing it registers trunks and necks too, and makes mmengine read checkpoints safely.
"""
from .config_scopes import use_installed_packages
from .half_precision import Bfloat16OptimWrapper
from .layer_decay import LayerDecayConstructor
from .runner import StrictRunner
from .sharding import ShardedRunner

__all__ = ['Bfloat16OptimWrapper', 'LayerDecayConstructor', 'ShardedRunner', 'StrictRunner']

use_installed_packages()  # from here on, _base_ = 'mmseg::…' works
