"""Checkpoints from a path, a URL or timm's hub; what is fetched is read by :mod:`.files`."""
from __future__ import annotations

import hashlib
import os
import socket
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from urllib.parse import urlparse
from urllib.request import getproxies

import torch
from huggingface_hub import constants, try_to_load_from_cache
from huggingface_hub.errors import HfHubHTTPError
from mmengine.dist import all_gather_object
from timm.models import get_pretrained_cfg, list_pretrained, load_state_dict_from_hf

from .files import read_checkpoint
from .sharded_files import is_sharded, read_folder
from .state_dicts import State, WeightsError

#: where launchers say which process of its machine this one is
LOCAL_RANKS = ('LOCAL_RANK', 'SLURM_LOCALID', 'OMPI_COMM_WORLD_LOCAL_RANK')


def fetch(source: str | Path, *, trust: bool = False) -> dict[str, Any]:
    """What :func:`read_checkpoint` gives for a path, an ``http(s)://`` URL or ``timm://NAME``.

    A folder of shards gives what the whole checkpoint would.

    Raises:
        FileNotFoundError: If there is no such file.
        WeightsError: If it cannot be fetched or read.
    """
    source = str(source)
    scheme, separator, name = source.partition('://')
    if not separator:
        read = read_folder if is_sharded(source) else read_checkpoint
        return read(source, trust=trust)
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
    published = get_pretrained_cfg(name)
    repository = published.hf_hub_id
    if repository is None:  # the file is at its authors' site alone
        return read_checkpoint(download(published.url))
    filename = [published.hf_hub_filename] if published.hf_hub_filename else []
    cached = try_to_load_from_cache(repository, *filename or ['model.safetensors'])
    if isinstance(cached, str):
        return read_checkpoint(cached)
    try:
        require_hub()
        return load_state_dict_from_hf(repository, *filename, weights_only=True)
    except (OSError, RuntimeError, HfHubHTTPError) as error:
        raise WeightsError(f'timm://{name} cannot be downloaded: {error}') from error


def require_hub() -> None:
    """Raise a ConnectionError without a network: the hub's client would retry for a minute."""
    host = urlparse(constants.ENDPOINT).hostname
    try:
        if not getproxies():
            socket.getaddrinfo(host, 443)
    except OSError as error:
        raise ConnectionError(f'{host} cannot be reached: {error}') from error
