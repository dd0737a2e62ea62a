"""``model.json``: what an exported model is, checked as it is read."""
from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from .errors import ModelError

NAME = 'model.json'
FORMAT = 1
MISSING = object()


class Section:
    """A part of ``model.json``, whose values are asked for with what they must be.

    Args:
        content: Of the part.
        path: Of the file.
        key: Of the part; empty for the whole.
    """

    def __init__(self, content: Mapping[str, Any], path: Path, key: str = '') -> None:
        self._content, self._path, self._key = content, path, key

    def fault(self, key: str, wanted: str, value: Any) -> ModelError:
        """The error of a value that is not what it must be."""
        name = f'{self._key}.{key}' if self._key else key
        shown = 'nothing' if value is MISSING else repr(value)
        return ModelError(f'{self._path}: {name} must be {wanted}, got {shown}')

    def get(self, key: str, kind: type, wanted: str, default: Any = MISSING) -> Any:
        """The value of a key.

        Args:
            key: Of this part.
            kind: It must be of; a float may be written as an int.
            wanted: What it must be, for the error.
            default: Of a key that is missing or null; an error if not given.

        Raises:
            ModelError: If it is of another type.
        """
        value = self._content.get(key, MISSING)
        if default is not MISSING and (value is MISSING or value is None):
            return default
        kinds = (int, float) if kind is float else kind
        if not isinstance(value, kinds) or isinstance(value, bool) != (kind is bool):
            raise self.fault(key, wanted, value)
        return value

    def choice(self, key: str, *possible: str) -> str:
        """A text that is one of some."""
        value = self.get(key, str, f'one of {", ".join(possible)}')
        if value not in possible:
            raise self.fault(key, f'one of {", ".join(possible)}', value)
        return value

    def numbers(self, key: str, length: int, kind: type = float, default: Any = MISSING) -> Any:
        """Some numbers, as a tuple."""
        wanted = f'{length} numbers' if kind is float else f'{length} whole numbers'
        values = self.get(key, list, wanted, default)
        if values is default:
            return default
        kinds = (int, float) if kind is float else (kind, )
        if len(values) != length or any(type(value) not in kinds for value in values):
            raise self.fault(key, wanted, values)
        return tuple(values)

    def size(self, key: str, default: Any = MISSING) -> Any:
        """A height and width of at least 1."""
        values = self.numbers(key, 2, int, default)
        if values is not default and min(values) < 1:
            raise self.fault(key, 'a height and width of at least 1', list(values))
        return values

    def below(self, key: str) -> Section | None:
        """The part of a key; None if it is missing or null."""
        content = self.get(key, dict, 'an object', None)
        name = f'{self._key}.{key}' if self._key else key
        return None if content is None else Section(content, self._path, name)

    def need(self, key: str) -> Section:
        """The part of a key."""
        self.get(key, dict, 'an object')
        found = self.below(key)
        assert found is not None  # get() has raised then
        return found

    def each(self, key: str) -> list[Section]:
        """The parts of a list."""
        values = self.get(key, list, 'a list of objects', [])
        for value in values:
            if not isinstance(value, dict):
                raise self.fault(key, 'a list of objects', value)
        name = f'{self._key}.{key}' if self._key else key
        return [Section(value, self._path, f'{name}[{i}]') for i, value in enumerate(values)]

    def keys(self) -> list[str]:
        """What the part has."""
        return list(self._content)


@dataclass(frozen=True)
class Graph:
    """A file of a network.

    Attributes:
        path: Of the file, whose hash is right.
        inputs: Names.
        outputs: Names.
    """
    path: Path
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def read_description(folder: Path) -> Section:
    """What ``model.json`` says.

    Raises:
        FileNotFoundError: If there is no such folder, or it was not written to its end.
        ModelError: If the file is damaged or of another format.
    """
    path = folder / NAME
    if not folder.is_dir():
        raise FileNotFoundError(f'no folder {folder}: name one that colonnade export has written')
    if not path.is_file():
        raise FileNotFoundError(f'no {path}: {folder} is no folder of colonnade export')
    try:
        content = json.loads(path.read_text(encoding='utf-8'))
    except (ValueError, RecursionError) as error:
        raise ModelError(f'{path} is no JSON: {error}') from error
    if not isinstance(content, dict):
        raise ModelError(f'{path} must hold an object, got {type(content).__name__}')
    found = content.get('format')
    if found != FORMAT:
        raise ModelError(f'{path}: format must be {FORMAT}, got {found!r}: use the runtime of the '
                         'version that exported it, which lies beside it')
    return Section(content, path)


def read_graphs(about: Section, folder: Path) -> dict[str, Graph]:
    """The graphs of a model, whose files are whole.

    Raises:
        FileNotFoundError: If a file is missing.
        ModelError: If one is damaged, or lies elsewhere.
    """
    graphs, found = about.need('graphs'), {}
    for name in graphs.keys():
        graph = graphs.need(name)
        file = file_of(graph)
        for each in (graph, *graph.each('weights')):  # weights of large graphs lie beside them
            check_file(folder / file_of(each), each.get('sha256', str, 'a SHA-256'))
        names = (tuple(map(str, graph.get(key, list, 'a list of names')))
                 for key in ('inputs', 'outputs'))  # yapf: disable
        found[name] = Graph(folder / file, *names)
    return found


def file_of(about: Section) -> str:
    """The name of a file, which lies in the same folder."""
    file = about.get('file', str, 'the name of a file')
    if Path(file).name != file:
        raise about.fault('file', 'the name of a file in the same folder', file)
    return file


def check_file(path: Path, expected: str) -> None:
    """Raise an error if a file is missing or damaged."""
    if not path.is_file():
        raise FileNotFoundError(f'no {path}, which {NAME} names')
    digest = sha256()
    with path.open('rb') as file:
        while block := file.read(2**20):
            digest.update(block)
    if digest.hexdigest() != expected:
        raise ModelError(f'{path} has the SHA-256 {digest.hexdigest()}, and {NAME} says '
                         f'{expected}: it is damaged or another file')
