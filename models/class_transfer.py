"""Transfer of weights to a model of other classes: layers that depend on classes are reset."""
from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mmengine.config import Config
from torch import Tensor

from colonnade.common.errors import UserError
from colonnade.settings.classes import (build_class_changes, get_num_classes, iter_class_heads,
                                        merged)
from colonnade.settings.dataset_paths import find_datasets, get_dataset_classes
from colonnade.settings.reading import report_third_party_errors
from colonnade.weights.state_dicts import State, get_classes

from .building import build_on_meta


@dataclass(frozen=True)
class Rows:
    """Rows of a tensor by classes: ``per_class * num_classes + others``."""
    dim: int  # dimension of the rows
    per_class: int
    others: int  # rows after those of the classes: the background

    def split(self, tensor: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
        """Return views of a tensor: ``(num_classes, per_class, ...)``, and the other rows."""
        rows = tensor.movedim(self.dim, 0)
        return (rows[:num_classes * self.per_class].unflatten(0, (num_classes, self.per_class)),
                rows[num_classes * self.per_class:])

    def matches(self, tensor: Tensor, num_classes: int) -> bool:
        """Return True if a tensor has the rows of ``num_classes`` classes."""
        return (tensor.ndim > self.dim
                and tensor.shape[self.dim] == num_classes * self.per_class + self.others)


def find_class_rows(cfg: Config, num_classes: int) -> dict[str, Rows]:
    """Find the tensors whose shapes depend on the number of classes.

    The model is built on the meta device for one class more.
    """
    grown = copy.deepcopy(cfg.model)
    for _, head in iter_class_heads(grown):
        num_things = head['num_things_classes'] if 'num_stuff_classes' in head else None
        changes = build_class_changes(head, get_num_classes(head) + 1, num_things)  # one more stuff
        head.update(merged(head, changes))
        if head.get('out_channels') == 1:  # two classes that share a row
            del head['out_channels']
    with report_third_party_errors('cannot find the layers that depend on the classes'):
        before, after = (build_on_meta(model).state_dict() for model in (cfg.model, grown))
    rows = {}
    for key, tensor in before.items():
        shape, grown_shape = tensor.shape, after[key].shape
        changed = [i for i, (a, b) in enumerate(zip(shape, grown_shape, strict=True)) if a != b]
        if len(changed) == 1:
            dim = changed[0]
            per_class = grown_shape[dim] - shape[dim]
            rows[key] = Rows(dim, per_class, shape[dim] - per_class * num_classes)
    return rows


class ClassTransfer:
    """Function that adapts weights of a model of other classes.

    Layers whose size depends on the classes are reset, except rows of classes with the same name in
    both models, and those of the background.
    """

    def __init__(self, cfg: Config) -> None:
        known = [
            get_dataset_classes(dataset)
            for _, dataset in find_datasets(cfg, ('train_dataloader', ))
        ]
        if not known or known[0] is None:
            raise UserError('--new-classes needs class names: set metainfo.classes of the training '
                            'dataset')
        self.classes = known[0]
        self.rows = find_class_rows(cfg, len(self.classes))
        if not self.rows:
            raise UserError('--new-classes has no effect: no layer depends on the classes')
        self._summary = ''

    def __str__(self) -> str:
        return f'--new-classes: {self._summary}'

    def __call__(self, own: Mapping[str, Tensor], checkpoint: Mapping[str, Any],
                 state: State) -> State:
        """Return the tensors to load."""
        old_classes = get_classes(checkpoint)
        common = [name for name in self.classes if name in old_classes]
        untrained, adapted = [], dict(state)
        for key, rows in self.rows.items():
            old_tensor = state.get(key)
            if old_tensor is None or not _have_equal_shape(rows.dim, old_tensor, own[key]):
                continue  # another model, reported later
            adapted[key] = own[key].detach().cpu().clone()
            if rows.matches(old_tensor, len(old_classes)) and is_class_major(key, rows):
                old, old_others = rows.split(old_tensor, len(old_classes))
                new, new_others = rows.split(adapted[key], len(self.classes))
                new_others.copy_(old_others)
                for name in common:
                    new[self.classes.index(name)] = old[old_classes.index(name)]
            else:
                untrained.append(key)
        self._summary = self._summarize(old_classes, common, untrained)
        return adapted

    def _summarize(self, old_classes: tuple[str, ...], common: list[str],
                   untrained: list[str]) -> str:
        text = f'{len(self.rows)} tensors depend on the classes ({", ".join(self.rows)}). '
        if not old_classes:
            return text + 'The file has no class names: all classes start untrained.'
        names = f': {", ".join(common)}' if common else ''
        text += f'{len(common)} of {len(self.classes)} classes keep their weights{names}. '
        if others := [name for name in self.classes if name not in common]:
            text += f'Untrained: {", ".join(others)}. '
        if untrained:
            text += f'Fully untrained: {", ".join(untrained)}.'
        return text


def _have_equal_shape(dim: int, a: Tensor, b: Tensor) -> bool:
    """Return True if two tensors have the same shape except for a dimension."""
    return a.ndim == b.ndim and all(a.shape[i] == b.shape[i] for i in range(a.ndim) if i != dim)


def is_class_major(key: str, rows: Rows) -> bool:
    """Return True if the rows of a class are adjacent, unlike those of anchors."""
    return rows.others >= 0 and (rows.per_class == 1 or '.fc_reg.' in key)
