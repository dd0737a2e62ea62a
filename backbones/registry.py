"""The backbones that there are: configs, weights, tools and tests find a new one here."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from mmengine.registry import MODELS

from colonnade.weights.layouts import Layout, register_formats
from colonnade.weights.state_dicts import State, WeightsError

Backbone = TypeVar('Backbone', bound=type)
#: classes of :class:`~.columnar.ColumnarBackbone` by their names
BACKBONES: dict[str, Any] = {}


def register_backbone(*layouts: Layout) -> Callable[[Backbone], Backbone]:
    """A decorator that makes a backbone known to configs, weights, tools and tests.

    Args:
        *layouts: Layouts of files with its weights; the first that fits is used.

    Raises:
        KeyError: If there is a backbone of this name.
    """

    def register(backbone: Backbone) -> Backbone:
        MODELS.register_module(module=backbone)
        BACKBONES[backbone.__name__] = backbone
        register_formats(*layouts)
        return backbone

    return register


def infer_backbone(state: State) -> tuple[Any, dict[str, int]]:
    """The backbone that a state dict under our names is of, and the columns of its table.

    Raises:
        WeightsError: If it is of none.
    """
    for backbone in BACKBONES.values():
        try:
            return backbone, backbone.infer_arch(state)
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
            continue  # of another backbone
    raise WeightsError(f'no {" or ".join(BACKBONES)} that could be recognised')
