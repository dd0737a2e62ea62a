"""The table of a trunk's variants: look up, complete, check, recognise; and the taps."""
from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from colonnade.weights.files import State


class ArchTable:
    """A trunk's architectures, one row each, named as in its paper."""

    #: name of a variant -> its columns; one row per variant of the paper's table
    arch_settings: Mapping[str, Mapping[str, Any]] = {}
    #: columns that a custom ``arch`` may leave out, with their values
    arch_defaults: Mapping[str, Any] = {}
    #: columns that the shapes of a state dict show
    infer_columns: tuple[str, ...] = ('embed_dim', 'depth', 'num_heads', 'patch_size')

    @classmethod
    def arch_with(cls, arch: str | Mapping[str, Any], **changes: Any) -> dict[str, Any]:
        """The columns of ``arch``, but for those of ``changes`` that are not None."""
        given = {key: value for key, value in changes.items() if value is not None}
        return {**cls.resolve_arch(arch), **given}

    @classmethod
    def resolve_arch(cls, arch: str | Mapping[str, Any]) -> dict[str, Any]:
        """The columns of ``arch``, complete and of the right names."""
        name = cls.__name__
        if isinstance(arch, str):
            if arch not in cls.arch_settings:
                raise ValueError(f'{name} has no arch {arch!r}; it has '
                                 f'{", ".join(cls.arch_settings)}, or takes a dict')
            arch = cls.arch_settings[arch]
        columns = set(next(iter(cls.arch_settings.values())))
        settings = {**cls.arch_defaults, **arch}
        missing, unknown = columns - set(settings), set(settings) - columns
        if missing or unknown:
            raise ValueError(f'a custom arch of {name} has the keys {sorted(columns)}: '
                             f'missing {sorted(missing)}, unknown {sorted(unknown)}')
        return settings

    @classmethod
    def check_settings(cls, settings: Mapping[str, Any]) -> None:
        """Raise a ValueError for an architecture that cannot be built."""
        if settings['depth'] < 1:
            raise ValueError(f'depth must be at least 1, got {settings["depth"]}')
        width, heads = settings['embed_dim'], settings.get('num_heads', 1)
        if width % heads:
            raise ValueError(f'embed_dim must be a multiple of num_heads, got embed_dim {width} '
                             f'and num_heads {heads}')
        patch_size = settings['patch_size']
        img_size = settings.get('img_size', patch_size)
        if img_size < patch_size or img_size % patch_size:
            raise ValueError(f'img_size must be a multiple of patch_size {patch_size}, '
                             f'got {img_size}')

    @classmethod
    def arch_of(cls, settings: Mapping[str, Any]) -> str | None:
        """The name in the table that has these ``infer_columns``, if one has."""
        for arch, row in cls.arch_settings.items():
            if all(row[column] == settings[column] for column in cls.infer_columns):
                return arch
        return None

    @classmethod
    def name_of(cls, settings: Mapping[str, Any]) -> str:
        """The architecture's name in the table, or else its ``infer_columns``, for messages."""
        if arch := cls.arch_of(settings):
            return f'{cls.__name__} {arch}'
        sizes = ', '.join(f'{column} {settings[column]}' for column in cls.infer_columns)
        return f'a custom {cls.__name__} of {sizes}'

    @classmethod
    @abstractmethod
    def infer_arch(cls, state: State) -> dict[str, int]:
        """The columns of the architecture table that a state dict shows.

        Raises:
            KeyError: If the tensors that show it are not there.
        """


def resolve_out_indices(out_indices: Sequence[int] | None, depth: int) -> tuple[int, ...]:
    """Non-negative indices of the tapped blocks, shallow to deep.

    Raises:
        ValueError: If there is none, one is out of range, or they don't go from shallow to deep.
    """
    if out_indices is None:
        defaults = (depth // 3 - 1, depth // 2 - 1, 2 * depth // 3 - 1, depth - 1)
        return tuple(max(index, 0) for index in defaults)
    wrong = [index for index in out_indices if not -depth <= index < depth]
    if wrong or not out_indices:
        raise ValueError(f'out_indices must be block numbers in {-depth} ... {depth - 1}, '
                         f'got {tuple(out_indices)}')
    resolved = tuple(index % depth for index in out_indices)
    if list(resolved) != sorted(resolved):
        raise ValueError(f'out_indices must go from shallow to deep, got {tuple(out_indices)}')
    return resolved
