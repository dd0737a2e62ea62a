"""Models built from configs: on the meta device, or with random weights."""
from __future__ import annotations

import copy
from typing import Any

from mmengine.config import ConfigDict
from mmengine.logging import MMLogger
from mmengine.registry import MODELS
from torch import nn

from colonnade.backbones.kernels.devices import on_meta_device
from colonnade.common.console_logging import log_errors_only
from colonnade.settings.config_values import map_dicts


def build_on_meta(model: dict[str, Any]) -> nn.Module:
    """Build the model of a config on the meta device.

    Swin, Segmenter and others read values while they are built; these are moved there afterwards.
    """
    try:
        with on_meta_device():
            return MODELS.build(replace_sync_norms(model))
    except RuntimeError:
        return MODELS.build(replace_sync_norms(model)).to('meta')


def replace_sync_norms(value: Any) -> Any:
    """Copy a part of a config, with BN instead of mmcv's synchronized norm.

    That one can be built only in distributed runs. The parameters have the same names.
    """

    def change(part: dict[str, Any]) -> ConfigDict:
        if str(part.get('type')).rpartition('.')[2] == 'MMSyncBN':
            part['type'] = 'BN'
        return ConfigDict(part)

    return map_dicts(value, change)


def build_random_model(settings: dict[str, Any]) -> nn.Module:
    """Build the ``model`` of a config with random weights; nothing is downloaded."""
    settings = ConfigDict(drop_pretrained(copy.deepcopy(settings), 'model', []))
    with log_errors_only(MMLogger.get_current_instance()):  # no log of each tensor's initialization
        model: nn.Module = MODELS.build(settings)
        model.init_weights()  # some parameters are uninitialized before
    return model


def drop_pretrained(value: Any, name: str, changes: list[str]) -> Any:
    """Copy a part of a config without pretrained weights, and append the changes to ``changes``."""

    def keep(item: Any, name: str) -> bool:
        is_init = isinstance(item, dict) and (item.get('type') == 'Pretrained' or
                                              (name.endswith('init_cfg') and 'checkpoint' in item))
        is_name = name.endswith('.pretrained') and (item is True or isinstance(item, str))
        if is_init or is_name:
            changes.append(f'{name} is removed: the package has all weights')
        return not (is_init or is_name)

    if isinstance(value, dict):
        return {
            key: drop_pretrained(item, f'{name}.{key}', changes)
            for key, item in value.items() if keep(item, f'{name}.{key}')
        }
    if isinstance(value, (list, tuple)):
        return type(value)(
            drop_pretrained(item, name, changes) for item in value if keep(item, name))
    return value
