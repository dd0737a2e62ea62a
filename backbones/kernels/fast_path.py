"""Which layers a kernel may skip: those whose weights are all there is to them.

Kernels read the weights of several layers and compute what these would, without calling them.
LoRA and quantisation replace these layers or their tensors. Pruning, older weight norms and feature
extractors put hooks on them. Such layers are called, as in timm's blocks.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from timm.layers import DropPath, GluMlp, LayerNorm, Mlp, RmsNorm, SwiGLU
from timm.models.mlp_mixer import Affine
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .packed import PackedDepthwise, PackedLinear
from .private_torch import all_have_hooks, children_of, has_hooks, is_transforming, parameters_of

Check = Callable[[nn.Module], bool]
LINEAR = (nn.Linear, PackedLinear)
Parts = Mapping[str, Check]  # of a module, by name; '' is the module itself


def is_hooked(module: nn.Module) -> bool:
    """Whether calling a module does more than its class says."""
    return has_hooks(module) or 'forward' in module.__dict__


def is_plain(module: nn.Module, *kinds: type[nn.Module]) -> bool:
    """Whether a module is exactly of one of these classes, not hooked, with tensors of torch."""
    if type(module) not in kinds or is_hooked(module):
        return False
    for tensor in parameters_of(module).values():
        if type(tensor) is not nn.Parameter and is_traceable_wrapper_subclass(tensor):
            return False
    return True


def has_bias(module: nn.Module) -> bool:
    """Whether there is one; replicas and shards have parameters that are not registered."""
    return parameters_of(module).get('bias', True) is not None


def is_linear(module: nn.Module) -> bool:
    return is_plain(module, *LINEAR) and has_bias(module)


def is_gelu(module: nn.Module) -> bool:
    return is_plain(module, nn.GELU) and module.approximate == 'none'


def is_noop(module: nn.Module) -> bool:
    """Whether it gives back what it gets: no dropout, or one that is off."""
    if not is_plain(module, nn.Dropout, nn.Identity):
        return False
    return type(module) is nn.Identity or not (module.training and module.p)


def is_drop_path(module: nn.Module) -> bool:
    return is_plain(module, DropPath, nn.Identity)


def is_token_norm(module: nn.Module) -> bool:
    """Whether it normalises each token by itself."""
    return is_plain(module, nn.LayerNorm, LayerNorm, RmsNorm, Affine, nn.Identity)


def is_affine(module: nn.Module) -> bool:
    """Whether it is a norm with factors and summands that can be folded into another layer."""
    return is_plain(module, nn.LayerNorm, LayerNorm, Affine) and all(
        tensor is not None for tensor in parameters_of(module).values())


def is_gated_mlp(module: nn.Module) -> bool:
    """Whether it is timm's MLP with gates, of layers that take each token by itself."""
    layers = (*LINEAR, nn.SiLU, nn.Dropout, nn.Identity, nn.LayerNorm, LayerNorm, RmsNorm)
    return (is_plain(module, GluMlp, SwiGLU) and not is_fast_path_disabled()
            and all(is_plain(layer, *layers) for layer in module.children()))


def is_convolution(module: nn.Module, *, stride: int) -> bool:
    """Whether it is a convolution with as many zeros around as keep the size at stride 1."""
    if not is_plain(module, nn.Conv2d):
        return False
    high, wide = module.kernel_size
    return (module.stride == (stride, stride) and module.padding == (high // 2, wide // 2)
            and module.dilation == (1, 1) and module.padding_mode == 'zeros')


def is_depthwise(module: nn.Module) -> bool:
    """Whether it is a convolution of each channel by itself that keeps the grid."""
    return is_plain(
        module, PackedDepthwise) or (is_convolution(module, stride=1) and has_bias(module)
                                     and module.groups == module.in_channels == module.out_channels)


NORM: Parts = {'': is_affine}
MLP: Parts = {
    '': lambda module: is_plain(module, Mlp),
    'fc1': is_linear,
    'act': is_gelu,
    'drop1': is_noop,
    'norm': is_noop,
    'fc2': is_linear,
    'drop2': is_noop,
}


def is_fast_path_disabled() -> bool:
    """Whether no layer may be skipped: under hooks on all modules, or transforms of torch.func."""
    return all_have_hooks() or is_transformed()


def is_unobserved(module: nn.Module, *kinds: type[nn.Module]) -> bool:
    """Whether nobody else keeps what a module gives: it is plain, and no hook sees all modules."""
    return is_plain(module, *kinds) and not is_fast_path_disabled()


def find_modified_layer(module: nn.Module, parts: Parts) -> str | None:
    """The first part of a module that must be called; None if a kernel may skip them all."""
    if is_fast_path_disabled():
        return next(iter(parts))
    children = children_of(module)
    for name, check in parts.items():
        if not check(children.get(name) if name else module):
            return name
    return None


def find_modified_sublayer(module: nn.Module, children: Mapping[str, Parts]) -> str | None:
    """As :func:`find_modified_layer`, of several children; the part's name begins with the child's."""
    for child, parts in children.items():
        if (name := find_modified_layer(module.get_submodule(child), parts)) is not None:
            return f'{child}.{name}'.rstrip('.')
    return None


def is_transformed() -> bool:
    """Whether a transform of ``torch.func`` is at work, which kernels do not support."""
    return not torch.compiler.is_compiling() and is_transforming()


def add_branch(x: Tensor, branch: Tensor, scale: Tensor | None, drop_path: nn.Module) -> Tensor:
    """``x + drop_path(scale * branch)``, as timm's blocks; a branch that hooks saw stays as it is.

    Args:
        x: Tokens ``(B, N, C)``.
        branch: The same shape.
        scale: LayerScale ``(C)``; ``None`` is 1.
        drop_path: Stochastic depth.
    """
    return x + drop_path(branch if scale is None else scale * branch)
