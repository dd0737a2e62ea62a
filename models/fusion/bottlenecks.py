"""mmseg's heads of UperNet and PSPNet with :class:`.UpsamplingConvolution` as bottlenecks."""
from __future__ import annotations

from collections.abc import Sequence

from mmcv.cnn import ConvModule
from mmseg.models.decode_heads.psp_head import PPM, PSPHead
from mmseg.models.decode_heads.uper_head import UPerHead
from mmseg.models.utils import resize
from torch import Tensor, nn

from colonnade.backbones.kernels.fast_path import is_plain

from .upsampling_convolution import UpsamplingConvolution, is_mergeable


class FusedPSPHead(PSPHead):
    """PSPNet's, whose bottleneck takes the pooled maps as they are."""

    def _forward_feature(self, inputs: Sequence[Tensor]) -> Tensor:
        x = self._transform_inputs(inputs)
        return self.bottleneck([x, *(branch(x) for branch in self.psp_modules)])


class FusedUPerHead(UPerHead):
    """UperNet's, whose bottlenecks take pooled maps and levels as they are."""

    def psp_forward(self, inputs: Sequence[Tensor]) -> Tensor:
        """The coarsest level, with what is pooled from it."""
        x = inputs[-1]
        return self.bottleneck([x, *(branch(x) for branch in self.psp_modules)])

    def _forward_feature(self, inputs: Sequence[Tensor]) -> Tensor:
        *finer, _ = inputs = self._transform_inputs(inputs)
        coarse = self.psp_forward(inputs)
        levels = [coarse]  # coarse to fine
        sums = zip(finer[::-1], self.lateral_convs[::-1], self.fpn_convs[::-1], strict=True)
        for x, lateral, conv in sums:
            own = lateral(x)
            coarse = own + resize(
                coarse, own.shape[2:], mode='bilinear', align_corners=self.align_corners)
            levels.append(conv(coarse))
        return self.fpn_bottleneck(levels[::-1])


def merge_bottlenecks(model: nn.Module) -> list[str]:
    """Let the heads of UperNet and PSPNet convolve before they upsample, in place.

    Returns:
        A line for each.
    """
    return [
        f'{type(part).__name__}: bottlenecks before upsampling' for part in list(model.modules())
        if merge_head(part)
    ]


def merge_head(head: nn.Module) -> bool:
    """Merge the bottlenecks of a head, if it is one of these and as it was built."""
    if not is_plain(head, PSPHead, UPerHead) or not is_plain(head.psp_modules, PPM):
        return False
    pooled = [head.psp_modules.in_channels] + [head.channels] * len(head.psp_modules)
    widths = {'bottleneck': pooled}
    if type(head) is UPerHead:
        widths['fpn_bottleneck'] = [head.channels] * len(head.in_channels)
    bottlenecks = [getattr(head, name) for name in widths]
    if not all(is_mergeable_module(module) for module in bottlenecks):
        return False
    for module, channels in zip(bottlenecks, widths.values(), strict=True):
        module.conv = UpsamplingConvolution(module.conv, channels, head.align_corners)
    head.__class__ = FusedUPerHead if type(head) is UPerHead else FusedPSPHead
    return True


def is_mergeable_module(module: nn.Module) -> bool:
    """Whether its convolution comes first and can be merged."""
    return (is_plain(module, ConvModule) and module.order[0] == 'conv'
            and not module.with_explicit_padding and is_mergeable(module.conv)
            and module.efficient_conv_bn_eval_forward is None)
