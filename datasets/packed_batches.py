"""Batches whose small tensors leave the workers of a data loader together."""
from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable
from functools import cache
from multiprocessing import parent_process
from multiprocessing.reduction import ForkingPickler
from multiprocessing.util import Finalize
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import get_worker_info

MAX_BYTES = 2**16  # of a tensor that is copied through the pipe, instead of by shared memory


class PackingCollate:
    """Collate function whose batches leave a worker with their small tensors inside.

    torch sends every tensor by itself, through a socket of its own: for eight small images with
    their boxes, this takes longer than loading them.

    Args:
        collate: Function of a list of samples that returns a batch: any structure with tensors.
    """

    def __init__(self, collate: Callable[[list], Any]) -> None:
        self.collate = collate

    def __call__(self, samples: list) -> Any:
        batch = self.collate(samples)
        if get_worker_info() is None:
            return batch
        exit_when_orphaned()
        return PackedBatch(batch)


@cache
def exit_when_orphaned() -> None:
    """Let this worker of a data loader exit at once if its process has been killed.

    A worker that ends waits until its batches have been read, which then never happens if they fill
    the pipe. One from a fork server does not end at all: torch looks for the server instead.
    """
    process = parent_process()
    if process is None:
        return

    def exit_if_orphaned() -> None:
        if not _is_running(process.pid):
            os._exit(1)

    def exit_after_process() -> None:
        process.join()
        os._exit(1)

    Finalize(None, exit_if_orphaned, exitpriority=100)
    if process.pid != os.getppid():
        Thread(target=exit_after_process, daemon=True).start()


def _is_running(pid: int | None) -> bool:
    """Return whether a process runs; on Linux, one that awaits its own parent does not."""
    try:
        os.kill(pid or 0, 0)
        stat = Path(f'/proc/{pid}/stat')
        if not stat.exists():
            return True
        return not stat.read_text(
            encoding='utf-8', errors='replace').rpartition(') ')[2].startswith('Z')
    except OSError:
        return False


class PackedBatch:
    """Batch in a worker; where it is received, it is the batch itself."""

    def __init__(self, batch: Any) -> None:
        file = io.BytesIO()
        pickler = _SmallTensorPickler(file)
        pickler.dump(batch)
        self.content, self.arrays = file.getvalue(), pickler.arrays

    def __reduce__(self) -> tuple[Callable, tuple]:
        return _unpack, (self.content, self.arrays)


class _SmallTensorPickler(ForkingPickler):
    """Pickler that writes small CPU tensors itself, and leaves the others to torch.

    Label maps of int64 are written as uint8 if this makes them small.

    Attributes:
        arrays: Large arrays of numbers, such as masks, which are not written: they would be copied
            twice. As in torch, datasets must not change them afterwards.
    """

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.arrays: list[np.ndarray] = []

    def persistent_id(self, value: Any) -> int | None:
        if type(value) is not np.ndarray or value.dtype.hasobject or value.nbytes <= MAX_BYTES:
            return None
        self.arrays.append(value)
        return len(self.arrays) - 1

    def reducer_override(self, value: Any) -> Any:
        if type(value) is not Tensor or value.is_nested or value.layout is not torch.strided or \
                value.device.type != 'cpu' or value.requires_grad or value.is_quantized:
            return NotImplemented
        dtype = torch.uint8 if _is_label_map(value) else value.dtype
        if value.numel() * dtype.itemsize > MAX_BYTES:
            return NotImplemented
        values = torch.empty(value.shape, dtype=dtype).copy_(value).flatten()
        content = bytearray(values.view(torch.uint8).numpy())
        return _rebuild, (content, dtype, value.shape, value.dtype)


class _Unpickler(pickle.Unpickler):

    def __init__(self, file: io.BytesIO, arrays: list[np.ndarray]) -> None:
        super().__init__(file)
        self.arrays = arrays

    def persistent_load(self, index: int) -> np.ndarray:
        return self.arrays[index]


def _unpack(content: bytes, arrays: list[np.ndarray]) -> Any:
    return _Unpickler(io.BytesIO(content), arrays).load()


def _is_label_map(value: Tensor) -> bool:
    """Return whether a tensor is small only if each of its integers takes one byte."""
    return value.dtype is torch.int64 and value.numel() <= MAX_BYTES < value.nbytes and \
        all(0 <= limit.item() <= 255 for limit in value.aminmax())


def _rebuild(content: bytearray, stored: torch.dtype, shape: torch.Size,
             dtype: torch.dtype) -> Tensor:
    tensor = torch.frombuffer(content, dtype=stored) if content else torch.empty(0, dtype=stored)
    return tensor.reshape(shape).to(dtype)
