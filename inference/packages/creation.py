"""Creation of packages: config, weights, metadata and README of a loaded model."""
from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from mmengine.registry import MODELS, DefaultScope
from safetensors import SafetensorError
from torch import nn

from colonnade.common.atomic_files import new_folder
from colonnade.common.errors import FileError, MissingFileError, file_errors
from colonnade.common.hashing import compute_sha256
from colonnade.weights.files import DATASET_META

from ..model import Model
from .package import (CONFIG, METADATA, README, WEIGHTS, Package, PackageMetadata, StoredFile,
                      build_config, open_package, write_metadata)
from .package_errors import PackageError
from .portable_config import (build_portable_config, config_text, describe_preprocessing,
                              describe_training)
from .readme import build_readme

LIBRARIES = ('torch', 'timm', 'mmengine', 'mmcv', 'mmdet', 'mmseg')


@dataclass(frozen=True)
class CardText:
    """Text that config and checkpoint do not contain."""
    name: str
    license: str | None = None  # identifier, as on the hub
    data: str | None = None  # name of the data that the metrics were computed on
    notes: str = ''  # Markdown


def make_package(model: Model,
                 out: Path,
                 text: CardText,
                 *,
                 metrics: Mapping[str, float | None] | None = None,
                 trust: bool = False) -> list[str]:
    """Write a model as a package to a new folder; return a sentence for each changed setting.

    With ``trust``, the config may need ``trust`` when it is loaded.
    """
    values, changes = build_portable_config(model.cfg, model.classes, model.palette)
    build_config(deepcopy(values), 'the config to share', trust=trust)
    head = [f'# {text.name}: model and test data. This file is parsed as data, never run.', '']
    with new_folder(out) as scratch:
        (scratch / CONFIG).write_text(config_text(values, head), encoding='utf-8')
        save_weights(model, scratch / WEIGHTS)
        package_metadata = build_metadata(model, scratch, text, metrics or {})
        write_metadata(package_metadata, scratch / METADATA)
        package = open_package(scratch, trust=trust)
        check_model(package, model.module)
        readme = build_readme(package_metadata, package.config, text.notes)
        (scratch / README).write_text(readme, encoding='utf-8')
    return changes


def save_weights(model: Model, path: Path) -> None:
    """Write a model's tensors to a safetensors file, with the class names as metadata."""
    state = {
        key: value.detach().cpu().clone(memory_format=torch.contiguous_format)
        for key, value in model.module.state_dict().items()
    }
    # safetensors writes several entries in random order, but equal models must have equal hashes.
    meta = {DATASET_META: json.dumps(dict(classes=model.classes, palette=model.palette))}
    try:
        safetensors.torch.save_file(state, path, metadata=meta)
    except SafetensorError as error:
        raise FileError(f'{path} cannot be written: {error}') from error
    path.chmod(path.with_name(CONFIG).stat().st_mode)  # safetensors makes files private.


def build_metadata(model: Model, folder: Path, text: CardText,
                   metrics: Mapping[str, float | None]) -> PackageMetadata:
    """Return the metadata of a package whose config and weights are in ``folder``."""
    versions = {name: str(import_module(name).__version__) for name in LIBRARIES}
    try:
        versions = dict(colonnade=metadata.version('colonnade'), **versions)
    except metadata.PackageNotFoundError:  # a clone that is not installed
        pass
    return PackageMetadata(
        name=text.name,
        kind=model.kind,
        classes=model.classes,
        palette=model.palette,
        preprocessing=describe_preprocessing(model.cfg),
        parameters=sum(each.numel() for each in model.module.parameters()),
        files={
            name:
            StoredFile(sha256=compute_sha256(folder / name), bytes=(folder / name).stat().st_size)
            for name in (CONFIG, WEIGHTS)
        },
        metrics=dict(metrics),
        data=text.data,
        license=text.license,
        training=describe_training(model.cfg, model.progress),
        versions=versions)


def check_model(package: Package, module: nn.Module) -> None:
    """Raise a PackageError if the config of a package builds another model than ``module``."""
    with DefaultScope.overwrite_default_scope(package.config.default_scope):
        rebuilt = MODELS.build(deepcopy(package.config.model))
    shapes, expected = ({key: value.shape for key, value in each.state_dict().items()}
                        for each in (rebuilt, module))  # yapf: disable
    if shapes != expected:
        different = sorted({key for key, _ in shapes.items() ^ expected.items()})
        raise PackageError('the config builds a different model: '
                           f'{", ".join(different[:5])} differ')


@file_errors()
def read_metrics(path: Path, checkpoint: str) -> dict[str, float | None]:
    """Return metrics from a ``metrics.json`` of ``colonnade test``."""
    if not path.is_file():
        raise MissingFileError(f'--metrics: no such file: {path}')
    try:
        content: Any = json.loads(path.read_text(encoding='utf-8'))
        metrics, tested = dict(content['metrics']), str(content['checkpoint'])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise PackageError(f'{path} is not a metrics.json written by colonnade test') from error
    expected = content.get('checkpoint_sha256')
    if expected is not None and Path(checkpoint).is_file():
        if compute_sha256(Path(checkpoint)) != expected:
            raise PackageError(f'{path} has the metrics of {tested}, whose SHA-256 differs from '
                               f'that of {checkpoint}: run colonnade test on the latter')
    elif Path(tested).resolve() != Path(checkpoint).resolve():
        raise PackageError(f'{path} has the metrics of {tested}, not of {checkpoint}: run '
                           'colonnade test on the latter')
    # COCO reports -1 if there is nothing to measure, such as no large object.
    return {
        key: None if value is not None and value < 0 else value
        for key, value in metrics.items()
    }
