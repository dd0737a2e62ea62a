"""One data set in two parts, training and validation, with all classes in both."""
from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from colonnade.common.errors import UserError

TRAINING, VALIDATION = 0, 1


@dataclass(frozen=True)
class _Unit:
    """Images that stay together."""
    names: tuple[str, ...]
    counts: Counter[str]  # class -> images with it


class _Side:
    """One part of the data, while it is filled."""

    def __init__(self, share: float, units: Sequence[_Unit]) -> None:
        self.units: list[_Unit] = []
        self.classes: set[str] = set()
        self.images_wanted = share * sum(len(unit.names) for unit in units)
        totals: Counter[str] = Counter()
        for unit in units:
            totals.update(unit.counts)
        self.wanted = {name: share * count for name, count in totals.items()}

    def take(self, unit: _Unit) -> None:
        self.units.append(unit)
        self.classes |= unit.counts.keys()
        self.images_wanted -= len(unit.names)
        for name, count in unit.counts.items():
            self.wanted[name] -= count

    def give(self, unit: _Unit, other: _Side) -> None:
        self.units.remove(unit)
        self.images_wanted += len(unit.names)
        for name, count in unit.counts.items():
            self.wanted[name] += count
        other.take(unit)


def split(labels: Mapping[str, Collection[str]],
          fraction: float,
          *,
          groups: Mapping[str, str] | None = None,
          seed: int = 0) -> tuple[list[str], list[str]]:
    """Training and validation images, both with about the same distribution of classes.

    The iterative stratification of Sechidis, Tsoumakas and Vlahavas (2011, "On the Stratification
    of Multi-Label Data"): rare classes are dealt out first. Here whole groups are dealt out. The
    last of a class goes to the side that has none of it yet. What is too much on a side then moves
    to the other, as far as no class leaves a side: the number of images is the rounded one.

    Args:
        labels: Names of images, and the classes in each.
        fraction: Of the images, for validation.
        groups: Names of images, and the group of each. No group is on both sides. An image without
            a group is one by itself.
        seed: Of the order in which equal images are dealt out.

    Returns:
        Names of training and of validation images, in the order of ``labels``.

    Raises:
        ValueError: If the fraction is not between 0 and 1, or there is one group alone.
    """
    if not 0 < fraction < 1:
        raise UserError(f'the fraction for validation must be between 0 and 1, got {fraction}')
    units = _units(labels, groups or {})
    if len(units) < 2:
        what = 'groups of images' if groups else 'images'
        raise UserError(f'a split needs two {what} or more, got {len(units)}')
    random.Random(seed).shuffle(units)
    units.sort(key=lambda unit: -len(unit.names))  # what is large fits nowhere later
    sides = [_Side(share, units) for share in (1 - fraction, fraction)]
    _deal(units, sides)
    _leave_none_empty(sides)
    _even_out(sides, len(labels) - max(1, min(round(fraction * len(labels)), len(labels) - 1)))
    chosen = {name for unit in sides[VALIDATION].units for name in unit.names}
    return [name for name in labels if name not in chosen], [n for n in labels if n in chosen]


def _units(labels: Mapping[str, Collection[str]], groups: Mapping[str, str]) -> list[_Unit]:
    members: dict[tuple[bool, str], list[str]] = {}
    for name in labels:
        has_group = name in groups
        members.setdefault((has_group, groups[name] if has_group else name), []).append(name)
    return [
        _Unit(tuple(names), Counter(label for name in names for label in set(labels[name])))
        for names in members.values()
    ]


def _deal(units: list[_Unit], sides: list[_Side]) -> None:
    """Give each unit to a side: those of the rarest class first, those without classes last."""
    left = Counter(label for unit in units for label in unit.counts)
    holders: dict[str, list[int]] = {label: [] for label in left}
    for place, unit in enumerate(units):
        for label in unit.counts:
            holders[label].append(place)
    dealt: set[int] = set()
    while left:
        rarest = min(left, key=lambda label: (left[label], label))
        for place in holders[rarest]:
            if place not in dealt:
                dealt.add(place)
                _side_for(units[place], rarest, left, sides).take(units[place])
                for label in units[place].counts:
                    left[label] -= 1
        del left[rarest]
    for place, unit in enumerate(units):
        if place not in dealt:
            max(sides, key=lambda side: side.images_wanted).take(unit)


def _side_for(unit: _Unit, rarest: str, left: Counter[str], sides: list[_Side]) -> _Side:
    """The side that lacks classes of which this unit is the last; else what wants it most."""
    last = [label for label in unit.counts if left[label] == 1]

    def wish(place: int) -> tuple[int, float, float]:
        side, other = sides[place], sides[1 - place]
        missed = sum(label not in side.classes and label in other.classes for label in last)
        return missed, side.wanted[rarest], side.images_wanted

    return sides[max((TRAINING, VALIDATION), key=wish)]  # of equals the first


def _leave_none_empty(sides: list[_Side]) -> None:
    """Move the unit whose classes are missed least, if one side has all."""
    for empty, full in (sides, sides[::-1]):
        if not empty.units:
            held = Counter(label for unit in full.units for label in unit.counts)
            moved = min(
                full.units,
                key=lambda u: (sum(held[label] == 1 for label in u.counts), len(u.names)))
            full.give(moved, empty)


def _even_out(sides: list[_Side], num_training: int) -> None:
    """Move units until this many images are for training, as far as classes can spare them.

    Each time the one moves that brings the classes nearest to their shares, in least squares. What
    a move costs only grows with other moves, so that a heap with costs of earlier times finds it.
    """
    training, validation = sides
    excess = sum(len(unit.names) for unit in training.units) - num_training
    full, other = (training, validation) if excess > 0 else (validation, training)
    excess, held = abs(excess), Counter[str]()
    for unit in full.units:
        held.update(unit.counts)

    def cost(unit: _Unit) -> float:
        return sum(n * (n - 2 * other.wanted[name]) for name, n in unit.counts.items())

    def can_move(unit: _Unit) -> bool:
        return all(held[name] > n for name, n in unit.counts.items())

    heap = [(cost(unit), place, unit) for place, unit in enumerate(full.units)]
    heapify(heap)
    while heap and excess and len(full.units) > 1:
        was, place, unit = heappop(heap)
        if (now := cost(unit)) > was:
            heappush(heap, (now, place, unit))
        elif len(unit.names) < 2 * excess and can_move(unit):
            full.give(unit, other)
            held.subtract(unit.counts)
            excess -= len(unit.names)
