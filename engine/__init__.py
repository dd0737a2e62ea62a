"""What the command-line tools share, and what configs name: constructors of optimizers, FSDP."""
from .config_scopes import use_installed_packages
from .layer_decay import LayerDecayConstructor
from .sharding import ShardedStrategy

__all__ = ['LayerDecayConstructor', 'ShardedStrategy']

use_installed_packages()  # from here on, _base_ = 'mmseg::…' works
