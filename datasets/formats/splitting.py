"""Stratified random split of a dataset into training and validation."""
from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from colonnade.common.errors import UserError


@dataclass(frozen=True)
class _Unit:
    """Images that stay together."""
    names: tuple[str, ...]
    counts: Counter[str]  # class -> number of images with it


class _Side:
    """One split while it is filled."""

    def __init__(self, fraction: float, units: Sequence[_Unit]) -> None:
        self.units: list[_Unit] = []
        self.classes: set[str] = set()
        self.missing_images = fraction * sum(len(unit.names) for unit in units)
        totals: Counter[str] = Counter()
        for unit in units:
            totals.update(unit.counts)
        self.missing = {name: fraction * count for name, count in totals.items()}

    def add(self, unit: _Unit) -> None:
        self.units.append(unit)
        self.classes |= unit.counts.keys()
        self.missing_images -= len(unit.names)
        for name, count in unit.counts.items():
            self.missing[name] -= count

    def move(self, unit: _Unit, other: _Side) -> None:
        self.units.remove(unit)
        self.missing_images += len(unit.names)
        for name, count in unit.counts.items():
            self.missing[name] += count
        other.add(unit)


def split_dataset(labels: Mapping[str, Collection[str]],
                  fraction: float,
                  *,
                  groups: Mapping[str, str] | None = None,
                  seed: int = 0) -> tuple[list[str], list[str]]:
    """Split images into training and validation, with similar class distributions.

    Iterative stratification of Sechidis, Tsoumakas and Vlahavas (2011, "On the Stratification of
    Multi-Label Data"), which deals out rare classes first, extended to groups. The last group of a
    class goes to the side that has none of it yet. Then groups move until the number of validation
    images is the rounded one, as long as no class leaves a side.

    Args:
        labels: Image name -> classes in the image.
        fraction: Fraction of validation images.
        groups: Image name -> group, which stays together. Defaults to one group per image.
        seed: Seed for the order of equivalent images.

    Returns:
        Names of training and of validation images, in the order of ``labels``.

    Raises:
        ValueError: If the fraction is not between 0 and 1, or there is only one group.
    """
    if not 0 < fraction < 1:
        raise UserError(f'the validation fraction must be between 0 and 1, got {fraction}')
    groups = groups or {}
    members: dict[tuple[bool, str], list[str]] = {}
    for name in labels:
        members.setdefault((name in groups, groups.get(name, name)), []).append(name)
    units = [
        _Unit(tuple(names), Counter(label for name in names for label in set(labels[name])))
        for names in members.values()
    ]
    if len(units) < 2:
        what = 'groups of images' if groups else 'images'
        raise UserError(f'a split needs at least two {what}, got {len(units)}')
    random.Random(seed).shuffle(units)
    units.sort(key=lambda unit: -len(unit.names))  # large groups would not fit later
    training, validation = _Side(1 - fraction, units), _Side(fraction, units)
    _distribute(units, training, validation)
    for empty, full in ((training, validation), (validation, training)):
        if not empty.units:  # move the unit whose classes are missed least
            counts = Counter(label for unit in full.units for label in unit.counts)
            full.move(
                min(full.units,
                    key=lambda unit: (sum(counts[label] == 1 for label in unit.counts),
                                      len(unit.names))), empty)  # yapf: disable
    num_validation = max(1, min(round(fraction * len(labels)), len(labels) - 1))
    _balance(training, validation, len(labels) - num_validation)
    chosen = {name for unit in validation.units for name in unit.names}
    return [name for name in labels if name not in chosen], [n for n in labels if n in chosen]


def _distribute(units: list[_Unit], training: _Side, validation: _Side) -> None:
    """Add each unit to a side: those with the rarest class first, those without classes last."""
    remaining = Counter(label for unit in units for label in unit.counts)
    holders: dict[str, list[int]] = {label: [] for label in remaining}
    for index, unit in enumerate(units):
        for label in unit.counts:
            holders[label].append(index)
    added: set[int] = set()
    while remaining:
        rarest = min(remaining, key=lambda label: (remaining[label], label))
        for index in holders[rarest]:
            if index not in added:
                added.add(index)
                last = [label for label in units[index].counts if remaining[label] == 1]

                def compute_need(side: _Side, other: _Side) -> tuple[int, float, float]:
                    num_missing = sum(label in other.classes and label not in side.classes
                                      for label in last)  # noqa: B023, called at once
                    return num_missing, side.missing[rarest], side.missing_images  # noqa: B023

                needs_more = compute_need(validation, training) > compute_need(training, validation)
                (validation if needs_more else training).add(units[index])
                for label in units[index].counts:
                    remaining[label] -= 1
        del remaining[rarest]
    for index, unit in enumerate(units):
        if index not in added:
            needs_more = validation.missing_images > training.missing_images
            (validation if needs_more else training).add(unit)


def _balance(training: _Side, validation: _Side, num_training: int) -> None:
    """Move units until this many images are for training, as far as classes can spare them.

    Each step moves the unit that brings the classes closest to their fractions, in least squares.
    The cost of a move only grows with other moves, so a heap with outdated costs finds it.
    """
    excess = sum(len(unit.names) for unit in training.units) - num_training
    full, other = (training, validation) if excess > 0 else (validation, training)
    excess, counts = abs(excess), Counter[str]()
    for unit in full.units:
        counts.update(unit.counts)

    def compute_cost(unit: _Unit) -> float:
        return sum(n * (n - 2 * other.missing[name]) for name, n in unit.counts.items())

    heap = [(compute_cost(unit), index, unit) for index, unit in enumerate(full.units)]
    heapify(heap)
    while heap and excess and len(full.units) > 1:
        old_cost, index, unit = heappop(heap)
        if (cost := compute_cost(unit)) > old_cost:
            heappush(heap, (cost, index, unit))
        elif len(unit.names) < 2 * excess and all(counts[name] > n
                                                  for name, n in unit.counts.items()):
            full.move(unit, other)
            counts.subtract(unit.counts)
            excess -= len(unit.names)
