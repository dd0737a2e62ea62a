"""XCiT: Cross-Covariance Image Transformers (arXiv 2106.09681)."""
from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from mmengine.registry import MODELS
from timm.models.xcit import XCABlock, Xcit
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from .checkpoint_files import State
from .columnar import ColumnarBackbone
from .cross_covariance import AttentionWeights, cross_covariance_attention
from .fusing import fold_norm, fold_scale
from .grid_cache import GridCache
from .kernels import (add, depthwise_convolution, feed_forward, gelu, gelu_convolution, scaled,
                      stores_gradients)
from .norms import fold_batch_norm, fold_batch_norm_into, is_fixed, normalise, running_stats_kept
from .operators import as_image, as_tokens

COLUMNS = ('embed_dim', 'depth', 'num_heads', 'layer_scale_init_value', 'tokens_norm')
SIZES = {  # the paper's Table 1; the last two columns from the authors' code
    'nano_12':   (128, 12,  4, 1.0,  False),
    'tiny_12':   (192, 12,  4, 1.0,  True),
    'tiny_24':   (192, 24,  4, 1e-5, True),
    'small_12':  (384, 12,  8, 1.0,  True),
    'small_24':  (384, 24,  8, 1e-5, True),
    'medium_24': (512, 24,  8, 1e-5, True),
    'large_24':  (768, 24, 16, 1e-5, True),
}  # yapf: disable
PATCH_SIZES = (16, 8)

STEM_PIXELS = 2**18  # of images go through the stem together where no gradients are wanted


class XCiTBlock(XCABlock):
    """timm's block, with less reading and writing of memory; tokens are in channels-last order.

    LayerScale is folded into the weights of the layer before it, where it costs next to nothing and
    leaves nothing to store for gradients.
    """

    def forward(self, x: Tensor, height: int, width: int) -> Tensor:
        """Tokens ``(B, N, C)`` of a ``height`` by ``width`` grid."""
        x = add(x, self.drop_path1(self._attend(self.norm1(x))))
        x = add(x, self.drop_path3(self._interact(self.norm3(x), height)))
        return feed_forward(x, self.norm2, self.mlp, self.gamma2, self.drop_path2)

    def _activate(self, y: Tensor) -> Tensor:
        """GELU and norm of local patch interaction; for gradients the input alone is stored."""
        norm, image = self.local_mp.bn, as_image(y)
        if not stores_gradients(y):
            return as_tokens(normalise(norm, gelu(image)))
        return as_tokens(
            checkpoint(
                lambda x: norm(F.gelu(x)),
                image,
                use_reentrant=False,
                preserve_rng_state=False,
                context_fn=lambda: (nullcontext(), running_stats_kept(norm))))

    def fuse(self) -> None:
        """Fold what follows or precedes a linear layer into it, see :mod:`.fusing`."""
        fold_norm(self.norm1, self.attn.qkv)
        fold_norm(self.norm2, self.mlp.fc1)
        fold_scale(self, 'gamma1', self.attn.proj)
        fold_scale(self, 'gamma2', self.mlp.fc2)
        fold_scale(self, 'gamma3', self.local_mp.conv2)

    def _attend(self, y: Tensor) -> Tensor:
        """Cross-covariance attention and the first LayerScale."""
        qkv, proj = self.attn.qkv, scaled(self.gamma1, self.attn.proj)
        return cross_covariance_attention(
            y, AttentionWeights(qkv.weight, qkv.bias, self.attn.temperature, *proj))

    def _interact(self, y: Tensor, height: int) -> Tensor:
        """Local patch interaction (section 3.3) and the third LayerScale."""
        layers = self.local_mp
        y = depthwise_convolution(y, layers.conv1.weight, layers.conv1.bias, height)
        return depthwise_convolution(self._activate(y), *scaled(self.gamma3, layers.conv2), height)


