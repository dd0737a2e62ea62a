"""Blocks of timm's vision transformers with less memory traffic and windowed attention.

Shapes: ``B`` images, ``P`` prefix tokens (class and registers), ``N = h w`` tokens of the grid,
``C`` width, ``d`` channels of a head.
"""
from __future__ import annotations

import math

import torch
from timm.layers import (Attention, AttentionRope, DropPath, LayerScale, RotaryEmbeddingDinoV3,
                         apply_rot_embed_cat)
from timm.models.eva import EvaAttention, EvaBlock
from timm.models.vision_transformer import Block
from torch import Tensor, nn
from torch.nn import functional as F

from ..kernels.devices import should_use_cpu_forms
from ..kernels.fast_path import (LINEAR, MLP, NORM, Parts, add_branch, find_modified_sublayer,
                                 is_drop_path, is_exact_type, is_fast_path_disabled, is_linear,
                                 is_unobserved)
from ..kernels.folding import fold_norm, fold_scale
from ..kernels.layers import add, call_linear, feed_forward, linear
from .query_tokens import attend_to_open_patches
from .relative_positions import NUM_CLASS_BIASES, add_relative_positions, attend_with_table
from .window_attention import Grid, Heads, attend_in_windows, pad_grid

ATTENTION_TYPES = (Attention, AttentionRope, EvaAttention)


