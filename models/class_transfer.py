"""Training that goes on from a model of other classes: what depends on them starts anew."""
from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from mmengine.config import Config
from torch import Tensor, nn

from colonnade.common.errors import UserError
from colonnade.settings.classes import class_heads, for_num_classes, merged, num_classes_of
from colonnade.settings.dataset_paths import classes_of, find_datasets
from colonnade.settings.reading import errors_of_others
from colonnade.weights.state_dicts import State, trained_classes

from .meta_device import build_on_meta


@dataclass(frozen=True)
class Rows:
    """How a tensor depends on the number of classes: ``per_class * classes + others`` rows."""
    dim: int  # along which they lie
    per_class: int
    others: int  # behind those of the classes: the background

    def of(self, tensor: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
        """Views of a tensor: ``(num_classes, per_class, ...)``, and the other rows."""
        rows = tensor.movedim(self.dim, 0)
        return (rows[:num_classes * self.per_class].unflatten(0, (num_classes, self.per_class)),
                rows[num_classes * self.per_class:])

    def fit(self, tensor: Tensor, num_classes: int) -> bool:
        """Whether a tensor has as many rows as so many classes need."""
        return (tensor.ndim > self.dim
                and tensor.shape[self.dim] == num_classes * self.per_class + self.others)


def rows_by_class(cfg: Config, num_classes: int) -> dict[str, Rows]:
    """The tensors of a model whose shapes depend on the number of classes.

    They are found by building the model, without memory, for one class more.

    Raises:
        ValueError: If it cannot be built so.
    """
    grown = copy.deepcopy(cfg.model)
    for _, head in class_heads(grown):
        head.update(merged(head, for_num_classes(head, num_classes_of(head) + 1)))
        if head.get('out_channels') == 1:  # for two classes; the row is of neither alone
            del head['out_channels']
    with errors_of_others('which layers depend on the classes is not to be found'):
        now, more = (shapes_of(build_on_meta(model)) for model in (cfg.model, grown))
    found = {}
    for key, shape in now.items():
        changed = [dim for dim, sides in enumerate(zip(shape, more[key], strict=True))
                   if sides[0] != sides[1]]  # yapf: disable
        if len(changed) == 1:
            dim = changed[0]
            per_class = more[key][dim] - shape[dim]
            found[key] = Rows(dim, per_class, shape[dim] - per_class * num_classes)
    return found


def shapes_of(model: nn.Module) -> dict[str, torch.Size]:
    return {key: value.shape for key, value in model.state_dict().items()}


class ClassTransfer:
    """Takes weights of a model of other classes, except layers whose size depends on the classes.

    Rows of classes that both models know by name, and those of the background, are carried over.

    Args:
        cfg: The config of the new model.

    Raises:
        ValueError: If the config does not say its classes.
    """

    def __init__(self, cfg: Config) -> None:
        known = [classes_of(dataset) for _, dataset in find_datasets(cfg, ('train_dataloader', ))]
        if not known or known[0] is None:
            raise UserError('--new-classes needs the names of the classes: the training data of '
                            'the config have no metainfo.classes')
        self.classes = known[0]
        self.rows = rows_by_class(cfg, len(self.classes))
        if not self.rows:
            raise UserError('--new-classes has no effect: no layer depends on the classes')
        self._said = ''

    def __str__(self) -> str:
        return f'--new-classes: {self._said}'

    def __call__(self, own: Mapping[str, Tensor], checkpoint: Mapping[str, Any],
                 state: State) -> State:
        """The tensors to load.

        Args:
            own: The new model's.
            checkpoint: What the file holds, and the names of its classes.
            state: The file's tensors, under our names.
        """
        old_classes = trained_classes(checkpoint)
        common = [name for name in self.classes if name in old_classes]
        untrained, adapted = [], dict(state)
        for key, rows in self.rows.items():
            theirs = state.get(key)
            if theirs is None or not same_but(rows.dim, theirs, own[key]):
                continue  # another model, which is an error later
            adapted[key] = own[key].detach().cpu().clone()
            if rows.fit(theirs, len(old_classes)) and is_class_major(key, rows):
                old, old_others = rows.of(theirs, len(old_classes))
                new, new_others = rows.of(adapted[key], len(self.classes))
                new_others.copy_(old_others)
                for name in common:
                    new[self.classes.index(name)] = old[old_classes.index(name)]
            else:
                untrained.append(key)
        self._said = self._described(old_classes, common, untrained)
        return adapted

    def _described(self, old_classes: tuple[str, ...], common: list[str],
                   untrained: list[str]) -> str:
        """What was done, in sentences."""
        said = f'{len(self.rows)} tensors depend on the classes ({", ".join(self.rows)}). '
        if not old_classes:
            return said + 'The file does not name its classes: all of them start untrained.'
        names = f': {", ".join(common)}' if common else ''
        said += f'{len(common)} of {len(self.classes)} classes keep their weights{names}. '
        if others := [name for name in self.classes if name not in common]:
            said += f'Untrained: {", ".join(others)}. '
        if untrained:
            said += f'Wholly untrained: {", ".join(untrained)}.'
        return said


def same_but(dim: int, a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have one shape but for a dimension."""
    shapes = [list(x.shape) for x in (a, b)]
    return len(shapes[0]) == len(shapes[1]) and all(
        p == q for i, (p, q) in enumerate(zip(*shapes, strict=True)) if i != dim)


def is_class_major(key: str, rows: Rows) -> bool:
    """Whether the rows of a class lie together: not those of anchors, which vary faster."""
    return rows.others >= 0 and (rows.per_class == 1 or '.fc_reg.' in key)
