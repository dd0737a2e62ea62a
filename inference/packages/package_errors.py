"""Errors of packages."""
from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import torch

from colonnade.common.errors import MissingFileError, UserCodeError, UserError, convert_errors
from colonnade.settings.registries import is_from_user_code


class PackageError(UserError):
    """Package that cannot be created, or is damaged, unsupported or not to be trusted."""


class PackageCodeError(PackageError, UserCodeError):
    """Trusted package whose own code fails."""


class MissingPackageFileError(PackageError, MissingFileError):
    """Package that lacks a file."""


def package_errors(source: str | Path) -> AbstractContextManager[None]:
    """Return a context manager that turns any error of an untrusted package into a PackageError."""

    def convert(error: Exception) -> PackageError:
        kind = '' if isinstance(error, UserError) else f'{type(error).__name__}: '
        cls = PackageCodeError if is_from_user_code(error) else PackageError
        return cls(f'{source} cannot be loaded: {kind}{error}')

    return convert_errors(convert, PackageError, MemoryError, torch.OutOfMemoryError)
