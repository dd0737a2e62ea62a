"""Trained models out of the framework: ONNX, OpenVINO and archives, verified, with a runtime."""
from .exporter import ExportOptions, export
from .graphs import ExportError, Graph, ImageSides, to_archive, to_onnx

__all__ = ['ExportError', 'ExportOptions', 'Graph', 'ImageSides', 'export', 'to_archive', 'to_onnx']
