"""What all operators share."""
from __future__ import annotations

import torch
import torchvision  # noqa: F401, registers its operators
from torch import Tensor

OPERATORS = torch.ops.torchvision
MISSING = ("mmcv's operator {} is not in this mmcv, which was built without a compiler. Install it "
           'with its compiled operators: "make env COMPILED_MMCV=1" in a clone of Colonnade, or '
           '"pip install --force-reinstall --no-deps --no-build-isolation --no-cache-dir '
           '--no-binary onedl-mmcv onedl-mmcv==2.3.6" (needs a C++ compiler, for a GPU nvcc, too)')


def widened(x: Tensor) -> Tensor:
    """In float32, or as it is if it is more precise: half precision is for storage only."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
