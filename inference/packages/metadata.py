"""``model.json``: what a package holds, as data."""
from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from colonnade.common.atomic_files import write_json
from colonnade.settings.plain_config import MissingPackageFileError, PackageError

FORMAT, VERSION = 'colonnade-model', 1
CONFIG, WEIGHTS, CARD, README = 'config.py', 'model.safetensors', 'model.json', 'README.md'
KINDS = ('boxes', 'masks', 'labels')
MOST_BYTES = 4 * 2**20  # of model.json: thousands of classes fit
DIGEST = re.compile('[0-9a-f]{64}')


@dataclass(frozen=True)
class Card:
    """What is said of a model.

    Attributes:
        name: Of the model, for people.
        kind: ``boxes``, ``masks`` or ``labels``: what it predicts.
        classes: Their names, by label.
        palette: Red, green and blue of each class, from 0 to 255.
        preprocessing: How images are resized and normalised, for other programs.
        parameters: How many there are.
        files: SHA-256 and size in bytes of the config and of the weights.
        metrics: Of ``tools/test.py``, as its ``metrics.json`` has them.
        data: What the metrics were computed on.
        license: Identifier of the licence.
        training: What the config says of how it was trained.
        versions: Of the packages that made the files.
    """
    name: str
    kind: str
    classes: tuple[str, ...]
    palette: tuple[tuple[int, int, int], ...]
    preprocessing: dict[str, Any]
    parameters: int
    files: dict[str, dict[str, Any]]
    metrics: dict[str, float | None] = field(default_factory=dict)
    data: str | None = None
    license: str | None = None
    training: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


def write_card(card: Card, path: Path) -> None:
    """Write a card."""
    write_json(path, dict(format=FORMAT, format_version=VERSION, **asdict(card)))


def read_card(path: Path) -> Card:
    """The card in a file of somebody else's.

    Raises:
        PackageError: If there is none, or it is no card, or one of a later version.
    """
    if not path.is_file():
        raise MissingPackageFileError(f'no {path}: this is no folder of colonnade package')
    if path.stat().st_size > MOST_BYTES:
        raise PackageError(f'{path} has more than {MOST_BYTES} bytes: no description of a model')
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
    return _card_of(content, path)


def _card_of(content: dict[str, Any], path: Path) -> Card:
    """The card, of checked values; keys that are not known are left out."""
    for key, (is_legal, legal) in LEGAL.items():
        if key not in content:
            raise PackageError(f'{path} has no {key!r}')
        if not is_legal(content[key]):
            raise PackageError(f'{path}: {key} must be {legal}, got '
                               f'{json.dumps(content[key])[:80]}')
    if len(content['palette']) != len(content['classes']):
        raise PackageError(f'{path}: palette has {len(content["palette"])} colours, and there are '
                           f'{len(content["classes"])} classes')
    values = {each.name: content[each.name] for each in fields(Card)}
    values['classes'] = tuple(values['classes'])
    values['palette'] = tuple(map(tuple, values['palette']))
    return Card(**values)


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 200 and value.isprintable()


def _is_name_or_null(value: Any) -> bool:
    return value is None or _is_name(value)


def _is_kind(value: Any) -> bool:
    return value in KINDS


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and 0 < len(value) < 2**16 and all(map(_is_name, value))


def _are_colours(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(colour, list) and len(colour) == 3 and all(
            type(part) is int and 0 <= part < 256 for part in colour) for colour in value)


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _are_numbers(value: Any) -> bool:
    return isinstance(value, dict) and all(
        item is None or type(item) in (int, float) for item in value.values())


def _are_names_of_names(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_name, value.values()))


def _is_count(value: Any) -> bool:
    return type(value) is int and value > 0


def _are_files(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {CONFIG, WEIGHTS} and all(
        isinstance(item, dict) and DIGEST.fullmatch(str(item.get('sha256'))) is not None
        and type(item.get('bytes')) is int for item in value.values())


A_NAME = 'a string of 1 to 200 characters'
LEGAL = dict(
    name=(_is_name, A_NAME),
    kind=(_is_kind, ', '.join(KINDS)),
    classes=(_are_names, f'a list of at least one name, each {A_NAME}'),
    palette=(_are_colours, 'a list of three numbers from 0 to 255 for each class'),
    preprocessing=(_is_object, 'an object'),
    parameters=(_is_count, 'their number'),
    files=(_are_files, f'an object of {CONFIG} and {WEIGHTS}, each with its sha256 and bytes'),
    metrics=(_are_numbers, 'an object of numbers'),
    data=(_is_name_or_null, f'null or {A_NAME}'),
    license=(_is_name_or_null, f'null or {A_NAME}'),
    training=(_is_object, 'an object'),
    versions=(_are_names_of_names, 'an object of strings'))
