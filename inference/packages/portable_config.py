"""The parts of a config that a package needs, without paths and services of its author's host."""
from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from math import isfinite
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import Any

from mmengine.config import Config

from colonnade.engine.runner.hooks import is_ema_hook, iter_hook_configs
from colonnade.models.building import drop_pretrained
from colonnade.settings.backbone_config import fill_backbone_settings
from colonnade.settings.config_values import plain
from colonnade.settings.config_writer import format_config
from colonnade.settings.dataset_paths import iter_evaluators
from colonnade.weights.config_text import PLAIN
from colonnade.weights.pretrained import get_pretrained

from .package_errors import PackageError

#: keys that inference and evaluation read; the metadata describe the training
KEPT = ('default_scope', 'custom_imports', 'model', 'test_dataloader', 'test_evaluator', 'test_cfg',
        'accepted_findings')
#: modules that register Colonnade's parts, and let mmdet and mmseg load safetensors with classes
IMPORTS = ('colonnade.backbones', 'colonnade.necks', 'colonnade.engine.components')
ROOT = 'data'  # dataset directory in the config of a package
LOADER = dict(
    batch_size=1,
    num_workers=2,
    drop_last=False,
    sampler=dict(type='DefaultSampler', shuffle=False))
VISUALIZERS = dict(mmdet='DetLocalVisualizer', mmseg='SegLocalVisualizer')
EVALUATOR_OUTPUTS = ('outfile_prefix', 'output_dir', 'keep_results', 'format_only')


def build_portable_config(
        cfg: Config, classes: tuple[str, ...],
        palette: tuple[tuple[int, int, int], ...]) -> tuple[dict[str, Any], list[str]]:
    """Return the settings of a package's config, and a sentence for each changed setting."""
    cfg = deepcopy(cfg)
    fill_backbone_settings(cfg.model)
    for evaluator in iter_evaluators(cfg, ('test_evaluator', )):
        if evaluator.type == 'FasterCocoMetric':  # needs a package that users may lack
            evaluator.type = 'CocoMetric'
    values = {key: plain(cfg[key]) for key in KEPT if cfg.get(key) is not None}
    dataset = values.get('test_dataloader', {}).get('dataset', {})
    if not isinstance(dataset.get('pipeline'), list):
        raise PackageError('test_dataloader.dataset must be a single dataset with a pipeline, got '
                           f'{dataset.get("type", "none")}')
    imports = values.get('custom_imports', {}).get('imports', [])
    imports = [imports] if isinstance(imports, str) else list(imports)
    values['custom_imports'] = dict(
        imports=list(dict.fromkeys((*imports, *IMPORTS))), allow_failed_imports=False)
    changes: list[str] = []
    values['model'] = drop_pretrained(values['model'], 'model', changes)
    roots = [str(root) for root in (dataset.get('data_root'), cfg.get('data_root')) if root]
    metainfo = dict(classes=classes, palette=list(palette))
    fusion_head = values['model'].get('panoptic_fusion_head')
    if fusion_head is not None:
        num_things = fusion_head.get('num_things_classes', 80)  # mmdet's default
        metainfo |= dict(thing_classes=classes[:num_things], stuff_classes=classes[num_things:])
    dataset['metainfo'] = metainfo
    values['test_dataloader'] = {**LOADER, 'dataset': dataset}
    values['visualizer'] = dict(  # without trackers
        type=VISUALIZERS[cfg.default_scope],
        vis_backends=[dict(type='LocalVisBackend')],
        name='visualizer')
    if cfg.default_scope == 'mmseg':  # mmseg.apis.inference_model reads this key.
        values['test_pipeline'] = dataset['pipeline']
    for key in ('test_dataloader', 'test_evaluator'):
        if key in values:
            values[key] = _make_portable(values[key], key, roots, changes)
    return values, [*changes, f'only {", ".join((*KEPT, "visualizer"))} are kept']


