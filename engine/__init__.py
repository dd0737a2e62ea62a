"""What the command-line tools share, and what configs name: constructors of optimizers, FSDP."""
from .layer_decay import LayerDecayConstructor
from .sharding import ShardedStrategy

__all__ = ['LayerDecayConstructor', 'ShardedStrategy']
