"""Errors of packages."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from colonnade.common.errors import MissingFileError, UserCodeError, UserError
from colonnade.settings.registries import is_from_user_code


class PackageError(UserError):
    """Package that cannot be created, or is damaged, unsupported or not to be trusted."""


class PackageCodeError(PackageError, UserCodeError):
    """Trusted package whose own code fails."""


class MissingPackageFileError(PackageError, MissingFileError):
    """Package that lacks a file."""


@contextmanager
def package_errors(source: str | Path) -> Iterator[None]:
    """Context manager that turns any error of an untrusted package into a PackageError."""
    try:
        yield
    except (PackageError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # untrusted content can make any library raise any error
        kind = '' if isinstance(error, UserError) else f'{type(error).__name__}: '
        cls = PackageCodeError if is_from_user_code(error) else PackageError
        raise cls(f'{source} cannot be loaded: {kind}{error}') from error
