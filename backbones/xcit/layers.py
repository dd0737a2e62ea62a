"""XCiT's block with less memory traffic on a CPU.

Shapes: ``B`` images, ``N = h w`` tokens, ``C`` width.
"""
from __future__ import annotations

from contextlib import nullcontext

import torch
from timm.models.xcit import LPI, XCA, XCABlock
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ..kernels.custom_ops import as_image, as_tokens
from ..kernels.devices import should_use_cpu_forms
from ..kernels.fast_path import (MLP, NORM, Parts, add_branch, find_modified_layer,
                                 find_modified_sublayer, is_depthwise, is_drop_path, is_exact_type,
                                 is_gelu, is_hooked, is_linear, is_noop)
from ..kernels.folding import can_be_packed, fold_norm, fold_scale
from ..kernels.layers import (add, call_depthwise, depthwise_convolution, feed_forward,
                              fold_where_cheaper, gelu, should_rerun, should_store_gradients)
from ..kernels.norms import FixedNorm, RunningStatsKept, can_rerun_locally, is_fixed, normalize
from ..kernels.packed import PackedDepthwise, PackedLinear
from .cross_covariance import AttentionWeights, cross_covariance_attention

XCA_PARTS: Parts = {
    '': lambda module: is_exact_type(module, XCA),
    'qkv': is_linear,
    'attn_drop': is_noop,
    'proj': is_linear,
    'proj_drop': is_noop,
}
LPI_PARTS: Parts = {
    '': lambda module: is_exact_type(module, LPI),
    'conv1': is_depthwise,
    'act': is_gelu,
    'bn': lambda module: not is_hooked(module),
    'conv2': is_depthwise,
}


class XCiTBlock(XCABlock):
    """timm's block with less memory traffic; tokens are channels last.

    An accelerator calls all layers but those of attention. On a CPU, LayerScale is folded into the
    weights of the layer before it, except in float16, which would lose it. Folding is cheap and
    leaves nothing to store for gradients. Modified layers are called, see
    :mod:`..kernels.fast_path`.
    """

    packable = ('mlp.fc1', 'mlp.fc2', 'local_mp.conv1', 'local_mp.conv2')
    packable_and_read = ('attn.qkv', )  # read by attend_by_covariance()

    def forward(self, x: Tensor, height: int, width: int) -> Tensor:
        """Run the block on tokens ``(B, N, C)`` of a grid."""
        if find_modified_layer(self.attn, XCA_PARTS) is None and is_drop_path(self.drop_path1):
            x = self._attend(x)
        else:
            x = add_branch(x, self.attn(self.norm1(x)), self.gamma1, self.drop_path1)
        fast = should_use_cpu_forms(x) and is_drop_path(self.drop_path3)
        if fast and find_modified_layer(self.local_mp, LPI_PARTS) is None:
            x = self._interact(x, height)
        else:
            y = self.local_mp(self.norm3(x), height, width)
            x = add_branch(x, y, self.gamma3, self.drop_path3)
        return feed_forward(x, self.norm2, self.mlp, self.gamma2, self.drop_path2)

    def get_modified_layer(self) -> str | None:
        """Return the path of the first layer that :meth:`fuse` cannot fold, or None."""
        return find_modified_sublayer(self, {
            'norm1': NORM,
            'attn': XCA_PARTS,
            'local_mp': LPI_PARTS,
            'norm2': NORM,
            'mlp': MLP,
        })

    def fuse(self, dtype: torch.dtype) -> None:
        """Fold norms and LayerScale into linear layers, see :mod:`..kernels.folding`."""
        fold_norm(self.norm1, self.attn.qkv)
        fold_norm(self.norm2, self.mlp.fc1)
        fold_scale(self, 'gamma1', self.attn.proj, dtype)
        fold_scale(self, 'gamma2', self.mlp.fc2, dtype)
        fold_scale(self, 'gamma3', self.local_mp.conv2, dtype)
        if dtype == torch.float32:
            proj = self.attn.proj  # many tokens read its weights in float32
            if can_be_packed(proj.weight, dtype):
                self.attn.proj = PackedLinear(proj.weight, proj.bias, dtype, keep=True)
            if is_fixed(self.local_mp.bn):
                self.local_mp.bn = FixedNorm(self.local_mp.bn)

    def _attend(self, x: Tensor) -> Tensor:
        """Add the branch of cross-covariance attention (section 3.2) to ``x``."""
        layers, y = self.attn, self.norm1(x)
        weight, bias, scale = fold_where_cheaper(self.gamma1, layers.proj, y)
        packed = layers.proj if isinstance(layers.proj, PackedLinear) else None
        weights = AttentionWeights(layers.qkv, layers.temperature, weight, bias, packed)
        return add(x, self.drop_path1(cross_covariance_attention(y, weights)), scale)

    def _interact(self, x: Tensor, height: int) -> Tensor:
        """Add local patch interaction (section 3.3) to ``x``, which may be overwritten."""
        layers = self.local_mp
        y = self._activate(call_depthwise(layers.conv1, self.norm3(x), height))
        if isinstance(layers.conv2, PackedDepthwise):
            return as_tokens(layers.conv2.forward_add(as_image(x, height), as_image(y, height)))
        weight, bias, scale = fold_where_cheaper(self.gamma3, layers.conv2, y)
        y = depthwise_convolution(y, weight, bias, height)
        return add(x, self.drop_path3(y), scale)

    def _activate(self, y: Tensor) -> Tensor:
        """Apply GELU and norm of local patch interaction; only the input is stored for gradients.

        Of a small input all is stored, since that takes less time. A synchronized norm is not
        rerun, since that would need all processes.
        """
        norm, image = self.local_mp.bn, as_image(y)
        if not should_store_gradients(y):
            return as_tokens(normalize(norm, gelu(image)))
        if not should_rerun(y) or not can_rerun_locally(norm):
            return as_tokens(norm(F.gelu(image)))
        return as_tokens(
            checkpoint(
                lambda x: norm(F.gelu(x)),
                image,
                use_reentrant=False,
                preserve_rng_state=False,
                context_fn=lambda: (nullcontext(), RunningStatsKept(norm))))
