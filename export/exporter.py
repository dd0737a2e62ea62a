"""Export of a loaded model to a folder of graphs, which are verified before it is created."""
from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mmengine.config import Config

from colonnade.common.atomic_files import new_folder, write_json
from colonnade.common.errors import file_errors
from colonnade.common.hashing import compute_sha256
from colonnade.inference import Model

from .end_to_end import PredictionComparison, compare_predictions, verify_predictions
from .graphs import ExportError, Graph, write_graph
from .options import ExportOptions
from .quantization import find_calibration_images, quantize_model
from .verification import Comparison, compare, list_files, verify

FORMAT = 1  # format version of model.json, which the runtime reads
ONNX = ('onnx', 'onnxscript', 'onnxruntime')
#: format -> suffix of its files, and required packages
FORMATS: dict[str, tuple[str, tuple[str, ...]]] = {
    'onnx': ('.onnx', ONNX),
    'openvino': ('.xml', (*ONNX[:2], 'openvino')),
    'pt2': ('.pt2', ()),
}
RUNTIME = 'colonnade_runtime'  # folder of the runtime in an export
#: prediction of a model, or ``features`` -> module with ``build_plan(model, cfg, options)``; all
#: other models are detectors
PLANNERS = {'features': 'features', 'labels': 'segmenters'}


@dataclass(frozen=True)
class ExportPlan:
    """Graphs of a model and the steps of the runtime.

    Attributes:
        task: ``features``, ``segmentation``, ``detection`` or ``panoptic``.
        graphs: One or more graphs.
        preprocess: Preprocessing of images, for ``model.json``.
        postprocess: Postprocessing of outputs, for ``model.json``.
    """
    task: str
    graphs: tuple[Graph, ...]
    preprocess: dict[str, Any] = field(default_factory=dict)
    postprocess: dict[str, Any] = field(default_factory=dict)


def export(model: Model, cfg: Config, folder: Path,
           options: ExportOptions) -> list[Comparison | PredictionComparison]:
    """Write a model as a folder of graphs, and verify them.

    Args:
        model: Model on the CPU, not fused.
        cfg: Config of the model.
        folder: Folder to create; it appears when everything is written and verified.
        options: Options of the export.

    Returns:
        A comparison of each graph with its module and, for a full model, one of the predictions.

    Raises:
        ExportError: If it cannot be exported, or its results differ.
        OSError: If the folder exists or cannot be written.
    """
    require_packages(options.format)
    suffix, _ = FORMATS[options.format]
    images = find_calibration_images(options.calibration_images, options.num_images)
    kind = 'features' if options.component == 'features' else model.kind
    plan = import_module(f'{__package__}.{PLANNERS.get(kind, "detectors")}').build_plan(
        model, cfg, options)
    with new_folder(folder) as scratch:
        comparisons: list[Comparison | PredictionComparison] = []
        for graph in plan.graphs:
            path = scratch / f'{graph.name}{suffix}'
            write_graph(graph, path)
            comparisons.append(verify(graph, path, options.tolerance))
        if options.format != 'pt2':
            _copy_runtime(scratch / RUNTIME)
        write_json(scratch / 'model.json', _describe(model, plan, scratch, suffix))
        is_quantized = options.precision == 'int8'
        if is_quantized:
            quantize_model(scratch, images)
            comparisons = [
                compare(graph, scratch / f'{graph.name}{suffix}') for graph in plan.graphs
            ]
        if options.format != 'pt2' and plan.task != 'features':
            check = compare_predictions if is_quantized else verify_predictions
            comparisons.append(check(model, scratch))
    return comparisons


def require_packages(name: str) -> None:
    """Raise an ExportError unless the packages that a format needs are installed."""
    _, packages = FORMATS[name]
    if missing := [package for package in packages if find_spec(package) is None]:
        raise ExportError(f'format {name} requires {", ".join(missing)}: pip install '
                          f'{" ".join(missing)}')


@file_errors()
def _copy_runtime(folder: Path) -> None:
    spec = find_spec('colonnade.runtime')
    assert spec is not None and spec.submodule_search_locations
    shutil.copytree(spec.submodule_search_locations[0], folder,
                    ignore=shutil.ignore_patterns('__pycache__'))  # yapf: disable


def _describe(model: Model, plan: ExportPlan, folder: Path, suffix: str) -> dict[str, Any]:
    """Return the content of ``model.json``."""
    graphs = {}
    for graph in plan.graphs:
        file, *weights = list_files(folder / f'{graph.name}{suffix}')
        graphs[graph.name] = dict(
            file=file.name,
            sha256=compute_sha256(file),
            inputs=graph.input_names,
            outputs=graph.output_names,
            weights=[dict(file=each.name, sha256=compute_sha256(each)) for each in weights])
    versions = {}
    for name in ('colonnade', 'torch', 'timm', 'onnx', 'onnxscript', 'onnxruntime'):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:  # a clone on the path, or not needed
            continue
    has_classes = plan.task != 'features'
    return dict(
        format=FORMAT,
        task=plan.task,
        graphs=graphs,
        preprocess=plan.preprocess,
        postprocess=plan.postprocess,
        classes=model.classes if has_classes else [],
        palette=model.palette if has_classes else [],
        versions=versions)