def copied_input(_: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
    """A hook for layers whose input is a view, which inductor cannot store for gradients."""
    return (inputs[0].contiguous(), )


@MODELS.register_module()
class XCiT(ColumnarBackbone):
    """XCiT's trunk without its class-attention stage, wrapping timm's modules.

    Its convolutional stem gives a ``ceil`` grid and its positions are Fourier features of the grid,
    so any image of at least one patch will do. See :class:`ColumnarBackbone` for the arguments.
    ``arch`` is one of ``{nano,tiny,small}_12_p{16,8}``, ``{tiny,small,medium,large}_24_p{16,8}``,
    or a dict with ``embed_dim``, ``depth``, ``num_heads``, ``patch_size`` and optionally
    ``layer_scale_init_value`` (default 1.0) and ``tokens_norm`` (default True: class attention,
    which is no part of the trunk, normalises all its tokens).
    """

    arch_settings = {
        f'{size}_p{patch_size}': dict(zip(COLUMNS, row, strict=True), patch_size=patch_size)
        for size, row in SIZES.items()
        for patch_size in PATCH_SIZES
    }
    arch_defaults = dict(layer_scale_init_value=1.0, tokens_norm=True)
    class_attention_name = 'cls_attn_blocks'

    def __init__(self, arch: str | Mapping[str, Any] = 'small_12_p16', **kwargs: Any) -> None:
        super().__init__(arch, **kwargs)
        self._positions = GridCache()

    def _build(self,
               num_blocks: int,
               *,
               drop_path_rate: float = 0.,
               num_classes: int | None = None) -> Xcit:
        common = dict(
            num_heads=self.settings['num_heads'], eta=self.settings['layer_scale_init_value'])
        trunk = Xcit(
            patch_size=self.patch_size,
            embed_dim=self.embed_dim,
            depth=0,
            tokens_norm=self.settings['tokens_norm'],
            num_classes=num_classes or 0,
            cls_attn_layers=0 if num_classes is None else 2,
            **common)
        trunk.pos_embed.token_projection.register_forward_pre_hook(copied_input)
        trunk.blocks.extend(
            XCiTBlock(
                self.embed_dim,
                qkv_bias=True,
                drop_path=drop_path_rate,
                norm_layer=partial(nn.LayerNorm, eps=1e-6),
                **common).apply(trunk._init_weights) for _ in range(num_blocks))
        return trunk

    @classmethod
    def check_settings(cls, settings: Mapping[str, Any]) -> None:
        """Raise a ValueError for an architecture that cannot be built."""
        super().check_settings(settings)
        if settings['patch_size'] not in PATCH_SIZES:
            raise ValueError(f'patch_size must be 8 or 16, got {settings["patch_size"]}')
        if settings['embed_dim'] % 8:
            raise ValueError('embed_dim must be a multiple of 8 for the stem, got '
                             f'{settings["embed_dim"]}')

    @classmethod
    def infer_arch(cls, state: State) -> dict[str, int]:
        """Width, depth, heads and patch size that a state dict under timm's names shows."""
        stem = [key for key in state if re.fullmatch(r'patch_embed\.proj\.\d+\.0\.weight', key)]
        blocks = {key.split('.')[1] for key in state if key.startswith('blocks.')}
        return dict(
            embed_dim=len(state['blocks.0.gamma1']),
            depth=len(blocks),
            num_heads=len(state['blocks.0.attn.temperature']),
            patch_size=2**len(stem))

    @staticmethod
    def attend_to_class(blocks: nn.ModuleList, cls_token: Tensor, x: Tensor) -> Tensor:
        x = torch.cat((cls_token, x), dim=1)
        for block in blocks:
            x = block(x)
        return x[:, :1]

    def train(self, mode: bool = True) -> XCiT:
        self._positions.clear()
        return super().train(mode)

    def _embed(self, img: Tensor) -> tuple[Tensor, tuple[int, int]]:
        x = self._run_stem(img)
        grid = x.shape[-2:]
        x = x.permute(0, 2, 3, 1).reshape(len(x), -1, self.embed_dim)  # (B, N, C)
        return self._embed_positions(grid) + x, grid

    def _run_stem(self, img: Tensor) -> Tensor:
        """``(B, 3, H, W)`` to ``(B, C, h, w)``, in strips where no gradients are wanted."""
        norms = [layer[1] for layer in self.patch_embed.proj if isinstance(layer, nn.Sequential)]
        local = all(is_fixed(norm) or isinstance(norm, nn.Identity) for norm in norms)
        # without data there is no memory to save, and strips would count rows twice
        whole = (not local or img.is_meta or torch.is_grad_enabled()
                 or torch.compiler.is_compiling())
        height = -(-img.shape[2] // self.patch_size)
        rows = max(1, STEM_PIXELS // (len(img) * img.shape[3] * self.patch_size))
        if whole or rows >= height:
            return self._run_strip(img, 0, height)
        tops = range(0, height, rows)
        return torch.cat([self._run_strip(img, top, min(top + rows, height)) for top in tops], 2)

    def _run_strip(self, img: Tensor, top: int, bottom: int) -> Tensor:
        """Rows ``top`` to ``bottom`` of the stem's output, from the rows of the image they need."""
        convolutions = [
            layer for layer in self.patch_embed.proj if isinstance(layer, nn.Sequential)
        ]
        heights = [-(-img.shape[2] // 2**index) for index in range(len(convolutions))]
        paddings = []
        for height in reversed(heights):  # rows of the input that rows of the output need
            top, bottom = 2 * top - 1, 2 * bottom
            paddings.append((max(-top, 0), max(bottom - height, 0)))
            top, bottom = max(top, 0), min(bottom, height)
        x = img[:, :, top:bottom].contiguous(memory_format=torch.channels_last)
        for index, layer in enumerate(convolutions):
            x = self._convolve(*layer, x, paddings.pop(), after_gelu=index > 0)
        return x

    @staticmethod
    def _convolve(conv: nn.Conv2d, norm: nn.Module, x: Tensor, padding: tuple[int, int], *,
                  after_gelu: bool) -> Tensor:
        """GELU, convolution and norm, the last two in one where the norm is fixed.

        Not in half precision, where a product of weights loses more than it saves.

        Args:
            conv: 3 x 3.
            norm: What follows it.
            x: ``(B, C, H, W)``.
            padding: Rows of zeros above and below.
            after_gelu: Whether GELU comes first.
        """
        weight, bias = conv.weight, conv.bias
        exact = x.dtype in (torch.float32, torch.float64) and x.dtype == weight.dtype
        fold = exact and is_fixed(norm)
        if fold:
            weight, bias = fold_batch_norm(conv, norm)
        if after_gelu and padding == (1, 1):
            x = gelu_convolution(x, weight, bias, stride=2, padding=1)
        else:
            x = gelu(x) if after_gelu else x
            if any(padding):  # F.pad copies even for nothing
                x = F.pad(x, (0, 0, *padding))
            x = F.conv2d(x, weight, bias, stride=2, padding=(0, 1))
        return x if fold else norm(x)

    def _embed_positions(self, grid: tuple[int, int]) -> Tensor:
        """``(1, N, C)``, the same tensor as long as neither grid nor parameters change."""

        def embed() -> Tensor:
            return self.pos_embed(1, *grid).flatten(2).transpose(1, 2).contiguous()

        parameters = tuple(self.pos_embed.parameters())
        learning = torch.is_grad_enabled() and any(p.requires_grad for p in parameters)
        if learning or torch.compiler.is_compiling():
            return embed()
        return self._positions.get(grid, parameters, embed)

    def _fuse_stem(self) -> None:
        for layer in self.patch_embed.proj:
            if isinstance(layer, nn.Sequential) and is_fixed(layer[1]):
                fold_batch_norm_into(layer)

    def _run_block(self, block: nn.Module, x: Tensor, grid: tuple[int, int]) -> Tensor:
        return block(x, *grid)
