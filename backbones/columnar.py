"""Base class of columnar backbones: feature maps, freezing, checkpointing and layer depth.

Shapes: ``B`` images, ``H, W`` their height and width, ``p`` patch size, ``C`` embedding width.
The ``N = h * w`` tokens are a grid of ``h = ceil(H / p)`` by ``w = ceil(W / p)``.
"""
from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, ClassVar

from mmengine.logging import print_log
from torch import Tensor, is_grad_enabled, nn
from torch.utils.checkpoint import checkpoint

from colonnade.common.channels import check_channels
from colonnade.common.errors import UserError
from colonnade.weights.loading import require_complete, resize_tensors
from colonnade.weights.state_dicts import State, add_prefix, strip_prefix

from .deferred_blocks import DeferredBlocks
from .kernels.folding import FusedError, Fusible
from .kernels.matmul_backend import check_matmul_backend
from .kernels.memory_format import as_map
from .kernels.norms import RunningStatsKept, is_batch_norm, replace_batch_norms
from .lora import add_lora, rename_adapted
from .variants import PublishedSize, Variants, resolve_out_indices
from .weight_loading import LoadableBackbone


class ColumnarBackbone(Fusible, LoadableBackbone):
    """Backbone of equal blocks whose intermediate outputs are feature maps of one stride.

    A subclass defines its table ``variants`` and the methods :meth:`_build`, :meth:`_embed`,
    :meth:`_run_block`, :meth:`infer_arch` and :meth:`build_timm_module`, and is registered by
    :func:`register_backbone`. Its parameters have the names of timm's module. Blocks after the last
    feature map are not built: they would cost memory and get no gradient.

    Args:
        arch: Name in the table ``variants``, or a dict with its columns.
        out_indices: Blocks whose outputs are returned, shallow to deep; negative ones count from
            the last block, and repeated ones are returned repeatedly. Defaults to the four of the
            originals: blocks 4, 6, 8, 12 of 12, 8, 12, 16, 24 of 24, and in these proportions.
        drop_path_rate: Stochastic depth, the same for every block (as the papers train). Defaults
            to the architecture's rate if its table has one, otherwise 0.
        frozen_stages: ``-1`` freezes nothing, ``0`` the stem, ``n`` also the first n blocks; the
            number of all blocks freezes the whole backbone.
        norm_eval: Keep batch norms in evaluation mode while training.
        with_cp: Recompute blocks in the backward pass instead of storing their activations: True
            for all, an integer n for every n-th.
        defer_blocks: Run no blocks, and return one :class:`.DeferredBlocks`, whose blocks a neck
            runs: :class:`.ViTAdapter`.
        in_channels: Number of channels of images. Pretrained weights of three are repeated and
            scaled for others, as timm does.
        rgb_channels: Channels that get the pretrained weights of red, green and blue instead, such
            as ``(2, 1, 0)``; those of the other channels start at zero.
        lora: Freeze all weights, and train low-rank updates of the blocks' linear layers:
            ``dict(rank=8, alpha=16, dropout=0.)``, see :func:`.add_lora`.
        norm_cfg: Type and options of the batch norms. Defaults to ``type='BN'``.
        init_cfg: ``dict(type='Pretrained', checkpoint=...)`` loads a file, a URL or
            ``timm://NAME`` by :func:`~colonnade.weights.load_weights`, strictly. For others see
            :class:`mmengine.model.BaseModule`.

    Raises:
        ValueError: If the architecture, an index or a stage does not exist, or the environment
            chooses an unknown library for matmuls.
    """

    #: supported architectures
    variants: ClassVar[Variants]
    #: sizes of classifiers in the paper's table
    published_sizes: ClassVar[tuple[PublishedSize, ...]] = ()
    #: children before the first block
    stem_names: tuple[str, ...] = ('patch_embed', 'pos_embed')
    #: children after the last block
    tail_names: tuple[str, ...] = ()
    #: True if feature maps are those after the final norm
    norm_features: bool | str = False
    #: number of last blocks that a head runs with its queries; such a backbone has no feature maps
    num_query_blocks: int = 0
    #: child of timm's module with class-attention blocks
    class_attention_name: str | None = None

    @property
    def num_prefix_tokens(self) -> int:
        """Number of tokens before those of the patches."""
        return 0

    @property
    def has_feature_maps(self) -> bool:
        """True unless a neck or head runs some of its blocks."""
        return not (self.defer_blocks or self.num_query_blocks)

    def __init__(self,
                 arch: str | Mapping[str, Any],
                 *,
                 out_indices: Sequence[int] | None = None,
                 drop_path_rate: float | None = None,
                 frozen_stages: int = -1,
                 norm_eval: bool = False,
                 with_cp: bool | int = False,
                 defer_blocks: bool = False,
                 in_channels: int = 3,
                 rgb_channels: Sequence[int] | None = None,
                 lora: dict | None = None,
                 norm_cfg: dict | None = None,
                 init_cfg: dict | list[dict] | None = None) -> None:
        check_matmul_backend()
        super().__init__(init_cfg=init_cfg)
        self.settings = self.variants.resolve(arch)
        self.embed_dim: int = self.settings['embed_dim']
        self.patch_size: int = self.settings['patch_size']
        self.depth: int = self.settings['depth']
        self.out_indices = resolve_out_indices(out_indices, self.depth)
        check_channels(in_channels, rgb_channels)
        self.in_channels, self.rgb_channels = in_channels, rgb_channels
        self.norm_eval = norm_eval
        if not isinstance(with_cp, int) or with_cp < 0:
            raise UserError('with_cp must be False, True for all blocks, or n for every n-th, got '
                            f'{with_cp!r}')
        self.with_cp = with_cp
        if drop_path_rate is None:
            drop_path_rate = self.settings.get('drop_path_rate', 0.)
        if not 0 <= drop_path_rate < 1:
            raise UserError(f'drop_path_rate must be in [0, 1), got {drop_path_rate}')
        num_blocks = self.out_indices[-1] + 1
        if not -1 <= frozen_stages <= num_blocks:
            raise UserError(f'frozen_stages must be between -1 and {num_blocks}, got '
                            f'{frozen_stages}')
        self.frozen_stages = frozen_stages
        self.defer_blocks = defer_blocks
        if defer_blocks and num_blocks < self.depth:
            raise UserError(f'defer_blocks requires all {self.depth} blocks: remove out_indices, '
                            'or set the last one to -1')

        backbone = self._build(num_blocks, drop_path_rate=drop_path_rate, num_classes=None)
        for name in (*self.stem_names, 'blocks', *self.tail_names):
            setattr(self, name, getattr(backbone, name))
        if not any(is_batch_norm(module) for module in self.modules()):
            for name, value in dict(norm_cfg=norm_cfg, norm_eval=norm_eval).items():
                if value:
                    print_log(
                        f'{name} has no effect on {type(self).__name__}: it has no batch norms',
                        logger='current',
                        level=logging.WARNING)
        elif norm_cfg is not None:
            replace_batch_norms(self, norm_cfg)
        for part in self._iter_frozen():
            part.requires_grad_(False)
        if rgb_channels is not None and (frozen_stages >= 0 or lora is not None):
            raise UserError(
                'rgb_channels leaves the other channels at zero, which a frozen stem cannot '
                'change: remove it, or train the stem')
        self.lora = lora
        if lora is not None:
            if frozen_stages >= 0:
                raise UserError('frozen_stages has no effect with lora, which freezes all weights: '
                                'remove one of them')
            add_lora(self, self.embed_dim, **lora)
        self.register_load_state_dict_pre_hook(_prepare_loading)

    @abstractmethod
    def build_timm_module(self, img_size: int | tuple[int, int], num_classes: int = 0) -> nn.Module:
        """Build timm's module of this architecture: blocks and classifier."""

    def build_classifier(self) -> nn.Module:
        """Build timm's module with the class-attention stage, one block and no head."""
        return self._build(1, drop_path_rate=0., num_classes=0)

    @staticmethod
    def attend_to_class(blocks: nn.ModuleList, cls_token: Tensor, x: Tensor) -> Tensor:
        """Run class-attention blocks on the class token ``(B, 1, C)`` and tokens ``(B, N, C)``."""
        raise NotImplementedError

    @abstractmethod
    def _embed(self, img: Tensor) -> tuple[Tensor, tuple]:
        """Embed ``(B, c, H, W)`` as tokens ``(B, N, C)``, with h, w and what else blocks need."""

    @abstractmethod
    def _run_block(self, block: nn.Module, x: Tensor, place: tuple) -> Tensor:
        """Run one block on tokens ``(B, N, C)``."""

    def _to_map(self, x: Tensor, place: tuple, is_last: bool = False) -> Tensor:
        """Copy tokens ``(B, N, C)`` after a block to a feature map ``(B, C, h, w)``."""
        return as_map(x, place[0])

    def _get_grid(self, img: Tensor) -> tuple[int, int]:
        """Return rows and columns of patches of images that are padded to whole ones.

        The formula is timm's: in exports, equal sizes must be equal expressions.
        """
        size, (height, width) = self.patch_size, img.shape[-2:]
        rows, columns = ((side + (size - side % size) % size) // size for side in (height, width))
        return rows, columns

    def forward(self, img: Tensor) -> tuple:
        """Return feature maps, as the blocks output them (no final norm).

        Args:
            img: Normalized images ``(B, c, H, W)`` of at least one patch, with ``c = in_channels``.

        Returns:
            ``len(out_indices)`` maps ``(B, C, ceil(H / p), ceil(W / p))``, shallow to deep.
        """
        x, place = self._start(img)
        if self.defer_blocks:
            blocks = DeferredBlocks(img, x, self._get_grid(img), place, self.depth,
                                    self.num_prefix_tokens, self._step, self._to_map)
            return (blocks, )
        maps = {}
        for index in range(len(self.blocks)):
            x = self._step(index, x, place)
            if index in self.out_indices:
                maps[index] = self._to_map(x, place, index == self.depth - 1)
        return tuple(maps[index] for index in self.out_indices)

    def _start(self, img: Tensor) -> tuple[Tensor, tuple]:
        """Check images and embed them, see :meth:`_embed`."""
        if img.ndim != 4 or img.shape[1] != self.in_channels:
            raise UserError(f'images must have shape (B, {self.in_channels}, H, W), got '
                            f'{tuple(img.shape)}')
        height, width = img.shape[-2:]
        if min(height, width) < self.patch_size:
            raise UserError(f'images must be at least {self.patch_size} x {self.patch_size} '
                            f'(one patch), got {height} x {width}')
        self.require_exact_autocast(img.device.type)
        x, place = self._embed(img)
        return x.contiguous(), place  # channels last, whatever the stem returns

    def _step(self, index: int, x: Tensor, place: tuple) -> Tensor:
        """Run a block; its activations are recomputed in the backward pass if ``with_cp`` is set.
        """
        block = self.blocks[index]
        if not (self.with_cp and index % len(self.blocks) % self.with_cp == 0
                and is_grad_enabled()):
            return self._run_block(block, x, place)
        return checkpoint(
            self._run_block,
            block,
            x,
            place,
            use_reentrant=False,
            context_fn=lambda: (nullcontext(), RunningStatsKept(block)))

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile the blocks separately; arguments as for :func:`torch.compile`.

        All blocks share one compilation: it takes seconds, not minutes. With Inductor's
        ``freezing`` (``TORCHINDUCTOR_FREEZING=1``), where weights are constants, the backbone is
        compiled as a whole.
        """
        from torch._inductor import config  # takes a second
        if config.freezing:
            super().compile(*args, **kwargs)
            return
        for block in self.blocks:
            block.compile(*args, **kwargs)

    def train(self, mode: bool = True) -> ColumnarBackbone:
        """Set the mode as :meth:`torch.nn.Module.train`, but keep frozen parts in evaluation mode.
        """
        if mode and self.fused:
            raise FusedError(f'a fused {type(self).__name__} cannot be trained: build it again')
        super().train(mode)
        for part in self._iter_frozen():
            if isinstance(part, nn.Module):
                part.eval()
        if self.norm_eval or self.lora is not None:
            for module in self.modules():
                if is_batch_norm(module):
                    module.eval()
        return self

    def get_layer_depth(self, param_name: str, prefix: str = '') -> tuple[int, int]:
        """Return the depth of a parameter, for layer-wise LR decay (as mmpretrain defines it).

        Args:
            param_name: Name of the parameter, ``prefix`` included.
            prefix: Prefix of the backbone's names, such as ``'backbone.'``.

        Returns:
            The layer's index (stem 0, block i is i + 1, anything else the last) and the number of
            layers, ``depth + 2``.
        """
        num_layers = self.depth + 2
        if not param_name.startswith(prefix):
            return num_layers - 1, num_layers
        top, *rest = param_name[len(prefix):].split('.')
        if top in self.stem_names:
            return 0, num_layers
        if top == 'blocks':
            return int(rest[0]) + 1, num_layers
        return num_layers - 1, num_layers

    def _iter_frozen(self) -> Iterator[nn.Module | nn.Parameter]:
        if self.frozen_stages < 0:
            return
        tail = self.tail_names if self.frozen_stages == len(self.blocks) else ()
        for name in (*self.stem_names, *tail):
            if (part := getattr(self, name)) is not None:
                yield part
        yield from self.blocks[:self.frozen_stages]


def _prepare_loading(backbone: ColumnarBackbone, state_dict: State, prefix: str, *_: Any) -> None:
    """Resize tensors of a state dict before loading, and check that it is complete."""
    backbone.reject_weights()
    own = strip_prefix(state_dict, prefix)
    adapted = rename_adapted(backbone, own)
    for key in own:
        if key not in adapted:
            del state_dict[prefix + key]
    state_dict.update(add_prefix(adapted, prefix))
    resize_tensors(backbone, state_dict, prefix)
    require_complete(backbone, state_dict, prefix)
