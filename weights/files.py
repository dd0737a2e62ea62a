"""Safe reading of checkpoint files: no pickled code is run, and suffixes are not trusted."""
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

from colonnade.common.errors import MissingFileError, convert_errors, file_errors

from .array_pickles import ForbiddenTypeError, is_array_pickle, read_array_pickle
from .checkpoint_files import ZIP_ERRORS, verify_checksum
from .state_dicts import DamagedError, WeightsError

#: key of safetensors metadata with classes and palette in JSON, as in mmengine
DATASET_META = 'dataset_meta'
ARCHIVE = b'PK\3\4'  # first bytes of files that torch writes
_TRUST = ContextVar('trust', default=False)


@contextmanager
def allow_pickle(trust: bool = True) -> Iterator[None]:
    """Context manager that lets every file this thread reads run pickled code."""
    token = _TRUST.set(trust)
    try:
        yield
    finally:
        _TRUST.reset(token)


def get_buffer_statistic(owner: type, name: str) -> Callable:
    """Return a method of HistoryBuffer, for which mmengine's files pickle ``getattr``."""
    if owner is HistoryBuffer and name in ('min', 'max', 'current', 'mean'):
        return getattr(owner, name)
    raise pickle.UnpicklingError(f'Unsupported global: GLOBAL getattr({owner}, {name!r})')


#: other content of training checkpoints: settings, numbers, the history of the loss
HARMLESS = [
    argparse.Namespace,
    HistoryBuffer,
    (get_buffer_statistic, 'builtins.getattr'),
    np.ndarray,
    np.dtype,
    # numpy 1 and 2 rebuild arrays and numbers in modules of different names.
    *((np.empty(0).__reduce__()[0], f'numpy.{core}.multiarray._reconstruct')
      for core in ('core', '_core')),
    *((np.float64(0).__reduce__()[0], f'numpy.{core}.multiarray.scalar')
      for core in ('core', '_core')),
    *(type(np.dtype(code)) for code in '?bhilqBHILQefdFDSUMm'),
    ConfigDict,
]


@file_errors()
def read_checkpoint(path: str | Path, *, trust: bool = False) -> dict[str, Any]:
    """Return the content of a ``.pth`` or ``.safetensors`` file, detected by content, on the CPU.

    Args:
        path: Local file.
        trust: Run the code of pickles, for files from a trusted source. So does
            :func:`allow_pickle`.

    Raises:
        MissingFileError: If the file does not exist.
        FileError: If it cannot be read.
        DamagedError: If it is damaged or not as it was saved.
        WeightsError: If it is not a file of weights, or contains more than weights.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise MissingFileError(f'no such weights file: {path}')
    with open(path, 'rb') as file:
        head = file.read(64)
    if not head.strip(b'\0'):
        raise DamagedError(f'{path} is empty or starts with null bytes')
    if head.lstrip().startswith(b'<'):
        raise WeightsError(f'{path} is a web page, not weights: download it again')
    if head.startswith(b'version https://git-lfs'):
        raise WeightsError(f'{path} is a Git LFS pointer, not weights: fetch it with git lfs')
    verify_checksum(path)
    if head[8:9] == b'{':
        return read_safetensors(path)
    is_archive = head.startswith(ARCHIVE)
    trust = trust or _TRUST.get()
    if is_archive and not trust:
        check_unpacked_size(path)
    if is_array_pickle(head) and not trust:
        return _read_arrays(path)
    with torch.serialization.safe_globals(HARMLESS):
        try:
            # Given a path, torch would trust the suffix. It raises all errors for damaged files.
            with open(path, 'rb') as file, convert_errors(
                    lambda error: DamagedError(f'{path} is damaged or not a weights file: '
                                               f'{str(error) or type(error).__name__}'),
                    pickle.UnpicklingError, ImportError):
                content = torch.load(file, map_location='cpu', weights_only=not trust)
        except pickle.UnpicklingError as error:
            raise explain_refusal(path, error, is_archive) from error
        except ImportError as error:
            raise WeightsError(
                f'{path} contains objects from a module that is not installed ({error}): install '
                'it, or ask the author for a file that contains only tensors') from error
    if not isinstance(content, Mapping):
        raise WeightsError(
            f'{path} contains a {type(content).__name__}, expected a dict of weights')
    return dict(content)


def _read_arrays(path: Path) -> dict[str, Any]:
    """Read a pickle of numpy arrays, or raise a WeightsError if it has more than these."""
    try:
        with convert_errors(
                lambda error: DamagedError(f'{path} is damaged or not a weights file: '
                                           f'{str(error) or type(error).__name__}'),
                ForbiddenTypeError, WeightsError):
            return read_array_pickle(path)
    except ForbiddenTypeError as error:
        raise WeightsError(
            f'{path} is a pickle that contains more than numpy arrays ({error}), could run '
            'arbitrary code, and is not loaded: ask its author for a torch.save or safetensors '
            'file. If torch.save wrote it and you trust the author, pass --trust, or trust=True'
        ) from error


def check_unpacked_size(path: Path) -> None:
    """Raise a WeightsError if a file of ``torch.save`` unpacks to more bytes than it has.

    torch.save does not compress, but torch unpacks compressed files: 100 kB to 100 MB.
    """
    unpacked = 0
    with suppress(*ZIP_ERRORS), zipfile.ZipFile(path) as file:  # torch reports damage
        unpacked = sum(record.file_size for record in file.infolist())
    if unpacked > path.stat().st_size:
        raise WeightsError(f'{path} has {path.stat().st_size} bytes and unpacks to {unpacked}: '
                           'torch.save does not write such files. If you trust its author, pass '
                           '--trust, or trust=True')


def read_safetensors(path: Path) -> dict[str, Any]:
    """Return the tensors of a safetensors file, and its classes as a ``.pth`` file has them."""
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
        raise WeightsError(
            f'{path} is a damaged safetensors file: its {DATASET_META} is not a JSON object')
    return dict(meta=dict(dataset_meta=dataset_meta), state_dict=tensors)


def explain_refusal(path: Path, error: Exception, is_archive: bool) -> WeightsError:
    """Return an error that explains why torch's restricted unpickler refused a file."""
    types = re.findall(r'GLOBAL (\S+) was not an allowed global', str(error))
    if is_archive:
        with suppress(Exception):  # it reads all types, also of damaged files
            types = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    reason = re.search(r'WeightsUnpickler error:\s+(.+)', str(error))
    if not types and is_archive and reason:
        return WeightsError(
            f'{path} contains objects that are loaded only from trusted files ({reason[1]}). '
            'If you trust its author, pass --trust, or trust=True')
    if not types:
        because = f': {reason[1]}' if reason else ''
        return DamagedError(f'{path} is damaged or not a weights file{because}')
    return WeightsError(
        f'{path} contains more than weights ({", ".join(types)}) and is not loaded, since that '
        'could run arbitrary code. If you trust its author, pass --trust, or trust=True')
