"""``_base_ = 'mmseg::…'``: inheritance from the configs of installed packages.

mmengine looks up one distribution name of each package. mmseg has two, and if the other one is
installed, mmengine does not find it, and its hub would install a second copy.
"""
from __future__ import annotations

from mmengine.config.utils import MODULE2PACKAGE
from mmengine.utils import is_installed


def use_installed_packages() -> None:
    """Make mmengine find packages by their import names."""
    for module, package in MODULE2PACKAGE.items():
        if not is_installed(package) and is_installed(module):
            MODULE2PACKAGE[module] = module


def forbid_installing() -> None:
    """Make mmengine's hub raise an error for missing packages instead of installing them."""
    from mmengine.hub import hub  # slow: imports torch

    def require_package(package: str) -> None:
        if not is_installed(package):
            raise ModuleNotFoundError(
                f'{package} is not installed, and Colonnade does not install it automatically: '
                'install it yourself')

    hub.install_package = require_package
