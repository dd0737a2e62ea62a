"""Fingerprints of a run: checksums of its data, versions of its software, and its hardware."""
from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.utils import get_git_hash
from mmengine.utils.dl_utils import collect_env

from colonnade.common.hashing import compute_sha256
from colonnade.common.storage.file_access import Settings, is_local_path
from colonnade.datasets.validation.label_map_files import sample_evenly
from colonnade.settings.dataset_paths import find_datasets, get_dataset_paths

#: distributions of each library, one of which is installed
LIBRARIES = {
    'colonnade': ('colonnade', ),
    'torch': ('torch', ),
    'timm': ('timm', ),
    'mmengine': ('onedl-mmengine', 'mmengine'),
    'mmcv': ('onedl-mmcv', 'mmcv'),
    'mmdet': ('onedl-mmdetection', 'mmdet'),
    'mmseg': ('onedl-mmsegmentation', 'mmsegmentation'),
}
LONG = ('PyTorch compiling details', )  # entries of many lines
ELSEWHERE = 'not on this machine'  # in place of a checksum of remote files
FOLDER = 'names'  # prefix of the checksum of a folder
MAX_SIZES = 1000  # files of a folder whose sizes are read: each takes a request on a network


def compute_data_checksums(cfg: Config, dataloader: str, known: Mapping[str,
                                                                        str]) -> dict[str, str]:
    """Return the SHA-256 of the files and folders of a dataloader, by path.

    Annotation files are read. Folders are listed, see :func:`compute_listing_checksum`.

    Args:
        dataloader: Key of the config, such as ``train_dataloader``.
        known: Checksums that were computed before, by path.
    """
    return {
        path: known.get(path) or compute_path_checksum(path, dataset.get('backend_args'))
        for _, dataset in find_datasets(cfg, (dataloader, ))
        for path in get_dataset_paths(dataset)
    }


def compute_path_checksum(path: str, settings: Settings = None) -> str:
    """Return the SHA-256 of a file or of a folder's listing, or ``ELSEWHERE`` for remote ones."""
    if not is_local_path(path, settings):
        return ELSEWHERE
    if os.path.isdir(path):
        return f'{FOLDER} {compute_listing_checksum(path)}'
    return compute_sha256(Path(path))


def compute_listing_checksum(folder: str) -> str:
    """Return the SHA-256 of the names of all files in a folder and below, and of some sizes.

    At most ``MAX_SIZES`` files, spread evenly over all, contribute their sizes.
    """
    paths = sorted(_iter_files(folder))
    digest = hashlib.sha256()
    for path in paths:
        digest.update(os.fsencode(path.removeprefix(folder).lstrip(os.sep) + '\n'))
    for path in sample_evenly(paths, MAX_SIZES):
        try:
            size = os.stat(path).st_size
        except OSError:  # a link that leads nowhere
            size = os.lstat(path).st_size
        digest.update(f'{size}\n'.encode())
    return digest.hexdigest()


def _iter_files(folder: str, parents: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the path of each file in a folder and below."""
    parents = (*parents, os.path.realpath(folder))
    with os.scandir(folder) as entries:
        for entry in entries:
            # Links with a suffix count as files: following a million of them takes minutes.
            is_link = entry.is_symlink()
            is_file = is_link and (os.path.splitext(entry.name)[1]
                                   or not os.path.exists(entry.path))
            if is_file or not entry.is_dir():
                yield entry.path
            elif not is_link or os.path.realpath(entry.path) not in parents:
                yield from _iter_files(entry.path, parents)


def get_versions() -> dict[str, str]:
    """Return versions of the libraries, and the commit of the working directory."""
    versions = {'Python': platform.python_version()}
    for name, distributions in LIBRARIES.items():
        for distribution in distributions:
            try:
                versions[name] = version(distribution)
                break
            except PackageNotFoundError:
                continue
    commit = get_git_hash(fallback='')
    return versions | ({'commit of the working folder': commit} if commit else {})


def describe_machine() -> dict[str, str]:
    """Return processor, memory, GPUs and mmengine's description of the environment."""
    total = os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')
    cores = os.cpu_count() if sys.platform == 'darwin' else len(os.sched_getaffinity(0))
    info = Path('/proc/cpuinfo')  # on Linux
    lines = info.read_text(encoding='utf-8').splitlines() if info.is_file() else []
    models = [line.partition(':')[2].strip() for line in lines if line.startswith('model name')]
    hardware = {
        'processor': models[0] if models else platform.processor() or platform.machine(),
        'cores': str(cores),
        'memory': f'{total / 2**30:.0f} GiB',
        'system': platform.platform(),
    }  # yapf: disable
    environment: dict[str, Any] = collect_env()
    return hardware | {key: str(value) for key, value in environment.items() if key not in LONG}
