"""Common functions of all operators."""
from __future__ import annotations

import torch
import torchvision  # noqa: F401, registers its operators
from torch import Tensor

OPERATORS = torch.ops.torchvision
MISSING = ("this mmcv has no operator {}, because it was built without a compiler. Install mmcv "
           'with compiled operators: "make env COMPILED_MMCV=1" in a clone of Colonnade, or '
           '"pip install --force-reinstall --no-deps --no-build-isolation --no-cache-dir '
           '--no-binary onedl-mmcv onedl-mmcv==2.3.6" (needs a C++ compiler, and nvcc for a GPU)')


def promote(x: Tensor) -> Tensor:
    """Return a tensor in float32 or higher precision; half precision is only for storage."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
