"""Models as a run starts from them without pretrained weights."""
from __future__ import annotations

import copy
from typing import Any

from mmengine.config import ConfigDict
from mmengine.logging import MMLogger
from mmengine.registry import MODELS
from torch import nn

from colonnade.common.console_logging import log_errors_only


def random_model(settings: dict[str, Any]) -> nn.Module:
    """Build a model with random weights; nothing is downloaded.

    Args:
        settings: ``model`` of a config; stays as it is.

    Raises:
        TypeError: If the model cannot be built, as the registry says it; also ``KeyError`` and
            ``ValueError``.
    """
    settings = ConfigDict(without_pretrained(copy.deepcopy(settings), 'model', []))
    with log_errors_only(MMLogger.get_current_instance()):  # not how each tensor is filled
        model: nn.Module = MODELS.build(settings)
        model.init_weights()  # some parameters hold anything before
    return model


def without_pretrained(value: Any, name: str, changes: list[str]) -> Any:
    """``value`` without the weights that training began from; ``changes`` gets remarks."""

    def keeps(item: Any, name: str) -> bool:
        """Whether an item names no weights."""
        is_init = isinstance(item, dict) and (item.get('type') == 'Pretrained' or
                                              (name.endswith('init_cfg') and 'checkpoint' in item))
        is_named = name.endswith('.pretrained') and (item is True or isinstance(item, str))
        if is_init or is_named:
            changes.append(f'{name} is left out: the package has all weights')
            return False
        return True

    if isinstance(value, dict):
        named = {key: f'{name}.{key}' for key in value}
        return {
            key: without_pretrained(item, named[key], changes)
            for key, item in value.items() if keeps(item, named[key])
        }
    if isinstance(value, (list, tuple)):
        return type(value)(
            without_pretrained(item, name, changes) for item in value if keeps(item, name))
    return value
