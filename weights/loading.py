"""Strict loading of weights of every format in which columnar backbones are published.

A file is read without running pickled code (``files.py``). Its format is detected by its keys,
never by its name, and its keys are converted (``formats.py``). Whatever is missing, unexpected or
of another shape is an error.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from mmengine.logging import print_log
from torch import nn

from .downloads import fetch
from .formats import convert_keys
from .state_dicts import (OTHER_SHAPE, Problems, Shapes, State, WeightsError, add_prefix,
                          find_mismatches, format_mismatches, get_classes, get_omitted,
                          get_state_dict, infer_num_classes, strip_prefix)


@runtime_checkable
class Loadable(Protocol):
    """Backbone that weights can be fitted to; state dicts have the backbone's own names."""

    def reject_weights(self) -> None:
        """Raise an error if the backbone cannot load weights."""

    def find_unused_shapes(self, state: State) -> list[Shapes]:
        """Return shapes of unneeded tensors in groups, of which a file has all or none."""

    def rename_state(self, state: State) -> State:
        """Rename tensors of a file whose names depend on the architecture."""

    def resize_state(self, state: State) -> State:
        """Return the tensors of a file that have to be resized to fit, after resizing."""

    def describe(self, state: State | None = None) -> str:
        """Format the architecture, or that of a state dict of any backbone, for messages."""


@dataclass(frozen=True)
class Plan:
    """Tensors to load, and what was done with those of the file."""
    source: str
    layout: str
    state: State  # tensors that the module needs, under its names
    renamed: tuple[str, ...]  # keys of state with another name in the file
    resized: tuple[str, ...]  # keys of state with another size in the file
    dropped: tuple[str, ...]  # keys that are not needed

    def __str__(self) -> str:
        names = f' ({", ".join(self.resized)})' if self.resized else ''
        return (f'{self.source}: {self.layout}; {len(self.state)} tensors loaded, of them '
                f'{len(self.renamed)} renamed and {len(self.resized)} resized{names}; '
                f'{len(self.dropped)} dropped')


