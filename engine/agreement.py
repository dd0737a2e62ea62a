"""What the processes of a job must agree on before it starts."""
from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.dist import all_gather_object, get_rank, get_world_size
from mmengine.runner import Runner, find_latest_checkpoint
from torch.utils.data import Dataset

from .class_checks import shortened
from .data_sources import find_datasets, paths_of
from .hooks import plain
from .run_report.about import flat
from .run_report.fingerprints import sha256_of_path, versions

OWN = ('work_dir', 'resume', 'load_from')  # settings that may differ, or are compared otherwise
EXAMPLES = 4


def check_same_start(runner: Runner) -> None:
    """Raise a ValueError in all processes if one has another start, config or version.

    Another start is that of a training from another checkpoint. It is so where machines have work
    dirs of their own: the first process writes to its own. Paths in configs may differ.
    """
    if get_world_size() == 1:
        return
    start = ''
    if runner._resume:
        start = Path(runner._load_from or find_latest_checkpoint(runner.work_dir) or '').name
    settings = {key: value for key, value in flat(plain(runner.cfg.to_dict())).items()
                if key not in OWN}  # yapf: disable
    found = all_gather_object((socket.gethostname(), start, versions(), settings))
    first_host, first_start, first_versions, first_settings = found[0]
    for rank, (host, start, own_versions, settings) in enumerate(found):
        place, first = f'process {rank} on {host}', f'process 0 on {first_host}'
        if start != first_start:
            raise ValueError(
                f'{place} starts from {start or "no checkpoint"}, and {first} from '
                f'{first_start or "no checkpoint"}: --work-dir {runner.work_dir} must be a folder '
                'that all machines share')
        if different := differences(own_versions, first_versions, missing=False):
            raise ValueError(f'{place} has other programs than {first}: {different}')
        if different := differences(settings, first_settings):
            raise ValueError(f'{place} has another config than {first}: {different}')


def differences(these: Mapping[str, str], first: Mapping[str, str], *, missing: bool = True) -> str:
    """The names whose values differ, with both values; empty if none does.

    Args:
        these: Names and values.
        first: What they should be.
        missing: Whether a name that only one of them has is a difference.
    """
    names = these.keys() | first.keys() if missing else these.keys() & first.keys()
    return shortened([
        f'{name} is {these.get(name, "not set")} there, not {first.get(name, "not set")}'
        for name in sorted(names) if these.get(name) != first.get(name)
        and not (is_path(these.get(name, '')) and is_path(first.get(name, '')))
    ], EXAMPLES)  # yapf: disable


def is_path(value: str) -> bool:
    """Whether a setting, as Python writes it, is an absolute path or a URL."""
    return value[:1] in ('"', "'") and (value[1:2] == '/' or '://' in value)


def check_same_data(cfg: Config, datasets: Mapping[str, Dataset],
                    files: Sequence[str] = ()) -> None:
    """Raise a ValueError in all processes if one has other data than the first.

    Numbers of images are compared, contents of annotation files, and names and sizes of the files
    in folders. Of each machine, one process reads a file.

    Args:
        cfg: Of the runner.
        datasets: The loaded ones, by the loader that the config has for them, such as
            ``train_dataloader``.
        files: Other files and folders to compare, or URLs, which are not.
    """
    if get_world_size() == 1:
        return
    numbers = {loader: len(dataset) for loader, dataset in datasets.items()}
    paths = [
        *(path for _, dataset in find_datasets(cfg, tuple(datasets)) for path in paths_of(dataset)),
        *files
    ]
    places = all_gather_object((socket.gethostname(), paths, numbers))
    digests: dict[tuple[str, str], str] = {}
    for each in all_gather_object(own_digests(places)):
        digests.update(each)
    first_host, first_paths, first_numbers = places[0]
    for rank, (host, paths, numbers) in enumerate(places):
        where = f'process {rank} on {host} has other data than process 0 on {first_host}'
        for loader, number in numbers.items():
            if number != first_numbers[loader]:
                raise ValueError(f'{where}: {number} images in {loader}, not '
                                 f'{first_numbers[loader]}')
        for path, first_path in zip(paths, first_paths, strict=True):
            if digests[host, path] != digests[first_host, first_path]:
                raise ValueError(f'{where}: the content of {path} is not that of {first_path} '
                                 f'on {first_host}')


def own_digests(places: Sequence[tuple[str, list[str], Any]]) -> dict[tuple[str, str], str]:
    """The digests of the paths that no process before this one has on the same machine."""
    host, paths, _ = places[get_rank()]
    known = {path for other, theirs, _ in places[:get_rank()] if other == host for path in theirs}
    return {(host, path): sha256_of_path(path) for path in paths if path not in known}
