"""Weight loading of columnar backbones: which tensors fit, are resized, or can be omitted."""
from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from mmengine.model import BaseModule
from torch import Tensor, nn

from colonnade.weights.pretrained import get_pretrained, get_timm_name, load_pretrained
from colonnade.weights.state_dicts import Shapes, State, WeightsError

from .input_channels import adapt_channels, needs_channels
from .kernels.devices import on_meta_device
from .lora import rename_adapted
from .registry import infer_backbone
from .variants import Variants


class LoadableBackbone(BaseModule):
    """Base class of backbones that can be loaded; parameters have the names of timm's module."""
    variants: ClassVar[Variants]
    is_init: bool  # mmengine's flag: init_weights() was called
    settings: dict[str, Any]
    depth: int
    blocks: nn.ModuleList
    in_channels: int
    rgb_channels: Sequence[int] | None
    #: children of timm's module that only classification needs
    classifier_names: tuple[str, ...] = ('cls_token', 'cls_attn_blocks', 'norm', 'head')

    @abstractmethod
    def _build(self, num_blocks: int, drop_path_rate: float, num_classes: int | None) -> nn.Module:
        """Build timm's module; without its classification stage if ``num_classes`` is None."""

    @classmethod
    @abstractmethod
    def infer_arch(cls, state: State) -> dict[str, int]:
        """Infer the ``shown_columns`` of the table from a state dict under Colonnade's names."""

    @classmethod
    def get_arguments_for(cls, state: State) -> dict[str, Any]:
        """Infer arguments that build the backbone of a state dict under Colonnade's names."""
        return dict(arch=cls.infer_arch(state))

    @classmethod
    def get_weights_name(cls, arch: str | Mapping[str, Any],
                         init_cfg: dict | list[dict] | None) -> str:
        """Return timm's name of the weights in a config, or an empty string."""
        return get_timm_name(init_cfg)

    @classmethod
    def get_implied_arguments(cls, arch: str | Mapping[str, Any],
                              init_cfg: dict | list[dict] | None) -> dict[str, Any]:
        """Infer arguments that a config does not set from its weights."""
        return {}

    @property
    def pretrained(self) -> dict[str, Any] | None:
        """Part of ``init_cfg`` with ``type='Pretrained'``."""
        return get_pretrained(self.init_cfg)

    def init_weights(self) -> None:
        """Load the weights of ``init_cfg``, or warn that training starts from random ones.

        Raises:
            FileNotFoundError: If the file does not exist.
            WeightsError: If the weights cannot be fetched or read, or do not fit.
        """
        if self.is_init:  # a checkpoint has been loaded
            return
        if load_pretrained(self):
            self.is_init = True
        else:
            super().init_weights()

    def find_unused_shapes(self, state: State) -> list[Shapes]:
        """Return the shapes of classifier tensors that the backbone does not need, in groups.

        A file has all tensors of a group, or none.
        """
        head = state.get('head.weight')
        num_classes = len(head) if head is not None and head.ndim else 0
        with on_meta_device():
            classifier = self._build(self.depth, drop_path_rate=0., num_classes=num_classes)
        groups: dict[str, Shapes] = {}
        for key, value in classifier.state_dict().items():
            top, *rest = key.split('.')
            if top == 'blocks' and int(rest[0]) >= len(self.blocks):
                groups.setdefault(rest[0], {})[key] = value.shape
            elif top in self.classifier_names:
                groups.setdefault('head' if top.startswith('head') else '', {})[key] = value.shape
        return list(groups.values())

    def rename_state(self, state: State) -> State:
        """Rename tensors of a file whose names depend on the architecture, or of adapted layers.
        """
        return rename_adapted(self, state)

    def resize_state(self, state: State) -> State:
        """Return the tensors of a file that have to be resized to fit, after resizing."""
        name, weight = self.get_input_weight()
        adapted = {}
        if name in state and needs_channels(state[name], weight):
            adapted[name] = adapt_channels(state[name], self.in_channels, self.rgb_channels)
        return adapted | self._resize_tensors(state | adapted)

    def get_input_weight(self) -> tuple[str, Tensor]:
        """Return name and weight of the convolution of images."""
        return next((f'{name}.weight', module.weight) for name, module in self.named_modules()
                    if isinstance(module, nn.Conv2d))

    def _resize_tensors(self, state: State) -> State:
        """Return what :meth:`resize_state` does but for input channels."""
        return {}

    def describe(self, state: State | None = None) -> str:
        """Format this architecture, or that of a state dict of any backbone, for messages."""
        if state is None:
            return self.variants.describe(self.settings)
        try:
            backbone, settings = infer_backbone(state)
        except WeightsError as error:
            return str(error)
        return backbone.variants.describe(settings)