class SelfAttention(nn.Module):
    """timm's attention layers, with their parameters and names."""
    q_bias: nn.Parameter | None
    v_bias: nn.Parameter | None

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        for name, child in layer.named_children():
            if name != 'attn_drop':  # never called
                self.add_module(name, child)
        for name, parameter in layer.named_parameters(recurse=False):
            self.register_parameter(name, parameter)
        for name, buffer in layer.named_buffers(recurse=False):
            self.register_buffer(name, buffer, name in layer.state_dict())
        own = {name.split('.')[0] for name, _ in layer.named_parameters()}
        for name in {'qkv', 'q_bias', 'gate'} - own:  # some layers have none
            setattr(self, name, None)
        self.attn_drop_rate: float = layer.attn_drop.p
        self.num_heads: int = layer.num_heads
        self.num_key_heads: int = getattr(layer, 'num_kv_heads', layer.num_heads)
        self.rotate_half: bool = getattr(layer, 'rotate_half', False)
        self.window_size: int | None = None  # in tokens; None attends to all
        self.window_padding: str | None = None  # 'tokens' or 'heads' are padded with zeros
        self.rel_pos_h: nn.Parameter | None = None
        self.rel_pos_w: nn.Parameter | None = None
        self.rel_pos_table: nn.Parameter | None = None

    def add_relative_positions(self, side: int) -> None:
        """Add tables of relative positions, filled with 0, for a square grid or window."""
        width = self.proj.in_features // self.num_heads
        for name in ('rel_pos_h', 'rel_pos_w'):
            setattr(self, name, nn.Parameter(torch.zeros(2 * side - 1, width)))

    def add_relative_position_table(self, side: int) -> None:
        """Add a table of biases, filled with 0, for a square grid and a class token."""
        length = (2 * side - 1)**2 + NUM_CLASS_BIASES
        self.rel_pos_table = nn.Parameter(torch.zeros(length, self.num_heads))

    def forward(self,
                x: Tensor,
                grid: Grid,
                rope: Tensor | None = None,
                open_patches: Tensor | None = None) -> Tensor:
        """Attend ``(B, P + N, C)`` to ``(B, P + N, C)``.

        Args:
            x: Tokens, prefix tokens first.
            grid: Rows and columns of the other tokens.
            rope: timm's rotary positions of the grid, ``(N, 2 d)`` or ``(heads, N, 2 d)``.
            open_patches: Tokens of the grid that the first Q tokens attend to, ``(B, Q, N)``, bool.
                Defaults to all.
        """
        heads, padded = self.padded_heads(x, grid, rope)
        dropout = self.attn_drop_rate if self.training else 0.
        if open_patches is not None:
            out = attend_to_open_patches(heads, open_patches, dropout)
        elif self.rel_pos_table is not None:
            out = attend_with_table(heads, grid, self.rel_pos_table, dropout)
        elif self.window_size is None:
            out = F.scaled_dot_product_attention(*heads, dropout_p=dropout)
        else:
            out = attend_in_windows(heads, padded, self.window_size, dropout)
        if self.rel_pos_h is not None:
            out = out[..., :self.rel_pos_h.shape[1]]
        out = out.transpose(1, 2).flatten(2)
        if self.window_padding:
            out = out.unflatten(1, padded)[:, :grid[0], :grid[1]].flatten(1, 2)
        out = self.norm(out)
        if self.gate is not None:
            out = out * call_linear(self.gate, x).sigmoid()
        return self.proj_drop(call_linear(self.proj, out))

    def padded_heads(self, x: Tensor, grid: Grid, rope: Tensor | None = None) -> tuple[Heads, Grid]:
        """Compute :meth:`heads` of whole windows if these are padded; return their grid, too."""
        if not self.window_padding or self.window_size is None:
            return self.heads(x, grid, rope), grid
        if self.window_padding == 'tokens':
            x, padded = pad_grid(x, grid, self.window_size)
            return self.heads(x, padded, rope), padded
        parts = [pad_grid(part, grid, self.window_size) for part in self.heads(x, grid, rope)]
        return Heads(*(part for part, _ in parts)), parts[0][1]

    def heads(self, x: Tensor, grid: Grid, rope: Tensor | None = None) -> Heads:
        """Compute queries, keys and values with positions; arguments as for :meth:`forward`."""
        heads = self._project(x)
        if self.rel_pos_h is not None:
            tables = self.rel_pos_h, self.rel_pos_w
            return add_relative_positions(heads, grid, tables, self.window_size)
        if rope is not None:
            heads = self._rotate(heads, rope, x.shape[1] - grid[0] * grid[1])
        if self.num_key_heads < self.num_heads:  # queries share keys and values
            repeats = self.num_heads // self.num_key_heads
            key, value = (part.repeat_interleave(repeats, dim=1) for part in heads[1:])
            heads = Heads(heads.query, key, value)
        return heads

    def init_non_persistent_buffers(self) -> None:
        """Fill the key biases of EVA, which are 0 and not in files."""
        if self.q_bias is not None:
            self.k_bias.zero_()

    @torch.no_grad()
    def join_biases(self) -> None:
        """Move the separate biases of EVA into the layer of queries, keys and values."""
        if self.q_bias is not None:
            self.qkv.bias = nn.Parameter(torch.cat((self.q_bias, self.k_bias, self.v_bias)))
            self.q_bias = self.v_bias = None

    def _project(self, x: Tensor) -> Heads:
        if self.qkv is None:
            layers = (self.q_proj, self.k_proj, self.v_proj)
            counts = (self.num_heads, self.num_key_heads, self.num_key_heads)
            query, key, value = (call_linear(layer, x).unflatten(2, (count, -1)).transpose(1, 2)
                                 for layer, count in zip(layers, counts, strict=True))
        else:
            query, key, value = self._project_qkv(x).unflatten(2, (3, self.num_heads, -1)).permute(
                2, 0, 3, 1, 4)
        return Heads(self.q_norm(query), self.k_norm(key), value)

    def _project_qkv(self, x: Tensor) -> Tensor:
        """Compute queries, keys and values together; EVA's keys have no learned bias."""
        if self.q_bias is None:
            return call_linear(self.qkv, x)
        bias = torch.cat((self.q_bias, self.k_bias, self.v_bias))
        if is_exact_type(self.qkv, nn.Linear):
            return linear(x, self.qkv.weight, bias)
        return self.qkv(x) + bias

    def _rotate(self, heads: Heads, rope: Tensor, prefix: int) -> Heads:
        """Apply rotary positions to queries and keys; in place, head by head, if it is possible."""
        if self._can_rotate_inplace(heads.query):
            for part in (heads.query, heads.key):
                positions = rope.expand(part.shape[1], -1, -1)
                for tokens, position in zip(part[:, :, prefix:].unbind(1), positions, strict=True):
                    tokens.copy_(apply_rot_embed_cat(tokens, position, half=self.rotate_half))
            return heads
        rotated = []
        for x in heads[:2]:
            y = apply_rot_embed_cat(x[:, :, prefix:], rope, half=self.rotate_half).to(x.dtype)
            rotated.append(torch.cat((x[:, :, :prefix], y), dim=2) if prefix else y)
        return Heads(rotated[0], rotated[1], heads.value)

    def can_overwrite_output(self) -> bool:
        """Return True if no hook keeps the output of this layer."""
        return (is_unobserved(self, SelfAttention) and is_unobserved(self.proj, *LINEAR)
                and is_unobserved(self.proj_drop, nn.Dropout, nn.Identity))

    def _can_rotate_inplace(self, x: Tensor) -> bool:
        """Return True if a CPU may overwrite queries and keys: no gradients, hooks or compiler."""
        fast = should_use_cpu_forms(x) and not torch.compiler.is_compiling()
        if not fast or torch.is_grad_enabled():
            return False
        return (is_unobserved(self.qkv, *LINEAR) and is_unobserved(self.q_norm, nn.Identity)
                and is_unobserved(self.k_norm, nn.Identity))


ATTENTION: Parts = {
    '': lambda module: is_exact_type(module, SelfAttention),
    'qkv': lambda module: is_exact_type(module, *LINEAR),
    'gate': lambda module: module is None,
    'proj': is_linear,
}


