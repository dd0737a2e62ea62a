"""Weights: one entrance for every layout in which columnar backbones are published.

A file is read without running what is pickled in it (``files.py``). Its layout is recognised by its
keys and never by its name. Its keys are renamed by pure functions (``layouts.py``). The result is
loaded strictly: whatever is missing, left over or of another shape is an error that names it.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from mmengine.logging import print_log
from torch import nn

from .downloads import fetch
from .layouts import remap
from .state_dicts import (OTHER_SHAPE, Problems, Shapes, State, WeightsError, infer_num_classes,
                          listed, mismatches, state_dict_of, trained_classes, with_prefix,
                          without_prefix)


@runtime_checkable
class Loadable(Protocol):
    """A backbone that weights are fitted to; all state dicts are under the backbone's own names."""

    def check_loadable(self) -> None:
        """Raise an error if the backbone takes no weights now."""

    def unused_shapes(self, state: State) -> list[Shapes]:
        """Shapes of tensors that the backbone does not need; a file has all of a group, or none."""

    def renamed(self, state: State) -> State:
        """A file's tensors under the backbone's names, where these depend on the architecture."""

    def resized(self, state: State) -> State:
        """Those tensors of a file that must be resized to fit, after resizing."""

    def describe(self, state: State | None = None) -> str:
        """The backbone's architecture, or that of a state dict of any backbone, for messages."""


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
    """Load a file, a URL or ``timm://NAME`` into a columnar backbone or a model, strictly.

    A backbone takes its part out of a whole model's file.

    Args:
        module: A columnar backbone, or a detector or segmenter.
        source: Path, ``http(s)://`` URL, or ``timm://`` and the name of a model with its tag.
        trust: See :func:`~.files.read_checkpoint`.

    Raises:
        FileNotFoundError: If there is no such file.
        WeightsError: If it cannot be fetched or read, or does not fit ``module``.
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
    loadable: Loadable | None
    if isinstance(module, Loadable):
        loadable, prefix = module, ''
        if any(key.startswith('backbone.') for key in state):
            prefix = 'backbone.'
    else:
        backbone, prefix = getattr(module, 'backbone', None), 'backbone.'
        loadable = backbone if isinstance(backbone, Loadable) else None
        if not any(key.startswith(prefix) for key in state):
            raise WeightsError(
                f'{source} ({layout.name}) holds a backbone alone, and a whole model was to be loaded:'
                " name it in model.backbone.init_cfg=dict(type='Pretrained', checkpoint=...)")

    if loadable is not None:
        loadable.check_loadable()
    of_backbone = without_prefix(state, prefix)
    dropped = [key for key in state if module is loadable and not key.startswith(prefix)]
    if loadable is not None:
        others = {key: value for key, value in state.items() if not key.startswith(prefix)}
        of_backbone = loadable.renamed(of_backbone)
        state = with_prefix(of_backbone, prefix) | others
    if module is loadable:
        state, prefix = of_backbone, ''
    required = {key: value.shape for key, value in module.state_dict().items()}
    state = {
        key: value.reshape(1) if value.ndim == 0 and required.get(key) == (1, ) else value
        for key, value in state.items()
    }  # a number in a dimension of its own is the same number
    unused: list[Shapes] = []
    resized: State = {}
    if loadable is not None:
        unused = [
            with_prefix(group, prefix) for group in loadable.unused_shapes(of_backbone)
            if module is loadable or all(key.startswith('blocks.') for key in group)
        ]
        resized = with_prefix(loadable.resized(of_backbone), prefix)
        state = {**state, **resized}
    if problems := mismatches(state, required, unused):
        cause = reason_for(problems, loadable, prefix, of_backbone, adapted=adapt is not None)
        classes = trained_classes(checkpoint)
        if list(problems) == [OTHER_SHAPE] and classes:
            shapes = {key: required[key] for key in problems[OTHER_SHAPE]}
            number = infer_num_classes(state, shapes, len(classes))
            if number not in (None, len(classes)):
                cause = f'{len(classes)} classes in the file, {number} in the config. {cause}'
        raise WeightsError(f'{source} ({layout.name}) does not fit: {cause}\n{listed(problems)}')

    needed = {key: value for key, value in state.items() if key in required}
    same = set(original) | set(without_prefix(original, 'backbone.'))
    return Plan(
        source=source,
        layout=layout.name,
        state=needed,
        renamed=tuple(key for key in needed if key not in same),
        resized=tuple(resized),
        dropped=tuple([key for key in state if key not in required] + dropped))


def reason_for(problems: Problems, loadable: Loadable | None, prefix: str, of_backbone: State, *,
               adapted: bool) -> str:
    """Why weights do not fit, in a sentence.

    Args:
        problems: What :func:`mismatches` found.
        loadable: The model's backbone.
        prefix: What stands before its keys.
        of_backbone: Its part of the file.
        adapted: Whether the file's tensors were adapted to other classes.
    """
    keys = [key for keys in problems.values() for key in keys]
    if loadable is not None and any(key.startswith(prefix) for key in keys):
        file, model = loadable.describe(of_backbone), loadable.describe()
        if file != model:
            return f'the file holds {file}, the model {model}.'
    parts = ', '.join(dict.fromkeys(key.split('.')[0] for key in keys))
    heads_alone = not any(key.startswith(('backbone.', 'neck.')) for key in keys)
    classes = ''
    if heads_alone and not adapted and list(problems) == [OTHER_SHAPE]:
        classes = (
            ' If the file was trained on other classes, name the config that it was trained '
            'with. To train it on yours, colonnade train --load-from FILE --new-classes leaves '
            'the layers that depend on them untrained.')
    return f'it differs from the model in {parts}.{classes}'


def resize_tensors(loadable: Loadable, state_dict: State, prefix: str) -> None:
    """Resize what a backbone has in another size; ``state_dict`` is changed, and the log lists it."""
    resized = with_prefix(loadable.resized(without_prefix(state_dict, prefix)), prefix)
    for key, value in resized.items():
        print_log(
            f'{key}: {tuple(state_dict[key].shape)} resized to {tuple(value.shape)}',
            logger='current')
    state_dict.update(resized)


def require_complete(module: nn.Module, state_dict: State, prefix: str, *_: Any) -> None:
    """A hook before loading: a backbone or pyramid is loaded whole or not at all.

    The runners and inference functions of OpenMMLab load with ``strict`` off, so that a model with
    weights that don't fit goes on from random ones.

    Raises:
        WeightsError: If a tensor of the module is missing or of another shape.
    """
    required = {prefix + key: value.shape for key, value in module.state_dict().items()}
    present = {key: value for key, value in state_dict.items() if key in required}
    if problems := mismatches(present, required):
        raise WeightsError(f'{type(module).__name__} is not loaded from weights that do not fit:\n'
                           f'{listed(problems)}')
