"""A package: the folder of a trained model with its metadata, read without running its code."""
from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from mmengine.config import Config
from mmengine.utils import import_modules_from_strings
from pydantic import (AfterValidator, BaseModel, Field, PositiveInt, StringConstraints,
                      ValidationError)
from safetensors import SafetensorError, safe_open

from colonnade.common.atomic_files import write_json
from colonnade.common.errors import file_errors
from colonnade.common.hashing import compute_sha256
from colonnade.models.building import drop_pretrained
from colonnade.settings.config_values import plain
from colonnade.settings.reading import LIBRARIES, prepare_library
from colonnade.weights.config_text import parse_config
from colonnade.weights.sharded_files import is_sharded

from .package_errors import MissingPackageFileError, PackageError, package_errors
from .safety_checks import check_imports, check_names

FORMAT, VERSION = 'colonnade-model', 1
CONFIG, WEIGHTS, METADATA, README = 'config.py', 'model.safetensors', 'model.json', 'README.md'
MAX_BYTES = 4 * 2**20  # limit of model.json, enough for thousands of classes


def check_printable(text: str) -> str:
    """Return a string without control characters, which could manipulate a terminal."""
    if not text.isprintable():
        raise ValueError('must be printable')
    return text


Name = Annotated[str,
                 StringConstraints(min_length=1, max_length=200),
                 AfterValidator(check_printable)]
Byte = Annotated[int, Field(ge=0, le=255)]
Classes = Annotated[tuple[Name, ...], Field(min_length=1, max_length=2**16 - 1)]


class StoredFile(BaseModel, strict=True, frozen=True):
    """SHA-256 and size in bytes of a file."""
    sha256: str = Field(pattern='^[0-9a-f]{64}$')
    bytes: int


def check_files(files: dict[str, StoredFile]) -> dict[str, StoredFile]:
    """Check that the entries are those of config and weights."""
    if set(files) != {CONFIG, WEIGHTS}:
        raise ValueError(f'must have the keys {CONFIG} and {WEIGHTS}')
    return files


class PackageMetadata(BaseModel, strict=True, frozen=True):
    """Metadata of a model; unknown keys of a file are ignored."""
    name: Name
    kind: str = Field(pattern='^(boxes|masks|labels|panoptic)$')
    classes: Classes
    palette: tuple[tuple[Byte, Byte, Byte], ...]
    preprocessing: dict[str, Any]  # for other programs
    parameters: PositiveInt  # number
    files: Annotated[dict[str, StoredFile], AfterValidator(check_files)]
    metrics: dict[str, float | None]  # from metrics.json of colonnade test
    data: Name | None  # test data of the metrics
    license: Name | None
    training: dict[str, Any]
    versions: dict[str, Name]  # versions of the packages that created the files


def write_metadata(metadata: PackageMetadata, path: Path) -> None:
    """Write ``model.json``."""
    write_json(path, dict(format=FORMAT, format_version=VERSION, **metadata.model_dump()))


def read_metadata(path: Path) -> PackageMetadata:
    """Read an untrusted ``model.json``."""
    if not path.is_file():
        raise MissingPackageFileError(f'no {path}: the folder is not a package')
    if path.stat().st_size > MAX_BYTES:
        raise PackageError(f'{path} has more than {MAX_BYTES} bytes, too many for metadata')
    try:
        content = json.loads(path.read_text(encoding='utf-8'))
    except (ValueError, RecursionError) as error:
        raise PackageError(f'{path} is not a JSON file: {error}') from error
    if not isinstance(content, dict) or content.get('format') != FORMAT:
        raise PackageError(f'{path} must have the format {FORMAT!r}')
    version = content.get('format_version')
    if version != VERSION:
        raise PackageError(f'{path} has format_version {version!r}, but this version of Colonnade '
                           f'reads only {VERSION}: install a newer version')
    try:
        metadata = PackageMetadata.model_validate_json(json.dumps(content))  # lists become tuples
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False)[0]
        key = '.'.join(map(str, problem['loc'])) or 'content'
        value = json.dumps(problem['input'], default=repr)[:80]
        raise PackageError(f'{path}: {key}: {problem["msg"]}, got {value}') from error
    if len(metadata.palette) != len(metadata.classes):
        raise PackageError(f'{path}: palette has {len(metadata.palette)} colors for '
                           f'{len(metadata.classes)} classes')
    return metadata


@dataclass(frozen=True)
class Package:
    """A trained model in a folder.

    Attributes:
        config: Config of model, test pipeline and evaluators.
        weights: Path of the safetensors file, whose hash is verified.
        metadata: Content of ``model.json``.
    """
    config: Config
    weights: Path
    metadata: PackageMetadata


def is_package_folder(path: str | Path) -> bool:
    """Return True if a path is a folder of a package, perhaps without some files."""
    if not Path(path).is_dir() or is_sharded(path):
        return False
    return any(Path(path, name).exists() for name in (METADATA, WEIGHTS))


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
