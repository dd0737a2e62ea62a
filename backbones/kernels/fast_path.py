"""Conditions of the fast path: which layers kernels may skip because their weights are all of them.

Kernels read the weights of several layers and compute their result without calling them. LoRA and
quantization replace these layers or their tensors. Pruning, older weight norms and feature
extractors register hooks. Such layers are called, as in timm's blocks.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from timm.layers import DropPath, GluMlp, LayerNorm, Mlp, RmsNorm, SwiGLU
from timm.models.mlp_mixer import Affine
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .packed import PackedDepthwise, PackedLinear
from .private_torch import (get_children, get_parameters, has_global_hooks, has_hooks,
                            is_transforming)

LINEAR = (nn.Linear, PackedLinear)
#: checks of a module's layers by their names; '' is the module itself
Parts = Mapping[str, Callable[[nn.Module], bool]]


def is_hooked(module: nn.Module) -> bool:
    """Return True if calling a module does more than its class defines."""
    return has_hooks(module) or 'forward' in module.__dict__


def is_exact_type(module: nn.Module, *kinds: type[nn.Module]) -> bool:
    """Return True if a module is exactly of one of these classes, unhooked, with torch tensors."""
    if type(module) not in kinds or is_hooked(module):
        return False
    for tensor in get_parameters(module).values():
        if type(tensor) is not nn.Parameter and is_traceable_wrapper_subclass(tensor):
            return False
    return True


def has_bias(module: nn.Module) -> bool:
    """Return True if a layer has a bias; replicas and shards do not register theirs."""
    return get_parameters(module).get('bias', True) is not None


def is_linear(module: nn.Module) -> bool:
    return is_exact_type(module, *LINEAR) and has_bias(module)


def is_gelu(module: nn.Module) -> bool:
    return is_exact_type(module, nn.GELU) and module.approximate == 'none'


def is_noop(module: nn.Module) -> bool:
    """Return True if a module returns its input: an identity, or dropout that is off."""
    if not is_exact_type(module, nn.Dropout, nn.Identity):
        return False
    return type(module) is nn.Identity or not (module.training and module.p)


def is_drop_path(module: nn.Module) -> bool:
    return is_exact_type(module, DropPath, nn.Identity)


def is_token_norm(module: nn.Module) -> bool:
    """Return True if a module normalizes each token separately."""
    return is_exact_type(module, nn.LayerNorm, LayerNorm, RmsNorm, Affine, nn.Identity)


def is_affine(module: nn.Module) -> bool:
    """Return True if a module is a norm whose scale and shift can be folded into another layer."""
    return is_exact_type(module, nn.LayerNorm, LayerNorm, Affine) and all(
        tensor is not None for tensor in get_parameters(module).values())


def is_gated_mlp(module: nn.Module) -> bool:
    """Return True if a module is timm's gated MLP of layers that act on each token separately."""
    layers = (*LINEAR, nn.SiLU, nn.Dropout, nn.Identity, nn.LayerNorm, LayerNorm, RmsNorm)
    return (is_exact_type(module, GluMlp, SwiGLU) and not is_fast_path_disabled()
            and all(is_exact_type(layer, *layers) for layer in module.children()))


def is_convolution(module: nn.Module, *, stride: int) -> bool:
    """Return True if a module is a zero-padded convolution that keeps the size at stride 1."""
    if not is_exact_type(module, nn.Conv2d):
        return False
    height, width = module.kernel_size
    return (module.stride == (stride, stride) and module.padding == (height // 2, width // 2)
            and module.dilation == (1, 1) and module.padding_mode == 'zeros')


def is_depthwise(module: nn.Module) -> bool:
    """Return True if a module is a depthwise convolution that keeps the grid."""
    return is_exact_type(
        module, PackedDepthwise) or (is_convolution(module, stride=1) and has_bias(module)
                                     and module.groups == module.in_channels == module.out_channels)


NORM: Parts = {'': is_affine}
MLP: Parts = {
    '': lambda module: is_exact_type(module, Mlp),
    'fc1': is_linear,
    'act': is_gelu,
    'drop1': is_noop,
    'norm': is_noop,
    'fc2': is_linear,
    'drop2': is_noop,
}


def is_transformed() -> bool:
    """Return True under a ``torch.func`` transform, which kernels do not support."""
    return not torch.compiler.is_compiling() and is_transforming()


def is_fast_path_disabled() -> bool:
    """Return True if no layer may be skipped: under global hooks or ``torch.func`` transforms."""
    return has_global_hooks() or is_transformed()


def is_unobserved(module: nn.Module, *kinds: type[nn.Module]) -> bool:
    """Return True if a module is exactly of these classes, and no hook keeps its output."""
    return is_exact_type(module, *kinds) and not is_fast_path_disabled()


def find_modified_layer(module: nn.Module, parts: Parts) -> str | None:
    """Return the name of the first part that must be called, or None for the fast path."""
    if is_fast_path_disabled():
        return next(iter(parts))
    children = get_children(module)
    for name, check in parts.items():
        if not check(children.get(name) if name else module):
            return name
    return None


def find_modified_sublayer(module: nn.Module, children: Mapping[str, Parts]) -> str | None:
    """Return the path of the first modified part of several children, or None."""
    for child, parts in children.items():
        if (name := find_modified_layer(module.get_submodule(child), parts)) is not None:
            return f'{child}.{name}'.rstrip('.')
    return None


def add_branch(x: Tensor, branch: Tensor, scale: Tensor | None, drop_path: nn.Module) -> Tensor:
    """Return ``x + drop_path(scale * branch)`` of tokens; ``branch`` is not overwritten."""
    return x + drop_path(branch if scale is None else scale * branch)
