"""What all columnar trunks share: taps, freezing, checkpointing, norm layers and layer depth.

Shapes: ``B`` images, ``H, W`` their height and width, ``p`` patch size, ``N = h * w`` tokens of an
``h = ceil(H / p)`` by ``w = ceil(W / p)`` grid, ``C`` embedding width.
"""
from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from mmcv.cnn import build_norm_layer
from mmengine.model import BaseModule
from torch import Tensor, is_grad_enabled, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint


class ColumnarBackbone(BaseModule):
    """A trunk of equal blocks whose intermediate outputs are given as maps of one stride.

    A subclass gives its table ``arch_settings`` and three methods: :meth:`_build_trunk`,
    :meth:`_embed` and :meth:`_run_block`. Its parameters carry the names of timm's module. Blocks
    behind the last tap are not built: they would cost memory and get no gradient.

    Args:
        arch: A name in ``arch_settings``, or a dict with the columns of that table.
        out_indices: Blocks whose outputs are returned, shallow to deep; negative ones count from
            the last block. A block may stand there more than once. ``None`` takes the originals'
            four taps: blocks 4, 6, 8, 12 of 12, and 8, 12, 16, 24 of 24.
        drop_path_rate: Stochastic depth, the same for every block (as the XCiT paper trains).
        frozen_stages: ``-1`` freezes nothing, ``0`` the stem, ``n`` also the first n blocks.
        norm_eval: Keep batch normalisation layers in evaluation mode while training.
        with_cp: Recompute each block in the backward pass instead of storing its activations.
        norm_cfg: Type and options of the batch normalisation layers; ``None`` is ``type='BN'``.
        init_cfg: See :class:`mmengine.model.BaseModule`.

    Raises:
        ValueError: If the architecture, an index or a stage does not exist.
    """

    #: name of a variant -> its columns; one row per variant of the paper's table
    arch_settings: Mapping[str, Mapping[str, Any]] = {}
    #: columns that a custom ``arch`` may leave out, with their values
    arch_defaults: Mapping[str, Any] = {}
    #: children that come before the first block
    stem_names: tuple[str, ...] = ('patch_embed', 'pos_embed')

    def __init__(self,
                 arch: str | Mapping[str, Any],
                 *,
                 out_indices: Sequence[int] | None = None,
                 drop_path_rate: float = 0.,
                 frozen_stages: int = -1,
                 norm_eval: bool = False,
                 with_cp: bool = False,
                 norm_cfg: dict | None = None,
                 init_cfg: dict | list[dict] | None = None) -> None:
        super().__init__(init_cfg=init_cfg)
        settings = self._resolve_arch(arch)
        self.embed_dim: int = settings['embed_dim']
        self.patch_size: int = settings['patch_size']
        self.depth: int = settings['depth']
        self.out_indices = resolve_out_indices(out_indices, self.depth)
        self.norm_eval = norm_eval
        self.with_cp = with_cp
        if not 0 <= drop_path_rate < 1:
            raise ValueError(f'drop_path_rate must be in [0, 1), got {drop_path_rate}')
        num_blocks = self.out_indices[-1] + 1
        if not -1 <= frozen_stages <= num_blocks:
            raise ValueError(f'frozen_stages must be in -1 ... {num_blocks}, got {frozen_stages}')
        self.frozen_stages = frozen_stages

        self._build_trunk(settings, num_blocks, drop_path_rate)
        if norm_cfg is not None:
            replace_batch_norms(self, norm_cfg)
        for module in self._frozen_modules():
            module.requires_grad_(False)

    @abstractmethod
    def _build_trunk(self, settings: Mapping[str, Any], num_blocks: int,
                     drop_path_rate: float) -> None:
        """Set ``self.blocks`` (a ModuleList of ``num_blocks``) and the stem's modules."""

    @abstractmethod
    def _embed(self, img: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """``(B, 3, H, W)`` to tokens ``(B, N, C)`` and their grid ``(h, w)``."""

    @abstractmethod
    def _run_block(self, block: nn.Module, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """Tokens ``(B, N, C)`` through one block."""

    def forward(self, img: Tensor) -> tuple[Tensor, ...]:
        """Maps of the tapped blocks, as the blocks give them (no final norm).

        Args:
            img: ``(B, 3, H, W)``, normalised, with H and W of at least one patch.

        Returns:
            ``len(out_indices)`` maps ``(B, C, ceil(H / p), ceil(W / p))``, shallow to deep.

        Raises:
            ValueError: If the images are smaller than a patch.
        """
        height, width = img.shape[-2:]
        if min(height, width) < self.patch_size:
            raise ValueError(f'images must be at least {self.patch_size} x {self.patch_size} '
                             f'(one patch), got {height} x {width}')
        x, (h, w) = self._embed(img)
        maps = {}
        for index, block in enumerate(self.blocks):
            x = self._checkpointed(block, x, (h, w))
            if index in self.out_indices:
                maps[index] = x.transpose(1, 2).unflatten(2, (h, w))  # (B, C, h, w)
        return tuple(maps[index] for index in self.out_indices)

    def _checkpointed(self, block: nn.Module, x: Tensor, grid: tuple[int, int]) -> Tensor:
        if not (self.with_cp and is_grad_enabled()):
            return self._run_block(block, x, grid)
        return checkpoint(
            self._run_block,
            block,
            x,
            grid,
            use_reentrant=False,
            context_fn=lambda: (nullcontext(), running_stats_kept(block)))

    def train(self, mode: bool = True) -> ColumnarBackbone:
        """As :meth:`torch.nn.Module.train`, but what is frozen stays in evaluation mode."""
        super().train(mode)
        for module in self._frozen_modules():
            module.eval()
        if self.norm_eval:
            for module in self.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
        return self

    def get_layer_depth(self, param_name: str, prefix: str = '') -> tuple[int, int]:
        """Depth of a parameter, for layer-wise learning-rate decay (as mmpretrain defines it).

        Args:
            param_name: Name of the parameter, ``prefix`` included.
            prefix: What stands before the backbone's own names, e.g. ``'backbone.'``.

        Returns:
            The layer's number (stem 0, block i is i + 1, anything else the last) and the number of
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

    def _frozen_modules(self) -> Iterator[nn.Module]:
        if self.frozen_stages < 0:
            return
        for name in self.stem_names:
            yield getattr(self, name)
        yield from self.blocks[:self.frozen_stages]

    def _resolve_arch(self, arch: str | Mapping[str, Any]) -> dict[str, Any]:
        """The columns of ``arch``, complete and of the right names."""
        name = type(self).__name__
        if isinstance(arch, str):
            if arch not in self.arch_settings:
                raise ValueError(f'{name} has no arch {arch!r}; it has '
                                 f'{", ".join(self.arch_settings)}, or takes a dict')
            arch = self.arch_settings[arch]
        columns = set(next(iter(self.arch_settings.values())))
        settings = {**self.arch_defaults, **arch}
        missing, unknown = columns - set(settings), set(settings) - columns
        if missing or unknown:
            raise ValueError(f'a custom arch of {name} has the keys {sorted(columns)}: '
                             f'missing {sorted(missing)}, unknown {sorted(unknown)}')
        return settings


def resolve_out_indices(out_indices: Sequence[int] | None, depth: int) -> tuple[int, ...]:
    """Non-negative indices of the tapped blocks, shallow to deep.

    Raises:
        ValueError: If there is none, one is out of range, or they don't go from shallow to deep.
    """
    if out_indices is None:
        defaults = (depth // 3 - 1, depth // 2 - 1, 2 * depth // 3 - 1, depth - 1)
        return tuple(max(index, 0) for index in defaults)
    wrong = [index for index in out_indices if not -depth <= index < depth]
    if wrong or not out_indices:
        raise ValueError(f'out_indices must be block numbers in {-depth} ... {depth - 1}, '
                         f'got {tuple(out_indices)}')
    resolved = tuple(index % depth for index in out_indices)
    if list(resolved) != sorted(resolved):
        raise ValueError(f'out_indices must go from shallow to deep, got {tuple(out_indices)}')
    return resolved


def replace_batch_norms(module: nn.Module, norm_cfg: dict) -> None:
    """Put layers of ``norm_cfg`` in the place of all ``BatchNorm2d`` below ``module``."""
    for parent in list(module.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.BatchNorm2d):
                parent.add_module(name, build_norm_layer(norm_cfg, child.num_features)[1])


@contextmanager
def running_stats_kept(module: nn.Module) -> Iterator[None]:
    """While open, batch norms in training mode normalise as always but count no batch.

    Activation checkpointing runs a block twice per step; without this, the second run would move
    the running statistics again.
    """
    norms = [m for m in module.modules() if isinstance(m, _BatchNorm)]
    before = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        norm.momentum, norm.num_batches_tracked = 0., None
    try:
        yield
    finally:
        for norm, (momentum, num_batches_tracked) in zip(norms, before, strict=True):
            norm.momentum, norm.num_batches_tracked = momentum, num_batches_tracked
