"""State dicts: their prefixes, and what keeps one from fitting a module."""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from colonnade.common.errors import UserError
from colonnade.common.name_lists import format_names

State = dict[str, Tensor]
Shapes = dict[str, torch.Size]
Value = TypeVar('Value')
Problems = dict[str, dict[str, str]]  # kind -> keys, each with what is reported of it
OTHER_SHAPE = 'of another shape'
#: what files have their tensors below; 'module' is DeepSpeed's, 'encoder' I-JEPA's
WRAPPERS = ('state_dict', 'model', 'module', 'encoder')
SHOWN = 5  # keys of a kind that an error lists


class WeightsError(UserError):
    """Weights that cannot be loaded; says which file, and why."""


class DamagedError(WeightsError):
    """A file that is not what was saved: cut off, altered, or no weights at all."""


def state_dict_of(checkpoint: Mapping[str, Any], source: str) -> State:
    """The state dict in what was read: below one of :data:`WRAPPERS`, or all of it.

    Raises:
        WeightsError: If there is none.
    """
    for wrapper in WRAPPERS:
        if isinstance(checkpoint.get(wrapper), Mapping):
            checkpoint = checkpoint[wrapper]
            break
    state = {key: value for key, value in checkpoint.items() if isinstance(value, Tensor)}
    if not state or len(state) < len(checkpoint):
        others = [str(key) for key in checkpoint if key not in state][:8]
        raise WeightsError(f'{source} holds no state dict: {", ".join(others) or "nothing"} '
                           'at the top, and no state_dict or model with tensors alone')
    if all(key.startswith('module.') for key in state):  # saved by DistributedDataParallel
        state = {key.removeprefix('module.'): value for key, value in state.items()}
    return state


def trained_classes(checkpoint: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the class names that a checkpoint of mmengine or mmcv 1 was trained on, if any."""
    meta = checkpoint.get('meta')
    if not isinstance(meta, Mapping):
        return ()
    dataset_meta = meta.get('dataset_meta')
    names = dataset_meta.get('classes') if isinstance(dataset_meta, Mapping) else None
    names = names or meta.get('CLASSES')
    return tuple(names) if isinstance(names, (list, tuple)) else ()


def infer_num_classes(state: State, required: Shapes, num_classes: int) -> int | None:
    """Return the number of classes of a model, judged by the tensors that differ from a file's.

    A layer has ``k * num_classes + others`` rows, where others are the background.

    Args:
        state: Tensors of the file.
        required: Shapes of the model's tensors.
        num_classes: Number of classes of the file.
    """
    votes: Counter[int] = Counter()
    for key, shape in required.items():
        sides = [side for side in zip(state[key].shape, shape, strict=False) if side[0] != side[1]]
        if len(sides) == 1 and sides[0][0] >= num_classes:
            rows, others = divmod(sides[0][0], num_classes)
            if (sides[0][1] - others) % rows == 0:
                votes[(sides[0][1] - others) // rows] += 1
    return votes.most_common(1)[0][0] if votes else None


def with_prefix(part: Mapping[str, Value], prefix: str) -> dict[str, Value]:
    """``part`` with ``prefix`` before each key."""
    return {prefix + key: value for key, value in part.items()}


def without_prefix(state: State, prefix: str) -> State:
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
        texts = [key + detail for key, detail in keys.items()]
        lines.append(f'  {len(keys)} {kind}: {format_names(texts, SHOWN)}')
    return '\n'.join(lines)
