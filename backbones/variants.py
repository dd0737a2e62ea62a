"""The table of a backbone's variants: look up, complete, check and name an architecture; the taps."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from colonnade.common.errors import UserError

Settings = Mapping[str, Any]  # columns of a table -> values


class PublishedSize(NamedTuple):
    """What a paper says of a variant's classifier."""
    arch: str
    img_size: int
    parameters: float  # millions
    multiply_adds: float  # billions, of one image


@dataclass(frozen=True)
class Variants:
    """A backbone's architectures, one row each, named as in its paper.

    Attributes:
        backbone: The backbone's name, for messages.
        rows: Name of a variant -> its columns; all rows have the same.
        defaults: Columns that a custom architecture may leave out, with their values.
        shown_columns: Columns that the shapes of a state dict show.
        check: Raises a ValueError for settings that this backbone does not support, see
            :meth:`resolve`.
    """
    backbone: str
    rows: Mapping[str, Settings]
    defaults: Settings
    shown_columns: tuple[str, ...] = ('embed_dim', 'depth', 'num_heads', 'patch_size')
    check: Callable[[Settings], None] = lambda settings: None

    def resolve(self, arch: str | Settings, **changes: Any) -> dict[str, Any]:
        """The columns of an architecture, complete and possible.

        Args:
            arch: Its name in the table, or its columns.
            **changes: Columns that replace those of ``arch``, unless they are None.

        Raises:
            ValueError: If there is no such architecture, or it cannot be built.
        """
        given = {key: value for key, value in changes.items() if value is not None}
        settings = self.complete(arch) | given
        check_sizes(settings)
        self.check(settings)
        return settings

    def complete(self, arch: str | Settings) -> dict[str, Any]:
        """The columns of an architecture, whether it can be built or not.

        Raises:
            ValueError: If there is no such architecture, or it has other columns than the table.
        """
        if isinstance(arch, str):
            if arch not in self.rows:
                raise UserError(f'{self.backbone} has no arch {arch!r}; it has '
                                f'{", ".join(self.rows)}, or takes a dict')
            arch = self.rows[arch]
        columns = set(next(iter(self.rows.values())))
        settings = {**self.defaults, **arch}
        missing, unknown = columns - set(settings), set(settings) - columns
        if missing or unknown:
            raise UserError(f'a custom arch of {self.backbone} has the keys {sorted(columns)}: '
                            f'missing {sorted(missing)}, unknown {sorted(unknown)}')
        return settings

    def name_in_table(self, settings: Settings) -> str | None:
        """The variant that has the ``shown_columns`` of ``settings``, if one has."""
        for arch, row in self.rows.items():
            if all(row[column] == settings[column] for column in self.shown_columns):
                return arch
        return None

    def describe(self, settings: Settings) -> str:
        """The backbone's and the variant's name, or else the ``shown_columns``, for messages."""
        if arch := self.name_in_table(settings):
            return f'{self.backbone} {arch}'
        sizes = ', '.join(f'{column} {settings[column]}' for column in self.shown_columns)
        return f'a custom {self.backbone} of {sizes}'


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


def resolve_out_indices(out_indices: Sequence[int] | None,
                        depth: int,
                        name: str = 'out_indices') -> tuple[int, ...]:
    """Non-negative indices of the tapped blocks, shallow to deep; errors call them ``name``.

    Raises:
        ValueError: If there is none, one is out of range, or they don't go from shallow to deep.
    """
    if out_indices is None:
        defaults = (depth // 3 - 1, depth // 2 - 1, 2 * depth // 3 - 1, depth - 1)
        return tuple(max(index, 0) for index in defaults)
    wrong = [index for index in out_indices if not -depth <= index < depth]
    if wrong or not out_indices:
        raise UserError(f'{name} must be block numbers in {-depth} ... {depth - 1}, '
                        f'got {tuple(out_indices)}')
    resolved = tuple(index % depth for index in out_indices)
    if list(resolved) != sorted(resolved):
        raise UserError(f'{name} must go from shallow to deep, got {tuple(out_indices)}')
    return resolved
