"""From a loaded model to a folder of graphs, verified before it appears."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from mmengine.config import Config

from ..prediction import Model
from .graphs import ExportError, Graph

FORMATS = ('onnx', 'archive')
PRECISIONS = ('float32', 'int8')
WHAT = ('model', 'features')


@dataclass(frozen=True)
class ExportOptions:
    """What to write, see ``tools/export.py``."""
    format: str = 'onnx'
    what: str = 'model'
    precision: str = 'float32'
    calibrate: Path | None = None
    num_images: int = 100
    tolerance: float = 1e-4


@dataclass(frozen=True)
class Plan:
    """What becomes of a model.

    Attributes:
        task: ``features``, ``segmentation`` or ``detection``.
        graphs: One or more.
        preprocess: How the runtime makes inputs of images, for ``model.json``.
        postprocess: What the runtime makes of outputs, for ``model.json``.
        check: Compares what the runtime makes of whole images in a folder with what the model
            does; raises an ExportError.
    """
    task: str
    graphs: tuple[Graph, ...]
    preprocess: dict[str, Any] = field(default_factory=dict)
    postprocess: dict[str, Any] = field(default_factory=dict)
    check: Callable[[Path], None] | None = None


#: task -> module with ``plan(model, cfg, options) -> Plan``
PLANNERS = {'features': 'features', 'labels': 'segmenters', 'boxes': 'detectors',
            'masks': 'detectors'}  # yapf: disable


def plan_of(model: Model, cfg: Config, options: ExportOptions) -> Plan:
    """Which graphs a model becomes."""
    kind = 'features' if options.what == 'features' else model.kind
    return import_module(f'{__package__}.{PLANNERS[kind]}').plan(model, cfg, options)


def export(model: Model, cfg: Config, folder: Path, options: ExportOptions) -> None:
    """Write a model as a folder of graphs, verified.

    Raises:
        ExportError: If it cannot be exported, or gives other results.
        OSError: If the folder exists or cannot be written.
    """
    raise ExportError('not written yet')
