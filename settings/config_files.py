"""Config files, which are programs."""
from __future__ import annotations

from pathlib import Path

from mmengine.config import Config

from colonnade.common.errors import UserCodeError, UserError, has_run_module


def read_file(path: Path, *, import_modules: bool = True) -> Config:
    """Return the config in a file.

    Args:
        path: Path of the file.
        import_modules: Whether to import what its ``custom_imports`` name.

    Raises:
        UserCodeError: If its code, or a module that it imports, raises an error.
        UserError: If it cannot be read for another reason.
    """
    try:
        return Config.fromfile(path, import_custom_modules=import_modules)
    except Exception as error:
        kind = UserCodeError if has_run_module(error) else UserError
        raise kind(f'{path} cannot be read: {type(error).__name__}: {error}') from error
