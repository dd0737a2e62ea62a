"""Trained models as folders to share: written, read without running anything, pushed and pulled."""
from colonnade.settings.plain_config import PackageError, package_errors

from .memory_limits import check_stored, check_stored_shapes
from .package import Package, check_parts, open_package

__all__ = [
    'Package', 'PackageError', 'check_parts', 'check_stored', 'check_stored_shapes', 'open_package',
    'package_errors'
]
