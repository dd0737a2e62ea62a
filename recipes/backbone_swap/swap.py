"""What ``tools/swap_backbone.py`` does, from its arguments to a config that is known to train."""
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
from colonnade.models.feature_maps import build
from colonnade.models.trial_step import trial_fault
from colonnade.settings.checks.all_checks import check_config
from colonnade.settings.config_values import without_key
from colonnade.settings.config_writer import base_path, comment_lines, laid_out
from colonnade.settings.reading import read_config

from .backbone_names import Backbone, find_backbone
from .config_diff import difference
from .notes import Notes
from .swapped_model import with_backbone
from .training_settings import new_training

#: names of configs in packages that mmengine reads as a base
READ_BY_NAME = r'\w+::\w+/'
IMPORTS = ['colonnade.backbones', 'colonnade.necks', 'colonnade.engine.components']


def config_file(name: str) -> Path:
    """A config by its path, or by ``mmdet::FOLDER/FILE.py`` in an installed package.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the package is not installed.
    """
    package, separator, below = name.partition('::')
    if not separator:
        return find_config(name)
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise UserError(f'{name}: {package} is not installed')
    return find_config(Path(spec.submodule_search_locations[0], '.mim/configs', below))


def transplant(name: str, backbone_name: str, out: Path) -> Notes:
    """Write a config with one of our backbones, which starts from one of others.

    Args:
        name: Of the other config, as for :func:`config_file`.
        backbone_name: As for :func:`~.backbone_names.find_backbone`.
        out: What to write.

    Returns:
        What was said in it.

    Raises:
        OSError: If a file is missing, or the one to write exists.
        ValueError: If it cannot be done; nothing is written then.
    """
    if out.suffix != '.py':
        raise UserError(f'--out must end in .py, got {out}')
    if os.path.lexists(out):
        raise UserError(f'{out} exists: name another --out')
    backbone, path, notes = find_backbone(backbone_name), config_file(name), Notes()
    cfg = read_config(path)
    if not isinstance(cfg.model.get('type'), str):
        raise UserError(f"{path} is in mmengine's Python style, and a config of text cannot start "
                        'from it')
    old = cfg.to_dict()
    new = changed(old, backbone, notes)
    content = difference(old, new)
    base = name if re.match(READ_BY_NAME, name) else base_path(path, out)
    write_text(out, source(base, backbone, content, notes))
    try:
        check_written(out, new, cfg, notes)
        write_text(out, source(base, backbone, content, notes))
    except BaseException:
        out.unlink()
        raise
    return notes


def changed(old: dict[str, Any], backbone: Backbone, notes: Notes) -> dict[str, Any]:
    """Those settings at the top of a config that may differ, with a backbone of ours."""
    imports = deepcopy(old.get('custom_imports') or {})
    theirs = imports.get('imports', [])
    theirs = [theirs] if isinstance(theirs, str) else list(theirs)
    imports['imports'] = [*theirs, *(each for each in IMPORTS if each not in theirs)]
    imports.setdefault('allow_failed_imports', False)
    model = with_backbone(old['model'], backbone, notes)
    names = [name for name, _ in build(model).named_parameters()]
    new = dict(custom_imports=imports, model=model, **new_training(old, names, notes))
    if old.get('load_from'):
        new['load_from'] = None
        notes.reason('load_from', f'{old["load_from"]} has the weights of another backbone.')
    return new


def source(base: str, backbone: Backbone, content: dict[str, Any], notes: Notes) -> str:
    """The text of the config."""
    head = [
        f'{backbone.name} in a config of others, written by colonnade transplant. All that is not '
        'set here is theirs.'
    ]
    head += [f'Undecided: {text}.' for text in notes.undecided]
    return laid_out([*comment_lines(head), f'_base_ = {base!r}', ''], content, notes.reasons)


def check_written(path: Path, expected: dict[str, Any], before: Config, notes: Notes) -> None:
    """Read a config, look whether its parts fit, and let its model take a step.

    Raises:
        ValueError: If it is not as expected, or does not fit together.
    """
    cfg = read_config(path)
    found = cfg.to_dict()
    for key, value in expected.items():
        if without_key(found.get(key), '_scope_') != without_key(value, '_scope_'):
            raise UserError(f'{key} of the written config is not what it should be: its base '
                            'cannot be changed by a config of text')
    check_config(cfg, ('train_dataloader', 'val_dataloader'))
    if (error := trial_fault(cfg)) is not None:
        fault = f'{type(error).__name__}: {error}'
        if trial_fault(cfg, gradients=True) is None:
            notes.leave('a step of training succeeds, but on a CPU the heads fail on several '
                        'images without gradients, so test and predict with a batch size of 1, or '
                        f'on a GPU: {fault}')
            return
        theirs = trial_fault(before)
        if fault != f'{type(theirs).__name__}: {theirs}':
            raise UserCodeError('; '.join(
                ['a step of training fails, so no config was written', fault,
                 *notes.undecided])) from error
        notes.leave('a step of training fails on this machine, with their backbone in the same '
                    f'way: {fault}')
