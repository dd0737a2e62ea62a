"""From a loaded model to a folder of graphs, verified before it appears."""
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

from .end_to_end import Agreement, agreement, require_agreement
from .graphs import ExportError, Graph, to_archive, to_onnx
from .openvino_graphs import to_openvino
from .options import ExportOptions
from .quantization import calibration_images, quantise
from .verification import Comparison, compare, files_of, verify

FORMAT = 1  # of model.json; the runtime reads it
ONNX = ('onnx', 'onnxscript', 'onnxruntime')
#: format -> suffix of its files, and the packages that it needs
FORMATS: dict[str, tuple[str, tuple[str, ...]]] = {
    'onnx': ('.onnx', ONNX),
    'openvino': ('.xml', (*ONNX[:2], 'openvino')),
    'archive': ('.pt2', ()),
}
RUNTIME = 'colonnade_runtime'  # the runtime's folder in what is exported
#: what a model answers, or ``features`` -> module with ``plan(model, cfg, options) -> Plan``
PLANNERS = {'features': 'features', 'labels': 'segmenters', 'boxes': 'detectors',
            'masks': 'detectors'}  # yapf: disable


@dataclass(frozen=True)
class Plan:
    """What becomes of a model.

    Attributes:
        task: ``features``, ``segmentation`` or ``detection``.
        graphs: One or more.
        preprocess: How the runtime makes inputs of images, for ``model.json``.
        postprocess: What the runtime makes of outputs, for ``model.json``.
    """
    task: str
    graphs: tuple[Graph, ...]
    preprocess: dict[str, Any] = field(default_factory=dict)
    postprocess: dict[str, Any] = field(default_factory=dict)


def export(model: Model, cfg: Config, folder: Path,
           options: ExportOptions) -> list[Comparison | Agreement]:
    """Write a model as a folder of graphs, verified.

    Args:
        model: On the CPU, not fused.
        cfg: Its config.
        folder: To write; it appears when all is written and verified.
        options: What to write.

    Returns:
        Each graph beside the module that it was made of; of a whole model for the runtime also the
        results beside the model's.

    Raises:
        ExportError: If it cannot be exported, or gives other results.
        OSError: If the folder exists or cannot be written.
    """
    require_packages(options.format)
    images = calibration_images(options.calibrate, options.num_images)
    kind = 'features' if options.what == 'features' else model.kind
    plan = import_module(f'{__package__}.{PLANNERS[kind]}').plan(model, cfg, options)
    suffix, _ = FORMATS[options.format]
    with new_folder(folder) as scratch:
        found: list[Comparison | Agreement] = [
            write_graph(graph, scratch / f'{graph.name}{suffix}', options) for graph in plan.graphs
        ]
        if options.format != 'archive':
            copy_runtime(scratch / RUNTIME)
        write_json(scratch / 'model.json', description(model, plan, scratch, suffix))
        exact = options.precision != 'int8'
        if not exact:
            quantise(scratch, images)
            found = [compare(graph, scratch / f'{graph.name}{suffix}') for graph in plan.graphs]
        if options.format != 'archive' and plan.task != 'features':
            found.append((require_agreement if exact else agreement)(model, scratch))
    return found


def require_packages(format: str) -> None:
    """Raise an ExportError if a package is missing that a format needs."""
    missing = [name for name in FORMATS[format][1] if find_spec(name) is None]
    if missing:
        raise ExportError(f'format {format} needs {", ".join(missing)}: pip install '
                          f'{" ".join(missing)}')


def write_graph(graph: Graph, path: Path, options: ExportOptions) -> Comparison:
    """Write a graph and verify it, always in float32."""
    examples = graph.make_inputs(graph.sizes[0])
    if options.format == 'archive':
        to_archive(graph.module, examples, graph.dynamic_shapes, path)
    else:
        onnx = path.with_suffix('.onnx')
        to_onnx(graph.module, examples, graph.dynamic_shapes, onnx, graph.input_names,
                graph.output_names)
        if options.format == 'openvino':
            to_openvino(onnx, path)
    return verify(graph, path, options.tolerance)


@file_errors()
def copy_runtime(folder: Path) -> None:
    """Copy the package that runs what is exported; it needs nothing else of ours."""
    spec = find_spec('colonnade.runtime')
    assert spec is not None and spec.submodule_search_locations
    shutil.copytree(spec.submodule_search_locations[0], folder,
                    ignore=shutil.ignore_patterns('__pycache__'))  # yapf: disable


def description(model: Model, plan: Plan, folder: Path, suffix: str) -> dict[str, Any]:
    """What ``model.json`` says."""
    graphs = {}
    for graph in plan.graphs:
        file, *weights = files_of(folder / f'{graph.name}{suffix}')
        graphs[graph.name] = dict(
            file=file.name,
            sha256=compute_sha256(file),
            inputs=graph.input_names,
            outputs=graph.output_names,
            weights=[dict(file=each.name, sha256=compute_sha256(each)) for each in weights])
    with_classes = plan.task != 'features'
    return dict(
        format=FORMAT,
        task=plan.task,
        graphs=graphs,
        preprocess=plan.preprocess,
        postprocess=plan.postprocess,
        classes=model.classes if with_classes else [],
        palette=model.palette if with_classes else [],
        versions=versions())


def versions() -> dict[str, str]:
    """Of the packages that made the files."""
    found = {}
    for name in ('colonnade', 'torch', 'timm', 'onnx', 'onnxscript', 'onnxruntime'):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:  # a clone on the path, or not needed
            continue
    return found
