"""Plain vision transformers: An Image is Worth 16x16 Words (arXiv 2010.11929) and what followed."""
from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import timm
import torch
from timm.layers import RotaryEmbeddingMixed
from timm.models.eva import EvaAttention
from torch import Tensor, nn
from torch.nn import functional as F

from colonnade.common.errors import UserError
from colonnade.weights.state_dicts import Shapes, State, WeightsError

from ..columnar import ColumnarBackbone
from ..kernels.memory_format import as_map
from ..kernels.resampling import RESIZE_MODES, resample_positions
from ..registry import register_backbone
from ..variants import count_blocks, resolve_out_indices
from .architectures import ShownModels, TimmModels, are_normalized, look_up
from .blocks import PlainBlock, SelfAttention, adapt_block, embed_grid
from .checkpoint_formats import (EVA_BIASES, FORMATS, cut_frequencies, drop_class_token, find_arch,
                                 find_zero_biases, get_part, rename_layer_scale, resize_patches,
                                 resize_positions)
from .eomt_formats import EOMT_FORMATS
from .query_tokens import QueryTokens, check_query_blocks
from .relative_positions import resize_bias_table, resize_table
from .segmenter_formats import SEGMENTER_FORMATS, infer_bias_tables
from .transformers_formats import TRANSFORMERS_FORMATS
from .vitdet_formats import VITDET_FORMATS, infer_relative_positions
from .window_attention import round_up

PREFIX_TOKENS = ('cls_token', 'dist_token', 'reg_token')  # in their order


@register_backbone(*FORMATS, *EOMT_FORMATS, *VITDET_FORMATS, *SEGMENTER_FORMATS,
                   *TRANSFORMERS_FORMATS)
