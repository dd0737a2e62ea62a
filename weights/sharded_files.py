"""Checkpoints that are folders: tensors in shards, which processes write and read each by itself.

The shards are safetensors files of ``torch.distributed.checkpoint``. What is no shard is in a
:data:`REST`. Neither runs code when it is read, and whole tensors can be made of them anywhere.
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

from .checksums import read_checksums, verify_checksum
from .files import read_checkpoint
from .state_dicts import DamagedError

REST = 'rest.pth'
SHAPES = 'shards'  # in the rest: whole shapes of the shards by their paths


def is_sharded(path: str | Path) -> bool:
    """Whether a checkpoint is a folder of shards."""
    return isfile(join(expanduser(path), REST))


def is_checkpoint(path: str | Path) -> bool:
    """Whether there is a file, or a folder of shards; not so where the path can be none."""
    return isfile(expanduser(path)) or is_sharded(path)


def mapped(value: Any, change: Callable[[str, Any], Any], path: str = '') -> Any:
    """A nest of dicts with ``change(path, value)`` in place of each value.

    Paths are as in ``optimizer/state/3/exp_avg``.
    """
    if isinstance(value, Mapping):
        return {
            key: mapped(item, change, f'{path}/{key}' if path else str(key))
            for key, item in value.items()
        }
    return change(path, value)


def write_shards(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Write the shards that each process keeps; all processes must call it.

    Args:
        folder: That all processes see.
        tensors: DTensors by their paths in the checkpoint.

    Raises:
        OSError: If a file cannot be written, in all processes.
    """
    from torch.distributed import checkpoint as dcp  # takes a while, and few need it
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter

    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    try:
        dcp.save(dict(tensors), storage_writer=writer)  # which waits until files are on the disk
    except dcp.CheckpointException as error:
        failure, _ = next(iter(error.failures.values()))
        if isinstance(failure, OSError):
            raise OSError(failure.errno, failure.strerror) from error
        raise


def shards_of(folder: Path, rank: int) -> list[Path]:
    """The files that :func:`write_shards` wrote in a process."""
    return sorted(folder.glob(f'shard-{rank + 1:05d}-*.safetensors'))


def check_folder(folder: Path) -> None:
    """Compare all files of a folder of shards with what was saved.

    Raises:
        DamagedError: If one differs or is missing.
        WeightsError: As :func:`~.files.read_checkpoint`.
    """
    for name, _ in read_checksums(folder):
        if not (folder / name).is_file():
            raise DamagedError(f'{folder} is a damaged checkpoint in shards: {name} is missing')
        verify_checksum(folder / name)
    open_folder(folder, trust=False)


def read_folder(folder: str | Path,
                *,
                trust: bool = False,
                place_of: Callable[[str], Tensor | None] = lambda path: None) -> dict[str, Any]:
    """What a whole checkpoint would hold.

    Args:
        folder: With shards, and a :data:`REST` that lists their whole shapes as ``shards``.
        trust: See :func:`~.files.read_checkpoint`.
        place_of: For a path in the checkpoint, a tensor to be like. A DTensor gets the part of its
            process. What has none, or another shape, is read whole, to the CPU.

    Raises:
        FileNotFoundError: If it is no such folder.
        DamagedError: If it is damaged.
        WeightsError: As :func:`~.files.read_checkpoint`.
    """
    from torch.distributed import checkpoint as dcp

    folder = Path(folder).expanduser()
    rest, reader, found = open_folder(folder, trust)
    for file in sorted(folder.glob('*.safetensors')):
        verify_checksum(file)
    try:
        tensors = {}
        for path, tensor in found.items():
            place = place_of(path)
            if place is None or place.shape != tensor.size:
                tensors[path] = torch.empty(tensor.size, dtype=tensor.properties.dtype)
            else:
                tensors[path] = torch.empty_like(place, dtype=tensor.properties.dtype)
        with warnings.catch_warnings():  # that processes do not read together
            warnings.simplefilter('ignore', UserWarning)
            dcp.load(dict(tensors), storage_reader=reader, no_dist=True)
    except (SafetensorError, dcp.CheckpointException, OSError, KeyError, ValueError) as error:
        raise DamagedError(f'{folder} is a damaged checkpoint in shards: {error}') from error
    return mapped(rest, lambda path, value: tensors.get(path, value))


def open_folder(folder: Path, trust: bool) -> tuple[dict[str, Any], Any, dict[str, Any]]:
    """The rest of a folder of shards, what reads its tensors, and what is known of each.

    Raises:
        DamagedError: If files of it are missing or cannot be read.
        WeightsError: As :func:`~.files.read_checkpoint`.
    """
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    rest = read_checkpoint(folder / REST, trust=trust)
    shapes = rest.pop(SHAPES, {})
    reader = HuggingFaceStorageReader(str(folder))
    try:
        found = reader.read_metadata().state_dict_metadata
        if {path: list(tensor.size) for path, tensor in found.items()} != shapes:
            raise UserError('files of it are missing')
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise DamagedError(f'{folder} is a damaged checkpoint in shards: {error}') from error
    return rest, reader, found
