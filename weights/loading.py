"""Weights: one entrance for every layout in which columnar trunks are published.

A file is read without running what is pickled in it (``checkpoint_files.py``), its layout is
recognised by its keys and never by its name, its keys are renamed by pure functions
(``layouts.py``), and the result is loaded strictly: whatever is missing, left over or of another
shape is an error that names it.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from mmengine.logging import print_log
from torch import nn

from .files import State, WeightsError, fetch, state_dict_of
from .layouts import remap

Shapes = dict[str, torch.Size]
Value = TypeVar('Value')
Problems = dict[str, dict[str, str]]  # kind -> keys, each with what is to be said of it
OTHER_SHAPE = 'of another shape'
SHOWN = 5  # keys of a kind that an error lists


@dataclass(frozen=True)
class Plan:
    """What is to be loaded, and what became of the file's tensors."""
    source: str
    layout: str
    state: State  # what the module needs, under its names
    renamed: tuple[str, ...]  # of these, the ones that the file names otherwise
    resized: tuple[str, ...]  # of these, the ones of another size in the file
    dropped: tuple[str, ...]  # under our names

    def __str__(self) -> str:
        names = f' ({", ".join(self.resized)})' if self.resized else ''
        return (f'{self.source}: {self.layout}; {len(self.state)} tensors loaded, of them '
                f'{len(self.renamed)} renamed and {len(self.resized)} resized{names}; '
                f'{len(self.dropped)} dropped')


def load_weights(module: nn.Module, source: str | Path, *, trust: bool = False) -> Plan:
    """Load a file, an address or ``timm://NAME`` into a columnar backbone or a model, strictly.

    A backbone takes its part out of a whole model's file.

    Args:
        module: A columnar backbone, or a detector or segmenter.
        source: Path, ``http(s)://`` address, or ``timm://`` and the name of a model with its tag.
        trust: See :func:`read_checkpoint`.

    Raises:
        FileNotFoundError: If there is no such file.
        WeightsError: If it cannot be had or read, or does not fit ``module``.
    """
    plan = plan_loading(module, fetch(source, trust=trust), str(source))
    module.load_state_dict(plan.state)
    print_log(str(plan), logger='current')
    return plan


def plan_loading(module: nn.Module,
                 checkpoint: Mapping[str, Any],
                 source: str,
                 *,
                 adapt: Callable[[State], State] | None = None) -> Plan:
    """What :func:`load_weights` would do with a checkpoint; nothing is changed.

    Args:
        module: See :func:`load_weights`.
        checkpoint: What a file holds.
        source: The file's name.
        adapt: Changes the file's tensors, which it gets under our names.

    Raises:
        WeightsError: If the checkpoint does not fit ``module``.
    """
    original = state_dict_of(checkpoint, source)
    layout, state = remap(original, source)
    if adapt is not None:
        state = adapt(state)
    if hasattr(module, 'unused_shapes'):
        trunk, prefix = module, ''
        if any(key.startswith('backbone.') for key in state):
            prefix = 'backbone.'
    else:
        trunk, prefix = getattr(module, 'backbone', None), 'backbone.'
        if not any(key.startswith(prefix) for key in state):
            raise WeightsError(
                f'{source} ({layout.name}) holds a trunk alone, and a whole model was to be loaded:'
                " name it in model.backbone.init_cfg=dict(type='Pretrained', checkpoint=...)")

    of_trunk = below(state, prefix)
    dropped = [key for key in state if module is trunk and not key.startswith(prefix)]
    if module is trunk:
        state, prefix = of_trunk, ''
    required = {key: value.shape for key, value in module.state_dict().items()}
    unused: list[Shapes] = []
    resized: State = {}
    if hasattr(trunk, 'unused_shapes'):
        unused = [above(group, prefix) for group in trunk.unused_shapes(of_trunk)]
        resized = above(trunk.resized(of_trunk), prefix)
        state = {**state, **resized}
    if problems := mismatches(state, required, unused):
        cause = reason_for(problems, trunk, prefix, of_trunk, adapted=adapt is not None)
        raise WeightsError(f'{source} ({layout.name}) does not fit: {cause}\n{listed(problems)}')

    needed = {key: value for key, value in state.items() if key in required}
    same = set(original) | set(below(original, 'backbone.'))
    return Plan(
        source=source,
        layout=layout.name,
        state=needed,
        renamed=tuple(key for key in needed if key not in same),
        resized=tuple(resized),
        dropped=tuple([key for key in state if key not in required] + dropped))


