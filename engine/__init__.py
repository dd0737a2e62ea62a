"""What the command-line tools share, and what configs name: constructors of optimizers."""
from .layer_decay import LayerDecayConstructor

__all__ = ['LayerDecayConstructor']
