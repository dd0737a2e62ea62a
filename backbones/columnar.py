"""What all columnar trunks share: taps, freezing, checkpointing, norm layers and layer depth.

Shapes: ``B`` images, ``H, W`` their height and width, ``p`` patch size, ``C`` embedding width.
There are ``N = h * w`` tokens, of a grid of ``h = ceil(H / p)`` by ``w = ceil(W / p)``.
"""
from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, ClassVar

import torch
from mmengine.logging import print_log
from mmengine.model import BaseModule
from torch import Tensor, is_grad_enabled, nn
from torch.utils.checkpoint import checkpoint

from colonnade.weights.loading import require_complete, resize_tensors
from colonnade.weights.pretrained import load_pretrained, pretrained_of, timm_name_of
from colonnade.weights.state_dicts import State, WeightsError

from .kernels.folding import FusedError, Fusible, refuse_weights
from .kernels.norms import RunningStatsKept, is_batch_norm, replace_batch_norms
from .kernels.operators import as_image
from .registry import infer_trunk
from .variants import PublishedSize, Variants, resolve_out_indices


class ColumnarBackbone(Fusible, BaseModule):
    """A trunk of equal blocks whose intermediate outputs are given as maps of one stride.

    A subclass gives its table ``variants`` and the methods :meth:`_build`, :meth:`_embed`,
    :meth:`_run_block`, :meth:`infer_arch` and :meth:`timm_module`, and is registered by
    :func:`register_trunk`. Its parameters carry the names of timm's module. Blocks behind the last
    tap are not built: they would cost memory and get no gradient.

    Args:
        arch: A name in the table ``variants``, or a dict with its columns.
        out_indices: Blocks whose outputs are returned, shallow to deep; negative ones count from
            the last block. A block may stand there more than once. ``None`` takes the originals'
            four taps: blocks 4, 6, 8, 12 of 12, 8, 12, 16, 24 of 24, and in these proportions.
        drop_path_rate: Stochastic depth, the same for every block (as the papers train). ``None``
            is the architecture's rate if its table has one, else 0.
        frozen_stages: ``-1`` freezes nothing, ``0`` the stem, ``n`` also the first n blocks; the
            number of all blocks freezes the whole trunk.
        norm_eval: Keep batch normalisation layers in evaluation mode while training.
        with_cp: Recompute each block in the backward pass instead of storing its activations.
        norm_cfg: Type and options of the batch normalisation layers; ``None`` is ``type='BN'``.
        init_cfg: ``dict(type='Pretrained', checkpoint=...)`` loads a file, a URL or
            ``timm://NAME`` by :func:`~colonnade.weights.load_weights`, strictly. For others see
            :class:`mmengine.model.BaseModule`.

    Raises:
        ValueError: If the architecture, an index or a stage does not exist.
    """

    #: the architectures that there are
    variants: ClassVar[Variants]
    is_init: bool  # mmengine's: whether init_weights() was called
    #: what the paper's table of classifiers lists
    published_sizes: ClassVar[tuple[PublishedSize, ...]] = ()
    #: children that come before the first block
    stem_names: tuple[str, ...] = ('patch_embed', 'pos_embed')
    #: children that come after the last block
    tail_names: tuple[str, ...] = ()
    #: children of timm's module that classification alone needs
    classifier_names: tuple[str, ...] = ('cls_token', 'cls_attn_blocks', 'norm', 'head')
    #: whether maps are those behind the final norm
    tap_norm: bool = False
    #: the child with the class-attention blocks, if timm's module has any
    class_attention_name: str | None = None

    def __init__(self,
                 arch: str | Mapping[str, Any],
                 *,
                 out_indices: Sequence[int] | None = None,
                 drop_path_rate: float | None = None,
                 frozen_stages: int = -1,
                 norm_eval: bool = False,
                 with_cp: bool = False,
                 norm_cfg: dict | None = None,
                 init_cfg: dict | list[dict] | None = None) -> None:
        super().__init__(init_cfg=init_cfg)
        self.settings = self.variants.resolve(arch)
        self.embed_dim: int = self.settings['embed_dim']
        self.patch_size: int = self.settings['patch_size']
        self.depth: int = self.settings['depth']
        self.out_indices = resolve_out_indices(out_indices, self.depth)
        self.norm_eval = norm_eval
        self.with_cp = with_cp
        if drop_path_rate is None:
            drop_path_rate = self.settings.get('drop_path_rate', 0.)
        if not 0 <= drop_path_rate < 1:
            raise ValueError(f'drop_path_rate must be in [0, 1), got {drop_path_rate}')
        num_blocks = self.out_indices[-1] + 1
        if not -1 <= frozen_stages <= num_blocks:
            raise ValueError(f'frozen_stages must be in -1 ... {num_blocks}, got {frozen_stages}')
        self.frozen_stages = frozen_stages

        trunk = self._build(num_blocks, drop_path_rate=drop_path_rate)
        for name in (*self.stem_names, 'blocks', *self.tail_names):
            setattr(self, name, getattr(trunk, name))
        if not any(is_batch_norm(module) for module in self.modules()):
            self._warn_of_no_effect(norm_cfg=norm_cfg, norm_eval=norm_eval)
        elif norm_cfg is not None:
            replace_batch_norms(self, norm_cfg)
        for part in self._frozen_parts():
            part.requires_grad_(False)
        self.register_load_state_dict_pre_hook(require_fitting)

    @abstractmethod
    def _build(self,
               num_blocks: int,
               *,
               drop_path_rate: float = 0.,
               num_classes: int | None = None) -> nn.Module:
        """timm's module; without its classification stage if ``num_classes`` is None."""

    @classmethod
    @abstractmethod
    def infer_arch(cls, state: State) -> dict[str, int]:
        """The ``shown_columns`` of the table ``variants`` that a state dict under our names shows.

        Raises:
            KeyError: If the tensors that show them are not there.
        """

    @classmethod
    def arguments_for(cls, state: State) -> dict[str, Any]:
        """Arguments that build the trunk of a state dict under our names.

        Raises:
            LookupError, ValueError: If the state dict does not show them.
        """
        return dict(arch=cls.infer_arch(state))

    @classmethod
    def weights_name(cls, arch: str | Mapping[str, Any], init_cfg: dict | list[dict] | None) -> str:
        """timm's name of the weights that a config asks for, or nothing."""
        return timm_name_of(init_cfg)

    @classmethod
    def implied(cls, arch: str | Mapping[str, Any],
                init_cfg: dict | list[dict] | None) -> dict[str, Any]:
        """Arguments that follow from the weights, by name, if a config does not say them."""
        return {}

    @abstractmethod
    def timm_module(self, img_size: int | tuple[int, int], num_classes: int = 0) -> nn.Module:
        """timm's own module of this architecture: blocks and classifier.

        Args:
            img_size: For modules that are built for one size of images.
            num_classes: Of the classifier; 0 for none.
        """

    def build_classifier(self) -> nn.Module:
        """timm's module with the class-attention stage, one block and no head."""
        return self._build(1, num_classes=0)

    @staticmethod
    def attend_to_class(blocks: nn.ModuleList, cls_token: Tensor, x: Tensor) -> Tensor:
        """The class token ``(B, 1, C)`` after the class-attention blocks; tokens ``(B, N, C)``."""
        raise NotImplementedError

    @abstractmethod
    def _embed(self, img: Tensor) -> tuple[Tensor, tuple]:
        """``(B, 3, H, W)`` to tokens ``(B, N, C)`` and their place: h, w, what else blocks need."""

    @abstractmethod
    def _run_block(self, block: nn.Module, x: Tensor, place: tuple) -> Tensor:
        """Tokens ``(B, N, C)`` through one block."""

    def _to_map(self, x: Tensor, place: tuple) -> Tensor:
        """Tokens ``(B, N, C)`` behind a tapped block as a map ``(B, C, h, w)`` in default order.

        mmcv's compiled RoIAlign silently reads images in any other order wrongly.
        """
        return as_image(x, place[0]).contiguous()

    def forward(self, img: Tensor) -> tuple[Tensor, ...]:
        """Maps of the tapped blocks, as the blocks give them (no final norm).

        Args:
            img: ``(B, 3, H, W)``, normalised, with H and W of at least one patch.

        Returns:
            ``len(out_indices)`` maps ``(B, C, ceil(H / p), ceil(W / p))``, shallow to deep.

        Raises:
            ValueError: If the images are smaller than a patch, or one without a batch.
        """
        if img.ndim != 4:
            raise ValueError(f'images must be (B, 3, H, W), got the shape {tuple(img.shape)}')
        height, width = img.shape[-2:]
        if min(height, width) < self.patch_size:
            raise ValueError(f'images must be at least {self.patch_size} x {self.patch_size} '
                             f'(one patch), got {height} x {width}')
        x, place = self._embed(img)
        x = x.contiguous()  # channels last, whatever order the stem leaves
        maps = {}
        for index, block in enumerate(self.blocks):
            x = self._checkpointed(block, x, place)
            if index in self.out_indices:
                maps[index] = self._to_map(x, place)
        return tuple(maps[index] for index in self.out_indices)

    def _checkpointed(self, block: nn.Module, x: Tensor, place: tuple) -> Tensor:
        if not (self.with_cp and is_grad_enabled()):
            return self._run_block(block, x, place)
        return checkpoint(
            self._run_block,
            block,
            x,
            place,
            use_reentrant=False,
            context_fn=lambda: (nullcontext(), RunningStatsKept(block)))

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Let torch.compile take the blocks, one by one; arguments as for it.

        One compilation serves all blocks: it takes seconds, not minutes.
        """
        for block in self.blocks:
            block.compile(*args, **kwargs)

    @property
    def pretrained(self) -> dict[str, Any] | None:
        """The ``type='Pretrained'`` part of ``init_cfg``."""
        return pretrained_of(self.init_cfg)

    def init_weights(self) -> None:
        """Load what ``init_cfg`` names, or warn that training starts from random weights.

        Raises:
            FileNotFoundError: If there is no such file.
            WeightsError: If the weights cannot be fetched or read, or do not fit.
        """
        if self.is_init:  # or a checkpoint has the weights
            return
        if load_pretrained(self):
            self.is_init = True
        else:
            super().init_weights()

    def train(self, mode: bool = True) -> ColumnarBackbone:
        """As :meth:`torch.nn.Module.train`, but what is frozen stays in evaluation mode.

        Raises:
            FusedError: If a fused trunk is to be trained.
        """
        if mode and self.fused:
            raise FusedError(f'a fused {type(self).__name__} cannot be trained: build it anew')
        super().train(mode)
        for part in self._frozen_parts():
            if isinstance(part, nn.Module):
                part.eval()
        if self.norm_eval:
            for module in self.modules():
                if is_batch_norm(module):
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

    def unused_shapes(self, state: State) -> list[dict[str, torch.Size]]:
        """Shapes of classifier tensors that the trunk does not need, in groups.

        A file has all tensors of a group, or none.

        Args:
            state: The file's tensors under timm's names; the classes are counted in it.
        """
        head = state.get('head.weight')
        with torch.device('meta'):
            classifier = self._build(
                self.depth, num_classes=len(head) if head is not None and head.ndim else 0)
        groups: dict[str, dict[str, torch.Size]] = {}
        for key, value in classifier.state_dict().items():
            top, *rest = key.split('.')
            if top == 'blocks' and int(rest[0]) >= len(self.blocks):
                groups.setdefault(rest[0], {})[key] = value.shape
            elif top in self.classifier_names:
                groups.setdefault('head' if top.startswith('head') else '', {})[key] = value.shape
        return list(groups.values())

    def renamed(self, state: State) -> State:
        """A file's tensors under the trunk's names, where these depend on the architecture."""
        return state

    def resized(self, state: State) -> State:
        """Those tensors of a file that must be resized to fit, after resizing."""
        return {}

    def describe(self, state: State | None = None) -> str:
        """This architecture, or that of a state dict of any trunk, for messages."""
        if state is None:
            return self.variants.describe(self.settings)
        try:
            trunk, settings = infer_trunk(state)
        except WeightsError as error:
            return str(error)
        return trunk.variants.describe(settings)

    def _warn_of_no_effect(self, **arguments: Any) -> None:
        for name, value in arguments.items():
            if value:
                print_log(
                    f'{name} has no effect on {type(self).__name__}: it has no batch normalisation',
                    logger='current',
                    level=logging.WARNING)

    def _frozen_parts(self) -> Iterator[nn.Module | nn.Parameter]:
        if self.frozen_stages < 0:
            return
        tail = self.tail_names if self.frozen_stages == len(self.blocks) else ()
        for name in (*self.stem_names, *tail):
            if (part := getattr(self, name)) is not None:
                yield part
        yield from self.blocks[:self.frozen_stages]


def require_fitting(trunk: ColumnarBackbone, state_dict: State, prefix: str, *_: Any) -> None:
    """A hook before loading: a trunk is loaded whole or not at all, and not when it is fused."""
    refuse_weights(trunk)
    resize_tensors(trunk, state_dict, prefix)
    require_complete(trunk, state_dict, prefix)
