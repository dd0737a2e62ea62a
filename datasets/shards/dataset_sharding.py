"""From the data sets of a config to a folder of shards that data sets read as the files."""
from __future__ import annotations

import posixpath
import shutil
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path, PurePosixPath
from typing import Any

from mmengine.config import Config, ConfigDict
from mmengine.fileio import get

from colonnade.common.atomic_files import new_folder
from colonnade.common.errors import UserError, file_errors
from colonnade.common.hashing import compute_sha256
from colonnade.common.progress import Progress
from colonnade.common.storage.file_access import Settings, is_remote, local_copy
from colonnade.settings.dataset_paths import (check_dataset, evaluators, find_datasets,
                                              paths_of_setting)
from colonnade.settings.reading import LaunchOptions, load_config

from ..options import ShardOptions
from ..validation.label_map_files import load_infos
from .shard_writer import ShardWriter

PARTS = {'train_dataloader': 'train', 'val_dataloader': 'val', 'test_dataloader': 'test'}
MEGABYTE = 10**6
IMAGE, LABELS = 'img_path', 'seg_map_path'  # what data sets call paths
KNOWN = ('img_id', 'height', 'width', 'instances')  # of a sample, for readers of WebDataset


def make_shards(options: ShardOptions) -> dict[str, Any]:
    """Write the images and label maps of a config's data sets into shards.

    What lies beside them, annotation files, is copied. The folder appears whole or not at all.

    Returns:
        The manifest.

    Raises:
        OSError: If a file is missing or cannot be read or written, or the folder exists.
        ValueError: If the config has no data sets that read files below one folder.
    """
    if not options.shard_size > 0:
        raise UserError(f'--shard-size must be positive, got {options.shard_size}')
    if is_remote(str(options.out)):
        raise UserError(f'{options.out}: shards are written to a folder on this machine. Copy it '
                        'to object storage then, and check the copy with --verify')
    assert options.config is not None  # or shards are verified
    cfg = load_config(
        LaunchOptions(options.config, cfg_options=options.cfg_options, data_root=options.data_root))
    dataloaders = tuple(key for key in PARTS if cfg.get(key))
    check_dataset(cfg, dataloaders)
    root = find_root(cfg, dataloaders)
    with new_folder(Path(options.out)) as folder:
        writer = ShardWriter(folder, int(options.shard_size * MEGABYTE))
        for key in dataloaders:
            writer.start(PARTS[key])
            for _, dataset in find_datasets(cfg, (key, )):
                write_dataset(writer, dataset, root)
        if not writer.samples:
            raise UserError(f'no images in the data sets of {options.config}')
        return writer.finish(copy_annotations(cfg, dataloaders, root, folder))


def find_root(cfg: Config, dataloaders: tuple[str, ...]) -> str:
    """The folder below which all data sets of a config lie.

    Raises:
        ValueError: If there is none, or more than one.
    """
    roots = {str(dataset.get('data_root') or '').rstrip('/')
             for _, dataset in find_datasets(cfg, dataloaders)}  # yapf: disable
    if len(roots) != 1 or not (root := roots.pop()):
        raise UserError('shards need data sets of one data_root, the config has '
                        f'{", ".join(sorted(roots)) or "none"}: --data-root names one')
    return root


def write_dataset(writer: ShardWriter, dataset: ConfigDict, root: str) -> None:
    """Add the images of a data set, as :func:`write_sample`, also those that training omits."""
    settings = dataset.get('backend_args')
    with redirect_stdout(StringIO()):  # pycocotools prints its progress
        infos = load_infos(dataset)
    if not all(isinstance(info, dict) and IMAGE in info for info in infos):
        raise UserError(f'{dataset.type} does not say where its images are ({IMAGE})')
    with Progress('images', len(infos)) as progress:
        for done, info in enumerate(infos, 1):
            write_sample(writer, info, root, settings)
            progress(done)


@file_errors()
def write_sample(writer: ShardWriter, info: dict[str, Any], root: str, settings: Settings) -> None:
    """Add an image with its label map, each unless it is there.

    Raises:
        OSError: If a file cannot be read.
        ValueError: If the image is not below the root.
    """
    image = make_relative(info[IMAGE], root)
    name, files = PurePosixPath(image), {}
    about = {key: info[key] for key in KNOWN if key in info}
    if image not in writer.places:
        suffix = name.suffix.lstrip('.').lower() or 'img'
        files[suffix] = (image, get(info[IMAGE], settings))
    if label_path := info.get(LABELS):
        labels = about['labels'] = make_relative(label_path, root)
        if labels not in writer.places:
            suffix = PurePosixPath(labels).suffix.lower()
            files[f'seg{suffix}'] = (labels, get(label_path, settings))
    if files:
        writer.add(str(name.with_suffix('')), files, dict(path=image, **about))


def make_relative(path: str, root: str) -> str:
    """A path below a root, with ``/``.

    Raises:
        ValueError: If it is not below it.
    """
    inner = find_relative_path(path, root)
    if inner is None:
        raise UserError(f'{path} is not below the data_root {root}: --data-root names a folder '
                        'that holds all images')
    return inner


def find_relative_path(path: str, root: str) -> str | None:
    """A path relative to a root; None if it is not below it."""
    plain, start = (posixpath.normpath(each) for each in (path, root))
    inside = plain.startswith(start + '/')
    return plain.removeprefix(start).strip('/') if inside else None


@file_errors()
def copy_annotations(cfg: Config, dataloaders: tuple[str, ...], root: str,
                     folder: Path) -> dict[str, str]:
    """Copy the annotation files of data sets and evaluators that lie below the root.

    Returns:
        SHA-256 by relative path.

    Raises:
        OSError: If one cannot be read or written.
    """
    found = [(path, each) for _, each in find_datasets(cfg, dataloaders)
             for path in paths_of_setting(each.get('ann_file'), each)]  # yapf: disable
    found += [(each.ann_file, each) for each in evaluators(cfg) if each.get('ann_file')]
    files = {path: each.get('backend_args') for path, each in found}
    copied = {}
    for path, settings in files.items():
        if inner := find_relative_path(path, root):
            target = folder / inner
            target.parent.mkdir(parents=True, exist_ok=True)
            with local_copy(path, settings) as local:
                shutil.copyfile(local, target)
            copied[inner] = compute_sha256(target)
    return copied
