"""Trained models as folders to share: written, read without running anything, pushed and pulled."""
from .package import Package, check_parts, open_package
from .plain_config import PackageError

__all__ = ['Package', 'PackageError', 'check_parts', 'open_package']
