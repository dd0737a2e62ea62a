"""The backbones and pyramids of Colonnade within a model."""
from __future__ import annotations

from torch import nn

from colonnade.backbones import ColumnarBackbone
from colonnade.common.errors import UserError
from colonnade.necks import Pyramid


def parts_of_ours(model: nn.Module) -> list[ColumnarBackbone | Pyramid]:
    """The backbones and pyramids of a model.

    Raises:
        ValueError: If there are none.
    """
    parts = [m for m in model.modules() if isinstance(m, (ColumnarBackbone, Pyramid))]
    if not parts:
        raise UserError('the model has no backbone and no pyramid of colonnade')
    return parts
