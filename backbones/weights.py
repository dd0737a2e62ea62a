"""Weights: one entrance for every layout in which columnar trunks are published.

A file is read without running what is pickled in it (``checkpoint_files.py``), its layout is
recognised by its keys and never by its name, its keys are renamed by pure functions
(``layouts.py``), and the result is loaded strictly: whatever is missing, left over or of another
shape is an error that names it.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from mmengine.logging import print_log
from mmengine.runner.checkpoint import CheckpointLoader
from torch import nn

from .checkpoint_files import State, WeightsError, fetch, state_dict_of
from .layouts import published_model, remap

Shapes = dict[str, torch.Size]
Value = TypeVar('Value')


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


def plan_loading(module: nn.Module, checkpoint: Mapping[str, Any], source: str) -> Plan:
    """What :func:`load_weights` would do with a checkpoint; nothing is changed.

    Raises:
        WeightsError: If the checkpoint does not fit ``module``.
    """
    original = state_dict_of(checkpoint, source)
    layout, state = remap(original, source)
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
        cause = ''
        if hasattr(trunk, 'describe'):
            cause = f'\nThe file holds {trunk.describe(of_trunk)}, the model {trunk.describe()}.'
        raise WeightsError(f'{source} ({layout.name}) does not fit:\n{problems}{cause}')

    needed = {key: value for key, value in state.items() if key in required}
    same = set(original) | set(below(original, 'backbone.'))
    return Plan(
        source=source,
        layout=layout.name,
        state=needed,
        renamed=tuple(key for key in needed if key not in same),
        resized=tuple(resized),
        dropped=tuple([key for key in state if key not in required] + dropped))


def above(part: Mapping[str, Value], prefix: str) -> dict[str, Value]:
    """``part`` with ``prefix`` before each key."""
    return {prefix + key: value for key, value in part.items()}


def below(state: State, prefix: str) -> State:
    """The part of a state dict whose keys begin with ``prefix``, without it."""
    return {
        key.removeprefix(prefix): value
        for key, value in state.items() if key.startswith(prefix)
    }


def mismatches(state: State, required: Shapes, unused: Iterable[Shapes] = ()) -> str:
    """What keeps ``state`` from fitting, a line a kind; empty if it fits.

    Args:
        state: Tensors to load.
        required: All of these must be there.
        unused: Of each of these groups, all may be there or none.
    """
    expected = dict(required)
    for group in unused:
        if any(key in state for key in group):
            expected |= group
    kinds = {
        'missing': [key for key in expected if key not in state],
        'unexpected': [key for key in state if key not in expected],
        'of another shape': [
            f'{key} is {tuple(state[key].shape)} in the file, {tuple(shape)} in the model'
            for key, shape in expected.items() if key in state and state[key].shape != shape
        ],
    }
    return '\n'.join(f'  {len(keys)} {kind}: {", ".join(keys)}' for kind, keys in kinds.items()
                     if keys)


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
                           f'{problems}')


@CheckpointLoader.register_scheme(prefixes='timm://')
@CheckpointLoader.register_scheme(prefixes=('http://', 'https://'), force=True)
@CheckpointLoader.register_scheme(prefixes='', force=True)
def load_for_mmengine(filename: str, map_location: Any = None) -> dict[str, Any]:
    """mmengine's loader of files, addresses and ``timm://``, with published models under our names.

    mmengine's own loader falls back to running what is pickled in a file; this one does not.
    """
    checkpoint = fetch(filename)
    if isinstance(checkpoint.get('state_dict'), Mapping):
        checkpoint['state_dict'] = published_model(checkpoint['state_dict'])
    return checkpoint
