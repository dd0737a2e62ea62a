"""Registers what configs name: runners, optimizer wrapper, its constructor and file backends.

``custom_imports`` of a config lists it. Importing it registers backbones and necks too, and makes
mmengine read checkpoints safely, and datasets on object storage and in shards.
"""
from .config_scopes import forbid_installing
from .half_precision import Bfloat16OptimWrapper
from .layer_decay import LayerDecayConstructor
from .runner import StrictRunner
from .sharding import ShardedRunner
from .storage import FsspecBackend, ShardsBackend

__all__ = [
    'Bfloat16OptimWrapper', 'FsspecBackend', 'LayerDecayConstructor', 'ShardedRunner',
    'ShardsBackend', 'StrictRunner'
]

forbid_installing()
