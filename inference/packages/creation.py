"""From a loaded model to a package: its config, weights, card and README."""
from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, Protocol

import safetensors.torch
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope
from safetensors import SafetensorError
from torch import nn

from colonnade.common.atomic_files import new_folder
from colonnade.common.errors import FileError, MissingFileError, file_errors
from colonnade.common.hashing import compute_sha256
from colonnade.settings.plain_config import PackageError, config_text
from colonnade.weights.files import DATASET_META

from .metadata import CARD, CONFIG, README, WEIGHTS, Card, StoredFile, write_card
from .package import Package, as_config, open_package
from .portable import portable, preprocessing_of, training_of
from .readme import readme_text

LIBRARIES = ('torch', 'timm', 'mmengine', 'mmcv', 'mmdet', 'mmseg')


class TrainedModel(Protocol):
    """What a package is made of: :class:`colonnade.Model` is such."""
    cfg: Config
    module: nn.Module
    classes: tuple[str, ...]
    palette: tuple[tuple[int, int, int], ...]
    kind: str
    progress: dict[str, int]


@dataclass(frozen=True)
class Words:
    """What a config and a checkpoint do not say.

    Attributes:
        name: Of the model.
        license: Identifier of the licence, as the hub lists them.
        data: What the metrics were computed on.
        notes: Markdown for the README.
    """
    name: str
    license: str | None = None
    data: str | None = None
    notes: str = ''


def make_package(model: TrainedModel,
                 out: Path,
                 words: Words,
                 *,
                 metrics: Mapping[str, float | None] | None = None,
                 trust: bool = False) -> list[str]:
    """Write a model as a package.

    Args:
        model: With its weights loaded.
        out: The folder to make.
        words: What is to be said beside.
        metrics: As :func:`read_metrics` gives them.
        trust: Whether the config may need the trust of those who load it.

    Returns:
        What of the config was changed or left out, in sentences.

    Raises:
        OSError: If ``out`` exists or cannot be written.
        PackageError: If the config cannot be shared.
    """
    values, changes = portable(model.cfg, model.classes, model.palette)
    as_config(deepcopy(values), 'the config to share', trust=trust)
    head = [f'# {words.name}: what its model and its test data are. Read as data, never run.', '']
    text = config_text(values, head)
    with new_folder(out) as scratch:
        (scratch / CONFIG).write_text(text, encoding='utf-8')
        save_weights(model, scratch / WEIGHTS)
        card = card_of(model, scratch, words, metrics or {})
        write_card(card, scratch / CARD)
        package = open_package(scratch, trust=trust)
        check_model(package, model.module)
        (scratch / README).write_text(
            readme_text(card, package.config, words.notes), encoding='utf-8')
    return changes


def save_weights(model: TrainedModel, path: Path) -> None:
    """Write a model's tensors, each by itself, with the classes for tools that ask files for them.

    Raises:
        OSError: If they cannot be written.
    """
    state = {
        key: value.detach().cpu().clone(memory_format=torch.contiguous_format)
        for key, value in model.module.state_dict().items()
    }
    # one entry alone: several would be written in any order, and equal models have equal hashes
    meta = {DATASET_META: json.dumps(dict(classes=model.classes, palette=model.palette))}
    try:
        safetensors.torch.save_file(state, path, metadata=meta)
    except SafetensorError as error:
        raise FileError(f'{path} cannot be written, is the disk full? {error}') from error
    path.chmod(path.with_name(CONFIG).stat().st_mode)  # safetensors lets the owner alone read


def card_of(model: TrainedModel, folder: Path, words: Words,
            metrics: Mapping[str, float | None]) -> Card:
    """The card of a package whose config and weights are in ``folder``."""
    return Card(
        name=words.name,
        kind=model.kind,
        classes=model.classes,
        palette=model.palette,
        preprocessing=preprocessing_of(model.cfg),
        parameters=sum(each.numel() for each in model.module.parameters()),
        files={
            name:
            StoredFile(sha256=compute_sha256(folder / name), bytes=(folder / name).stat().st_size)
            for name in (CONFIG, WEIGHTS)
        },
        metrics=dict(metrics),
        data=words.data,
        license=words.license,
        training=training_of(model.cfg, model.progress),
        versions=versions())


def versions() -> dict[str, str]:
    """Of the packages that a model's answers depend on."""
    found = {name: str(import_module(name).__version__) for name in LIBRARIES}
    try:
        return dict(colonnade=metadata.version('colonnade'), **found)
    except metadata.PackageNotFoundError:  # not installed: a clone on the path
        return found


def check_model(package: Package, module: nn.Module) -> None:
    """Raise a PackageError if the config of a package builds another model than ``module``."""
    with DefaultScope.overwrite_default_scope(package.config.default_scope):
        rebuilt = MODELS.build(deepcopy(package.config.model))
    found, expected = ({key: value.shape for key, value in each.state_dict().items()}
                       for each in (rebuilt, module))  # yapf: disable
    if found != expected:
        other = sorted({key for key, _ in found.items() ^ expected.items()})
        raise PackageError(f'the config would build another model: {", ".join(other[:5])} differ')


@file_errors()
def read_metrics(path: Path, checkpoint: str) -> dict[str, float | None]:
    """The metrics that ``tools/test.py`` wrote of a checkpoint.

    Args:
        path: Its ``metrics.json``.
        checkpoint: The file that is packaged.

    Raises:
        FileNotFoundError: If there is no such file.
        PackageError: If it is none, or is of another checkpoint.
    """
    if not path.is_file():
        raise MissingFileError(f'--metrics {path}: there is no such file')
    try:
        content: Any = json.loads(path.read_text(encoding='utf-8'))
        metrics, tested = dict(content['metrics']), str(content['checkpoint'])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise PackageError(f'{path} is no metrics.json of colonnade test') from error
    expected = content.get('checkpoint_sha256')
    if expected is not None and Path(checkpoint).is_file():
        if compute_sha256(Path(checkpoint)) != expected:
            raise PackageError(f'{path} is of another file than {checkpoint}: of {tested}, by its '
                               'SHA-256')
    elif Path(tested).resolve() != Path(checkpoint).resolve():
        raise PackageError(f'{path} is of {tested}, not of {checkpoint}: run colonnade test on it')
    # COCO's −1: there was nothing to measure, such as no large object
    return {
        key: None if value is not None and value < 0 else value
        for key, value in metrics.items()
    }
