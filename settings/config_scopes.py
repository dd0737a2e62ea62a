"""``_base_ = 'mmseg::…'``: configs that inherit from those of installed packages.

mmengine looks for a package under one name of its distribution. mmseg has two, and where it has the
other one, mmengine does not see it, and its hub installs a second mmseg over it.
"""
from __future__ import annotations

from mmengine.config.utils import MODULE2PACKAGE
from mmengine.utils import is_installed


def use_installed_packages() -> None:
    """Make mmengine find packages by the names that they are imported under."""
    for module, package in MODULE2PACKAGE.items():
        if not is_installed(package) and is_installed(module):
            MODULE2PACKAGE[module] = module


def forbid_installing() -> None:
    """Make mmengine's hub ask for missing packages instead of installing them."""
    from mmengine.hub import hub  # brings torch
    hub.install_package = require_package


def require_package(package: str) -> None:
    """In place of mmengine's ``install_package``."""
    if not is_installed(package):
        raise ModuleNotFoundError(f'{package} is not installed, please install it yourself')
