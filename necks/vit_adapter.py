"""Vision Transformer Adapter for Dense Predictions (ViT-Adapter, arXiv 2205.08534) as a neck.

Shapes: ``B`` images, ``P`` prefix tokens, ``N = h w`` patches, ``M`` spatial tokens, ``C`` width.
"""
from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from mmcv.cnn import build_norm_layer
from mmcv.ops.multi_scale_deform_attn import (MultiScaleDeformableAttention,
                                              MultiScaleDeformableAttnFunction,
                                              multi_scale_deformable_attn_pytorch)
from mmengine.model import BaseModule
from mmengine.registry import MODELS
from timm.layers import DropPath
from torch import Tensor, nn
from torch.nn import functional as F

from colonnade.backbones.deferred_blocks import DeferredBlocks
from colonnade.backbones.kernels.devices import has_mmcv_kernels
from colonnade.common.errors import UserError

from .pyramid import build_fpn

Grid = tuple[int, int]
NORM_EPS = 1e-6


@MODELS.register_module()
class ViTAdapter(BaseModule):
    """Convolutional branch beside a backbone, whose blocks it runs, and four levels of both.

    A spatial prior (section 3.3) computes maps of strides 4, 8, 16 and 32 by convolutions. Before
    each group of blocks, an injector adds them to the patches by deformable attention (section
    3.4). After it, an extractor adds the patches to the tokens of strides 8, 16 and 32 alike. The
    levels are the sums of both branches, with batch norms. Prefix tokens take part in the blocks
    only.

    Args:
        in_channels: Width ``C`` of the backbone, which needs ``defer_blocks=True``.
        num_heads: Heads of the deformable attention, of ``C / num_heads`` channels.
        num_points: Points that each head samples from each map.
        stem_channels: Channels of the first convolutions.
        image_channels: Channels of images, ``in_channels`` of the backbone.
        num_groups: Number of groups of blocks, each with an injector and an extractor.
        ffn_ratio: Width of the extractors' feed-forward layers, relative to ``C``.
        value_ratio: Width of the values of the deformable attention, relative to ``C``.
        drop_path_rate: Stochastic depth of the extractors' feed-forward layers.
        add_each_map: Add the map after each quarter of the groups to one level, as the authors'
            segmenters do. By default, the last map is added to all levels, as in their detectors.
        fpn: Config of a neck on top, see :class:`.ColumnarPyramid`.
        norm_cfg: Batch norms. Defaults to ``type='BN'``.
        init_cfg: See :class:`mmengine.model.BaseModule`.
    """

    #: strides of the levels in pixels
    out_strides = (4, 8, 16, 32)

    def __init__(self,
                 in_channels: int,
                 num_heads: int = 6,
                 *,
                 num_points: int = 4,
                 stem_channels: int = 64,
                 image_channels: int = 3,
                 num_groups: int = 4,
                 ffn_ratio: float = 0.25,
                 value_ratio: float = 1.,
                 drop_path_rate: float = 0.,
                 add_each_map: bool = False,
                 fpn: dict | None = None,
                 norm_cfg: dict | None = None,
                 init_cfg: dict | list[dict] | None = None) -> None:
        super().__init__(init_cfg=init_cfg)
        if in_channels % num_heads:
            raise UserError(f'in_channels must be a multiple of num_heads, got {in_channels} and '
                            f'{num_heads}')
        self.in_channels = in_channels
        self.add_each_map = add_each_map
        norm_cfg = norm_cfg or dict(type='BN')
        options = dict(num_heads=num_heads, num_points=num_points, value_ratio=value_ratio)
        feed_forward = dict(ffn_ratio=ffn_ratio, drop_path_rate=drop_path_rate)
        self.level_embed = nn.Parameter(torch.empty(3, in_channels))
        self.spm = SpatialPrior(in_channels, stem_channels, norm_cfg, image_channels)
        self.interactions = nn.ModuleList(
            Interaction(in_channels, options, feed_forward, 2 * (index == num_groups - 1))
            for index in range(num_groups))
        self.up = nn.ConvTranspose2d(in_channels, in_channels, 2, 2)
        for index in range(1, 5):
            self.add_module(f'norm{index}', build_norm_layer(norm_cfg, in_channels)[1])
        self.fpn = build_fpn(fpn, in_channels, len(self.out_strides), type(self).__name__)

    def init_weights(self) -> None:
        """Initialize as the authors do: injectors add nothing at first."""
        nn.init.normal_(self.level_embed)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)
            elif isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
                fan_out = math.prod(module.kernel_size) * module.out_channels // module.groups
                nn.init.normal_(module.weight, std=math.sqrt(2 / fan_out))
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        for module in self.modules():
            if isinstance(module, MultiScaleDeformableAttention):
                module.init_weights()
        super().init_weights()

    def forward(self, inputs: Sequence[DeferredBlocks]) -> tuple[Tensor, ...]:
        """Run the blocks of a backbone, and return the levels.

        Args:
            inputs: Output of a backbone with ``defer_blocks=True``.

        Returns:
            Four levels ``(B, C, H / stride, W / stride)`` of strides 4, 8, 16 and 32, rounded up;
            or the output of ``fpn``.

        Raises:
            ValueError: If the backbone has run its blocks.
        """
        blocks = inputs[-1]
        if not isinstance(blocks, DeferredBlocks):
            raise UserError(f'{type(self).__name__} runs the blocks of the backbone: set '
                            'model.backbone.defer_blocks=True')
        finest, *others = self.spm(blocks.images)
        grids = [tuple(level.shape[2:]) for level in others]
        spatial = torch.cat([
            level.flatten(2).mT + embed
            for level, embed in zip(others, self.level_embed, strict=True)
        ],
                            dim=1)
        x, maps = blocks.tokens, []
        count = len(self.interactions)
        ends = [blocks.num_blocks * group // count for group in range(count + 1)]
        for layer, start, stop in zip(self.interactions, ends, ends[1:], strict=False):
            x, spatial = layer(x, spatial, grids, blocks, start, stop)
            if self.add_each_map or stop == blocks.num_blocks:
                maps.append(blocks.copy_map(x))
        sizes = [rows * columns for rows, columns in grids]
        levels = [
            part.mT.unflatten(2, grid)
            for part, grid in zip(spatial.split(sizes, dim=1), grids, strict=True)
        ]
        up = self.up(levels[0])
        for axis in (2, 3):  # an export of a slice may take it for the whole side
            up = up.narrow(axis, 0, finest.shape[axis])
        levels.insert(0, up + finest)
        outs = []
        for index, level in enumerate(levels):
            map_ = maps[round(index * (len(maps) - 1) / 3)]
            resized = F.interpolate(map_, size=level.shape[2:], mode='bilinear')
            outs.append(self.get_submodule(f'norm{index + 1}')(level + resized))
        return tuple(outs) if self.fpn is None else tuple(self.fpn(outs))


class SpatialPrior(nn.Module):
    """Convolutions that compute maps of strides 4, 8, 16 and 32, each of width ``C``."""

    def __init__(self, out_channels: int, channels: int, norm_cfg: dict,
                 image_channels: int) -> None:
        super().__init__()

        def build(in_channels: int, width: int, stride: int) -> list[nn.Module]:
            conv = nn.Conv2d(in_channels, width, 3, stride, 1, bias=False)
            return [conv, build_norm_layer(norm_cfg, width)[1], nn.ReLU(inplace=True)]

        self.stem = nn.Sequential(*build(image_channels, channels, 2),
                                  *build(channels, channels, 1), *build(channels, channels, 1),
                                  nn.MaxPool2d(3, 2, 1))
        widths = (channels, 2 * channels, 4 * channels, 4 * channels)
        for index, (before, width) in enumerate(zip(widths, widths[1:], strict=False), 2):
            self.add_module(f'conv{index}', nn.Sequential(*build(before, width, 2)))
        for index, width in enumerate(widths, 1):
            self.add_module(f'fc{index}', nn.Conv2d(width, out_channels, 1))

    def forward(self, images: Tensor) -> list[Tensor]:
        """Map images ``(B, c, H, W)`` to four maps ``(B, C, H / stride, W / stride)``."""
        x, maps = self.stem(images), []
        for index in range(1, 5):
            if index > 1:
                x = self.get_submodule(f'conv{index}')(x)
            maps.append(self.get_submodule(f'fc{index}')(x))
        return maps


class Interaction(nn.Module):
    """Injector before a group of blocks, and extractors after it.

    Args:
        channels: Width ``C``.
        attention: Arguments of :class:`DeformableAttention`.
        feed_forward: Other arguments of :class:`Extractor`.
        num_extra_extractors: Number of further extractors.
    """

    def __init__(self, channels: int, attention: dict, feed_forward: dict,
                 num_extra_extractors: int) -> None:
        super().__init__()
        self.injector = Injector(channels, attention)
        self.extractor = Extractor(channels, attention, **feed_forward)
        self.extra_extractors = nn.ModuleList(
            Extractor(channels, attention, **feed_forward) for _ in range(num_extra_extractors))

    def forward(self, x: Tensor, spatial: Tensor, grids: list[Grid], blocks: DeferredBlocks,
                start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Run blocks from ``start`` to ``stop`` on tokens ``(B, P + N, C)``.

        Args:
            x: Tokens of the backbone.
            spatial: Tokens of the spatial maps ``(B, M, C)``.
            grids: Their rows and columns, per map.
            blocks: Blocks, and the grid of patches.
            start: Index of the first block.
            stop: Index after the last block.

        Returns:
            The tokens of the backbone and of the maps.
        """
        prefix = blocks.num_prefix_tokens
        patches = self.injector(x[:, prefix:], [blocks.grid], spatial, grids)
        x = torch.cat((x[:, :prefix], patches), dim=1) if prefix else patches
        x = blocks.run(x, start, stop)
        for layer in (self.extractor, *self.extra_extractors):
            spatial = layer(spatial, grids, x[:, prefix:], [blocks.grid])
        return x, spatial


class DeformableAttention(MultiScaleDeformableAttention):
    """mmcv's attention, given the grids of queries and values; see arXiv 2010.04159, equation 3."""

    def __init__(self, channels: int, num_levels: int, *, num_heads: int, num_points: int,
                 value_ratio: float) -> None:
        super().__init__(
            channels, num_heads, num_levels, num_points, dropout=0., batch_first=True,
            value_proj_ratio=value_ratio)  # yapf: disable

    def attend(self, query: Tensor, query_grids: list[Grid], value: Tensor,
               value_grids: list[Grid]) -> Tensor:
        """Sample values ``(B, M', C)`` around the places of queries ``(B, M, C)``."""
        batch, count = query.shape[:2]
        values = self.value_proj(value).unflatten(2, (self.num_heads, -1))
        shape = self.num_heads, self.num_levels, self.num_points
        offsets = self.sampling_offsets(query).view(batch, count, *shape, 2)
        weights = self.attention_weights(query).view(batch, count, self.num_heads, -1)
        weights = weights.softmax(dim=-1).view(batch, count, *shape)
        centers = torch.cat([compute_centers(grid, query) for grid in query_grids]).to(query)
        # one division per side: a tensor of them would be a constant of an exported graph
        sides = zip(offsets.unbind(3), value_grids, strict=True)
        steps = [torch.stack((xy[..., 0] / columns, xy[..., 1] / rows), dim=-1)
                 for xy, (rows, columns) in sides]  # yapf: disable
        places = centers[:, None, None, None] + torch.stack(steps, dim=3)
        if has_mmcv_kernels(values):
            shapes = torch.tensor(value_grids, device=query.device)
            counts = shapes.prod(dim=1)
            out = MultiScaleDeformableAttnFunction.apply(values, shapes,
                                                         counts.cumsum(0) - counts, places, weights,
                                                         self.im2col_step)
        else:
            out = multi_scale_deformable_attn_pytorch(values, value_grids, places, weights)
        return self.output_proj(out)


def compute_centers(grid: Grid, like: Tensor) -> Tensor:
    """Compute the centers ``(h w, 2)`` of the cells of a grid, x and y from 0 to 1."""
    rows, columns = ((torch.arange(side, dtype=torch.float32, device=like.device) + 0.5) / side
                     for side in grid)
    y, x = torch.meshgrid(rows, columns, indexing='ij')
    return torch.stack((x, y), dim=-1).flatten(0, 1)


class Injector(nn.Module):
    """Addition of spatial maps to patches (equation 1); it adds 0 before training."""

    def __init__(self, channels: int, attention: dict) -> None:
        super().__init__()
        self.query_norm = nn.LayerNorm(channels, eps=NORM_EPS)
        self.feat_norm = nn.LayerNorm(channels, eps=NORM_EPS)
        self.attn = DeformableAttention(channels, 3, **attention)
        self.gamma = nn.Parameter(torch.zeros(channels))

    def forward(self, patches: Tensor, patch_grids: list[Grid], spatial: Tensor,
                grids: list[Grid]) -> Tensor:
        """Return patches ``(B, N, C)`` with what they sample from the maps ``(B, M, C)``."""
        attended = self.attn.attend(
            self.query_norm(patches), patch_grids, self.feat_norm(spatial), grids)
        return patches + self.gamma * attended


class Extractor(nn.Module):
    """Addition of patches to spatial maps (equations 2 and 3), with a feed-forward layer."""

    def __init__(self, channels: int, attention: dict, *, ffn_ratio: float,
                 drop_path_rate: float) -> None:
        super().__init__()
        self.query_norm = nn.LayerNorm(channels, eps=NORM_EPS)
        self.feat_norm = nn.LayerNorm(channels, eps=NORM_EPS)
        self.attn = DeformableAttention(channels, 1, **attention)
        self.ffn = ConvolutionalFFN(channels, int(channels * ffn_ratio))
        self.ffn_norm = nn.LayerNorm(channels, eps=NORM_EPS)
        self.drop_path = DropPath(drop_path_rate)

    def forward(self, spatial: Tensor, grids: list[Grid], patches: Tensor,
                patch_grids: list[Grid]) -> Tensor:
        """Return tokens of the maps ``(B, M, C)`` with what they sample from the patches."""
        spatial = spatial + self.attn.attend(
            self.query_norm(spatial), grids, self.feat_norm(patches), patch_grids)
        return spatial + self.drop_path(self.ffn(self.ffn_norm(spatial), grids))


class ConvolutionalFFN(nn.Module):
    """Feed-forward layer with a depthwise convolution within each map."""

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(channels, hidden)
        self.dwconv = nn.Module()  # named as in the authors' files
        self.dwconv.dwconv = nn.Conv2d(hidden, hidden, 3, padding=1, groups=hidden)
        self.fc2 = nn.Linear(hidden, channels)

    def forward(self, x: Tensor, grids: list[Grid]) -> Tensor:
        """Map tokens ``(B, M, C)`` of several maps to tokens of the same shape."""
        x = self.fc1(x)
        parts = x.split([rows * columns for rows, columns in grids], dim=1)
        maps = [self.dwconv.dwconv(part.mT.unflatten(2, grid))
                for part, grid in zip(parts, grids, strict=True)]  # yapf: disable
        return self.fc2(F.gelu(torch.cat([map_.flatten(2).mT for map_ in maps], dim=1)))
