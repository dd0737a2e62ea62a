"""Models whose tensors have shapes and no memory."""
from __future__ import annotations

from typing import Any

from mmengine.config import ConfigDict
from mmengine.registry import MODELS
from torch import nn

from colonnade.backbones.kernels.without_memory import without_memory
from colonnade.settings.config_values import map_dicts


def build_on_meta(model: dict[str, Any]) -> nn.Module:
    """The model of a config on torch's meta device.

    Swin, Segmenter and others look at values while they are built; these get memory for a while.

    Raises:
        TypeError: If the model cannot be built, as the registry says it; also ``KeyError`` and
            ``ValueError``.
    """
    try:
        with without_memory():
            return MODELS.build(with_plain_norms(model))
    except RuntimeError:
        return MODELS.build(with_plain_norms(model)).to('meta')


def with_plain_norms(value: Any) -> Any:
    """Return a copy of a config's part with BN in the place of mmcv's synchronized norm.

    That one cannot be built before processes have found each other. Names of parameters are equal.
    """

    def change(part: dict[str, Any]) -> ConfigDict:
        if str(part.get('type')).rpartition('.')[2] == 'MMSyncBN':
            part['type'] = 'BN'
        return ConfigDict(part)

    return map_dicts(value, change)
