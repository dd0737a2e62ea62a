"""What columnar backbones know of weights: which fit, what is resized, what may be left out."""
from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from mmengine.model import BaseModule
from torch import nn

from colonnade.weights.loading import require_complete, resize_tensors
from colonnade.weights.pretrained import load_pretrained, pretrained_of, timm_name_of
from colonnade.weights.state_dicts import Shapes, State, WeightsError

from .kernels.folding import Fusible, reject_weights
from .kernels.without_memory import without_memory
from .registry import infer_backbone
from .variants import Variants


class LoadableBackbone(BaseModule):
    """The part of a backbone that weights are fitted to, as ``weights/loading.py`` asks for it.

    Its parameters carry the names of timm's module.
    """
    variants: ClassVar[Variants]
    is_init: bool  # mmengine's: whether init_weights() was called
    settings: dict[str, Any]
    depth: int
    blocks: nn.ModuleList
    #: children of timm's module that classification alone needs
    classifier_names: tuple[str, ...] = ('cls_token', 'cls_attn_blocks', 'norm', 'head')

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
        """Arguments that build the backbone of a state dict under our names.

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

    def check_loadable(self) -> None:
        """Raise a FusedError if the backbone is fused."""
        if isinstance(self, Fusible):
            reject_weights(self)

    def unused_shapes(self, state: State) -> list[Shapes]:
        """Shapes of classifier tensors that the backbone does not need, in groups.

        A file has all tensors of a group, or none.

        Args:
            state: The file's tensors under timm's names; the classes are counted in it.
        """
        head = state.get('head.weight')
        with without_memory():
            classifier = self._build(
                self.depth, num_classes=len(head) if head is not None and head.ndim else 0)
        groups: dict[str, Shapes] = {}
        for key, value in classifier.state_dict().items():
            top, *rest = key.split('.')
            if top == 'blocks' and int(rest[0]) >= len(self.blocks):
                groups.setdefault(rest[0], {})[key] = value.shape
            elif top in self.classifier_names:
                groups.setdefault('head' if top.startswith('head') else '', {})[key] = value.shape
        return list(groups.values())

    def renamed(self, state: State) -> State:
        """A file's tensors under the backbone's names, where these depend on the architecture."""
        return state

    def resized(self, state: State) -> State:
        """Those tensors of a file that must be resized to fit, after resizing."""
        return {}

    def describe(self, state: State | None = None) -> str:
        """This architecture, or that of a state dict of any backbone, for messages."""
        if state is None:
            return self.variants.describe(self.settings)
        try:
            backbone, settings = infer_backbone(state)
        except WeightsError as error:
            return str(error)
        return backbone.variants.describe(settings)


def check_loadable(backbone: Fusible, state_dict: State, prefix: str, *_: Any) -> None:
    """A hook before loading: a backbone is loaded whole or not at all, and not when it is fused."""
    reject_weights(backbone)
    resize_tensors(backbone, state_dict, prefix)
    require_complete(backbone, state_dict, prefix)
