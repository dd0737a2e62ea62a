"""Checkpoint files: read without running what is pickled in them, whatever they are called."""
from __future__ import annotations

import argparse
import json
import pickle
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from mmengine.config import ConfigDict
from mmengine.logging import HistoryBuffer
from safetensors import SafetensorError

from colonnade.common.errors import MissingFileError, file_errors

from .checksums import verify_checksum
from .state_dicts import DamagedError, WeightsError

#: in the metadata of safetensors: classes and palette in JSON, as checkpoints of mmengine have them
DATASET_META = 'dataset_meta'
ARCHIVE = b'PK\3\4'  # how files begin that torch writes
FRAMED = rb'\x80[\4\5]\x95'  # and pickles of protocols that it does not read without trust
_TRUST = ContextVar('trust', default=False)


@contextmanager
def allow_pickle(trust: bool = True) -> Iterator[None]:
    """While open, every file that this thread reads may run what is pickled in it."""
    token = _TRUST.set(trust)
    try:
        yield
    finally:
        _TRUST.reset(token)


def statistic_of_history_buffer(owner: type, name: str) -> Callable:
    """What ``getattr`` is pickled for in mmengine's checkpoints, and nothing else."""
    if owner is HistoryBuffer and name in ('min', 'max', 'current', 'mean'):
        return getattr(owner, name)
    raise pickle.UnpicklingError(f'Unsupported global: GLOBAL getattr({owner}, {name!r})')


#: What training scripts put beside the tensors: settings, numbers, the history of the loss.
HARMLESS = [
    argparse.Namespace,
    HistoryBuffer,
    (statistic_of_history_buffer, 'builtins.getattr'),
    np.ndarray,
    np.dtype,
    # numpy 1 and numpy 2 keep what rebuilds arrays and numbers in modules of different names
    *((np.empty(0).__reduce__()[0], f'numpy.{core}.multiarray._reconstruct')
      for core in ('core', '_core')),
    *((np.float64(0).__reduce__()[0], f'numpy.{core}.multiarray.scalar')
      for core in ('core', '_core')),
    *(type(np.dtype(code)) for code in '?bhilqBHILQefdFDSUMm'),
    ConfigDict,
]


@file_errors()
def read_checkpoint(path: str | Path, *, trust: bool = False) -> dict[str, Any]:
    """What a ``.pth`` or ``.safetensors`` file holds, recognised by its content, on the CPU.

    Args:
        path: A local file.
        trust: Run whatever code a pickle contains. Only for files whose maker you trust. The same
            holds within :func:`allow_pickle`.

    Raises:
        MissingFileError: If there is no such file.
        FileError: If it cannot be read.
        DamagedError: If it is damaged, or is not what was saved, see :mod:`.checksums`.
        WeightsError: If it is not a file of weights, or contains more than weights.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise MissingFileError(f'no weights file {path}')
    with open(path, 'rb') as file:
        head = file.read(64)
    if not head.strip(b'\0'):
        raise DamagedError(f'{path} is empty, or begins with zeros alone')
    if head.lstrip().startswith(b'<'):
        raise WeightsError(f'{path} is a web page, not weights: the download went wrong')
    if head.startswith(b'version https://git-lfs'):
        raise WeightsError(f'{path} is a pointer of Git LFS, not weights: fetch it with git lfs')
    verify_checksum(path)
    if head[8:9] == b'{':
        return read_safetensors(path)
    is_archive = head.startswith(ARCHIVE)
    trust = trust or _TRUST.get()
    if is_archive and not trust:
        check_unpacked_size(path)
    if re.match(FRAMED, head) and not trust:
        raise WeightsError(
            f'{path} is a pickle of protocol {head[1]}, which could run any code: it is not '
            'loaded. Ask who made it for a file of torch.save or safetensors; if torch.save wrote '
            'it so, and you trust them, say --trust, or trust=True')
    with torch.serialization.safe_globals(HARMLESS):
        try:
            with open(path, 'rb') as file:  # by a path, torch would believe the suffix
                content = torch.load(file, map_location='cpu', weights_only=not trust)
        except pickle.UnpicklingError as error:
            raise refusal(path, error, is_archive) from error
        except ImportError as error:
            raise WeightsError(
                f'{path} holds objects of a module that is not installed here ({error}): install '
                'it, or ask who made the file for its tensors alone') from error
        except Exception as error:  # damaged files lead torch to errors of all kinds
            raise DamagedError(f'{path} is damaged or no weights file: '
                               f'{str(error) or type(error).__name__}') from error
    if not isinstance(content, Mapping):
        raise WeightsError(f'{path} holds a {type(content).__name__}, not a dict of weights')
    return dict(content)


def check_unpacked_size(path: Path) -> None:
    """Raise a WeightsError if a file of ``torch.save`` unpacks to more bytes than it has.

    torch stores what it writes, and unpacks what others have compressed: 100 kB to 100 MB.
    """
    unpacked = 0
    with suppress(Exception), zipfile.ZipFile(path) as file:  # torch says what is damaged
        unpacked = sum(record.file_size for record in file.infolist())
    if unpacked > path.stat().st_size:
        raise WeightsError(f'{path} unpacks to {unpacked} bytes and has {path.stat().st_size}: '
                           'torch.save writes no such files. If you trust who made it, pass '
                           '--trust, or trust=True')


def read_safetensors(path: Path) -> dict[str, Any]:
    """The tensors of a safetensors file; with classes, where it has them, as a ``.pth`` file.

    Raises:
        WeightsError: If it is damaged.
    """
    try:
        tensors = safetensors.torch.load_file(path)
        with safetensors.safe_open(path, framework='pt') as file:
            text = (file.metadata() or {}).get(DATASET_META)
        if text is None:
            return tensors
        dataset_meta = json.loads(text)
    except (SafetensorError, ValueError, RecursionError) as error:
        raise DamagedError(f'{path} is a damaged safetensors file: {error}') from error
    if not isinstance(dataset_meta, dict):
        raise WeightsError(f'{path} is a damaged safetensors file: its {DATASET_META} is no object')
    return dict(meta=dict(dataset_meta=dataset_meta), state_dict=tensors)


def refusal(path: Path, error: Exception, is_archive: bool) -> WeightsError:
    """Why torch's restricted unpickler would not read a file."""
    found = re.findall(r'GLOBAL (\S+) was not an allowed global', str(error))
    if is_archive:
        with suppress(Exception):  # it reads all globals, of damaged files too
            found = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    reason = re.search(r'WeightsUnpickler error:\s+(.+)', str(error))
    if not found and is_archive and reason:
        return WeightsError(f'{path} contains what is not loaded without trust ({reason[1]}). If '
                            'you trust who made it, say --trust, or trust=True')
    if not found:
        because = f': {reason[1]}' if reason else ''
        return DamagedError(f'{path} is damaged or no weights file{because}')
    return WeightsError(
        f'{path} contains more than weights ({", ".join(found)}) and is not loaded, since that '
        'could run any code. If you trust who made it, say --trust, or trust=True')
