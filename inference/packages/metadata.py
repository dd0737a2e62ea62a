"""Metadata of a package, stored in ``model.json``."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import (AfterValidator, BaseModel, Field, PositiveInt, StringConstraints,
                      ValidationError)

from colonnade.common.atomic_files import write_json
from colonnade.settings.plain_config import MissingPackageFileError, PackageError

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
    kind: str = Field(pattern='^(boxes|masks|labels)$')
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
                           f'reads {VERSION}: install a later one')
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
