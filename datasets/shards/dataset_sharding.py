"""Creation and verification of folders of shards, which datasets read like the original files."""
from __future__ import annotations

import hashlib
import posixpath
import shutil
from collections.abc import Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path, PurePosixPath
from typing import Any

from mmengine.config import Config, ConfigDict
from mmengine.fileio import get

from colonnade.common.atomic_files import new_folder
from colonnade.common.errors import MissingFileError, UserError, file_errors
from colonnade.common.hashing import compute_sha256
from colonnade.common.progress import Progress
from colonnade.common.storage.file_access import (Settings, exists, get_backend, is_remote,
                                                  local_copy)
from colonnade.common.storage.object_storage import convert_storage_errors
from colonnade.common.storage.shard_index import MANIFEST, ShardIndex
from colonnade.runtime.bands import find_band_files
from colonnade.settings.dataset_paths import (check_dataset, find_datasets, get_setting_paths,
                                              iter_evaluators)
from colonnade.settings.reading import LaunchOptions, load_config

from ..bands import find_band_loader
from ..options import ShardOptions
from ..validation.label_map_files import load_infos
from .shard_writer import ShardWriter

SPLITS = {'train_dataloader': 'train', 'val_dataloader': 'val', 'test_dataloader': 'test'}
MEGABYTE = 10**6
CHUNK = 2**24  # bytes read at a time
METADATA = ('img_id', 'height', 'width', 'instances')  # for readers of WebDataset


def make_shards(options: ShardOptions) -> dict[str, Any]:
    """Write the images and label maps of a config's datasets to shards, and copy annotations.

    The folder appears when it is complete.

    Returns:
        The manifest.

    Raises:
        OSError: If a file is missing or cannot be read or written, or the folder exists.
        ValueError: If the config has no datasets that read files below one folder.
    """
    if not options.shard_size > 0:
        raise UserError(f'--shard-size must be positive, got {options.shard_size}')
    if is_remote(str(options.out)):
        raise UserError(f'{options.out} is not a local folder: write shards locally, copy them to '
                        'object storage, and check the copy with --verify')
    assert options.config is not None  # set unless shards are verified
    cfg = load_config(
        LaunchOptions(options.config, cfg_options=options.cfg_options, data_root=options.data_root))
    dataloaders = tuple(key for key in SPLITS if cfg.get(key))
    check_dataset(cfg, dataloaders)
    roots = {str(dataset.get('data_root') or '').rstrip('/')
             for _, dataset in find_datasets(cfg, dataloaders)}  # yapf: disable
    if len(roots) != 1 or not (root := roots.pop()):
        raise UserError('all datasets must have the same data_root, got '
                        f'{", ".join(sorted(roots)) or "none"}: pass one with --data-root')
    with new_folder(Path(options.out)) as folder:
        writer = ShardWriter(folder, int(options.shard_size * MEGABYTE))
        for key in dataloaders:
            writer.start(SPLITS[key])
            for _, dataset in find_datasets(cfg, (key, )):
                bands = find_band_loader(dataset.get('pipeline'))
                _write_dataset(writer, dataset, root, bands.suffixes if bands else ())
        if not writer.num_samples:
            raise UserError(f'the datasets of {options.config} have no images')
        return writer.finish(_copy_annotations(cfg, dataloaders, root, folder))


def _write_dataset(writer: ShardWriter, dataset: ConfigDict, root: str,
                   suffixes: Sequence[str]) -> None:
    """Add the images of a dataset, also those that training omits.

    Args:
        suffixes: Ends of the names of the files of an image, see :class:`.LoadBands`.
    """
    settings = dataset.get('backend_args')
    with redirect_stdout(StringIO()):  # progress of pycocotools
        infos = load_infos(dataset)
    if not all(isinstance(info, dict) and 'img_path' in info for info in infos):
        raise UserError(f'{dataset.type} does not provide the paths of its images (img_path)')
    with Progress('images', len(infos)) as progress:
        for number, info in enumerate(infos, 1):
            _write_sample(writer, info, root, settings)
            for file in find_band_files(info['img_path'], suffixes)[1:] if suffixes else ():
                _write_sample(writer, dict(img_path=file), root, settings)
            progress(number)


@file_errors()
def _write_sample(writer: ShardWriter, info: dict[str, Any], root: str, settings: Settings) -> None:
    """Add an image with its label map, unless they were written before."""
    image = _make_relative(info['img_path'], root)
    name, files = PurePosixPath(image), {}
    metadata = {key: info[key] for key in METADATA if key in info}
    if image not in writer.locations:
        suffix = name.suffix.lstrip('.').lower() or 'img'
        files[suffix] = (image, get(info['img_path'], settings))
    if label_path := info.get('seg_map_path'):
        labels = metadata['labels'] = _make_relative(label_path, root)
        if labels not in writer.locations:
            suffix = PurePosixPath(labels).suffix.lower()
            files[f'seg{suffix}'] = (labels, get(label_path, settings))
    if files:
        writer.add(str(name.with_suffix('')), files, dict(path=image, **metadata))


def _make_relative(path: str, root: str) -> str:
    relative = _find_relative_path(path, root)
    if relative is None:
        raise UserError(
            f'{path} is not inside the data_root {root}: with --data-root, pass a folder that '
            'contains all images')
    return relative


def _find_relative_path(path: str, root: str) -> str | None:
    """Return a path relative to a root, or None if it is not below it."""
    path, root = posixpath.normpath(path), posixpath.normpath(root)
    return path.removeprefix(root).strip('/') if path.startswith(root + '/') else None


@file_errors()
def _copy_annotations(cfg: Config, dataloaders: tuple[str, ...], root: str,
                      folder: Path) -> dict[str, str]:
    """Copy the annotation files below the root; return relative path -> SHA-256."""
    found = [(path, each) for _, each in find_datasets(cfg, dataloaders)
             for path in get_setting_paths(each.get('ann_file'), each)]  # yapf: disable
    found += [(each.ann_file, each) for each in iter_evaluators(cfg) if each.get('ann_file')]
    files = {path: each.get('backend_args') for path, each in found}
    checksums = {}
    for path, settings in files.items():
        if relative := _find_relative_path(path, root):
            target = folder / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            with local_copy(path, settings) as local:
                shutil.copyfile(local, target)
            checksums[relative] = compute_sha256(target)
    return checksums


@file_errors()
def verify_shards(folder: str) -> dict[str, Any]:
    """Compare all files in a folder or URL with the checksums of its manifest.

    Returns:
        The manifest.

    Raises:
        OSError: If a file cannot be read.
        ValueError: If files are missing or have another content.
    """
    folder = folder.rstrip('/')
    if not exists(f'{folder}/{MANIFEST}'):
        raise MissingFileError(f'{folder} is not a folder of shards: it has no {MANIFEST}')
    manifest = ShardIndex(folder).manifest
    expected = {each['file']: each['sha256'] for each in manifest['shards']} | manifest['beside']
    errors = []
    for name, checksum in expected.items():
        path = f'{folder}/{name}'
        if not exists(path):
            errors.append(f'{path} is missing')
        elif _compute_checksum(path) != checksum:
            errors.append(f'{path} is damaged: its checksum does not match')
    if errors:
        raise UserError('\n'.join(errors))
    return manifest


def _compute_checksum(path: str) -> str:
    if not is_remote(path):
        return compute_sha256(Path(path))
    digest = hashlib.sha256()
    with get_backend(path).opened(path) as file, convert_storage_errors(path):
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
