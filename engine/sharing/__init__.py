"""Trained models as folders to share: written, read without running anything, pushed and pulled."""
from .package import Package, open_package
from .plain_config import PackageError

__all__ = ['Package', 'PackageError', 'open_package']
