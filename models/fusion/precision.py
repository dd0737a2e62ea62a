"""Weights in half precision once, where autocast would cast them in every call."""
from __future__ import annotations

from collections import Counter

import torch
from mmcv.cnn.bricks import wrappers
from torch import nn

from colonnade.backbones import ColumnarBackbone
from colonnade.backbones.kernels.fast_path import is_plain

#: layers whose products autocast computes in half precision; mmcv's are torch's of new versions
LAYERS = (nn.Linear, nn.Conv2d, nn.ConvTranspose2d, wrappers.Linear, wrappers.Conv2d,
          wrappers.ConvTranspose2d)


def cast_weights(model: nn.Module, dtype: torch.dtype) -> list[str]:
    """Cast the weights and biases of linear layers and convolutions; norms stay as they are.

    Backbones of ours keep theirs, which their kernels read. Layers that are replaced or hooked
    are left alone, as are those with a parameter that another module has too.

    Args:
        model: To be evaluated under autocast in ``dtype`` alone; changed in place.
        dtype: A half type.
    """
    inside = {id(m) for backbone in model.modules() if isinstance(backbone, ColumnarBackbone)
              for m in backbone.modules()}  # yapf: disable
    owners = Counter(id(parameter) for module in model.modules()
                     for parameter in own_parameters(module))  # yapf: disable
    layers = [
        module for module in model.modules()
        if id(module) not in inside and is_plain(module, *LAYERS) and all(
            parameter.dtype == torch.float32 and owners[id(parameter)] == 1
            for parameter in own_parameters(module))
    ]
    for layer in layers:
        layer.to(dtype)
    if not layers:
        return []
    name = str(dtype).removeprefix('torch.')
    return [f'weights of {len(layers)} layers outside the backbone are {name}']


def own_parameters(module: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of a module, without those of its children; shared ones repeatedly."""
    named = module.named_parameters(recurse=False, remove_duplicate=False)
    return [parameter for _, parameter in named]
