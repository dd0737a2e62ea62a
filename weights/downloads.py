"""Checkpoints from a path, a URL or timm's hub."""
from __future__ import annotations

import hashlib
import os
import re
import socket
from difflib import get_close_matches
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlparse
from urllib.request import Request, getproxies, urlopen
from uuid import uuid4

import torch
from huggingface_hub import constants, try_to_load_from_cache
from huggingface_hub.errors import HfHubHTTPError
from mmengine.dist import all_gather_object
from timm.models import get_pretrained_cfg, list_pretrained, load_state_dict_from_hf

from colonnade.common.errors import FileError

from .files import read_checkpoint
from .sharded_files import is_sharded, read_folder
from .state_dicts import State, WeightsError

#: where launchers say which process of its machine this one is
LOCAL_RANKS = ('LOCAL_RANK', 'SLURM_LOCALID', 'OMPI_COMM_WORLD_LOCAL_RANK')
TIMEOUT = 60  # seconds without a byte
MAX_BYTES = 64 * 2**30  # maximum size of a download
CHUNK = 2**20  # bytes
#: names of published files that end in the first digits of their SHA-256: model-0676ba61.pth
WITH_HASH = re.compile(r'-(?!20\d{6}\.)([0-9a-f]{8,64})\.\w+$')


def fetch(source: str | Path, *, trust: bool = False) -> dict[str, Any]:
    """Read the checkpoint of a path, an ``http(s)://`` URL or ``timm://NAME``.

    A folder of shards is read as the full checkpoint.
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
    raise WeightsError(f'{source}: expected a path, http://, https:// or timm://')


def download(url: str) -> Path:
    """Download a file to torch's hub folder, once per node, and return its path.

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
            fetch_file(url, path)
        except (OSError, HTTPException) as error:  # URLError and HTTPError are OSErrors
            failure = f'{url} cannot be downloaded: {error}'
    # The others wait here until the file exists.
    for message in filter(None, all_gather_object(failure)):
        raise WeightsError(message)
    return path


def fetch_file(url: str, path: Path) -> None:
    """Download a file to an existing folder; it is complete or absent."""
    scratch = path.with_name(f'.unfinished-{uuid4().hex}')
    request = Request(url, headers={'User-Agent': 'colonnade'})
    try:
        with urlopen(request, timeout=TIMEOUT) as response, scratch.open('wb') as file:
            if urlparse(response.url).scheme not in ('http', 'https'):
                raise OSError(f'it redirects to {response.url}, which is neither http nor https')
            digest = copy(response, file)
        expected = WITH_HASH.search(Path(urlparse(url).path).name)
        if expected and not digest.startswith(expected[1]):
            raise OSError(
                f'its SHA-256 is {digest}, but its name contains {expected[1]}: it is '
                'damaged, or a different file. If it is the right one, download it yourself '
                'and pass its path')
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)


def copy(response: HTTPResponse, file: BinaryIO) -> str:
    """Write the body of a response to a file, and return its SHA-256."""
    announced, count = response.headers.get('Content-Length', ''), 0
    digest = hashlib.sha256()
    while chunk := response.read(CHUNK):
        count += len(chunk)
        if count > MAX_BYTES:
            raise OSError(f'it has more than {MAX_BYTES} bytes')
        digest.update(chunk)
        file.write(chunk)
    if announced.isdecimal() and int(announced) != count:
        raise OSError(f'the connection was lost after {count} of {announced} bytes')
    return digest.hexdigest()


def fetch_from_timm(name: str) -> State:
    """Load the weights that timm publishes under the name and tag of a model."""
    cached = find_timm_weights(name)
    if cached:
        return read_checkpoint(cached)
    published = get_pretrained_cfg(name)
    if published.hf_hub_id is None:  # only the authors' site has the file
        return read_checkpoint(download(published.url))
    filename = [published.hf_hub_filename] if published.hf_hub_filename else []
    try:
        return load_state_dict_from_hf(published.hf_hub_id, *filename, weights_only=True)
    except (OSError, RuntimeError, HfHubHTTPError) as error:
        raise explain_download(name, error) from error


def find_timm_weights(name: str) -> str:
    """Return the cached file of timm's weights, or an empty string if they can be downloaded.

    Raises:
        WeightsError: If timm does not publish them, or the hub cannot be reached.
    """
    check_published(name)
    published = get_pretrained_cfg(name)
    if published.hf_hub_id is None:
        return ''
    cached = try_to_load_from_cache(published.hf_hub_id, published.hf_hub_filename
                                    or 'model.safetensors')
    if isinstance(cached, str):
        return cached
    try:
        require_hub()
    except OSError as error:
        raise explain_download(name, error) from error
    return ''


def explain_download(name: str, error: Exception) -> WeightsError:
    """Return the error of timm's weights that cannot be downloaded."""
    return WeightsError(f'timm://{name} cannot be downloaded: {error}. Alternatively, download '
                        'the file elsewhere and pass its path')


def check_published(name: str) -> None:
    """Raise a WeightsError if timm publishes no weights under a model's name and tag."""
    known = list_pretrained()
    if name not in known:
        near = ' or '.join(get_close_matches(name, known, n=4))
        hint = f'; did you mean {near}?' if near else ': timm.list_pretrained() lists all names'
        raise WeightsError(f'timm has no pretrained weights named {name}{hint}')


def require_hub() -> None:
    """Raise a FileError without a network: the hub's client would retry for a minute."""
    host = urlparse(constants.ENDPOINT).hostname
    try:
        if not getproxies():
            socket.getaddrinfo(host, 443)
    except OSError as error:
        raise FileError(f'{host} cannot be reached: {error}') from error
