"""Replacement of a model's modules by subclasses."""
from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TypeVar

from mmcv.cnn import ConvModule
from torch import nn

from colonnade.backbones.kernels.fast_path import is_exact_type

M = TypeVar('M', bound=nn.Module)


def copy_as(kind: type[M], module: nn.Module, **attributes: object) -> M:
    """Return an instance of a subclass with the state of a module and additional attributes.

    The ``__init__`` of the subclass is not called. Both share their state, so only one should be
    used afterwards.
    """
    twin: M = object.__new__(kind)
    twin.__setstate__(vars(module) | attributes)
    return twin


def replace_modules(model: nn.Module, replacements: Mapping[nn.Module, nn.Module]) -> None:
    """Replace modules below a model, wherever they occur."""
    for path, module in list(model.named_modules(remove_duplicate=False)):
        if path and module in replacements:
            model.set_submodule(path, replacements[module])


def copy_with_subclasses(model: nn.Module, kinds: Mapping[type[nn.Module],
                                                          type[nn.Module]]) -> nn.Module:
    """Copy a model with the same tensors, with modules of exact classes replaced by subclasses."""
    tensors = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    model = copy.deepcopy(model, tensors)
    modules = [module for module in model.modules() if type(module) in kinds]
    replace_modules(model, {module: copy_as(kinds[type(module)], module) for module in modules})
    return model


def can_replace_conv(module: nn.Module) -> bool:
    """Return True if a ConvModule passes its input to its convolution, unseen by hooks."""
    return (is_exact_type(module, ConvModule) and module.order[0] == 'conv'
            and not module.with_explicit_padding and module.efficient_conv_bn_eval_forward is None)
