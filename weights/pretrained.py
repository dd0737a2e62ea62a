"""The weights that a module's ``init_cfg`` names."""
from __future__ import annotations

import logging
from typing import Any

from mmengine.logging import print_log
from mmengine.model import BaseModule

from .loading import load_weights


def pretrained_of(init_cfg: dict | list[dict] | None) -> dict[str, Any] | None:
    """The ``type='Pretrained'`` part of an ``init_cfg``."""
    init_cfgs = init_cfg if isinstance(init_cfg, list) else [init_cfg or {}]
    return next((cfg for cfg in init_cfgs if cfg.get('type') == 'Pretrained'), None)


def load_pretrained(module: BaseModule) -> bool:
    """Load the file, URL or ``timm://NAME`` of a module's ``init_cfg``; False if it names none.

    Raises:
        FileNotFoundError: If there is no such file.
        WeightsError: If the weights cannot be fetched or read, or do not fit.
    """
    name, pretrained = type(module).__name__, pretrained_of(module.init_cfg)
    if pretrained is None:
        print_log(
            f'{name} starts from random weights, unless a checkpoint is loaded: '
            "its init_cfg is not dict(type='Pretrained', checkpoint=...)",
            logger='current',
            level=logging.WARNING)
        return False
    for key in set(pretrained) - {'type', 'checkpoint', 'trust'}:
        print_log(
            f'init_cfg.{key} has no effect on {name}: the layout of the file is recognised',
            logger='current',
            level=logging.WARNING)
    load_weights(module, pretrained['checkpoint'], trust=pretrained.get('trust', False))
    return True
