"""Registration of the types in configs: runners, optimizer wrapper and constructor, file backends.

``custom_imports`` of a config lists this module. Importing it also registers backbones and necks,
and makes mmengine read checkpoints safely, and datasets on object storage and in shards.
"""
from colonnade.common.storage import FsspecBackend, ShardsBackend
from colonnade.models.half_precision import Bfloat16OptimWrapper
from colonnade.settings.config_scopes import forbid_installing

from .distributed.fsdp import ShardedRunner
from .optim.layer_decay import LayerDecayConstructor
from .runner.strict_runner import StrictRunner

__all__ = [
    'Bfloat16OptimWrapper', 'FsspecBackend', 'LayerDecayConstructor', 'ShardedRunner',
    'ShardsBackend', 'StrictRunner'
]

forbid_installing()
