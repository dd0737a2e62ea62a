"""A package: the folder of a trained model, opened without running anything of it."""
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
from colonnade.models.random_weights import without_pretrained
from colonnade.settings.config_values import plain
from colonnade.settings.plain_config import (MissingPackageFileError, PackageError, package_errors,
                                             parse_config)
from colonnade.settings.reading import LIBRARIES, prepare_library

from .metadata import CARD, CONFIG, WEIGHTS, Card, StoredFile, read_card
from .safety_checks import check_imports, check_names


@dataclass(frozen=True)
class Package:
    """A model that somebody shares.

    Attributes:
        folder: Where it lies.
        config: Its model, test pipeline and evaluators.
        weights: Path of its safetensors file, whose hash is right.
        card: What is said of it, classes among it.
    """
    folder: Path
    config: Config
    weights: Path
    card: Card


def open_package(folder: str | Path, *, trust: bool = False) -> Package:
    """The package in a folder, whose files are whole and bring nothing in.

    The config is read as data. It may name the types and texts of :mod:`.allowed` alone. Weights
    are a safetensors file.

    Args:
        folder: That ``tools/package.py`` has made.
        trust: Import what the config imports, and build what it names, whatever that is.

    Raises:
        PackageError: If a file is missing, damaged, not of its kind, or asks for trust that is not
            given. Of a missing file it is also a FileNotFoundError.
    """
    folder = Path(folder)
    with package_errors(folder):
        return _opened(folder, trust=trust)


def _opened(folder: Path, *, trust: bool) -> Package:
    """See :func:`open_package`."""
    card = verified_card(folder)
    path = folder / CONFIG
    try:
        values = parse_config(path.read_text(encoding='utf-8'), str(path))
    except UnicodeDecodeError as error:
        raise PackageError(f'{path} is no text: {error}') from error
    config = as_config(values, str(path), trust=trust)
    about = config.test_dataloader.dataset.get('metainfo') or {}
    if not isinstance(about, Mapping):
        raise PackageError(f'{path}: metainfo of the test data must be a dict, got {about!r}')
    if (named := about.get('classes')) is not None:
        if tuple(named) != card.classes:
            raise PackageError(f'{path} and {folder / CARD} name other classes')
    return Package(folder, config, folder / WEIGHTS, card)


@file_errors()
def verified_card(folder: Path) -> Card:
    """The card of a package whose files are whole.

    Raises:
        PackageError: If a file is missing, damaged or not of its kind.
    """
    card = read_card(folder / CARD)
    for name, expected in card.files.items():
        check_file(folder / name, expected)
    check_tensors(folder / WEIGHTS)
    return card


def check_file(path: Path, expected: StoredFile) -> None:
    """Raise an error if a file is missing, or is not the one that the card means.

    Args:
        path: Of the file.
        expected: What the card says of it.
    """
    if not path.is_file():
        raise MissingPackageFileError(f'no {path}: the package is not whole')
    size = path.stat().st_size
    if size != expected.bytes:
        raise PackageError(f'{path} has {size} bytes, and {CARD} says {expected.bytes}: it is '
                           'damaged or another file')
    found = compute_sha256(path)
    if found != expected.sha256:
        raise PackageError(f'{path} has the SHA-256 {found}, and {CARD} says '
                           f'{expected.sha256}: it is damaged or another file')


def check_tensors(path: Path) -> None:
    """Raise a PackageError if a file is no safetensors file, whatever it is called."""
    try:
        with safe_open(path, framework='pt'):
            pass
    except SafetensorError as error:
        raise PackageError(f'{path} is no safetensors file: {error}') from error


def as_config(values: dict[str, Any], source: str, *, trust: bool) -> Config:
    """A config of plain values, checked and with what it imports imported.

    Raises:
        PackageError: If it is no config of a detector or segmenter, or asks for trust.
    """
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
        raise PackageError(f'{source} must have a model and a pipeline of the test data')
    prepare_library(config, source)
    if not trust:
        check_names(values, source)
    return config


def check_parts(config: Config, source: str) -> None:
    """Check what is built of a config that a checkpoint carries as that of a package is.

    Args:
        config: Of plain values; the rest of it may name what it likes.
        source: Name of its file.

    Raises:
        PackageError: If its model or its pipelines name more than registered classes.
    """
    parts = dict(default_scope=config.default_scope, model=plain(config.model))
    parts['model'] = without_pretrained(parts['model'], 'model', [])
    for key in ('test_dataloader', 'val_dataloader', 'test_pipeline'):
        if config.get(key):
            parts[key] = plain(config[key])
    check_names(parts, source)
