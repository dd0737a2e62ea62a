"""Trained models out of the framework: ONNX, OpenVINO and archives, verified, with a runtime.

Importing it takes no torch.
"""
from __future__ import annotations

from typing import TYPE_CHECKING

from colonnade.common.lazy_exports import lazy_exports

from .options import ExportOptions

if TYPE_CHECKING:
    from .exporter import export
    from .graphs import ExportError, Graph, ImageSizeLimits, to_archive, to_onnx

__all__ = [
    'ExportError', 'ExportOptions', 'Graph', 'ImageSizeLimits', 'export', 'to_archive', 'to_onnx'
]

__getattr__ = lazy_exports(
    __name__, {
        'export': '.exporter',
        'ExportError': '.graphs',
        'Graph': '.graphs',
        'ImageSizeLimits': '.graphs',
        'to_archive': '.graphs',
        'to_onnx': '.graphs',
    })
