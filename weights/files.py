"""Checkpoint files: read without running what is pickled in them, whatever they are called."""
from __future__ import annotations

import argparse
import hashlib
import os
import pickle
import re
import socket
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from urllib.parse import urlparse
from urllib.request import getproxies

import numpy as np
import safetensors.torch
import torch
from huggingface_hub import try_to_load_from_cache
from huggingface_hub.constants import ENDPOINT
from huggingface_hub.errors import HfHubHTTPError
from mmengine.config import ConfigDict
from mmengine.dist import all_gather_object
from mmengine.logging import HistoryBuffer
from safetensors import SafetensorError
from timm.models import get_pretrained_cfg, list_pretrained, load_state_dict_from_hf
from torch import Tensor

State = dict[str, Tensor]

#: where launchers say which process of its machine this one is
LOCAL_RANKS = ('LOCAL_RANK', 'SLURM_LOCALID', 'OMPI_COMM_WORLD_LOCAL_RANK')
_TRUST = ContextVar('trust', default=False)


class WeightsError(ValueError):
    """Weights that cannot be loaded; says which file, and why."""


@contextmanager
def trusting(trust: bool = True) -> Iterator[None]:
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


def read_checkpoint(path: str | Path, *, trust: bool = False) -> dict[str, Any]:
    """What a ``.pth`` or ``.safetensors`` file holds, recognised by its content, on the CPU.

    Args:
        path: A local file.
        trust: Run whatever code a pickle contains. Only for files whose maker you trust. The same
            holds within :func:`trusting`.

    Raises:
        FileNotFoundError: If there is no such file.
        WeightsError: If it is not a file of weights, is damaged, or contains more than weights.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f'no weights file {path}')
    with open(path, 'rb') as file:
        head = file.read(64)
    if not head.strip(b'\0'):
        raise WeightsError(f'{path} is empty')
    if head.lstrip().startswith(b'<'):
        raise WeightsError(f'{path} is a web page, not weights: the download went wrong')
    if head.startswith(b'version https://git-lfs'):
        raise WeightsError(f'{path} is a pointer of Git LFS, not weights: fetch it with git lfs')
    if head[8:9] == b'{':
        try:
            return safetensors.torch.load_file(path)
        except SafetensorError as error:
            raise WeightsError(f'{path} is a damaged safetensors file: {error}') from error
    trust = trust or _TRUST.get()
    with torch.serialization.safe_globals(HARMLESS):
        try:
            content = torch.load(path, map_location='cpu', weights_only=not trust)
        except pickle.UnpicklingError as error:
            raise WeightsError(f'{path} {reason_of_refusal(path, error)}') from error
        except ImportError as error:
            raise WeightsError(
                f'{path} holds objects of a module that is not installed here ({error}): install '
                'it, or ask who made the file for its tensors alone') from error
        except (RuntimeError, EOFError, OSError, KeyError, IndexError, AttributeError,
                UnicodeDecodeError) as error:
            raise WeightsError(f'{path} is damaged or no weights file: {error}') from error
    if not isinstance(content, Mapping):
        raise WeightsError(f'{path} holds a {type(content).__name__}, not a dict of weights')
    return dict(content)


def reason_of_refusal(path: Path, error: Exception) -> str:
    """Why torch's restricted unpickler would not read a file."""
    if zipfile.is_zipfile(path):
        found = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    else:
        found = re.findall(r'GLOBAL (\S+) was not an allowed global', str(error))
    reason = re.search(r'WeightsUnpickler error:\s+(.+)', str(error))
    if not found and zipfile.is_zipfile(path) and reason:
        return (f'contains what is not loaded without trust ({reason[1]}). If you trust who made '
                'it, say --trust')
    if not found:
        return f'is damaged or no weights file{": " + reason[1] if reason else ""}'
    return (f'contains more than weights ({", ".join(found)}) and is not loaded, since that could '
            'run any code. If you trust who made it, say --trust')


def fetch(source: str | Path, *, trust: bool = False) -> dict[str, Any]:
    """What :func:`read_checkpoint` gives for a path, an ``http(s)://`` address or ``timm://NAME``.

    Raises:
        FileNotFoundError: If there is no such file.
        WeightsError: If it cannot be had or read.
    """
    source = str(source)
    scheme, separator, name = source.partition('://')
    if not separator:
        return read_checkpoint(source, trust=trust)
    if scheme == 'timm':
        return fetch_from_timm(name)
    if scheme in ('http', 'https'):
        return read_checkpoint(download(source), trust=trust)
    raise WeightsError(f'{source}: weights come from a path, http://, https:// or timm://')


def download(url: str) -> Path:
    """The file at ``url``, in torch's hub folder; the first process of each machine fetches it.

    Raises:
        WeightsError: If it cannot be fetched, in all processes.
    """
    name = f'{hashlib.sha256(url.encode()).hexdigest()[:8]}-{Path(urlparse(url).path).name}'
    path = Path(torch.hub.get_dir(), 'checkpoints', name)
    local_rank = next((os.environ[name] for name in LOCAL_RANKS if name in os.environ), '0')
    failure = None
    if not path.exists() and local_rank == '0':
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.hub.download_url_to_file(url, str(path), progress=False)
        except OSError as error:  # URLError and HTTPError are such
            failure = f'{url} cannot be downloaded: {error}'
    # also where the others wait until the file is there
    for said in filter(None, all_gather_object(failure)):
        raise WeightsError(said)
    return path


def fetch_from_timm(name: str) -> State:
    """The weights that timm publishes under a model's name and tag.

    Raises:
        WeightsError: If timm has no such weights, or they cannot be downloaded.
    """
    known = list_pretrained()
    if name not in known:
        near = ', '.join(get_close_matches(name, known, n=4)) or 'timm.list_pretrained() lists them'
        raise WeightsError(f'timm publishes no weights {name}: {near}?')
    repository = get_pretrained_cfg(name).hf_hub_id
    cached = try_to_load_from_cache(repository, 'model.safetensors')
    if isinstance(cached, str):
        return read_checkpoint(cached)
    try:
        if not getproxies():  # the hub's client would retry for most of a minute
            socket.getaddrinfo(urlparse(ENDPOINT).hostname, 443)
        return load_state_dict_from_hf(repository, weights_only=True)
    except (OSError, RuntimeError, HfHubHTTPError) as error:
        raise WeightsError(f'timm://{name} cannot be downloaded: {error}') from error


def state_dict_of(checkpoint: Mapping[str, Any], source: str) -> State:
    """The state dict in what was read: below ``state_dict`` or ``model``, or all of it.

    Raises:
        WeightsError: If there is none.
    """
    for wrapper in ('state_dict', 'model'):
        if isinstance(checkpoint.get(wrapper), Mapping):
            checkpoint = checkpoint[wrapper]
            break
    state = {key: value for key, value in checkpoint.items() if isinstance(value, Tensor)}
    if not state or len(state) < len(checkpoint):
        others = [str(key) for key in checkpoint if key not in state][:8]
        raise WeightsError(f'{source} holds no state dict: {", ".join(others) or "nothing"} '
                           'at the top, and no state_dict or model with tensors alone')
    if all(key.startswith('module.') for key in state):  # saved by DistributedDataParallel
        state = {key.removeprefix('module.'): value for key, value in state.items()}
    return state
