"""Trained models as folders to share, which are read without running any of their code."""
from .package import Package, PackageMetadata, open_package
from .package_errors import PackageError

__all__ = ['Package', 'PackageError', 'PackageMetadata', 'open_package']
