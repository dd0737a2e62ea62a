"""Reading of pickles that contain only numpy arrays, such as detectron2's ``.pkl`` files."""
from __future__ import annotations

import pickle
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .state_dicts import WeightsError

#: number that torch writes first without an archive
TORCH_MAGIC = pickle.dumps(0x1950a86a20f9469cfc6c, protocol=2)[2:-1]
KINDS = 'biuf'  # of arrays that tensors can have: booleans, integers and floats


class ForbiddenTypeError(pickle.UnpicklingError):
    """Pickle with a type that is neither an array nor a number."""


def _create_array(kind: type, shape: object, code: object) -> np.ndarray:
    """Create an empty array, whose content follows; no memory is allocated for the given shape."""
    return np.ndarray.__new__(np.ndarray, (0, ), 'b')


def _encode(text: str, encoding: str) -> bytes:
    """Return the bytes that protocols before 3 store as text."""
    return text.encode('latin1')


def _create_empty_bytes() -> bytes:
    """Return no bytes, for which protocols before 3 call ``bytes()``."""
    return b''


class ArrayUnpickler(pickle.Unpickler):
    """Unpickler that knows numpy's arrays and numbers, and nothing else."""

    ALLOWED = {
        ('collections', 'OrderedDict'): OrderedDict,
        ('_codecs', 'encode'): _encode,
        ('__builtin__', 'bytes'): _create_empty_bytes,
        ('numpy', 'ndarray'): np.ndarray,
        ('numpy', 'dtype'): np.dtype,
        **{(f'numpy.{core}.multiarray', '_reconstruct'): _create_array
           for core in ('core', '_core')},
        **{(f'numpy.{core}.multiarray', 'scalar'): np.float64(0).__reduce__()[0]
           for core in ('core', '_core')},
        **{(f'numpy.{core}.numeric', '_frombuffer'): np.empty(0).__reduce_ex__(5)[0]
           for core in ('core', '_core')},
    }  # yapf: disable

    def find_class(self, module: str, name: str) -> Any:
        """Return an allowed type or function, or raise a ForbiddenTypeError."""
        try:
            return self.ALLOWED[module, name]
        except KeyError:
            raise ForbiddenTypeError(f'{module}.{name} is not allowed') from None


def is_array_pickle(head: bytes) -> bool:
    """Return True if the first bytes of a file are a pickle that torch did not write."""
    return head[:1] == b'\x80' and head[1:2] <= b'\5' and TORCH_MAGIC not in head


def read_array_pickle(path: Path) -> dict[str, Any]:
    """Return the dict of a pickle, with tensors instead of arrays.

    Raises:
        ForbiddenTypeError: If the pickle has other types.
        WeightsError: If it is not a dict, or its arrays are not of numbers.
    """
    with open(path, 'rb') as file:
        content = ArrayUnpickler(file).load()
    if not isinstance(content, Mapping):
        raise WeightsError(
            f'{path} contains a {type(content).__name__}, expected a dict of weights')
    return _to_tensors(content, path)


def _to_tensors(content: Mapping[Any, Any], path: Path) -> dict[str, Any]:
    """Convert arrays, also those of nested dicts."""
    converted: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, Mapping):
            value = _to_tensors(value, path)
        elif isinstance(value, (np.ndarray, np.generic)):
            array = np.asarray(value)
            if array.dtype.kind not in KINDS:
                raise WeightsError(f'{path} has an array {key} of {array.dtype}, expected numbers')
            value = torch.from_numpy(array.astype(array.dtype.newbyteorder('='), order='C'))
        converted[key] = value
    return converted