class PlainBlock(nn.Module):
    """timm's pre-norm ``Block`` or ``EvaBlock``, with its parameters and names."""

    packable = ('attn.qkv', 'attn.proj', 'mlp.fc1', 'mlp.fc2')

    def __init__(self, block: Block | EvaBlock, index: int) -> None:
        super().__init__()
        children = dict(block.named_children())
        for name, child in children.items():
            self.add_module(name, SelfAttention(child) if name == 'attn' else child)
        for name in ('ls1', 'ls2'):  # EvaBlock has none
            self.add_module(name, children.get(name))
        parameters = dict(block.named_parameters(recurse=False))
        for name in ('gamma_1', 'gamma_2'):  # LayerScale of EvaBlock
            self.register_parameter(name, parameters.get(name))
        self.index = index  # rotary positions may differ between blocks

    def forward(self, x: Tensor, grid: Grid, *args: Tensor | None) -> Tensor:
        """Run the block; arguments as for :class:`SelfAttention`."""
        attended = self.attn(self.norm1(x), grid, *args)
        is_scale, scale = get_layer_scale(self.ls1, self.gamma_1)
        if not is_scale:
            x = x + self.drop_path1(self.ls1(attended))
        elif self.attn.can_overwrite_output() and is_drop_path(self.drop_path1):
            x = add(x, self.drop_path1(attended), scale)
        else:
            x = add_branch(x, attended, scale, self.drop_path1)
        is_scale, scale = get_layer_scale(self.ls2, self.gamma_2)
        if not is_scale:
            return x + self.drop_path2(self.ls2(self.mlp(self.norm2(x))))
        return feed_forward(x, self.norm2, self.mlp, scale, self.drop_path2)

    def get_modified_layer(self) -> str | None:
        """Return the path of the first layer that :meth:`fuse` cannot fold, or None."""
        parts = {'norm1': NORM, 'attn': ATTENTION, 'norm2': NORM, 'mlp': MLP}
        if name := find_modified_sublayer(self, parts):
            return name
        scales = dict(ls1=(self.ls1, self.gamma_1), ls2=(self.ls2, self.gamma_2))
        return next((name for name, scale in scales.items() if not get_layer_scale(*scale)[0]),
                    None)

    def fuse(self, dtype: torch.dtype) -> None:
        """Fold norms and LayerScale into linear layers, see :mod:`..kernels.folding`."""
        self.attn.join_biases()
        if self.attn.window_padding != 'tokens':  # padding has no shift of the norm
            fold_norm(self.norm1, self.attn.qkv)
        fold_norm(self.norm2, self.mlp.fc1)
        for number, scale, gamma, layer in ((1, self.ls1, self.gamma_1, self.attn.proj),
                                            (2, self.ls2, self.gamma_2, self.mlp.fc2)):
            if isinstance(scale, LayerScale):
                fold_scale(scale, 'gamma', layer, dtype)
                if scale.gamma is None:
                    self.add_module(f'ls{number}', nn.Identity())
            elif gamma is not None:
                fold_scale(self, f'gamma_{number}', layer, dtype)


def get_layer_scale(layer: nn.Module | None, gamma: Tensor | None) -> tuple[bool, Tensor | None]:
    """Return if LayerScale is an unmodified factor, and the factor ``(C)`` or None.

    ``Block`` has it as ``layer``, ``EvaBlock`` as ``gamma``.
    """
    if layer is None:
        return True, gamma
    if is_fast_path_disabled():
        return False, None
    if is_exact_type(layer, LayerScale):
        return True, layer.gamma
    return is_exact_type(layer, nn.Identity), None


def adapt_block(block: nn.Module, index: int, drop_path_rate: float) -> nn.Module:
    """Convert a timm block to :class:`PlainBlock` if possible, and set its stochastic depth."""
    for parent in list(block.modules()):
        for name, _ in parent.named_children():
            if name.startswith('drop_path'):
                setattr(parent, name, DropPath(drop_path_rate) if drop_path_rate else nn.Identity())
    if type(block) in (Block, EvaBlock) and type(block.attn) in ATTENTION_TYPES:
        return PlainBlock(block, index)
    return block


def embed_grid(rope: nn.Module, grid: Grid) -> Tensor:
    """Compute timm's rotary positions of a grid, ``(N, 2 d)``, or ``(blocks, heads, N, 2 d)``.

    timm's DINOv3 converts sizes to floats, which would make them constants of an export.
    """
    if not (torch.compiler.is_exporting() and isinstance(rope, RotaryEmbeddingDinoV3)):
        return rope.get_embed(shape=list(grid))
    sides = tuple(reversed(grid)) if rope.grid_indexing == 'xy' else grid
    bound = dict(max=torch.sym_max, min=torch.sym_min).get(rope.normalize_coords)
    lengths = sides if bound is None else (bound(*sides), ) * 2
    lines = [(torch.arange(side, dtype=torch.float32) + 0.5 + rope.grid_offset) / length
             for side, length in zip(sides, lengths, strict=True)]  # yapf: disable
    if rope.grid_indexing == 'xy':
        lines.reverse()
    coordinates = torch.stack(torch.meshgrid(*lines, indexing='ij'), dim=-1)
    if rope.grid_indexing == 'xy':
        coordinates = coordinates.flip(-1)
    angles = 2 * math.pi * (2 * coordinates.flatten(0, 1) - 1)[..., None].to(rope.periods)
    angles = (angles / rope.periods).flatten(1)  # (N, d / 2)
    waves = torch.stack((angles.sin(), angles.cos()))
    waves = waves.repeat(1, 1, 2) if rope.rotate_half else waves.repeat_interleave(2, dim=-1)
    return torch.cat((waves[0], waves[1]), dim=-1)
