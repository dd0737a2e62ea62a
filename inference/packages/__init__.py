"""Trained models as folders to share, which are read without running any of their code."""
from colonnade.settings.plain_config import PackageError

from .package import Package, PackageMetadata, open_package

__all__ = ['Package', 'PackageError', 'PackageMetadata', 'open_package']