class PlainViT(ColumnarBackbone):
    """timm's ``VisionTransformer`` and ``Eva``: DeiT, MAE, CLIP, DINO, DINOv2, DINOv3 and others.

    Images are padded with zeros at the bottom and right to whole patches. Learned positions are
    resized to the grid of each image, bicubic and antialiased, as timm does; rotary ones are
    computed for it. Prefix tokens (class, distillation, registers) are not in the feature maps. See
    :class:`ColumnarBackbone` for further arguments.

    Args:
        arch: timm's name of a model, with the tag of its weights or without
            (``vit_small_patch16_dinov3``, ``vit_base_patch16_224.mae``). Or a dict with
            ``embed_dim``, ``depth``, ``num_heads`` and optionally other arguments of timm's
            ``VisionTransformer``. With the key ``model``, it changes arguments of that model.
        img_size: Side of the square images whose grid of positions is kept. Weights of another grid
            are resized to it when they are loaded. Defaults to the model's.
        patch_size: Side of the patches. For another one than the model's, the default, weights are
            resampled when they are loaded, as in FlexiViT (arXiv 2212.08013).
        norm_features: Apply the final norm to each feature map, or with ``'last'`` only to that of
            the last block, as mmseg does. Defaults to what the authors of the weights do: True for
            DINO, DINOv2, DINOv3 and TIPSv2, False for all others. They are identified by ``arch``,
            or by ``timm://NAME.TAG`` in ``init_cfg``.
        return_prefix_tokens: Return a pair of feature map and prefix tokens ``(B, P, C)``; with
            ``'class'`` of feature map and class token ``(B, C)``, which mmseg's DPT head expects.
        window_size: Side in tokens of the attention windows of most blocks (ViTDet, arXiv
            2203.16527); prefix tokens attend to all tokens, and all to them. Defaults to none.
        global_blocks: With windows, the blocks that attend to all tokens; negative ones count from
            the last. Defaults to the last of each quarter, as in ViTDet.
        num_query_blocks: Number of last blocks that a head runs with its queries (EoMT, arXiv
            2503.19108). The output is then one :class:`.QueryTokens`, and no feature maps.
        pos_embed_resize: How learned positions are resized to the grid of an image. Defaults to
            ``'timm'``; the authors of other published models resize without antialiasing:
            ``'bicubic'`` (ViTDet, mmseg), ``'bilinear'`` (Segmenter) or ``'dinov2'`` (bicubic, to a
            tenth of a token more).
        norm_eps: Epsilon of all layer norms. Defaults to the model's.
        rel_pos_size: Side in tokens of the grid for which global blocks have decomposed relative
            positions, as ViTDet's, resized linearly to others; windows have their own. Requires
            ``class_token=False`` in ``arch``. Defaults to none.
        rel_pos_type: ``'decomposed'``, or ``'table'`` for a bias of each distance, as BEiT's,
            resized bicubically to other grids. That requires a class token, and no windows.
        window_padding: How incomplete windows are padded with zeros, which are attended to:
            ``'tokens'`` before the projections, as in ViTDet and EVA-02's detectors, or ``'heads'``
            after them, as in ViT-Adapter. Rotary positions then count from the corner of each
            window. Defaults to smaller windows instead.
        center_padding: Pad images on all sides to whole patches, as DINOv2's linear heads expect.
        tap_norm: Former name of ``norm_features``, which dumped configs may contain.

    Raises:
        ValueError: If the model has no final norm for ``norm_features``, or windows are not
            supported for its attention.
    """

    variants = TimmModels(
        backbone='PlainViT',
        rows=ShownModels(),
        defaults={},
        shown_columns=('embed_dim', 'depth', 'patch_size', 'prefix_tokens', 'pos_embed'))
    stem_names = ('patch_embed', *PREFIX_TOKENS, 'pos_embed', 'norm_pre', 'rope')
    classifier_names: tuple[str, ...] = ('norm', 'fc_norm', 'attn_pool', 'head', 'head_dist')

    def __init__(self,
                 arch: str | Mapping[str, Any] = 'vit_small_patch16_dinov3',
                 *,
                 img_size: int | None = None,
                 patch_size: int | None = None,
                 norm_features: bool | str | None = None,
                 return_prefix_tokens: bool | str = False,
                 window_size: int | None = None,
                 global_blocks: Sequence[int] | None = None,
                 num_query_blocks: int = 0,
                 pos_embed_resize: str = 'timm',
                 norm_eps: float | None = None,
                 rel_pos_size: int | None = None,
                 rel_pos_type: str = 'decomposed',
                 window_padding: str | None = None,
                 center_padding: bool = False,
                 tap_norm: bool | None = None,
                 init_cfg: dict | list[dict] | None = None,
                 **kwargs: Any) -> None:
        settings = self.variants.resolve(arch, img_size=img_size, patch_size=patch_size)
        if norm_features is None:
            norm_features = tap_norm
        if norm_features is None:
            norm_features = self.get_implied_arguments(arch, init_cfg)['norm_features']
        for name, value, word in (('norm_features', norm_features, 'last'),
                                  ('return_prefix_tokens', return_prefix_tokens, 'class')):
            if value not in (True, False, word):
                raise UserError(f'{name} must be True, False or {word!r}, got {value!r}')
        self.norm_features = norm_features
        if self.norm_features:
            self.tail_names = ('norm', )
            self.classifier_names = tuple(set(self.classifier_names) - {'norm'})
        super().__init__(settings, init_cfg=init_cfg, **kwargs)
        if self.norm_features and isinstance(self.norm, nn.Identity):
            raise UserError(f'{settings["model"]} has no final norm: norm_features must be False')
        if norm_features == 'last' and (self.defer_blocks or len(self.blocks) < self.depth):
            raise UserError("norm_features='last' requires the feature map of the last block: "
                            'set out_indices to include it, or norm_features=False')
        if return_prefix_tokens == 'class' and self.cls_token is None:
            raise UserError("return_prefix_tokens='class' requires a class token, but "
                            f'{self.settings["model"]} has none')
        self.return_prefix_tokens = return_prefix_tokens
        self._blocks_are_plain = all(isinstance(block, PlainBlock) for block in self.blocks)
        if self.rope is not None and not self._blocks_are_plain:
            raise UserError(f'rotary embeddings are not supported for the blocks of {settings}')
        self._set_windows(window_size, global_blocks, window_padding)
        if rel_pos_type not in ('decomposed', 'table'):
            raise UserError(f"rel_pos_type must be 'decomposed' or 'table', got {rel_pos_type!r}")
        if rel_pos_size is not None:
            self._add_relative_positions(rel_pos_size, rel_pos_type)
        if pos_embed_resize not in RESIZE_MODES:
            raise UserError(f'pos_embed_resize must be one of {", ".join(RESIZE_MODES)}, got '
                            f'{pos_embed_resize!r}')
        self.pos_embed_resize = pos_embed_resize
        self.center_padding = center_padding
        if norm_eps is not None:
            for module in self.modules():
                if isinstance(module, nn.LayerNorm):
                    module.eps = norm_eps
        self.num_query_blocks = num_query_blocks
        check_query_blocks(self, num_query_blocks, self._blocks_are_plain)
        self.register_load_state_dict_pre_hook(_require_norm)
        self.register_load_state_dict_post_hook(_fill_buffers)

    def _set_windows(self, window_size: int | None, global_blocks: Sequence[int] | None,
                     padding: str | None) -> None:
        if window_size is None:
            for name, value in dict(global_blocks=global_blocks, window_padding=padding).items():
                if value is not None:
                    raise UserError(f'{name} has no effect without window_size')
            return
        if padding not in (None, 'tokens', 'heads'):
            raise UserError(f"window_padding must be None, 'tokens' or 'heads', got {padding!r}")
        if padding and self.num_prefix_tokens:
            raise UserError('window_padding requires a model without prefix tokens, but '
                            f'{self.settings["model"]} has {self.num_prefix_tokens}')
        if type(window_size) is not int or window_size < 1:
            raise UserError(f'window_size must be a positive integer, got {window_size!r}')
        if global_blocks is None:
            global_blocks = [(self.depth * quarter) // 4 - 1 for quarter in (1, 2, 3, 4)]
            if self.depth <= 4:
                raise UserError(f'window_size has no effect at depth {self.depth}: all blocks are '
                                'global; set global_blocks')
        elif not isinstance(global_blocks, Sequence):
            raise UserError(f'global_blocks must be a list of block indices, got {global_blocks!r}')
        elif global_blocks:
            global_blocks = resolve_out_indices(global_blocks, self.depth, 'global_blocks')
        for index, block in enumerate(self.blocks):
            if index in global_blocks:
                continue
            if not isinstance(block, PlainBlock):
                raise UserError(
                    f'window_size is not supported for the blocks of {self.settings["model"]}')
            block.attn.window_size = window_size
            block.attn.window_padding = padding

    def _add_relative_positions(self, size: int, kind: str) -> None:
        if type(size) is not int or size < 1:
            raise UserError(f'rel_pos_size must be a positive integer, got {size!r}')
        if kind == 'table':
            is_beit = self.num_prefix_tokens == 1 and self.cls_token is not None
            if not is_beit or self.rope is not None or not self._blocks_are_plain or any(
                    block.attn.window_size for block in self.blocks):
                raise UserError("rel_pos_type='table' requires a class token, no other prefix "
                                'tokens, no rotary positions and no windows')
            for block in self.blocks:
                block.attn.add_relative_position_table(size)
            return
        if self.num_prefix_tokens or self.rope is not None or not self._blocks_are_plain:
            raise UserError(
                f'rel_pos_size requires a model without rotary positions or prefix tokens, '
                f'but {self.settings["model"]} has some: set class_token=False')
        for block in self.blocks:
            block.attn.add_relative_positions(block.attn.window_size or size)

    def _create_timm(self, num_classes: int, **changes: Any) -> nn.Module:
        arguments = {key: value for key, value in self.settings.items() if key != 'model'} | changes
        if arguments.get('class_token') is False:  # no pooling of it, and the norm keeps its name
            options = dict(global_pool='avg', fc_norm=False)
            known = look_up(self.settings['model']).arguments
            arguments = {key: options[key] for key in options if key in known} | arguments
        try:
            return timm.create_model(
                self.settings['model'],
                num_classes=num_classes,
                dynamic_img_size=True,
                dynamic_img_pad=True,
                in_chans=self.in_channels,
                **arguments)
        except (AssertionError, KeyError, TypeError) as error:
            raise UserError(f'timm cannot build {self.settings}: {error!r}') from error

    def _build(self, num_blocks: int, drop_path_rate: float, num_classes: int | None) -> nn.Module:
        backbone = self._create_timm(num_classes or 0)
        for name in self.stem_names:
            if not hasattr(backbone, name):
                setattr(backbone, name, None)
        backbone.blocks = nn.ModuleList(
            adapt_block(block, index, drop_path_rate)
            for index, block in enumerate(list(backbone.blocks)[:num_blocks]))
        if isinstance(backbone.rope, RotaryEmbeddingMixed):  # learned for each block
            frequencies = backbone.rope.freqs.detach()[:, :num_blocks]
            backbone.rope.freqs = nn.Parameter(frequencies.clone())
        self._group_matcher = backbone.group_matcher(coarse=False)
        return backbone

    def build_timm_module(self, img_size: int | tuple[int, int], num_classes: int = 0) -> nn.Module:
        """Build timm's module of this architecture, for images of any size."""
        return self._create_timm(num_classes, img_size=img_size)

    @classmethod
    def infer_arch(cls, state: State) -> dict[str, int]:
        """Infer width, depth, patch size and positions."""
        if not FORMATS[-1].matches(state):
            raise KeyError(FORMATS[-1].name)
        weight = state['patch_embed.proj.weight']
        prefix = sum(state[name].shape[1] for name in PREFIX_TOKENS if name in state)
        return dict(
            embed_dim=len(weight),
            depth=count_blocks(state),
            patch_size=weight.shape[-1],
            prefix_tokens=prefix,
            pos_embed='pos_embed' in state)

    def describe(self, state: State | None = None) -> str:
        """Format what the tensors show, of this backbone and of files."""
        if state is not None:
            return super().describe(state)
        return self.variants.describe(self.infer_arch(self.state_dict()) | dict(depth=self.depth))

    @classmethod
    def get_arguments_for(cls, state: State) -> dict[str, Any]:
        """Infer the timm model of a state dict, and its other arguments."""
        sizes = cls.infer_arch(state)
        positions = state.get('pos_embed')
        tables = infer_relative_positions(state, sizes) or infer_bias_tables(state, sizes)
        # Prefix tokens are too few to reach the next larger grid.
        side = None if positions is None else math.isqrt(positions.shape[1])
        return dict(
            arch=tables.pop('arch', None) or find_arch(state, sizes),
            **tables,
            patch_size=sizes['patch_size'],
            img_size=side and side * sizes['patch_size'],
            norm_features='norm.weight' in state)

    @classmethod
    def get_weights_name(cls, arch: str | Mapping[str, Any],
                         init_cfg: dict | list[dict] | None) -> str:
        """Return timm's name of the weights, with their tag if the config has it."""
        name = arch if isinstance(arch, str) else arch.get('model', '')
        return super().get_weights_name(arch, init_cfg) or name

    @classmethod
    def get_implied_arguments(cls, arch: str | Mapping[str, Any],
                              init_cfg: dict | list[dict] | None) -> dict[str, Any]:
        """Infer if the authors of the weights apply the final norm to each map."""
        return dict(norm_features=are_normalized(cls.get_weights_name(arch, init_cfg)))

    def rename_state(self, state: State) -> State:
        """Rename DeiT-III's LayerScale, whose timm name depends on the model.

        A model without class token ignores that of the file and its position. Relative positions
        that the file lacks start at 0, as ViTDet's do.
        """
        tables = {name: value for name, value in self.state_dict().items() if '.rel_pos_' in name}
        if tables and not any('.rel_pos_' in name for name in state):
            state = state | {name: torch.zeros_like(value) for name, value in tables.items()}
        if self.settings.get('class_token') is False:
            state = drop_class_token(state)
        has_scale = any(name.startswith('blocks.0.ls1.') for name, _ in self.named_parameters())
        is_deit3 = FORMATS[-1].matches(state) and has_scale
        return super().rename_state(rename_layer_scale(state) if is_deit3 else state)

    def find_unused_shapes(self, state: State) -> list[Shapes]:
        """Return each part of a classifier, also those that timm lacks, and biases that are 0."""
        groups: dict[str, Shapes] = {}
        for group in super().find_unused_shapes(state):
            for key, shape in group.items():
                groups.setdefault(get_part(key), {})[key] = shape
        known = {key for group in groups.values() for key in group}
        others = {
            key: value.shape
            for key, value in state.items()
            if get_part(key) in self.classifier_names and key not in known
        }
        needed = any(name.endswith(EVA_BIASES) for name, _ in self.named_parameters())
        return [*groups.values(), others, {} if needed else find_zero_biases(state)]

    def _resize_tensors(self, state: State) -> State:
        """Resize patches and positions, and cut frequencies of blocks that are not built."""
        model = self.settings['model']
        resized = resize_patches(state, self.patch_embed.proj.weight, model)
        if self.pos_embed is not None:
            resized |= resize_positions(state, self.pos_embed, self.patch_embed, model)
        for name, own in self.named_parameters():
            if name in state and re.search(r'\.rel_pos_[hw]$', name):
                if state[name].ndim == 2 and state[name].shape != own.shape:
                    resized[name] = resize_table(state[name], len(own))
            elif name in state and name.endswith('.rel_pos_table'):
                if state[name].ndim == 2 and state[name].shape != own.shape:
                    side = (math.isqrt(len(own)) + 1) // 2
                    resized[name] = resize_bias_table(state[name], (side, side))
        return resized | cut_frequencies(state, len(self.blocks))

    @property
    def num_prefix_tokens(self) -> int:
        """Number of tokens before those of the grid."""
        return sum(token.shape[1] for token in self._prefix_tokens)

    @property
    def _prefix_tokens(self) -> list[Tensor]:
        """Existing class, distillation and register tokens."""
        tokens = (self.cls_token, self.dist_token, self.reg_token)
        return [token for token in tokens if token is not None]

    @property
    def _embedded_prefix(self) -> int:
        """Number of prefix tokens with learned positions: all or none."""
        return self.pos_embed.shape[1] - math.prod(self.patch_embed.grid_size)

    def forward(self, img: Tensor) -> tuple:
        """Return feature maps, see :class:`.ColumnarBackbone`, or tokens for a head of queries."""
        if not self.num_query_blocks:
            return super().forward(img)
        x, place = self._start(img)
        for index in range(self.depth - self.num_query_blocks):
            x = self._step(index, x, place)
        return (QueryTokens(x, place, self.num_query_blocks, self.num_prefix_tokens, self._step,
                            self.norm), )

    def _embed(self, img: Tensor) -> tuple[Tensor, tuple]:
        if self.center_padding:
            height, width = (side * self.patch_size - own
                             for side, own in zip(self._get_grid(img), img.shape[2:], strict=True))
            top, left = height // 2, width // 2
            img = F.pad(img, (left, width - left, top, height - top))
        x = self.patch_embed(img)  # (B, h, w, C)
        grid = tuple(x.shape[1:3])
        x = x.flatten(1, 2)
        prefix = [token.expand(x.shape[0], -1, -1) for token in self._prefix_tokens]
        positions = self.pos_embed
        if positions is not None:
            if torch.compiler.is_exporting() or grid != self.patch_embed.grid_size:
                positions = resample_positions(positions, self.patch_embed.grid_size, grid,
                                               self._embedded_prefix, self.pos_embed_resize)
            if not self._embedded_prefix:
                x, positions = x + positions, None
        x = torch.cat((*prefix, x), dim=1)
        if positions is not None:
            x = x + positions
        rope = None if self.rope is None else embed_grid(self.rope, grid)
        return self.norm_pre(x), (grid, rope)

    def _embed_windows(self, grid: tuple[int, int], size: int, padding: str) -> Tensor:
        """Compute the rotary positions of padded windows, which count from their corners."""
        positions = embed_grid(self.rope, (size, size)).unflatten(-2, (size, size))
        if padding == 'tokens':
            grid = round_up(grid, size)
        rows, columns = (torch.arange(side, device=positions.device) % size for side in grid)
        return positions[..., rows, :, :][..., columns, :].flatten(-3, -2)

    def _run_block(self, block: nn.Module, x: Tensor, place: tuple) -> Tensor:
        if not self._blocks_are_plain:
            return block(x)
        grid, rope, *masks = place
        if rope is not None and block.attn.window_padding:
            rope = self._embed_windows(grid, block.attn.window_size, block.attn.window_padding)
        if rope is not None and rope.ndim == 4:  # one per block
            rope = rope[block.index]
        return block(x, grid, rope, *masks)

    def _to_map(self,
                x: Tensor,
                place: tuple,
                is_last: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        if self.norm_features and (is_last or self.norm_features != 'last'):
            x = self.norm(x)
        count = self.num_prefix_tokens
        map_ = as_map(x[:, count:], place[0][0])
        if not self.return_prefix_tokens:
            return map_
        return map_, x[:, 0] if self.return_prefix_tokens == 'class' else x[:, :count]

    def get_layer_depth(self, param_name: str, prefix: str = '') -> tuple[int, int]:
        """Return the depth of a parameter by timm's groups, see :class:`.ColumnarBackbone`."""
        name, last = param_name.removeprefix(prefix), self.depth + 1
        if param_name.startswith(prefix):
            if re.match(self._group_matcher['stem'], name):
                return 0, last + 1
            for pattern, belongs_to_last in self._group_matcher['blocks']:
                if match := re.match(pattern, name):
                    index = len(self.blocks) if belongs_to_last else int(match[1]) + 1
                    return index, last + 1
        return last, last + 1


def _require_norm(backbone: PlainViT, state_dict: State, prefix: str, *_: Any) -> None:
    """Raise a WeightsError if a full model was trained with the final norm, which is not built."""
    if prefix and not backbone.norm_features and f'{prefix}norm.weight' in state_dict:
        raise WeightsError('the feature maps of this model were normalized: set '
                           f'model.{prefix}norm_features=True')


def _fill_buffers(backbone: PlainViT, _: Any) -> None:
    """Compute buffers that are not in files, also if the backbone was built on the meta device.

    These are frequencies of rotary positions, and the key biases of EVA, which are 0.
    """
    device = next(backbone.parameters()).device
    for module in backbone.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_meta and device.type != 'meta':
                setattr(module, name, torch.empty_like(buffer, device=device))
    if backbone.rope is not None:
        backbone.rope.init_non_persistent_buffers()
    for module in backbone.modules():
        if isinstance(module, (SelfAttention, EvaAttention)):
            module.init_non_persistent_buffers()