def reason_for(problems: Problems, trunk: nn.Module | None, prefix: str, of_trunk: State, *,
               adapted: bool) -> str:
    """Why weights do not fit, in a sentence.

    Args:
        problems: What :func:`mismatches` found.
        trunk: The backbone that was to be loaded.
        prefix: What stands before its keys.
        of_trunk: Its part of the file.
        adapted: Whether other classes were made up for.
    """
    keys = [key for keys in problems.values() for key in keys]
    if hasattr(trunk, 'describe') and any(key.startswith(prefix) for key in keys):
        file, model = trunk.describe(of_trunk), trunk.describe()
        if file != model:
            return f'the file holds {file}, the model {model}.'
    parts = ', '.join(dict.fromkeys(key.split('.')[0] for key in keys))
    heads_alone = not any(key.startswith(('backbone.', 'neck.')) for key in keys)
    classes = ''
    if heads_alone and not adapted and list(problems) == [OTHER_SHAPE]:
        classes = (' If the file was trained on other classes, tools/train.py --load-from FILE '
                   '--new-classes leaves the layers that depend on them untrained.')
    return f'it differs from the model in {parts}.{classes}'


def above(part: Mapping[str, Value], prefix: str) -> dict[str, Value]:
    """``part`` with ``prefix`` before each key."""
    return {prefix + key: value for key, value in part.items()}


def below(state: State, prefix: str) -> State:
    """The part of a state dict whose keys begin with ``prefix``, without it."""
    return {
        key.removeprefix(prefix): value
        for key, value in state.items() if key.startswith(prefix)
    }


def mismatches(state: State, required: Shapes, unused: Iterable[Shapes] = ()) -> Problems:
    """What keeps ``state`` from fitting, by kind; empty if it fits.

    Args:
        state: Tensors to load.
        required: All of these must be there.
        unused: Of each of these groups, all may be there or none.
    """
    expected = dict(required)
    for group in unused:
        if any(key in state for key in group):
            expected |= group
    problems = {
        'missing': {
            key: ''
            for key in expected if key not in state
        },
        'unexpected': {
            key: ''
            for key in state if key not in expected
        },
        OTHER_SHAPE: {
            key: f' is {tuple(state[key].shape)} in the file, {tuple(shape)} in the model'
            for key, shape in expected.items() if key in state and state[key].shape != shape
        },
    }
    return {kind: keys for kind, keys in problems.items() if keys}


def listed(problems: Problems) -> str:
    """A line for each kind of problem, with some of the keys."""
    lines = []
    for kind, keys in problems.items():
        shown = ', '.join(key + detail for key, detail in list(keys.items())[:SHOWN])
        rest = f' and {len(keys) - SHOWN} more' if len(keys) > SHOWN else ''
        lines.append(f'  {len(keys)} {kind}: {shown}{rest}')
    return '\n'.join(lines)


def require_complete(module: nn.Module, state_dict: State, prefix: str, *_: Any) -> None:
    """A hook before loading: a trunk or pyramid is loaded whole or not at all.

    The runners and inference functions of OpenMMLab load with ``strict`` off, so that a model with
    weights that don't fit goes on from random ones.

    Raises:
        WeightsError: If a tensor of the module is missing or of another shape.
    """
    if hasattr(module, 'resized'):
        resized = above(module.resized(below(state_dict, prefix)), prefix)
        for key, value in resized.items():
            print_log(
                f'{key}: {tuple(state_dict[key].shape)} resized to {tuple(value.shape)}',
                logger='current')
        state_dict.update(resized)
    required = {prefix + key: value.shape for key, value in module.state_dict().items()}
    present = {key: value for key, value in state_dict.items() if key in required}
    if problems := mismatches(present, required):
        raise WeightsError(f'{type(module).__name__} is not loaded from weights that do not fit:\n'
                           f'{listed(problems)}')
