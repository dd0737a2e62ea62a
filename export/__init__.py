"""Export of trained models to ONNX, OpenVINO and torch.export, without importing torch."""
from __future__ import annotations

from typing import TYPE_CHECKING

from colonnade.common.lazy_exports import lazy_exports

from .options import ExportOptions

if TYPE_CHECKING:
    from .exporter import export
    from .graphs import ExportError, Graph, ImageSizeLimits, to_onnx, to_pt2

__all__ = [
    'ExportError', 'ExportOptions', 'Graph', 'ImageSizeLimits', 'export', 'to_pt2', 'to_onnx'
]

__getattr__ = lazy_exports(
    __name__, {
        'export': '.exporter',
        'ExportError': '.graphs',
        'Graph': '.graphs',
        'ImageSizeLimits': '.graphs',
        'to_pt2': '.graphs',
        'to_onnx': '.graphs',
    })
