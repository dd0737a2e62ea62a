"""Checks that all processes of a job have the same config, software, data and weights."""
from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from os.path import expanduser
from pathlib import Path

from mmengine.config import Config
from mmengine.dist import all_gather_object, get_rank, get_world_size
from mmengine.runner import Runner, find_latest_checkpoint
from torch.utils.data import Dataset

from colonnade.common.distributed import wait_for_all
from colonnade.common.errors import UserError
from colonnade.common.name_lists import format_names
from colonnade.common.storage.file_access import is_local_path
from colonnade.settings.config_values import flat, plain
from colonnade.settings.dataset_paths import find_datasets, get_dataset_paths

from ..upstream import get_start, is_resuming
from .fingerprints import ELSEWHERE, compute_path_checksum, get_versions

#: keys of a config that affect a training or a test; others are about logging
SECTIONS = ('model', 'data_preprocessor', 'train_dataloader', 'train_cfg', 'optim_wrapper',
            'param_scheduler', 'auto_scale_lr', 'val_dataloader', 'val_cfg', 'val_evaluator',
            'test_dataloader', 'test_cfg', 'test_evaluator', 'tta_model', 'tta_pipeline',
            'default_hooks', 'custom_hooks', 'randomness', 'sync_bn', 'model_wrapper_cfg',
            'find_unused_parameters', 'runner_type', 'default_scope', 'custom_imports')
LOGGING = ('logger', 'visualization')  # hooks that only log or draw
OUTPUTS = ('work_dir', 'out_dir', 'save_dir', 'output_dir', 'outfile_prefix')  # settings anywhere
MAX_DIFFERENCES = 4


def check_same_start(runner: Runner) -> None:
    """Check that all processes have the same start, config and versions.

    Hosts with work dirs of their own may resume from different checkpoints, because only the first
    process writes them. Paths in configs may differ, and so may settings that do not affect the
    training.
    """
    if get_world_size() == 1:
        return
    start = ''
    if is_resuming(runner):
        start = Path(get_start(runner) or find_latest_checkpoint(runner.work_dir) or '').name
    states = all_gather_object(
        (socket.gethostname(), start, get_versions(), get_relevant_settings(runner.cfg)))
    first_host, first_start, first_versions, first_settings = states[0]
    for rank, (host, start, versions, settings) in enumerate(states):
        this, first = f'process {rank} on {host}', f'process 0 on {first_host}'
        if start != first_start:
            raise UserError(
                f'{this} starts from {start or "no checkpoint"}, and {first} from '
                f'{first_start or "no checkpoint"}: --work-dir {runner.work_dir} must be a folder '
                'that all hosts share')
        if different := format_differences(versions, first_versions, missing=False):
            raise UserError(f'{this} has different package versions than {first}: {different}')
        if different := format_differences(settings, first_settings):
            raise UserError(f'{this} has a different config than {first}: {different}')


def get_relevant_settings(cfg: Config) -> dict[str, str]:
    """Return the settings that affect a training, by their names with dots, as Python literals.

    Work dirs, names of visualizers and variables of a config may contain a time or a host name.
    """
    sections = {key: cfg.get(key) for key in SECTIONS}
    hooks = {name: hook for name, hook in (sections['default_hooks'] or {}).items()
             if name not in LOGGING}  # yapf: disable
    settings = flat(plain(dict(sections, default_hooks=hooks)))
    return {
        name: value
        for name, value in settings.items() if name.rpartition('.')[2] not in OUTPUTS
    }


def format_differences(values: Mapping[str, str], expected: Mapping[str, str], *,
                       missing: bool = True) -> str:  # yapf: disable
    """Return the names whose values differ, with both values, or an empty string.

    Absolute paths and URLs may differ.

    Args:
        missing: Whether a name that only one of them has is a difference.
    """
    names = values.keys() | expected.keys() if missing else values.keys() & expected.keys()
    return format_names([
        f'{name} is {values.get(name, "not set")} there, not {expected.get(name, "not set")}'
        for name in sorted(names) if values.get(name) != expected.get(name)
        and not (_is_path(values.get(name, '')) and _is_path(expected.get(name, '')))
    ], MAX_DIFFERENCES)  # yapf: disable


def _is_path(value: str) -> bool:
    """Return True if a Python literal is an absolute path or a URL."""
    return value[:1] in ('"', "'") and (value[1:2] == '/' or '://' in value)


def check_same_data(cfg: Config, datasets: Mapping[str, Dataset]) -> dict[str, str]:
    """Check that all processes have the data of the first.

    Compared are numbers of images, contents of annotation files, and the names of the files in
    folders with some of their sizes. One process per host reads each file.

    Args:
        datasets: Loaded datasets by the key of their loader, such as ``train_dataloader``.

    Returns:
        SHA-256 of the files and folders, by path; empty for a single process.
    """
    if get_world_size() == 1:
        return {}
    wait_for_all()  # loading data may take minutes longer in some processes
    counts = {loader: len(dataset) for loader, dataset in datasets.items()}
    paths = [(path, is_local_path(path, dataset.get('backend_args')))
             for _, dataset in find_datasets(cfg, tuple(datasets))
             for path in get_dataset_paths(dataset)]
    states = all_gather_object((socket.gethostname(), counts))
    checksums = _gather_checksums(paths)
    first_host, first_counts = states[0]
    for rank, (host, counts) in enumerate(states):
        where = f'process {rank} on {host} has different data from process 0 on {first_host}'
        for loader, count in counts.items():
            if count != first_counts[loader]:
                raise UserError(f'{where}: {count} images in {loader}, not {first_counts[loader]}')
        for (path, checksum), (first_path, first) in zip(checksums[rank], checksums[0],
                                                         strict=True):  # yapf: disable
            if checksum != first:
                raise UserError(f'{where}: the content of {path} differs from that of {first_path} '
                                f'on {first_host}')
    return dict(checksums[get_rank()])


def check_same_weights(checkpoint: str) -> None:
    """Check that all processes evaluate the weights of the first.

    Args:
        checkpoint: File or folder of shards, whose contents are compared, or URL.
    """
    if get_world_size() == 1:
        return
    folder = Path(expanduser(checkpoint))
    files = sorted(folder.iterdir()) if folder.is_dir() else [expanduser(checkpoint)]
    states = all_gather_object((socket.gethostname(), checkpoint))
    checksums = _gather_checksums([(str(file), is_local_path(str(file))) for file in files])
    contents = [[path if checksum == ELSEWHERE else checksum for path, checksum in each]
                for each in checksums]
    first_host, first_checkpoint = states[0]
    for rank, (host, other) in enumerate(states):
        if contents[rank] != contents[0]:
            raise UserError(
                f'process {rank} on {host} evaluates weights that differ from those of process 0 '
                f'on {first_host}: {other}, not {first_checkpoint}')


def _gather_checksums(paths: Sequence[tuple[str, bool]]) -> list[list[tuple[str, str]]]:
    """Return the paths of each process with their checksums; one process per host reads a file."""
    host, rank = socket.gethostname(), get_rank()
    all_paths = all_gather_object((host, paths))
    known = {path for other, theirs in all_paths[:rank] if other == host for path, _ in theirs}
    own = {(host, path): compute_path_checksum(path) if is_local else ELSEWHERE
           for path, is_local in paths if path not in known}  # yapf: disable
    wait_for_all()
    checksums: dict[tuple[str, str], str] = {}
    for each in all_gather_object(own):
        checksums.update(each)
    return [[(path, checksums[host, path]) for path, _ in theirs] for host, theirs in all_paths]
