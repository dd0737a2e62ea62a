"""Layouts: how published files name their tensors, and pure functions to our names.

Ours are timm's for a backbone. A whole model has the backbone below ``backbone.``, the pyramid below
``neck.`` and the heads of mmdet or mmseg as they are. Backbones register the layouts of
their files.
"""
from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from .state_dicts import State, WeightsError

Rules = tuple[tuple[str, str | Callable[[re.Match], str]], ...]


def rename(state: State, rules: Rules) -> State:
    """Apply every rule ``(pattern, replacement)`` to every key, in order."""
    renamed = {}
    for key, value in state.items():
        for pattern, replacement in rules:
            key = re.sub(pattern, replacement, key)
        if key in renamed:
            raise WeightsError(f'two keys of the file become {key}')
        renamed[key] = value
    return renamed


@dataclass(frozen=True)
class Layout:
    """How a family of files names its tensors.

    Attributes:
        name: For messages.
        prefixes: Each begins some key of such a file; of a tuple of several, one does.
        remap: A pure function from the file's keys to ours.
        published_model: Whether such files hold whole detectors or segmenters, not backbones.
        without: None begins any key of such a file.
    """
    name: str
    prefixes: tuple[str | tuple[str, ...], ...]
    remap: Callable[[State], State] = dict
    published_model: bool = False
    without: tuple[str, ...] = ()

    def fits(self, state: State) -> bool:
        """Whether a state dict has this layout."""
        return all(
            any(key.startswith(prefix) for key in state)
            for prefix in self.prefixes) and not any(key.startswith(self.without) for key in state)


LAYOUTS: list[Layout] = []  # of backbones, see register_formats
WHOLE_MODEL = Layout('whole model, ours', ('backbone.', ))


def register_formats(*layouts: Layout) -> None:
    """Add the layouts of the files of a backbone; the first that fits a file is taken.

    Layouts of different backbones must not fit the same file.
    """
    LAYOUTS.extend(layouts)


def detect_format(state: State) -> Layout | None:
    """The layout that a state dict has, if it is a known one."""
    return next((layout for layout in (*LAYOUTS, WHOLE_MODEL) if layout.fits(state)), None)


def remap(state: State, source: str) -> tuple[Layout, State]:
    """The layout of a state dict, and its tensors under our names.

    Raises:
        WeightsError: If no layout fits, or tensors that must be there to be renamed are not.
    """
    if layout := detect_format(state):
        try:
            return layout, layout.remap(state)
        except WeightsError as error:
            raise WeightsError(f'{source} ({layout.name}) cannot be renamed: {error}') from error
    names = '; '.join(dict.fromkeys(layout.name for layout in (*LAYOUTS, WHOLE_MODEL)))
    raise WeightsError(f'{source} has none of the known layouts ({names}); its keys are like '
                       f'{", ".join(list(state)[:4])}')


def published_model(state: State) -> State:
    """The authors' detector or segmenter under our names; anything else as it is."""
    layout = detect_format(state)
    return layout.remap(state) if layout and layout.published_model else state
