"""Plain vision transformers: An Image is Worth 16x16 Words (arXiv 2010.11929) and what followed."""
from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import timm
import torch
from timm.layers import RotaryEmbeddingMixed
from torch import Tensor, nn

from colonnade.common.errors import UserError
from colonnade.weights.state_dicts import Shapes, State

from ..columnar import ColumnarBackbone
from ..kernels.memory_format import as_map
from ..kernels.resampling import resample_positions
from ..registry import register_backbone
from ..variants import resolve_out_indices
from .architectures import ShownModels, TimmModels, are_normalised
from .blocks import PlainBlock, adapted
from .layouts import LAYOUTS, part_of, with_layer_scale_modules
from .loading import fill_buffers, require_norm
from .model_identification import EVA_BIASES, find_model, zero_biases
from .resizing import first_frequencies, resized_patches, resized_positions
from .rotary import rotary_positions
from .window_attention import Grid

PREFIX_TOKENS = ('cls_token', 'dist_token', 'reg_token')  # in their order


@register_backbone(*LAYOUTS)
class PlainViT(ColumnarBackbone):
    """timm's ``VisionTransformer`` and ``Eva``: DeiT, MAE, CLIP, DINO, DINOv2, DINOv3 and others.

    Images are padded with zeros at the bottom and right to whole patches. Learned positions are
    resized to the image's grid, bicubic and antialiased, as timm does for images of any size;
    rotary ones are computed for it. Prefix tokens (class, distillation, registers) go through the
    blocks and are not in the maps. See :class:`ColumnarBackbone` for further arguments.

    Args:
        arch: A name of timm's, with the tag of its weights or without
            (``vit_small_patch16_dinov3``, ``vit_base_patch16_224.mae``). Or a dict with
            ``embed_dim``, ``depth``, ``num_heads`` and optionally other arguments of timm's
            ``VisionTransformer``. With ``model``, a name, it changes arguments of that model.
        img_size: Side of the square images whose grid of positions the backbone keeps; ``None`` is
            the model's. Weights from another grid are resized to it when they are loaded.
        patch_size: Side of the patches. Other ones than the model's (``None``) have weights
            resampled when they are loaded, as FlexiViT (arXiv 2212.08013) does.
        tap_norm: Whether the final norm is applied to each map. ``None`` does what the authors of
            the weights do: yes for DINO, DINOv2, DINOv3 and TIPSv2, no for all others. They are
            known by ``arch``, or by ``timm://NAME.TAG`` in ``init_cfg``.
        return_prefix_tokens: Give a pair for each map: itself and the prefix tokens
            ``(B, P, C)``.
        window_size: Side in tokens of the windows that most blocks attend within (ViTDet, arXiv
            2203.16527); prefix tokens are seen by all tokens and see all. ``None`` is no windows.
        global_blocks: With windows, the blocks that attend to all tokens; negative numbers count
            from the last. ``None`` takes the last of each quarter, as ViTDet.

    Raises:
        ValueError: If the model has no final norm for ``tap_norm``, or no attention that windows
            are known for.
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
                 tap_norm: bool | None = None,
                 return_prefix_tokens: bool = False,
                 window_size: int | None = None,
                 global_blocks: Sequence[int] | None = None,
                 init_cfg: dict | list[dict] | None = None,
                 **kwargs: Any) -> None:
        settings = self.variants.resolve(arch, img_size=img_size, patch_size=patch_size)
        if tap_norm is None:
            tap_norm = self.implied(arch, init_cfg)['tap_norm']
        self.tap_norm = tap_norm
        if self.tap_norm:
            self.tail_names = ('norm', )
            self.classifier_names = tuple(set(self.classifier_names) - {'norm'})
        super().__init__(settings, init_cfg=init_cfg, **kwargs)
        if self.tap_norm and isinstance(self.norm, nn.Identity):
            raise UserError(f'{settings["model"]} has no final norm: tap_norm must be False')
        self.return_prefix_tokens = return_prefix_tokens
        self._blocks_are_plain = all(isinstance(block, PlainBlock) for block in self.blocks)
        if self.rope is not None and not self._blocks_are_plain:
            raise UserError(f'rotary positions are not for the blocks of {settings}')
        self._set_windows(window_size, global_blocks)
        self.register_load_state_dict_pre_hook(require_norm)
        self.register_load_state_dict_post_hook(fill_buffers)

    def _set_windows(self, window_size: int | None, global_blocks: Sequence[int] | None) -> None:
        if window_size is None:
            if global_blocks is not None:
                raise UserError('global_blocks has no effect without window_size')
            return
        if type(window_size) is not int or window_size < 1:
            raise UserError(f'window_size must be a positive whole number, got {window_size!r}')
        if global_blocks is None:
            global_blocks = [(self.depth * quarter) // 4 - 1 for quarter in (1, 2, 3, 4)]
            if self.depth <= 4:
                raise UserError(f'window_size has no effect on {self.depth} blocks, which all are '
                                'global: name others as global_blocks')
        elif not isinstance(global_blocks, Sequence):
            raise UserError(f'global_blocks must be a list of blocks, got {global_blocks!r}')
        elif global_blocks:
            global_blocks = resolve_out_indices(global_blocks, self.depth, 'global_blocks')
        for index, block in enumerate(self.blocks):
            if index in global_blocks:
                continue
            if not isinstance(block, PlainBlock):
                raise UserError(f'window_size is not for the blocks of {self.settings["model"]}')
            block.attn.window_size = window_size

    def _timm(self, num_classes: int, **changes: Any) -> nn.Module:
        arguments = {key: value for key, value in self.settings.items() if key != 'model'} | changes
        try:
            return timm.create_model(
                self.settings['model'],
                num_classes=num_classes,
                dynamic_img_size=True,
                dynamic_img_pad=True,
                **arguments)
        except (AssertionError, KeyError, TypeError) as error:
            raise UserError(f'timm cannot build {self.settings}: {error!r}') from error

    def _build(self,
               num_blocks: int,
               *,
               drop_path_rate: float = 0.,
               num_classes: int | None = None) -> nn.Module:
        backbone = self._timm(num_classes or 0)
        for name in self.stem_names:
            if not hasattr(backbone, name):
                setattr(backbone, name, None)
        backbone.blocks = nn.ModuleList(
            adapted(block, index, drop_path_rate)
            for index, block in enumerate(list(backbone.blocks)[:num_blocks]))
        if isinstance(backbone.rope, RotaryEmbeddingMixed):  # learned for each block
            frequencies = backbone.rope.freqs.detach()[:, :num_blocks]
            backbone.rope.freqs = nn.Parameter(frequencies.clone())
        self._group_matcher = backbone.group_matcher(coarse=False)
        return backbone

    def timm_module(self, img_size: int | tuple[int, int], num_classes: int = 0) -> nn.Module:
        """timm's own module of this architecture, which takes images of any size."""
        return self._timm(num_classes, img_size=img_size)

    @classmethod
    def infer_arch(cls, state: State) -> dict[str, int]:
        """Width, depth and patch size that a state dict under timm's names shows."""
        if not LAYOUTS[-1].fits(state):
            raise KeyError(LAYOUTS[-1].name)
        weight = state['patch_embed.proj.weight']
        depth = len({key.split('.')[1] for key in state if key.startswith('blocks.')})
        prefix = sum(state[name].shape[1] for name in PREFIX_TOKENS if name in state)
        return dict(
            embed_dim=len(weight),
            depth=depth,
            patch_size=weight.shape[-1],
            prefix_tokens=prefix,
            pos_embed='pos_embed' in state)

    def describe(self, state: State | None = None) -> str:
        """What the tensors show, of this backbone and of files."""
        if state is not None:
            return super().describe(state)
        return self.variants.describe(self.infer_arch(self.state_dict()) | dict(depth=self.depth))

    @classmethod
    def arguments_for(cls, state: State) -> dict[str, Any]:
        """What builds the backbone of a state dict, which is one of timm's models."""
        sizes = cls.infer_arch(state)
        positions = state.get('pos_embed')
        # prefix tokens are fewer than what the next larger grid has more
        side = None if positions is None else math.isqrt(positions.shape[1])
        return dict(
            arch=find_model(state, sizes),
            patch_size=sizes['patch_size'],
            img_size=side and side * sizes['patch_size'],
            tap_norm='norm.weight' in state)

    @classmethod
    def weights_name(cls, arch: str | Mapping[str, Any], init_cfg: dict | list[dict] | None) -> str:
        """timm's name of the weights, with their tag if the config says it."""
        name = arch if isinstance(arch, str) else arch.get('model', '')
        return super().weights_name(arch, init_cfg) or name

    @classmethod
    def implied(cls, arch: str | Mapping[str, Any],
                init_cfg: dict | list[dict] | None) -> dict[str, Any]:
        """Whether the authors of the weights apply the final norm to each map."""
        return dict(tap_norm=are_normalised(cls.weights_name(arch, init_cfg)))

    def renamed(self, state: State) -> State:
        """DeiT-III's LayerScale under timm's names, which depend on the model."""
        scaled = any(name.startswith('blocks.0.ls1.') for name, _ in self.named_parameters())
        of_deit3 = LAYOUTS[-1].fits(state) and scaled
        return with_layer_scale_modules(state) if of_deit3 else state

    def unused_shapes(self, state: State) -> list[Shapes]:
        """Each part of a classifier, also one that timm's module lacks; biases that are all 0."""
        groups: dict[str, Shapes] = {}
        for group in super().unused_shapes(state):
            for key, shape in group.items():
                groups.setdefault(part_of(key), {})[key] = shape
        known = {key for group in groups.values() for key in group}
        others = {
            key: value.shape
            for key, value in state.items()
            if part_of(key) in self.classifier_names and key not in known
        }
        needed = any(name.endswith(EVA_BIASES) for name, _ in self.named_parameters())
        return [*groups.values(), others, {} if needed else zero_biases(state)]

    def resized(self, state: State) -> State:
        """Patches and positions of other sizes, and frequencies of more blocks than there are."""
        model = self.settings['model']
        found = resized_patches(state, self.patch_embed.proj.weight, model)
        if self.pos_embed is not None:
            found |= resized_positions(state, self.pos_embed, self.patch_embed, model)
        return found | first_frequencies(state, len(self.blocks))

    def _resample(self, positions: Tensor, old_grid: Grid, new_grid: Grid) -> Tensor:
        return resample_positions(positions, old_grid, new_grid, self._embedded_prefix)

    @property
    def num_prefix_tokens(self) -> int:
        """Tokens before those of the grid."""
        return sum(token.shape[1] for token in self._prefix_tokens)

    @property
    def _prefix_tokens(self) -> list[Tensor]:
        """Class, distillation and register tokens, those that there are."""
        tokens = (self.cls_token, self.dist_token, self.reg_token)
        return [token for token in tokens if token is not None]

    @property
    def _embedded_prefix(self) -> int:
        """How many of the prefix tokens have learned positions: all or none."""
        return self.pos_embed.shape[1] - math.prod(self.patch_embed.grid_size)

    def _embed(self, img: Tensor) -> tuple[Tensor, tuple]:
        x = self.patch_embed(img)  # (B, h, w, C)
        grid = tuple(x.shape[1:3])
        x = x.flatten(1, 2)
        prefix = [token.expand(x.shape[0], -1, -1) for token in self._prefix_tokens]
        positions = self.pos_embed
        if positions is not None:
            if torch.compiler.is_exporting() or grid != self.patch_embed.grid_size:
                positions = self._resample(positions, self.patch_embed.grid_size, grid)
            if not self._embedded_prefix:
                x, positions = x + positions, None
        x = torch.cat((*prefix, x), dim=1)
        if positions is not None:
            x = x + positions
        rope = None if self.rope is None else rotary_positions(self.rope, grid)
        return self.norm_pre(x), (grid, rope)

    def _run_block(self, block: nn.Module, x: Tensor, place: tuple) -> Tensor:
        if not self._blocks_are_plain:
            return block(x)
        grid, rope = place
        if rope is not None and rope.ndim == 4:  # of each block
            rope = rope[block.index]
        return block(x, grid, rope)

    def _to_map(self, x: Tensor, place: tuple) -> Tensor | tuple[Tensor, Tensor]:
        if self.tap_norm:
            x = self.norm(x)
        count = self.num_prefix_tokens
        map_ = as_map(x[:, count:], place[0][0])
        return (map_, x[:, :count]) if self.return_prefix_tokens else map_

    def get_layer_depth(self, param_name: str, prefix: str = '') -> tuple[int, int]:
        """As :meth:`.ColumnarBackbone.get_layer_depth`, by timm's groups of parameters."""
        name, last = param_name.removeprefix(prefix), self.depth + 1
        if param_name.startswith(prefix):
            if re.match(self._group_matcher['stem'], name):
                return 0, last + 1
            for pattern, with_the_former in self._group_matcher['blocks']:
                if found := re.match(pattern, name):
                    number = len(self.blocks) if with_the_former else int(found[1]) + 1
                    return number, last + 1
        return last, last + 1
