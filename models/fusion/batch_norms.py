"""Batch norms folded into the convolutions before them."""
from __future__ import annotations

from mmcv.cnn import ConvModule
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from colonnade.backbones.kernels.fast_path import is_exact_type
from colonnade.backbones.kernels.norms import is_fixed


def fold_batch_norms(model: nn.Module) -> list[str]:
    """Fold the batch norms of mmcv's plain ``ConvModule``, for evaluation.

    Each gets a convolution of its own: levels of RTMDet's head share theirs, and have norms of
    their own.
    """
    count = 0
    for module in model.modules():
        if can_be_folded(module):
            module.conv = fuse_conv_bn_eval(module.conv, module.norm)
            module.add_module(module.norm_name, nn.Identity())
            module.efficient_conv_bn_eval_forward = None
            count += 1
        if is_exact_type(module, ConvModule) and module.order[-2:] == ('norm', 'act'):
            overwrite_by_relu(module)
    return [f'{count} batch norms folded into convolutions'] if count else []


def overwrite_by_relu(module: ConvModule) -> None:
    """Let ReLU overwrite what a convolution and its folded norm gave, which nobody else keeps."""
    alone = module.norm is None or is_exact_type(module.norm, nn.Identity)
    if module.with_activation and alone and is_exact_type(module.conv, nn.Conv2d):
        if is_exact_type(module.activate, nn.ReLU):
            module.activate.inplace = True


def can_be_folded(module: nn.Module) -> bool:
    """Whether it is a convolution and a batch norm behind it, which nothing else sees."""
    return (is_exact_type(module, ConvModule) and module.order == ('conv', 'norm', 'act')
            and module.with_norm and is_fixed(module.norm) and is_exact_type(module.conv, nn.Conv2d)
            and not module.conv.training)
