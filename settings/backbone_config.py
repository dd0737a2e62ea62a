"""Backbone settings in a config that is not built yet."""
from __future__ import annotations

import re
from importlib.util import find_spec

from mmengine.config import ConfigDict
from mmengine.registry import MODELS

from colonnade.backbones import ColumnarBackbone
from colonnade.backbones.variants import resolve_out_indices
from colonnade.common.errors import UserError

from .registries import find_class


def get_backbone_class(model: ConfigDict) -> type[ColumnarBackbone] | None:
    """Return the backbone class of a model, or None if it is not a columnar backbone."""
    cls = find_class((model.get('backbone') or {}).get('type'), MODELS)
    return cls if isinstance(cls, type) and issubclass(cls, ColumnarBackbone) else None


def fill_backbone_settings(model: ConfigDict) -> None:
    """Write the backbone settings that are inferred from its weights into the config."""
    cls = get_backbone_class(model)
    if cls is not None and 'arch' in model.backbone:
        backbone = model.backbone
        for key, value in cls.get_implied_arguments(backbone.arch,
                                                    backbone.get('init_cfg')).items():
            if backbone.get(key) is None:
                backbone[key] = value


def set_trained_part(model: ConfigDict, tune: str) -> None:
    """Set which part of the backbone is trained; neck and head always are.

    Args:
        model: Model section of a config, modified in place.
        tune: ``'all'``, ``'last:N'`` (the last N blocks), ``'head'`` (nothing of the backbone), or
            ``'lora'`` or ``'lora:RANK'`` (low-rank updates of all blocks).

    Raises:
        UserError: If ``tune`` is something else, or the backbone is not columnar.
    """
    cls = get_backbone_class(model)
    if cls is None:
        raise UserError('--tune needs a Colonnade backbone, got model.backbone.type='
                        f'{(model.get("backbone") or {}).get("type")!r}')
    match = re.fullmatch(r'(all|head|lora)|(lora|last):([1-9]\d*)', tune)
    if match is None:
        raise UserError(f'--tune must be all, last:N, head, lora or lora:RANK, got {tune!r}')
    kind, value = match[1] or match[2], int(match[3] or 8)
    backbone = model.backbone
    depth = cls.variants.resolve(backbone.arch)['depth']
    num_blocks = resolve_out_indices(backbone.get('out_indices'), depth)[-1] + 1
    if kind == 'last' and value >= num_blocks:
        raise UserError(f'--tune {tune}: the backbone has {num_blocks} blocks; to train them all, '
                        'use --tune all')
    if kind == 'lora' and find_spec('peft') is None:
        raise UserError(f"--tune {tune} needs the package peft: pip install 'colonnade[lora]'")
    backbone.pop('lora', None)
    if kind == 'lora':
        backbone.lora = dict(rank=value)
    backbone.frozen_stages = dict(head=num_blocks, last=num_blocks - value).get(kind, -1)
