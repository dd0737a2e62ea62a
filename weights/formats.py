"""Checkpoint formats: the key names of published files, and their conversion to Colonnade's.

A backbone has timm's names. A full model has the backbone below ``backbone.``, the pyramid below
``neck.``, and the heads with the names of mmdet or mmseg.
"""
from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from .state_dicts import State, WeightsError

Rules = tuple[tuple[str, str | Callable[[re.Match], str]], ...]


def rename_keys(state: State, rules: Rules) -> State:
    """Apply every rule ``(pattern, replacement)`` to every key, in order."""
    renamed = {}
    for key, value in state.items():
        for pattern, replacement in rules:
            key = re.sub(pattern, replacement, key)
        if key in renamed:
            raise WeightsError(f'two keys in the file would both be renamed to {key}')
        renamed[key] = value
    return renamed


@dataclass(frozen=True)
class CheckpointFormat:
    """Key names of a family of files.

    Attributes:
        name: Name for messages.
        prefixes: Prefixes that each match a key of such a file; of a tuple, one of them does.
        convert: Pure function that converts the names to Colonnade's.
        without: Prefixes that match no key of such a file.
        published_model: True for full detectors or segmenters.
        add_base: For files of differences: function that adds them, the second argument, to other
            weights in any format, and returns the sums under Colonnade's names.
        dropped: Description of tensors of such files that are not loaded.
    """
    name: str
    prefixes: tuple[str | tuple[str, ...], ...]
    convert: Callable[[State], State] = dict
    without: tuple[str, ...] = ()
    published_model: bool = False
    add_base: Callable[[State, State], State] | None = None
    dropped: str = ''

    def matches(self, state: State) -> bool:
        """Return True if a state dict has this format."""
        return all(
            any(key.startswith(prefix) for key in state)
            for prefix in self.prefixes) and not any(key.startswith(self.without) for key in state)


FORMATS: list[CheckpointFormat] = []  # see register_formats()
FULL_MODEL = CheckpointFormat('full model, Colonnade', ('backbone.', ))


def register_formats(*formats: CheckpointFormat) -> None:
    """Register the formats of a backbone's files; those of two must not match one file."""
    FORMATS.extend(formats)


def list_formats() -> dict[str, str]:
    """Return what is dropped from files of each format, by its name."""
    return {known.name: known.dropped for known in (*FORMATS, FULL_MODEL)}


def detect_format(state: State) -> CheckpointFormat | None:
    """Return the first format that matches a state dict, or None."""
    return next((known for known in (*FORMATS, FULL_MODEL) if known.matches(state)), None)


def convert_keys(state: State, source: str) -> tuple[CheckpointFormat, State]:
    """Return the format of a state dict, and its tensors under Colonnade's names."""
    if (known := detect_format(state)) is None:
        names = '; '.join(dict.fromkeys(known.name for known in (*FORMATS, FULL_MODEL)))
        raise WeightsError(f'{source} matches none of the known formats ({names}); its keys '
                           f'look like {", ".join(list(state)[:4])}')
    try:
        return known, known.convert(state)
    except WeightsError as error:
        raise WeightsError(f'{source} ({known.name}) cannot be converted: {error}') from error


def convert_published_model(state: State) -> State:
    """Convert the keys of the authors' detectors and segmenters, and of no other state dict."""
    known = detect_format(state)
    return known.convert(state) if known and known.published_model else state
