"""Implementation of ``colonnade swap-backbone``: write a config that is known to train."""
from __future__ import annotations

import os
import re
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mmengine.config import Config

from colonnade.common.atomic_files import write_text
from colonnade.common.errors import UserCodeError, UserError
from colonnade.configs import find_config
from colonnade.models.feature_maps import build_part
from colonnade.models.trial_step import find_trial_error
from colonnade.settings.checks.all_checks import check_config
from colonnade.settings.config_values import map_dicts, remove_key
from colonnade.settings.config_writer import format_base_path, format_comments, format_config
from colonnade.settings.pipeline_steps import get_type_name
from colonnade.settings.reading import read_config

from .backbone_names import Backbone, find_backbone
from .config_changes import Notes, compute_changes
from .swapped_model import replace_backbone
from .training_settings import adapt_training

#: start of configs in packages that mmengine can read as a base
PACKAGE_CONFIG = r'\w+::\w+/'
PANOPTIC_IMPORTS = ['colonnade.datasets.panoptic_annotations',
                    'colonnade.evaluation.panoptic_quality']  # yapf: disable
IMPORTS = ['colonnade.backbones', 'colonnade.necks', 'colonnade.engine.components']


def find_base_config(name: str) -> Path:
    """Return the path of a config, or of ``mmdet::FOLDER/FILE.py`` in an installed package.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the package is not installed.
    """
    package, separator, path = name.partition('::')
    if not separator:
        return find_config(name)
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise UserError(f'{name}: {package} is not installed')
    return find_config(Path(spec.submodule_search_locations[0], '.mim/configs', path))


def swap_backbone(name: str, backbone_name: str, out: Path) -> Notes:
    """Write a config with a columnar backbone that inherits from one with another backbone.

    Args:
        name: Base config, see :func:`find_base_config`.
        backbone_name: Backbone, see :func:`~.backbone_names.find_backbone`.
        out: File to write.

    Returns:
        Comments in the config.

    Raises:
        OSError: If a file is missing, or ``out`` exists.
        ValueError: If the backbone cannot be replaced. Nothing is written then.
    """
    if out.suffix != '.py':
        raise UserError(f'--out must end in .py, got {out}')
    if os.path.lexists(out):
        raise UserError(f'{out} already exists: choose another --out')
    backbone, path, notes = find_backbone(backbone_name), find_base_config(name), Notes()
    cfg = read_config(path)
    if not isinstance(cfg.model.get('type'), str):
        raise UserError(f"{path} is in mmengine's pure Python style, and a text config cannot "
                        'inherit from such a config')
    old = cfg.to_dict()
    new = _adapt_config(old, backbone, notes)
    changes = compute_changes(old, new)
    base = name if re.match(PACKAGE_CONFIG, name) else format_base_path(path, out)
    write_text(out, _format_source(base, backbone, changes, notes))
    try:
        _check_written(out, new, cfg, notes)
        write_text(out, _format_source(base, backbone, changes, notes))
    except BaseException:
        out.unlink()
        raise
    return notes


def _adapt_config(old: dict[str, Any], backbone: Backbone, notes: Notes) -> dict[str, Any]:
    """Return the top-level settings that change."""
    replaced = {key: map_dicts(value, _replace_panoptic_type) for key, value in old.items()}
    panoptic = {key: value for key, value in replaced.items() if value != old[key]}
    for key in panoptic:
        notes.reasons[key].append('LoadPanopticAnnotations and CocoPanopticMetric need '
                                  'panopticapi; these have the same results without it.')
    imports = deepcopy(old.get('custom_imports') or {})
    modules = imports.get('imports', [])
    modules = [modules] if isinstance(modules, str) else list(modules)
    needed = IMPORTS + (PANOPTIC_IMPORTS if panoptic else [])
    imports['imports'] = [*modules, *(each for each in needed if each not in modules)]
    imports.setdefault('allow_failed_imports', False)
    model = replace_backbone(old['model'], backbone, notes)
    names = [name for name, _ in build_part(model).named_parameters()]
    new = dict(custom_imports=imports, model=model, **adapt_training(old, names, notes)) | panoptic
    if old.get('load_from'):
        new['load_from'] = None
        notes.reasons['load_from'].append(f'{old["load_from"]} has weights of another backbone.')
    return new


def _replace_panoptic_type(part: dict[str, Any]) -> dict[str, Any]:
    kind = get_type_name(part.get('type'))
    if kind == 'LoadPanopticAnnotations':
        part['type'] = 'LoadPanopticSegments'
    elif kind == 'CocoPanopticMetric' and not part.get('format_only'):
        part['type'] = 'PanopticQuality'
        part = {key: part[key] for key in part if key not in ('backend_args', 'outfile_prefix')}
    return part


def _format_source(base: str, backbone: Backbone, changes: dict[str, Any], notes: Notes) -> str:
    head = [f'{backbone.name}, set by colonnade swap-backbone. Other settings are inherited.']
    head += [f'Undecided: {text}.' for text in notes.open_questions]
    return format_config([*format_comments(head), f'_base_ = {base!r}', ''], changes, notes.reasons)


def _check_written(path: Path, expected: dict[str, Any], before: Config, notes: Notes) -> None:
    """Read a config, check it, and run a training step.

    Raises:
        ValueError: If it is not as expected, is inconsistent or fails.
    """
    cfg = read_config(path)
    content = cfg.to_dict()
    for key, value in expected.items():
        if remove_key(content.get(key), '_scope_') != remove_key(value, '_scope_'):
            raise UserError(f'{key} has the wrong value in the written config: a text config '
                            'cannot override it')
    check_config(cfg, ('train_dataloader', 'val_dataloader'))
    if (error := find_trial_error(cfg)) is None:
        return
    message = f'{type(error).__name__}: {error}'
    if find_trial_error(cfg, gradients=True) is None:
        notes.open_questions.append(
            'a training step succeeds, but on a CPU the heads fail on several images without '
            f'gradients, so test and predict with a batch size of 1, or on a GPU: {message}')
        return
    old_error = find_trial_error(before)
    if message != f'{type(old_error).__name__}: {old_error}':
        text = ['a training step fails, so no config was written', message, *notes.open_questions]
        raise UserCodeError('; '.join(text)) from error
    notes.open_questions.append('a training step fails on this machine, with the original backbone '
                                f'too: {message}')
