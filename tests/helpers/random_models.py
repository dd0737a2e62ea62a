"""Checkpoints of random weights."""
from __future__ import annotations

from pathlib import Path

import torch
from mmengine.registry import MODELS, DefaultScope

from colonnade.configs import find_config
from colonnade.settings.reading import read_config


def random_checkpoint(leaf: str, path: Path, *, seed: int = 0) -> Path:
    """Write random weights of a shipped config, with larger ones of the head.

    mmdet's ``level_embed`` has no values before ``init_weights()``.
    """
    cfg = read_config(find_config(leaf))
    torch.manual_seed(seed)
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        module = MODELS.build(cfg.model)
    for name, value in module.state_dict().items():
        if name.endswith(('conv_seg.weight', 'fc_cls.weight', 'fc_reg.weight', 'level_embed')):
            value.normal_(std=1)
    torch.save(dict(state_dict=module.state_dict(), meta={}), path)
    return path
