"""The trunks that there are: configs, weights, tools and tests find a new one here."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from mmengine.registry import MODELS

from colonnade.weights.layouts import Layout, register_layouts
from colonnade.weights.state_dicts import State, WeightsError

Trunk = TypeVar('Trunk', bound=type)
#: classes of :class:`~.columnar.ColumnarBackbone` by their names
TRUNKS: dict[str, Any] = {}


def register_trunk(*layouts: Layout) -> Callable[[Trunk], Trunk]:
    """A decorator that makes a trunk known to configs, weights, tools and tests.

    Args:
        *layouts: Layouts of files with its weights; the first that fits is used.

    Raises:
        KeyError: If there is a trunk of this name.
    """

    def register(trunk: Trunk) -> Trunk:
        MODELS.register_module(module=trunk)
        TRUNKS[trunk.__name__] = trunk
        register_layouts(*layouts)
        return trunk

    return register


def infer_trunk(state: State) -> tuple[Any, dict[str, int]]:
    """The trunk that a state dict under our names is of, and the columns of its table.

    Raises:
        WeightsError: If it is of none.
    """
    for trunk in TRUNKS.values():
        try:
            return trunk, trunk.infer_arch(state)
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
            continue  # of another trunk
    raise WeightsError(f'no {" or ".join(TRUNKS)} that could be recognised')
