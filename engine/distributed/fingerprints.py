"""What a run was made with: data, programs and machine."""
from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.utils import get_git_hash
from mmengine.utils.dl_utils import collect_env

from colonnade.common.hashing import sha256_of
from colonnade.common.storage.file_access import Settings, is_here
from colonnade.datasets.validation.label_map_files import sample_evenly
from colonnade.settings.dataset_paths import find_datasets, paths_of

LIBRARIES = {  # what a page calls it -> distributions, of which one is installed
    'colonnade': ('colonnade', ),
    'torch': ('torch', ),
    'timm': ('timm', ),
    'mmengine': ('onedl-mmengine', 'mmengine'),
    'mmcv': ('onedl-mmcv', 'mmcv'),
    'mmdet': ('onedl-mmdetection', 'mmdet'),
    'mmseg': ('onedl-mmsegmentation', 'mmsegmentation'),
}
LONG = ('PyTorch compiling details', )  # texts of many lines
ELSEWHERE = 'not on this machine'  # what stands for the content of what is
FOLDER = 'names'  # what stands for the names of a folder's files, and the sizes of some
MAX_SIZES = 1000  # files of a folder whose sizes are compared: each takes a request on a network


def data_of(cfg: Config, dataloader: str, known: Mapping[str, str]) -> dict[str, str]:
    """Return the SHA-256 of what the datasets of a dataloader read, by path.

    That of an annotation file is of its content, that of a folder as in
    :func:`sha256_of_listing`: images are not read.

    Args:
        cfg: Config of a run.
        dataloader: Its key, such as ``train_dataloader``.
        known: SHA-256 that were computed before, by path.

    Raises:
        OSError: If something cannot be read.
    """
    return {
        path: known.get(path) or sha256_of_path(path, dataset.get('backend_args'))
        for _, dataset in find_datasets(cfg, (dataloader, ))
        for path in paths_of(dataset)
    }


def sha256_of_path(path: str, settings: Settings = None) -> str:
    """SHA-256 of a file's content, or of the names of a folder's files.

    Args:
        path: Of a file or folder; of what is not on this machine, the answer says so.
        settings: ``backend_args`` of who reads it.

    Raises:
        OSError: If it cannot be read.
    """
    if not is_here(path, settings):
        return ELSEWHERE
    if os.path.isdir(path):
        return f'{FOLDER} {sha256_of_listing(path)}'
    return sha256_of(Path(path))


def sha256_of_listing(folder: str) -> str:
    """Return the SHA-256 of the names of all files in a folder and below, and of some sizes.

    The files whose sizes count are spread over all, ``MAX_SIZES`` at most.
    """
    paths = sorted(files_of(folder))
    digest = hashlib.sha256()
    for path in paths:
        digest.update(os.fsencode(path.removeprefix(folder).lstrip(os.sep) + '\n'))
    for path in sample_evenly(paths, MAX_SIZES):
        digest.update(f'{size_of(path)}\n'.encode())
    return digest.hexdigest()


def size_of(path: str) -> int:
    """Return the bytes of a file, or of a link that leads nowhere."""
    try:
        return os.stat(path).st_size
    except OSError:
        return os.lstat(path).st_size


def files_of(folder: str, above: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the path of each file in a folder and below.

    Links to a folder that they are in are not followed. Links with a suffix are taken for files:
    to look where a million of them lead would take minutes on a network.

    Args:
        folder: To list.
        above: The real paths of the folders that it was reached through.
    """
    above = (*above, os.path.realpath(folder))
    with os.scandir(folder) as entries:
        for entry in entries:
            is_link = entry.is_symlink()
            is_file = is_link and (os.path.splitext(entry.name)[1]
                                   or not os.path.exists(entry.path))
            if is_file or not entry.is_dir():
                yield entry.path
            elif not is_link or os.path.realpath(entry.path) not in above:
                yield from files_of(entry.path, above)


def versions() -> dict[str, str]:
    """Versions of what computes, and the commit of the folder that the run was started in."""
    found = {'Python': platform.python_version()}
    for name, distributions in LIBRARIES.items():
        for distribution in distributions:
            try:
                found[name] = version(distribution)
                break
            except PackageNotFoundError:
                continue
    commit = get_git_hash(fallback='')
    return found | ({'commit of the working folder': commit} if commit else {})


def machine() -> dict[str, str]:
    """Processor, memory, GPUs and what mmengine says of the environment."""
    pages = os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')
    found = {
        'processor':
        processor(),
        'cores':
        str(len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()),
        'memory':
        f'{pages / 2**30:.0f} GiB',
        'system':
        platform.platform(),
    }
    environment: dict[str, Any] = collect_env()
    return found | {key: str(value) for key, value in environment.items() if key not in LONG}


def processor() -> str:
    """Its name."""
    info = Path('/proc/cpuinfo')  # Linux alone; elsewhere Python knows it
    for line in info.read_text(encoding='utf-8').splitlines() if info.is_file() else ():
        if line.startswith('model name'):
            return line.partition(':')[2].strip()
    return platform.processor() or platform.machine()
