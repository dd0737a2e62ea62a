"""What a run was made with: data, programs and machine."""
from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.utils import get_git_hash
from mmengine.utils.dl_utils import collect_env

from ..data_sources import find_datasets, paths_of
from ..digests import sha256_of
from ..storage.files import Settings, is_here

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
FOLDER = 'files'  # what stands for the names and sizes of a folder's files


def data_of(cfg: Config, dataloader: str) -> dict[str, str]:
    """SHA-256 of what the data sets of a dataloader read, by path.

    That of an annotation file is of its content, that of a folder of the names and sizes of the
    files in it and below: images are not read.

    Raises:
        OSError: If something cannot be read.
    """
    return {
        path: sha256_of_path(path, dataset.get('backend_args'))
        for _, dataset in find_datasets(cfg, (dataloader, ))
        for path in paths_of(dataset)
    }


def sha256_of_path(path: str, settings: Settings = None) -> str:
    """SHA-256 of a file's content, or of the names and sizes of a folder's files.

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
    """SHA-256 of the names and sizes of all files in a folder and below, in their order."""
    lines = sorted(f'{os.path.relpath(path, folder)}\t{size}\n' for path, size in files_of(folder))
    digest = hashlib.sha256()
    for line in lines:
        digest.update(os.fsencode(line))
    return digest.hexdigest()


def files_of(folder: str, above: tuple[str, ...] = ()) -> Iterator[tuple[str, int]]:
    """Path and bytes of each file in a folder and below; of links that lead nowhere, their own.

    Links to a folder that they are in are not followed.

    Args:
        folder: To list.
        above: The real paths of the folders that it was reached through.
    """
    above = (*above, os.path.realpath(folder))
    with os.scandir(folder) as entries:
        for entry in entries:
            lost = entry.is_symlink() and not os.path.exists(entry.path)  # what it points at
            if lost or not entry.is_dir():
                yield entry.path, entry.stat(follow_symlinks=not lost).st_size
            elif os.path.realpath(entry.path) not in above:
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
    for line in info.read_text().splitlines() if info.is_file() else ():
        if line.startswith('model name'):
            return line.partition(':')[2].strip()
    return platform.processor() or platform.machine()
