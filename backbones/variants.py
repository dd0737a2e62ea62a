"""Architectures of a backbone: a table of named variants, and checks of sizes and blocks."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from colonnade.common.errors import UserError
from colonnade.weights.state_dicts import State

Settings = Mapping[str, Any]  # columns of a table -> values


class PublishedSize(NamedTuple):
    """Size of a variant's classifier in its paper."""
    arch: str
    img_size: int
    parameters: float  # millions
    multiply_adds: float  # billions per image


@dataclass(frozen=True)
class Variants:
    """Table of a backbone's architectures, one row each, named as in its paper.

    Attributes:
        backbone: Name of the backbone in messages.
        rows: Columns of each variant by its name; all rows have the same columns.
        defaults: Values of columns that a custom architecture may omit.
        shown_columns: Columns that can be inferred from a state dict.
        check: Function that raises a ValueError for unsupported settings.
    """
    backbone: str
    rows: Mapping[str, Settings]
    defaults: Settings
    shown_columns: tuple[str, ...] = ('embed_dim', 'depth', 'num_heads', 'patch_size')
    check: Callable[[Settings], None] = lambda settings: None

    def resolve(self, arch: str | Settings, **changes: Any) -> dict[str, Any]:
        """Return all columns of an architecture that can be built.

        Args:
            arch: Name in the table, or columns.
            **changes: Columns that replace those of ``arch``, unless they are None.
        """
        settings = self.complete(arch) | {k: v for k, v in changes.items() if v is not None}
        check_sizes(settings)
        self.check(settings)
        return settings

    def complete(self, arch: str | Settings) -> dict[str, Any]:
        """Return all columns of an architecture, without a check of their values."""
        if isinstance(arch, str):
            if arch not in self.rows:
                raise UserError(f'{self.backbone} has no arch {arch!r}: choose one of '
                                f'{", ".join(self.rows)}, or pass a dict')
            arch = self.rows[arch]
        columns = set(next(iter(self.rows.values())))
        settings = {**self.defaults, **arch}
        missing, unknown = columns - set(settings), set(settings) - columns
        if missing or unknown:
            raise UserError(f'a custom arch of {self.backbone} takes the keys {sorted(columns)}: '
                            f'missing {sorted(missing)}, unknown {sorted(unknown)}')
        return settings

    def find_name(self, settings: Settings) -> str | None:
        """Return the variant that has the ``shown_columns`` of ``settings``, or None."""
        for arch, row in self.rows.items():
            if all(row[column] == settings[column] for column in self.shown_columns):
                return arch
        return None

    def describe(self, settings: Settings) -> str:
        """Format the variant, or else the ``shown_columns``, for messages."""
        if arch := self.find_name(settings):
            return f'{self.backbone} {arch}'
        return f'a custom {self.backbone} of {self.format_sizes(settings)}'

    def format_sizes(self, settings: Settings) -> str:
        """Format the ``shown_columns``."""
        return ', '.join(f'{column} {settings[column]}' for column in self.shown_columns)


def check_sizes(settings: Settings) -> None:
    """Raise a ValueError for sizes that no backbone can have."""
    if settings['depth'] < 1:
        raise UserError(f'depth must be at least 1, got {settings["depth"]}')
    width, heads = settings['embed_dim'], settings.get('num_heads', 1)
    if width % heads:
        raise UserError(f'embed_dim must be a multiple of num_heads, got embed_dim {width} '
                        f'and num_heads {heads}')
    patch_size = settings['patch_size']
    img_size = settings.get('img_size', patch_size)
    if img_size < patch_size or img_size % patch_size:
        raise UserError(f'img_size must be a multiple of patch_size {patch_size}, '
                        f'got {img_size}')


def count_blocks(state: State) -> int:
    """Return the number of blocks in a state dict."""
    return len({key.split('.')[1] for key in state if key.startswith('blocks.')})


def resolve_out_indices(out_indices: Sequence[int] | None,
                        depth: int,
                        name: str = 'out_indices') -> tuple[int, ...]:
    """Return non-negative block indices; ``name`` is used in messages."""
    if out_indices is None:
        defaults = (depth // 3 - 1, depth // 2 - 1, 2 * depth // 3 - 1, depth - 1)
        return tuple(max(index, 0) for index in defaults)
    if not out_indices or any(not -depth <= index < depth for index in out_indices):
        raise UserError(f'{name} must be block indices from {-depth} to {depth - 1}, '
                        f'got {tuple(out_indices)}')
    resolved = tuple(index % depth for index in out_indices)
    if list(resolved) != sorted(resolved):
        raise UserError(f'{name} must go from shallow to deep, got {tuple(out_indices)}')
    return resolved
