"""A package: the folder of a trained model, opened without running any of its code."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.utils import import_modules_from_strings
from safetensors import SafetensorError, safe_open

from colonnade.common.errors import file_errors
from colonnade.common.hashing import compute_sha256
from colonnade.models.building import drop_pretrained
from colonnade.settings.config_values import plain
from colonnade.settings.plain_config import (MissingPackageFileError, PackageError, package_errors,
                                             parse_config)
from colonnade.settings.reading import LIBRARIES, prepare_library

from .metadata import CONFIG, METADATA, WEIGHTS, PackageMetadata, read_metadata
from .safety_checks import check_imports, check_names


@dataclass(frozen=True)
class Package:
    """A trained model in a folder."""
    config: Config
    weights: Path
    metadata: PackageMetadata


def open_package(folder: str | Path, *, trust: bool = False) -> Package:
    """Open a package after verifying its files.

    The config is parsed as data, and can use only the types and strings of :mod:`.allowed`. Weights
    are a safetensors file.
    With ``trust``, its imports are run and all types are allowed.

    Raises:
        PackageError: If a file does not exist, is damaged or invalid, or needs ``trust``. For a
            missing file, it is also a FileNotFoundError.
    """
    folder = Path(folder)
    with package_errors(folder):
        metadata = verify_files(folder)
        path = folder / CONFIG
        try:
            values = parse_config(path.read_text(encoding='utf-8'), str(path))
        except UnicodeDecodeError as error:
            raise PackageError(f'{path} is not a text file: {error}') from error
        config = build_config(values, str(path), trust=trust)
        metainfo = config.test_dataloader.dataset.get('metainfo') or {}
        if not isinstance(metainfo, Mapping):
            raise PackageError(f'{path}: metainfo of the test dataset must be a dict, got '
                               f'{metainfo!r}')
        classes = metainfo.get('classes')
        if classes is not None and tuple(classes) != metadata.classes:
            raise PackageError(f'{path} and {folder / METADATA} have different classes')
        return Package(config, folder / WEIGHTS, metadata)


@file_errors()
def verify_files(folder: Path) -> PackageMetadata:
    """Return the metadata of a package after verifying size and hash of its files."""
    metadata = read_metadata(folder / METADATA)
    for name, expected in metadata.files.items():
        path = folder / name
        if not path.is_file():
            raise MissingPackageFileError(f'no {path}: the package is incomplete')
        if (size := path.stat().st_size) != expected.bytes:
            raise PackageError(f'{path} has {size} bytes, but {METADATA} says {expected.bytes}: '
                               'the file is damaged or was replaced')
        if (digest := compute_sha256(path)) != expected.sha256:
            raise PackageError(f'{path} has the SHA-256 {digest}, but {METADATA} says '
                               f'{expected.sha256}: the file is damaged or was replaced')
    try:
        with safe_open(folder / WEIGHTS, framework='pt'):
            pass
    except SafetensorError as error:
        raise PackageError(f'{folder / WEIGHTS} is not a safetensors file: {error}') from error
    return metadata


def build_config(values: dict[str, Any], source: str, *, trust: bool) -> Config:
    """Build a config from plain values, run its imports, and check its types."""
    scope = values.get('default_scope')
    if scope not in LIBRARIES:
        raise PackageError(f'{source}: default_scope must be {" or ".join(LIBRARIES)}, got '
                           f'{scope!r}')
    if not trust:
        check_imports(values, source)
    try:
        config = Config(values)
        if config.get('custom_imports'):
            import_modules_from_strings(**config.custom_imports)
        pipeline = config.test_dataloader.dataset.pipeline
    except (ImportError, AttributeError, TypeError, KeyError) as error:
        raise PackageError(f'{source}: {type(error).__name__}: {error}') from error
    if not isinstance(config.get('model'), dict) or not isinstance(pipeline, list):
        raise PackageError(f'{source} must have a model and a test pipeline')
    prepare_library(config, source)
    if not trust:
        check_names(values, source)
    return config


def check_embedded_config(config: Config, source: str) -> None:
    """Check model and pipelines of the config in a checkpoint as if it were a package."""
    parts = dict(
        default_scope=config.default_scope, model=drop_pretrained(plain(config.model), 'model', []))
    for key in ('test_dataloader', 'val_dataloader', 'test_pipeline'):
        if config.get(key):
            parts[key] = plain(config[key])
    check_names(parts, source)