def _make_portable(value: Any, name: str, roots: list[str], changes: list[str]) -> Any:
    """Return ``value`` with datasets in ``data`` and without other paths; append to ``changes``."""
    if isinstance(value, dict):
        portable: dict[str, Any] = {}
        for key, item in value.items():
            if key == 'backend_args' and item is not None:
                changes.append(f'{name}.{key} is removed: it can contain paths and addresses')
                portable[key] = None
            elif key == 'metainfo':  # Class names are not paths.
                portable[key] = item
            elif key not in EVALUATOR_OUTPUTS:
                portable[key] = _make_portable(item, f'{name}.{key}', roots, changes)
        return portable
    if isinstance(value, (list, tuple)):
        return type(value)(_make_portable(item, name, roots, changes) for item in value)
    if isinstance(value, str):
        path = _make_path_portable(value, roots, is_root=name.endswith('.data_root'))
        if path != value:
            changes.append(f'{name} is {path!r}')
        return path
    return value


def _make_path_portable(text: str, roots: list[str], *, is_root: bool) -> str:
    """Return a path below ``data``, or a string that is not a local path unchanged."""
    if is_root:
        return ROOT
    for root in roots:
        if Path(text).is_relative_to(root):
            return str(Path(ROOT, Path(text).relative_to(root)))
    path: PurePath = PureWindowsPath(text) if PureWindowsPath(text).drive else PurePosixPath(text)
    if path.anchor or '..' in path.parts or text.startswith(('~', 'file://')):
        return str(Path(ROOT, path.name))
    return text


def describe_training(cfg: Config, progress: Mapping[str, int]) -> dict[str, Any]:
    """Return settings of the training as plain values."""
    training: dict[str, Any] = {}
    optimizer = (cfg.get('optim_wrapper') or {}).get('optimizer') or {}
    for key in ('type', 'lr', 'weight_decay'):
        if isinstance(optimizer.get(key), (str, int, float)):
            training['optimizer' if key == 'type' else key] = optimizer[key]
    loop = cfg.get('train_cfg') or {}
    for planned, done, name in (('max_epochs', 'epoch', 'epochs'), ('max_iters', 'iter',
                                                                    'iterations')):
        if isinstance(loop.get(planned), int):
            training[planned] = loop[planned]
            if progress.get(done):
                training[name] = progress[done]
    batch_size = (cfg.get('train_dataloader') or {}).get('batch_size')
    if isinstance(batch_size, int):
        training['images_per_process'] = batch_size
    init_cfg = (cfg.model.get('backbone') or {}).get('init_cfg')
    source = (get_pretrained(init_cfg) or {}).get('checkpoint')
    if isinstance(source, str):  # URLs are public, paths are not.
        training['backbone_from'] = source if '://' in source else Path(source).name
    if any(is_ema_hook(hook) for hook in iter_hook_configs(cfg)):
        training['averaged_weights'] = True
    return training


def describe_preprocessing(cfg: Config) -> dict[str, Any]:
    """Return how images are resized and normalized, for programs that do not read the config."""
    preprocessor = cfg.model.get('data_preprocessor') or {}
    settings: dict[str, Any] = dict(channels='RGB' if preprocessor.get('bgr_to_rgb') else 'BGR')
    for key in ('mean', 'std', 'pad_size_divisor'):
        if preprocessor.get(key) is not None:
            settings[key] = preprocessor[key]
    for step in cfg.test_dataloader.dataset.pipeline:
        if str(step.get('type')).rpartition('.')[2] == 'Resize':
            settings['resize'] = {key: step[key] for key in step if key != 'type'}
    return plain(settings)


def config_text(values: Mapping[str, Any], head: list[str]) -> str:
    """Return the text that :func:`~colonnade.weights.config_text.parse_config` reads as ``values``.

    Args:
        values: Top-level settings.
        head: Comment lines above them.

    Raises:
        PackageError: If a value is not a literal; its key is named.
    """
    for name, value in values.items():
        _require_plain(value, name)
    return format_config(head, values)


def _require_plain(value: Any, name: str) -> None:
    if isinstance(value, Mapping):
        for key, item in value.items():
            _require_plain(key, f'a key of {name}')
            _require_plain(item, f'{name}.{key}')
    elif type(value) in (list, tuple):
        for index, item in enumerate(value):
            _require_plain(item, f'{name}[{index}]')
    elif isinstance(value, str) and '{{' in value:
        raise PackageError(f'{name} is {value!r}, but mmengine replaces text in {{{{ }}}}')
    elif type(value) not in PLAIN or (isinstance(value, float) and not isfinite(value)):
        raise PackageError(f'{name} is {value!r}: a shared config may contain only numbers, '
                           'strings, None, and lists, tuples and dicts of them')
