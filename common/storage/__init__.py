"""Datasets on object storage and in shards, for mmengine, mmcv, mmdet and mmseg.

Importing it makes mmengine's file client read URLs such as ``s3://`` by fsspec, read shards, and
retry reading local files while a disk fails.
"""
from .file_access import content, exists, is_readable, local_copy
from .object_storage import FsspecBackend
from .retrying_backend import RetryingBackend
from .shard_reader import ShardsBackend

__all__ = [
    'FsspecBackend', 'RetryingBackend', 'ShardsBackend', 'content', 'exists', 'is_readable',
    'local_copy'
]
