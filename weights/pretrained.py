"""The weights that a module's ``init_cfg`` names."""
from __future__ import annotations

import logging
from typing import Any

from mmengine.logging import print_log
from mmengine.model import BaseModule
from timm.models import get_pretrained_cfg, list_pretrained

from colonnade.common.errors import UserError

from .loading import load_weights

Normalisation = tuple[list[float], list[float]]  # mean and deviation of each channel
#: of red, green and blue: what most weights are for, and our configs say
IMAGENET: Normalisation = ([123.675, 116.28, 103.53], [58.395, 57.12, 57.375])


def pretrained_of(init_cfg: dict | list[dict] | None) -> dict[str, Any] | None:
    """The ``type='Pretrained'`` part of an ``init_cfg``.

    Raises:
        ValueError: If it is a name alone, or names a checkpoint and no type.
    """
    if isinstance(init_cfg, str):
        raise UserError(f"init_cfg must be dict(type='Pretrained', checkpoint={init_cfg!r})")
    init_cfgs = init_cfg if isinstance(init_cfg, list) else [init_cfg or {}]
    if any('checkpoint' in cfg and 'type' not in cfg for cfg in init_cfgs):
        raise UserError("init_cfg has a checkpoint and no type: init_cfg.type must be 'Pretrained'")
    return next((cfg for cfg in init_cfgs if cfg.get('type') == 'Pretrained'), None)


def timm_name_of(init_cfg: dict | list[dict] | None) -> str:
    """NAME of ``timm://NAME`` in an ``init_cfg``, or nothing."""
    scheme, separator, name = str((pretrained_of(init_cfg)
                                   or {}).get('checkpoint')).partition('://')
    return name if separator and scheme == 'timm' else ''


def normalisation_of(name: str) -> Normalisation | None:
    """How images are normalised for weights of timm's; None if it is not known.

    Args:
        name: A model's name, with the tag of the weights or without. Without one, it is known what
            all weights of the model have in common.

    Returns:
        Mean and standard deviation of red, green and blue, of values from 0 to 255.
    """
    published = list_pretrained()
    names = [each for each in published if name in (each, each.partition('.')[0])]
    found = {(cfg.mean, cfg.std) for each in names if (cfg := get_pretrained_cfg(each))}
    if len(found) != 1:
        return None
    mean, std = ([255 * value for value in values] for values in found.pop())
    return mean, std


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
