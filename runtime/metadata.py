"""Metadata of an exported model, stored in ``model.json`` and validated on access."""
from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

METADATA_FILE = 'model.json'
FORMAT = 1
MISSING = object()


class ModelError(ValueError):
    """An exported folder that cannot be used; the message contains file, key and value."""


class Section:
    """A part of ``model.json``, whose getters raise a ModelError for an unexpected value."""

    def __init__(self, content: Mapping[str, Any], path: Path, key: str = '') -> None:
        self._content, self._path, self._key = content, path, key

    def keys(self) -> list[str]:
        """Return the keys."""
        return list(self._content)

    def _join(self, key: str) -> str:
        return f'{self._key}.{key}' if self._key else key

    def report_build_errors(self, key: str, expected: str, value: Any) -> ModelError:
        """Return the error for an unexpected value."""
        text = 'nothing' if value is MISSING else repr(value)
        return ModelError(f'{self._path}: {self._join(key)} must be {expected}, got {text}')

    def get(self, key: str, kind: type, expected: str, default: Any = MISSING) -> Any:
        """Return the value of a key.

        Args:
            key: Key in this part.
            kind: Type of the value; an int is also accepted as a float.
            expected: Description of the value in errors.
            default: Value of a key that is missing or null; without it, that is an error.
        """
        value = self._content.get(key, MISSING)
        if default is not MISSING and (value is MISSING or value is None):
            return default
        kinds = (int, float) if kind is float else kind
        if not isinstance(value, kinds) or isinstance(value, bool) != (kind is bool):
            raise self.report_build_errors(key, expected, value)
        return value

    def get_float(self, key: str, default: Any = MISSING) -> Any:
        """Return a number."""
        return self.get(key, float, 'a number', default)

    def get_int(self, key: str) -> int:
        """Return an integer."""
        return self.get(key, int, 'an integer')

    def get_positive(self, key: str, default: Any = MISSING) -> int:
        """Return an integer of at least 1."""
        expected = 'an integer of at least 1'
        value = self.get(key, int, expected, default)
        if value < 1:
            raise self.report_build_errors(key, expected, value)
        return value

    def get_bool(self, key: str, default: Any = MISSING) -> bool:
        """Return true or false."""
        return self.get(key, bool, 'true or false', default)

    def get_choice(self, key: str, *choices: str) -> str:
        """Return one of several strings."""
        expected = f'one of {", ".join(choices)}'
        value = self.get(key, str, expected)
        if value not in choices:
            raise self.report_build_errors(key, expected, value)
        return value

    def get_numbers(self, key: str, length: int, kind: type = float, default: Any = MISSING) -> Any:
        """Return a tuple of numbers."""
        expected = f'{length} numbers' if kind is float else f'{length} integers'
        values = self.get(key, list, expected, default)
        if values is default:
            return default
        kinds = (int, float) if kind is float else (kind, )
        if len(values) != length or any(type(value) not in kinds for value in values):
            raise self.report_build_errors(key, expected, values)
        return tuple(values)

    def get_size(self, key: str, default: Any = MISSING) -> Any:
        """Return a height and width of at least 1."""
        values = self.get_numbers(key, 2, int, default)
        if values is not default and min(values) < 1:
            raise self.report_build_errors(key, 'a height and width of at least 1', list(values))
        return values

    def get_section(self, key: str) -> Section | None:
        """Return the part of a key; None if it is missing or null."""
        content = self.get(key, dict, 'an object', None)
        return None if content is None else Section(content, self._path, self._join(key))

    def require_section(self, key: str) -> Section:
        """Return the part of a key that must exist."""
        return Section(self.get(key, dict, 'an object'), self._path, self._join(key))

    def get_sections(self, key: str) -> list[Section]:
        """Return the parts in a list."""
        values = self.get(key, list, 'a list of objects', [])
        for value in values:
            if not isinstance(value, dict):
                raise self.report_build_errors(key, 'a list of objects', value)
        name = self._join(key)
        return [Section(value, self._path, f'{name}[{i}]') for i, value in enumerate(values)]


@dataclass(frozen=True)
class Graph:
    """File of a network, whose hash is verified, with the names of its inputs and outputs."""
    path: Path
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def read_metadata(folder: Path) -> Section:
    """Read ``model.json``."""
    path = folder / METADATA_FILE
    if not folder.is_dir():
        raise FileNotFoundError(
            f'{folder} is not a folder: pass a folder written by colonnade export')
    if not path.is_file():
        raise FileNotFoundError(
            f'{path} does not exist: {folder} was not written by colonnade export')
    try:
        content = json.loads(path.read_text(encoding='utf-8'))
    except (ValueError, RecursionError) as error:
        raise ModelError(f'{path} is not a JSON file: {error}') from error
    if not isinstance(content, dict):
        raise ModelError(f'{path} must contain a JSON object, got {type(content).__name__}')
    version = content.get('format')
    if version != FORMAT:
        raise ModelError(f'{path}: format must be {FORMAT}, got {version!r}: use the runtime in '
                         'the exported folder')
    return Section(content, path)


def read_graphs(metadata: Section, folder: Path) -> dict[str, Graph]:
    """Return the graphs of a model after verifying their files."""
    section, graphs = metadata.require_section('graphs'), {}
    for name in section.keys():
        entry = section.require_section(name)
        # Weights of large graphs are separate files.
        path, *_ = [verify_file(each, folder) for each in (entry, *entry.get_sections('weights'))]
        inputs, outputs = (tuple(map(str, entry.get(key, list, 'a list of names')))
                           for key in ('inputs', 'outputs'))  # yapf: disable
        graphs[name] = Graph(path, inputs, outputs)
    return graphs


def verify_file(entry: Section, folder: Path) -> Path:
    """Return the path of a file after verifying its hash."""
    name = entry.get('file', str, 'the name of a file')
    if Path(name).name != name:
        raise entry.report_build_errors('file', 'the name of a file in the same folder', name)
    expected, path = entry.get('sha256', str, 'a SHA-256'), folder / name
    if not path.is_file():
        raise FileNotFoundError(f'{path} does not exist, but {METADATA_FILE} lists it')
    digest = sha256()
    with path.open('rb') as file:
        while block := file.read(2**20):
            digest.update(block)
    if digest.hexdigest() != expected:
        raise ModelError(f'{path} has SHA-256 {digest.hexdigest()}, but {METADATA_FILE} says '
                         f'{expected}: the file is damaged or was replaced')
    return path