def load_weights(module: nn.Module, source: str | Path, *, trust: bool = False) -> Plan:
    """Load a file, a URL or ``timm://NAME`` into a columnar backbone or a full model, strictly.

    A backbone loads its tensors of a full model's file.

    Args:
        module: Columnar backbone, detector or segmenter.
        source: Path, ``http(s)://`` URL, or ``timm://`` and the name of a model with its tag.
        trust: See :func:`~.files.read_checkpoint`.

    Raises:
        FileNotFoundError: If the file does not exist.
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
    """Plan :func:`load_weights` of a checkpoint; nothing is changed.

    Args:
        module: Columnar backbone, detector or segmenter.
        checkpoint: Content of a file.
        source: Name of the file.
        adapt: Function that changes the file's tensors under Colonnade's names.

    Raises:
        WeightsError: If the checkpoint does not fit ``module``.
    """
    original = get_state_dict(checkpoint, source)
    if get_omitted(checkpoint):
        raise WeightsError(f'{source} omits its base model: add it with colonnade '
                           f'convert-checkpoint {source} OUT --base BASE')
    known, state = convert_keys(original, source)
    if adapt is not None:
        state = adapt(state)
    is_full = any(key.startswith('backbone.') for key in state)
    backbone = module if isinstance(module, Loadable) else dict(
        module.named_children()).get('backbone')
    loadable = backbone if isinstance(backbone, Loadable) else None
    if module is not loadable and not is_full:
        raise WeightsError(
            f'{source} ({known.name}) has only a backbone, expected a full model: set '
            "model.backbone.init_cfg=dict(type='Pretrained', checkpoint=...)")

    own = strip_prefix(state, 'backbone.') if is_full else state
    others = {key: state[key] for key in state if is_full and not key.startswith('backbone.')}
    if loadable is not None:
        loadable.reject_weights()
        own = loadable.rename_state(own)
    prefix = '' if module is loadable else 'backbone.'
    state = own if module is loadable else add_prefix(own, prefix) | others
    required = {key: value.shape for key, value in module.state_dict().items()}
    state = {  # a scalar fits a tensor of one element
        key: value.reshape(1) if value.ndim == 0 and required.get(key) == (1, ) else value
        for key, value in state.items()
    }
    unused: list[Shapes] = []
    resized: State = {}
    if loadable is not None:
        unused = [
            add_prefix(group, prefix) for group in loadable.find_unused_shapes(own)
            if module is loadable or all(key.startswith('blocks.') for key in group)
        ]
        resized = add_prefix(loadable.resize_state(own), prefix)
        state = {**state, **resized}
    if problems := find_mismatches(state, required, unused):
        cause = _explain_classes(problems, state, required, len(get_classes(checkpoint)))
        cause += explain_mismatch(problems, loadable, prefix, own, adapted=adapt is not None)
        raise WeightsError(f'{source} ({known.name}) does not fit the model: {cause}\n'
                           f'{format_mismatches(problems)}')

    needed = {key: value for key, value in state.items() if key in required}
    same = set(original) | set(strip_prefix(original, 'backbone.'))
    dropped = [key for key in state if key not in required]
    return Plan(
        source=source,
        layout=known.name,
        state=needed,
        renamed=tuple(key for key in needed if key not in same),
        resized=tuple(resized),
        dropped=tuple([*dropped, *others] if module is loadable else dropped))


def _explain_classes(problems: Problems, state: State, required: Shapes, num_classes: int) -> str:
    """Return a sentence on different numbers of classes, or an empty string."""
    if list(problems) == [OTHER_SHAPE] and num_classes:
        shapes = {key: required[key] for key in problems[OTHER_SHAPE]}
        expected = infer_num_classes(state, shapes, num_classes)
        if expected not in (None, num_classes):
            return f'{num_classes} classes in the file, {expected} in the config. '
    return ''


def explain_mismatch(problems: Problems, loadable: Loadable | None, prefix: str, own: State, *,
                     adapted: bool) -> str:
    """Explain in a sentence why weights do not fit."""
    keys = [key for keys in problems.values() for key in keys]
    if any('.lora_A.' in key for key in keys):
        return ('the file is of a run with LoRA: pass the same train --tune lora:RANK, or set '
                'lora=dict(rank=RANK) in model.backbone.')
    if loadable is not None and any(key.startswith(prefix) for key in keys):
        file, model = loadable.describe(own), loadable.describe()
        if file != model:
            return f'the file has {file}, the model {model}.'
    parts = ', '.join(dict.fromkeys(key.split('.')[0] for key in keys))
    only_heads = not any(key.startswith(('backbone.', 'neck.')) for key in keys)
    hint = ''
    if only_heads and not adapted and list(problems) == [OTHER_SHAPE]:
        hint = (' If the file was trained on other classes, use the config that it was trained '
                'with. To train it on yours, colonnade train --load-from FILE --new-classes leaves '
                'the layers that depend on them untrained.')
    return f'it differs from the model in {parts}.{hint}'


def resize_tensors(loadable: Loadable, state_dict: State, prefix: str) -> None:
    """Resize tensors of another size than a backbone's in ``state_dict``, and log them."""
    resized = add_prefix(loadable.resize_state(strip_prefix(state_dict, prefix)), prefix)
    for key, value in resized.items():
        print_log(
            f'{key}: {tuple(state_dict[key].shape)} resized to {tuple(value.shape)}',
            logger='current')
    state_dict.update(resized)


def require_complete(module: nn.Module, state_dict: State, prefix: str, *_: Any) -> None:
    """Check before loading that a state dict has all tensors of a backbone or pyramid.

    OpenMMLab's runners and inference functions load with ``strict=False``, so that a model would
    silently keep random weights.
    """
    required = {prefix + key: value.shape for key, value in module.state_dict().items()}
    present = {key: value for key, value in state_dict.items() if key in required}
    if problems := find_mismatches(present, required):
        raise WeightsError(
            f'{type(module).__name__} is not loaded, because some weights do not fit the model:\n'
            f'{format_mismatches(problems)}')
