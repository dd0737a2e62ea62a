"""Checkpoints in shards: folders of tensors that each process writes and reads separately.

The shards are safetensors files of ``torch.distributed.checkpoint``; everything else is in a
:data:`REST`. Reading runs no code, and works with any number of processes.
"""
from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from os.path import expanduser, isfile, join
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from colonnade.common.errors import UserError

from .checkpoint_files import read_checksums, verify_checksum
from .files import read_checkpoint
from .state_dicts import DamagedError

REST = 'rest.pth'
SHAPES = 'shards'  # key of the rest: full shapes of the tensors by their paths


def is_sharded(path: str | Path) -> bool:
    """Return True if a checkpoint is a folder of shards."""
    return isfile(join(expanduser(path), REST))


def is_checkpoint(path: str | Path) -> bool:
    """Return True if a path is a file or a folder of shards."""
    return isfile(expanduser(path)) or is_sharded(path)


def map_values(value: Any, change: Callable[[str, Any], Any], path: str = '') -> Any:
    """Apply ``change(path, value)`` to nested dicts; paths are like ``optimizer/state/3``."""
    if isinstance(value, Mapping):
        return {
            key: map_values(item, change, f'{path}/{key}' if path else str(key))
            for key, item in value.items()
        }
    return change(path, value)


def write_shards(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Write the shards of this process; all processes must call it."""
    from torch.distributed import checkpoint as dcp  # slow to import, and rarely used
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter

    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    try:
        dcp.save(dict(tensors), storage_writer=writer)  # waits until files are on the disk
    except dcp.CheckpointException as error:
        failure, _ = next(iter(error.failures.values()))
        if isinstance(failure, OSError):
            raise OSError(failure.errno, failure.strerror) from error
        raise


def list_shards(folder: Path, rank: int) -> list[Path]:
    """Return the files that :func:`write_shards` wrote in a process."""
    return sorted(folder.glob(f'shard-{rank + 1:05d}-*.safetensors'))


def check_folder(folder: Path) -> None:
    """Raise a DamagedError if a file of a folder of shards is missing or damaged."""
    for name, _ in read_checksums(folder):
        if not (folder / name).is_file():
            raise DamagedError(f'sharded checkpoint {folder} is damaged: {name} is missing')
        verify_checksum(folder / name)
    open_folder(folder, trust=False)


def read_folder(folder: str | Path,
                *,
                trust: bool = False,
                get_target: Callable[[str], Tensor | None] = lambda path: None) -> dict[str, Any]:
    """Return the content of the full checkpoint.

    Args:
        folder: Folder of shards.
        trust: See :func:`~.files.read_checkpoint`.
        get_target: Function from a path in the checkpoint to a tensor that the result is like; for
            a DTensor only the local shard is read. Without one, or for another shape, the tensor is
            read in full, to the CPU.
    """
    from torch.distributed import checkpoint as dcp

    folder = Path(folder).expanduser()
    rest, reader, stored = open_folder(folder, trust)
    for file in sorted(folder.glob('*.safetensors')):
        verify_checksum(file)
    try:
        tensors = {}
        for path, tensor in stored.items():
            target = get_target(path)
            if target is None or target.shape != tensor.size:
                tensors[path] = torch.empty(tensor.size, dtype=tensor.properties.dtype)
            else:
                tensors[path] = torch.empty_like(target, dtype=tensor.properties.dtype)
        with warnings.catch_warnings():  # processes do not read together
            warnings.simplefilter('ignore', UserWarning)
            dcp.load(dict(tensors), storage_reader=reader, no_dist=True)
    except (SafetensorError, dcp.CheckpointException, OSError, KeyError, ValueError) as error:
        raise DamagedError(f'sharded checkpoint {folder} is damaged: {error}') from error
    return map_values(rest, lambda path, value: tensors.get(path, value))


def open_folder(folder: Path, trust: bool) -> tuple[dict[str, Any], Any, dict[str, Any]]:
    """Return the rest of a folder of shards, a reader of its tensors, and their metadata."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    rest = read_checkpoint(folder / REST, trust=trust)
    shapes = rest.pop(SHAPES, {})
    reader = HuggingFaceStorageReader(str(folder))
    try:
        stored = reader.read_metadata().state_dict_metadata
        if {path: list(tensor.size) for path, tensor in stored.items()} != shapes:
            raise UserError('files are missing')
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise DamagedError(f'sharded checkpoint {folder} is damaged: {error}') from error
    return rest, reader, stored
