"""What the command-line tools share; configs name its constructor of optimizers."""
from .config_scopes import use_installed_packages
from .layer_decay import LayerDecayConstructor

__all__ = ['LayerDecayConstructor']

use_installed_packages()  # from here on, _base_ = 'mmseg::…' works
