"""Registry of backbones, which configs, weights, tools and tests use."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from mmengine.registry import MODELS

from colonnade.weights.formats import CheckpointFormat, register_formats
from colonnade.weights.state_dicts import State, WeightsError

Backbone = TypeVar('Backbone', bound=type)
#: classes of :class:`~.columnar.ColumnarBackbone` by their names
BACKBONES: dict[str, Any] = {}


def register_backbone(*formats: CheckpointFormat) -> Callable[[Backbone], Backbone]:
    """Return a decorator that registers a backbone.

    Args:
        *formats: Formats of files with its weights; the first match is used.

    Raises:
        KeyError: If the name of the backbone is taken.
    """

    def register(backbone: Backbone) -> Backbone:
        MODELS.register_module(module=backbone)
        BACKBONES[backbone.__name__] = backbone
        register_formats(*formats)
        return backbone

    return register


def infer_backbone(state: State) -> tuple[Any, dict[str, int]]:
    """Infer the backbone of a state dict under Colonnade's names, and its ``shown_columns``."""
    for backbone in BACKBONES.values():
        try:
            return backbone, backbone.infer_arch(state)
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
            continue  # another backbone
    raise WeightsError(f'expected the weights of {" or ".join(BACKBONES)}')
