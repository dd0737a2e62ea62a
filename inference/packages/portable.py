"""The part of a config that others need, without what concerns its maker's machine."""
from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import Any

from mmengine.config import Config

from colonnade.engine.runner.hooks import is_ema_hook, iter_hook_configs
from colonnade.models.random_weights import without_pretrained
from colonnade.settings.backbone_config import settle_backbone
from colonnade.settings.config_values import plain
from colonnade.settings.dataset_paths import evaluators
from colonnade.settings.plain_config import PackageError
from colonnade.weights.pretrained import pretrained_of

#: what inference and evaluation read; how the model was trained stands in the card
KEPT = ('default_scope', 'custom_imports', 'model', 'test_dataloader', 'test_evaluator', 'test_cfg')
#: what registers our parts, and lets other people's tools read safetensors with classes
IMPORTS = ('colonnade.backbones', 'colonnade.necks', 'colonnade.engine.components')
ROOT = 'data'  # where a data set lies, relative to whoever uses the config
LOADER = dict(
    batch_size=1,
    num_workers=2,
    drop_last=False,
    sampler=dict(type='DefaultSampler', shuffle=False))
OUTPUTS = ('outfile_prefix', 'output_dir', 'keep_results', 'format_only')  # of evaluators


def portable(cfg: Config, classes: tuple[str, ...],
             palette: tuple[tuple[int, int, int], ...]) -> tuple[dict[str, Any], list[str]]:
    """What a package's config assigns, and what was changed on the way.

    Args:
        cfg: Of a detector or segmenter.
        classes: Their names.
        palette: Their colours.

    Raises:
        PackageError: If there is no test pipeline.
    """
    cfg = deepcopy(cfg)
    settle_backbone(cfg.model)
    for evaluator in evaluators(cfg, ('test_evaluator', )):
        if evaluator.type == 'FasterCocoMetric':  # of a run; others may lack what it needs
            evaluator.type = 'CocoMetric'
    values = {key: plain(cfg[key]) for key in KEPT if cfg.get(key) is not None}
    dataset = values.get('test_dataloader', {}).get('dataset', {})
    if not isinstance(dataset.get('pipeline'), list):
        raise PackageError('test_dataloader.dataset must be one data set with a pipeline, got '
                           f'{dataset.get("type", "none")}')
    given = values.get('custom_imports', {}).get('imports', [])
    given = [given] if isinstance(given, str) else list(given)
    values['custom_imports'] = dict(
        imports=list(dict.fromkeys((*given, *IMPORTS))), allow_failed_imports=False)
    changes: list[str] = []
    values['model'] = without_pretrained(values['model'], 'model', changes)
    roots = [str(root) for root in (dataset.get('data_root'), cfg.get('data_root')) if root]
    dataset['metainfo'] = dict(classes=classes, palette=list(palette))
    values['test_dataloader'] = {**LOADER, 'dataset': dataset}
    values['visualizer'] = _visualizer(cfg)
    if cfg.default_scope == 'mmseg':  # whose inference_model looks for it there
        values['test_pipeline'] = dataset['pipeline']
    for key in ('test_dataloader', 'test_evaluator'):
        if key in values:
            values[key] = _moved(values[key], key, roots, changes)
    return values, [*changes, f'only {", ".join((*KEPT, "visualizer"))} are kept']


def _visualizer(cfg: Config) -> dict[str, Any]:
    """The visualizer without the services that it reports to."""
    kinds = dict(mmdet='DetLocalVisualizer', mmseg='SegLocalVisualizer')
    return dict(
        type=kinds[cfg.default_scope],
        vis_backends=[dict(type='LocalVisBackend')],
        name='visualizer')


def _moved(value: Any, name: str, roots: list[str], changes: list[str]) -> Any:
    """``value`` with data below ``data``, and without other paths; ``changes`` gets remarks."""
    if isinstance(value, dict):
        found: dict[str, Any] = {}
        for key, item in value.items():
            if key == 'backend_args' and item is not None:
                changes.append(f'{name}.{key} is left out: it says where its maker keeps files')
                found[key] = None
            elif key == 'metainfo':  # names of classes are no paths
                found[key] = item
            elif key not in OUTPUTS:
                found[key] = _moved(item, f'{name}.{key}', roots, changes)
        return found
    if isinstance(value, (list, tuple)):
        return type(value)(_moved(item, name, roots, changes) for item in value)
    if isinstance(value, str):
        moved = moved_path(value, roots, is_root=name.endswith('.data_root'))
        if moved != value:
            changes.append(f'{name} is {moved!r}')
        return moved
    return value


def moved_path(text: str, roots: list[str], *, is_root: bool) -> str:
    """A path of the maker's machine as one below ``data``; other strings as they are.

    Args:
        text: Any string of a config.
        roots: Of data sets.
        is_root: Whether ``text`` is such a root, whatever it looks like.
    """
    if is_root:
        return ROOT
    for root in roots:
        if Path(text).is_relative_to(root):
            return str(Path(ROOT, Path(text).relative_to(root)))
    path: PurePath = PureWindowsPath(text) if PureWindowsPath(text).drive else PurePosixPath(text)
    if path.anchor or '..' in path.parts or text.startswith(('~', 'file://')):
        return str(Path(ROOT, path.name))
    return text


def training_of(cfg: Config, progress: Mapping[str, int]) -> dict[str, Any]:
    """Return what a config and a checkpoint say of how a model was trained, as plain values.

    Args:
        cfg: The config of the training.
        progress: ``epoch`` and ``iter`` of the checkpoint, if it has them.
    """
    found: dict[str, Any] = {}
    optimizer = (cfg.get('optim_wrapper') or {}).get('optimizer') or {}
    for key in ('type', 'lr', 'weight_decay'):
        if isinstance(optimizer.get(key), (str, int, float)):
            found['optimizer' if key == 'type' else key] = optimizer[key]
    loop = cfg.get('train_cfg') or {}
    for planned, done, trained in (('max_epochs', 'epoch', 'epochs'), ('max_iters', 'iter',
                                                                       'iterations')):
        if isinstance(loop.get(planned), int):
            found[planned] = loop[planned]
            if progress.get(done):
                found[trained] = progress[done]
    size = (cfg.get('train_dataloader') or {}).get('batch_size')
    if isinstance(size, int):
        found['images_per_process'] = size
    source = (pretrained_of((cfg.model.get('backbone') or {}).get('init_cfg'))
              or {}).get('checkpoint')
    if isinstance(source, str):  # a URL or a name is public, a path is not
        found['backbone_from'] = source if '://' in source else Path(source).name
    if any(is_ema_hook(hook) for hook in iter_hook_configs(cfg)):
        found['averaged_weights'] = True
    return found


def preprocessing_of(cfg: Config) -> dict[str, Any]:
    """How images are resized and normalised, for programs that do not read the config."""
    given = cfg.model.get('data_preprocessor') or {}
    found: dict[str, Any] = dict(channels='RGB' if given.get('bgr_to_rgb') else 'BGR')
    for key in ('mean', 'std', 'pad_size_divisor'):
        if given.get(key) is not None:
            found[key] = given[key]
    for step in cfg.test_dataloader.dataset.pipeline:
        if str(step.get('type')).rpartition('.')[2] == 'Resize':
            found['resize'] = {key: step[key] for key in step if key != 'type'}
    return plain(found)
