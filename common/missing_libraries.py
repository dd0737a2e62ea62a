"""Errors about libraries that are not installed, which pip cannot choose by itself."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from .errors import UserError

LIBRARIES = ('mmengine', 'mmcv', 'mmdet', 'mmseg')
OPERATORS = 'mmcv._ext'  # a wheel of mmcv can lack it
BUILD = 'python -m colonnade.tools.build_mmcv --install'


@contextmanager
def report_missing_libraries() -> Iterator[None]:
    """Context manager that says how to install a library of OpenMMLab, or operators of mmcv.

    Raises:
        UserError: If an import fails because one of them is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name == OPERATORS:
            raise UserError(f'mmcv is installed without its operators: run {BUILD}') from error
        if error.name in LIBRARIES:
            raise UserError(f'{error.name} is not installed: run {BUILD}, then install Colonnade '
                            "with its extra mm, as in pip install '.[mm]'") from error
        raise


def import_optional(package: str, user: str = '') -> Any:
    """Import a package that only some features need.

    Args:
        package: Name of the package.
        user: What needs it, for the error.

    Raises:
        UserError: If it is not installed.
    """
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        needed = f'{user} needs {package}, which' if user else package
        raise UserError(f'{needed} is not installed: run pip install {package}') from error
