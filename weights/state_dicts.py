"""State dicts: prefixes, numbers of classes, and mismatches with a module."""
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
Problems = dict[str, dict[str, str]]  # category -> key -> detail
OTHER_SHAPE = 'of another shape'
#: keys of files that contain the state dict; 'module' is DeepSpeed's, 'encoder' I-JEPA's
WRAPPERS = ('state_dict', 'model', 'module', 'encoder')
MAX_LISTED = 5  # keys of a category in an error message


class WeightsError(UserError):
    """Weights that cannot be loaded."""


class DamagedError(WeightsError):
    """File that is not as it was saved: truncated, altered, or not a file of weights."""


#: key in dataset_meta of a file without its base model: names and digest of the omitted tensors
OMITTED = 'base'


def get_state_dict(checkpoint: Mapping[str, Any], source: str) -> State:
    """Return the state dict of a checkpoint, or raise a WeightsError if it has none."""
    for wrapper in WRAPPERS:
        if isinstance(checkpoint.get(wrapper), Mapping):
            checkpoint = checkpoint[wrapper]
            break
    state = {key: value for key, value in checkpoint.items() if isinstance(value, Tensor)}
    if not state or len(state) < len(checkpoint):
        others = [str(key) for key in checkpoint if key not in state][:8]
        raise WeightsError(f'{source} has no state dict: found {", ".join(others) or "nothing"} '
                           'at the top level, and no state_dict or model key with only tensors')
    if all(key.startswith('module.') for key in state):  # saved by DistributedDataParallel
        state = {key.removeprefix('module.'): value for key, value in state.items()}
    return state


def get_omitted(checkpoint: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the description of what a file omits, or None."""
    meta = checkpoint.get('meta')
    dataset_meta = meta.get('dataset_meta') if isinstance(meta, Mapping) else None
    found = dataset_meta.get(OMITTED) if isinstance(dataset_meta, Mapping) else None
    if isinstance(found, Mapping) and isinstance(found.get('names'), list):
        return dict(found)
    return None


def get_classes(checkpoint: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the class names that a checkpoint of mmengine or mmcv 1 was trained on, if any."""
    meta = checkpoint.get('meta')
    if not isinstance(meta, Mapping):
        return ()
    dataset_meta = meta.get('dataset_meta')
    names = dataset_meta.get('classes') if isinstance(dataset_meta, Mapping) else None
    names = names or meta.get('CLASSES')
    return tuple(names) if isinstance(names, (list, tuple)) else ()


def infer_num_classes(state: State, required: Shapes, num_classes: int) -> int | None:
    """Infer the number of classes of a model from the tensors whose shapes differ from a file's.

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


def add_prefix(part: Mapping[str, Value], prefix: str) -> dict[str, Value]:
    """Add a prefix to each key."""
    return {prefix + key: value for key, value in part.items()}


def strip_prefix(state: State, prefix: str) -> State:
    """Return the tensors whose keys begin with a prefix, without it."""
    return {
        key.removeprefix(prefix): value
        for key, value in state.items() if key.startswith(prefix)
    }


def find_mismatches(state: State, required: Shapes, unused: Iterable[Shapes] = ()) -> Problems:
    """Return what keeps ``state`` from fitting, by category; empty if it fits.

    Args:
        state: Tensors to load.
        required: Shapes of tensors that must be present.
        unused: Groups of which all or no tensors may be present.
    """
    expected = dict(required)
    for group in unused:
        if any(key in state for key in group):
            expected |= group
    problems = {
        'missing': dict.fromkeys((key for key in expected if key not in state), ''),
        'unexpected': dict.fromkeys((key for key in state if key not in expected), ''),
        OTHER_SHAPE: {
            key: f' is {tuple(state[key].shape)} in the file, {tuple(shape)} in the model'
            for key, shape in expected.items() if key in state and state[key].shape != shape
        },
    }
    return {category: keys for category, keys in problems.items() if keys}


def format_mismatches(problems: Problems) -> str:
    """Format each category of mismatches in a line, with some of the keys."""
    lines = []
    for category, keys in problems.items():
        texts = [key + detail for key, detail in keys.items()]
        lines.append(f'  {len(keys)} {category}: {format_names(texts, MAX_LISTED)}')
    return '\n'.join(lines)
