"""What the processes of a job must agree on before it starts."""
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
from colonnade.common.storage.file_access import is_here
from colonnade.settings.config_values import flat, plain
from colonnade.settings.dataset_paths import find_datasets, paths_of

from ..upstream import get_start, is_resuming
from .fingerprints import ELSEWHERE, sha256_of_path, versions

#: sections of a config that decide a training or a test; others say what is logged, and where
SECTIONS = ('model', 'data_preprocessor', 'train_dataloader', 'train_cfg', 'optim_wrapper',
            'param_scheduler', 'auto_scale_lr', 'val_dataloader', 'val_cfg', 'val_evaluator',
            'test_dataloader', 'test_cfg', 'test_evaluator', 'tta_model', 'tta_pipeline',
            'default_hooks', 'custom_hooks', 'randomness', 'sync_bn', 'model_wrapper_cfg',
            'find_unused_parameters', 'runner_type', 'default_scope', 'custom_imports')
LOGGING = ('logger', 'visualization')  # hooks that only log or draw
OUTPUTS = ('work_dir', 'out_dir', 'save_dir', 'output_dir', 'outfile_prefix')  # settings anywhere
EXAMPLES = 4


def check_same_start(runner: Runner) -> None:
    """Raise a ValueError in all processes if one has another start, config or version.

    Another start is that of a training from another checkpoint. It is so where machines have work
    dirs of their own: the first process writes to its own. Paths in configs may differ, and so may
    what does not decide the training.
    """
    if get_world_size() == 1:
        return
    start = ''
    if is_resuming(runner):
        start = Path(get_start(runner) or find_latest_checkpoint(runner.work_dir) or '').name
    found = all_gather_object(
        (socket.gethostname(), start, versions(), deciding_settings(runner.cfg)))
    first_host, first_start, first_versions, first_settings = found[0]
    for rank, (host, start, own_versions, settings) in enumerate(found):
        place, first = f'process {rank} on {host}', f'process 0 on {first_host}'
        if start != first_start:
            raise UserError(
                f'{place} starts from {start or "no checkpoint"}, and {first} from '
                f'{first_start or "no checkpoint"}: --work-dir {runner.work_dir} must be a folder '
                'that all machines share')
        if different := differences(own_versions, first_versions, missing=False):
            raise UserError(f'{place} has other programs than {first}: {different}')
        if different := differences(settings, first_settings):
            raise UserError(f'{place} has another config than {first}: {different}')


def deciding_settings(cfg: Config) -> dict[str, str]:
    """Return the settings that decide a training, by their names with dots, as Python writes them.

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


def differences(these: Mapping[str, str], first: Mapping[str, str], *, missing: bool = True) -> str:
    """The names whose values differ, with both values; empty if none does.

    Args:
        these: Names and values.
        first: What they should be.
        missing: Whether a name that only one of them has is a difference.
    """
    names = these.keys() | first.keys() if missing else these.keys() & first.keys()
    return format_names([
        f'{name} is {these.get(name, "not set")} there, not {first.get(name, "not set")}'
        for name in sorted(names) if these.get(name) != first.get(name)
        and not (is_path(these.get(name, '')) and is_path(first.get(name, '')))
    ], EXAMPLES)  # yapf: disable


def is_path(value: str) -> bool:
    """Whether a setting, as Python writes it, is an absolute path or a URL."""
    return value[:1] in ('"', "'") and (value[1:2] == '/' or '://' in value)


def check_same_data(cfg: Config, datasets: Mapping[str, Dataset]) -> dict[str, str]:
    """Check that all processes have the data of the first.

    Numbers of images are compared, contents of annotation files, and the names of the files in
    folders with some of their sizes. Of each machine, one process reads a file.

    Args:
        cfg: Of the runner.
        datasets: The loaded ones, by the loader that the config has for them, such as
            ``train_dataloader``.

    Returns:
        SHA-256 of the files and folders, by path; empty in a single process.

    Raises:
        UserError: In all processes, if one has other data.
    """
    if get_world_size() == 1:
        return {}
    wait_for_all()  # each process loads the data itself, which may take minutes longer in some
    numbers = {loader: len(dataset) for loader, dataset in datasets.items()}
    paths = [(path, is_here(path, dataset.get('backend_args')))
             for _, dataset in find_datasets(cfg, tuple(datasets)) for path in paths_of(dataset)]
    found = all_gather_object((socket.gethostname(), numbers))
    digests = gathered_digests(paths)
    first_host, first_numbers = found[0]
    for rank, (host, numbers) in enumerate(found):
        where = f'process {rank} on {host} has other data than process 0 on {first_host}'
        for loader, number in numbers.items():
            if number != first_numbers[loader]:
                raise UserError(f'{where}: {number} images in {loader}, not '
                                f'{first_numbers[loader]}')
        for (path, digest), (first_path, first) in zip(digests[rank], digests[0], strict=True):
            if digest != first:
                raise UserError(f'{where}: the content of {path} is not that of {first_path} '
                                f'on {first_host}')
    return dict(digests[get_rank()])


def check_same_weights(checkpoint: str) -> None:
    """Raise a ValueError in all processes if one evaluates other weights than the first.

    Args:
        checkpoint: A file or a folder of shards, whose contents are compared, or a URL.
    """
    if get_world_size() == 1:
        return
    folder = Path(expanduser(checkpoint))
    files = sorted(folder.iterdir()) if folder.is_dir() else [expanduser(checkpoint)]
    found = all_gather_object((socket.gethostname(), checkpoint))
    digests = gathered_digests([(str(file), is_here(str(file))) for file in files])
    contents = [[path if digest == ELSEWHERE else digest for path, digest in each]
                for each in digests]
    first_host, first_checkpoint = found[0]
    for rank, (host, other) in enumerate(found):
        if contents[rank] != contents[0]:
            raise UserError(f'process {rank} on {host} evaluates other weights than process 0 on '
                            f'{first_host}: {other}, not {first_checkpoint}')


def gathered_digests(paths: Sequence[tuple[str, bool]]) -> list[list[tuple[str, str]]]:
    """The paths of each process, with their digests. Of each machine, one process reads a file.

    Args:
        paths: Of this process, and whether they are on this machine.
    """
    host, rank = socket.gethostname(), get_rank()
    places = all_gather_object((host, paths))
    known = {path for other, theirs in places[:rank] if other == host for path, _ in theirs}
    own = {(host, path): sha256_of_path(path) if is_local else ELSEWHERE
           for path, is_local in paths if path not in known}  # yapf: disable
    wait_for_all()
    digests: dict[tuple[str, str], str] = {}
    for each in all_gather_object(own):
        digests.update(each)
    return [[(path, digests[host, path]) for path, _ in theirs] for host, theirs in places]
