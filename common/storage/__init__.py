"""Data sets on object storage and in shards, for every part of mmengine, mmcv, mmdet and mmseg.

Importing it lets mmengine's file client read ``s3://`` and its like by fsspec, and shards. Files of
this machine are read again where a disk fails for a while.
"""
from .file_access import content, exists, is_readable, local_copy
from .object_storage import FsspecBackend
from .retrying_backend import PatientBackend
from .shard_reader import ShardsBackend

__all__ = [
    'FsspecBackend', 'PatientBackend', 'ShardsBackend', 'content', 'exists', 'is_readable',
    'local_copy'
]
