"""Pretrained weights of a module's ``init_cfg``, and the normalization of images for them."""
from __future__ import annotations

import logging
from typing import Any

from mmengine.logging import print_log
from mmengine.model import BaseModule
from timm.models import get_pretrained_cfg, list_pretrained

from colonnade.common.errors import UserError

from .loading import load_weights

Normalization = tuple[list[float], list[float]]  # mean and standard deviation of each channel
#: red, green and blue: that of most weights, and of Colonnade's configs
IMAGENET: Normalization = ([123.675, 116.28, 103.53], [58.395, 57.12, 57.375])


def get_pretrained(init_cfg: dict | list[dict] | None) -> dict[str, Any] | None:
    """Return the part of an ``init_cfg`` with ``type='Pretrained'``, or None."""
    if isinstance(init_cfg, str):
        raise UserError(f"init_cfg must be dict(type='Pretrained', checkpoint={init_cfg!r})")
    init_cfgs = init_cfg if isinstance(init_cfg, list) else [init_cfg or {}]
    if any('checkpoint' in cfg and 'type' not in cfg for cfg in init_cfgs):
        raise UserError("init_cfg has a checkpoint but no type: init_cfg.type must be 'Pretrained'")
    return next((cfg for cfg in init_cfgs if cfg.get('type') == 'Pretrained'), None)


def get_timm_name(init_cfg: dict | list[dict] | None) -> str:
    """Return NAME of ``timm://NAME`` in an ``init_cfg``, or an empty string."""
    checkpoint = (get_pretrained(init_cfg) or {}).get('checkpoint')
    scheme, separator, name = str(checkpoint).partition('://')
    return name if separator and scheme == 'timm' else ''


def get_normalization(name: str) -> Normalization | None:
    """Return the normalization of images for timm weights, or None if it is unknown.

    Args:
        name: Name of a model, with a tag, or without if all its weights have the same one.

    Returns:
        Mean and standard deviation of red, green and blue, for values from 0 to 255.
    """
    published = list_pretrained()
    names = [each for each in published if name in (each, each.partition('.')[0])]
    values = {(cfg.mean, cfg.std) for each in names if (cfg := get_pretrained_cfg(each))}
    if len(values) != 1:
        return None
    mean, std = ([255 * value for value in channels] for channels in values.pop())
    return mean, std


def load_pretrained(module: BaseModule) -> bool:
    """Load the weights of a module's ``init_cfg``; return False if it has none."""
    name, pretrained = type(module).__name__, get_pretrained(module.init_cfg)
    if pretrained is None:
        print_log(
            f'{name} starts from random weights, unless a checkpoint is loaded: '
            "its init_cfg is not dict(type='Pretrained', checkpoint=...)",
            logger='current',
            level=logging.WARNING)
        return False
    for key in set(pretrained) - {'type', 'checkpoint', 'trust'}:
        print_log(
            f'init_cfg.{key} has no effect on {name}: the format of the file is detected',
            logger='current',
            level=logging.WARNING)
    load_weights(module, pretrained['checkpoint'], trust=pretrained.get('trust', False))
    return True
