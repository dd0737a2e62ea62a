"""``model.json``: what a package holds, as data."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import (AfterValidator, BaseModel, Field, PositiveInt, StringConstraints,
                      ValidationError)

from colonnade.common.atomic_files import write_json
from colonnade.settings.plain_config import MissingPackageFileError, PackageError

FORMAT, VERSION = 'colonnade-model', 1
CONFIG, WEIGHTS, CARD, README = 'config.py', 'model.safetensors', 'model.json', 'README.md'
MAX_BYTES = 4 * 2**20  # of model.json: thousands of classes fit


def check_printable(text: str) -> str:
    """Return a text that controls no terminal."""
    if not text.isprintable():
        raise ValueError('not printable')
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
    """Return descriptions of the files that a package has, and of no others."""
    if set(files) != {CONFIG, WEIGHTS}:
        raise ValueError('other files')
    return files


class Card(BaseModel, strict=True, frozen=True):
    """Description of a model; keys of a file that are not known are ignored.

    Attributes:
        name: Name of the model, for people.
        kind: ``boxes``, ``masks`` or ``labels``: what it predicts.
        classes: Names of the classes, by label.
        palette: Red, green and blue of each class, from 0 to 255.
        preprocessing: How images are resized and normalized, for other programs.
        parameters: Number of parameters.
        files: SHA-256 and size in bytes of the config and of the weights.
        metrics: Metrics of ``tools/test.py``, as its ``metrics.json`` has them.
        data: Data that the metrics were computed on.
        license: Identifier of the license.
        training: What the config says of how it was trained.
        versions: Versions of the packages that made the files.
    """
    name: Name
    kind: str = Field(pattern='^(boxes|masks|labels)$')
    classes: Classes
    palette: tuple[tuple[Byte, Byte, Byte], ...]
    preprocessing: dict[str, Any]
    parameters: PositiveInt
    files: Annotated[dict[str, StoredFile], AfterValidator(check_files)]
    metrics: dict[str, float | None]
    data: Name | None
    license: Name | None
    training: dict[str, Any]
    versions: dict[str, Name]


EXPECTED = dict(
    name='a string of 1 to 200 characters',
    kind='boxes, masks, labels',
    classes='a list of at least one name, each a string of 1 to 200 characters',
    palette='a list of three numbers from 0 to 255 for each class',
    preprocessing='an object',
    parameters='their number',
    files=f'an object of {CONFIG} and {WEIGHTS}, each with its sha256 and bytes',
    metrics='an object of numbers',
    data='null or a string of 1 to 200 characters',
    license='null or a string of 1 to 200 characters',
    training='an object',
    versions='an object of strings')


def write_card(card: Card, path: Path) -> None:
    """Write a card."""
    write_json(path, dict(format=FORMAT, format_version=VERSION, **card.model_dump()))


def read_card(path: Path) -> Card:
    """Return the card in an untrusted file.

    Raises:
        PackageError: If there is none, or it is no card, or one of a later version.
    """
    if not path.is_file():
        raise MissingPackageFileError(f'no {path}: this is no folder of colonnade package')
    if path.stat().st_size > MAX_BYTES:
        raise PackageError(f'{path} has more than {MAX_BYTES} bytes: no description of a model')
    try:
        content = json.loads(path.read_text(encoding='utf-8'))
    except (ValueError, RecursionError) as error:
        raise PackageError(f'{path} is no JSON: {error}') from error
    if not isinstance(content, dict) or content.get('format') != FORMAT:
        raise PackageError(f'{path} must have the format {FORMAT!r}')
    version = content.get('format_version')
    if version != VERSION:
        raise PackageError(f'{path} has format_version {version!r}, and this colonnade reads '
                           f'{VERSION}: install a later one')
    try:
        card = Card.model_validate_json(json.dumps(content))  # where lists become tuples
    except ValidationError as error:
        raise explain_error(error, content, path) from error
    if len(card.palette) != len(card.classes):
        raise PackageError(f'{path}: palette has {len(card.palette)} colours, and there are '
                           f'{len(card.classes)} classes')
    return card


def explain_error(error: ValidationError, content: dict[str, Any], path: Path) -> PackageError:
    """Return an error that names the first key of a card that is missing or has a wrong value."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    if not first['loc']:
        return PackageError(f'{path} is no JSON: {first["msg"]}')
    key = str(first['loc'][0])
    if key not in content:
        return PackageError(f'{path} has no {key!r}')
    value = json.dumps(content[key])[:80]
    return PackageError(f'{path}: {key} must be {EXPECTED[key]}, got {value}')
