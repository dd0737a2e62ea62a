"""Layer-wise learning rate decay for columnar backbones, under mmdet and mmseg."""
from __future__ import annotations

from typing import Protocol, runtime_checkable

from mmengine.optim import DefaultOptimWrapperConstructor
from mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS
from torch import nn

from colonnade.common.errors import UserError

#: position embeddings, tokens and rotary frequencies, which are vectors of other shapes
FLAT_NAMES = ('.pos_embed', '.reg_token', '.rope.freqs')


@runtime_checkable
class KnowsLayers(Protocol):
    """A backbone that numbers the layers of its parameters, as mmpretrain's do."""

    def get_layer_depth(self, param_name: str, prefix: str = '') -> tuple[int, int]:
        """Return the index of a parameter's layer, and the number of layers."""


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class LayerDecayConstructor(DefaultOptimWrapperConstructor):
    """mmengine's constructor with layer-wise learning rate decay.

    The rate of block i of a backbone of depth d is multiplied by ``layer_decay_rate ** (d - i)``,
    that of the stem by ``layer_decay_rate ** (d + 1)``. Necks and heads keep it, as in BEiT (arXiv
    2106.08254) and ViTDet (arXiv 2203.16527). Parameters of equal settings share a group.

    Args:
        optim_wrapper_cfg: Settings of mmengine's constructor.
        paramwise_cfg: Settings of mmengine's constructor, with two more keys:

            - ``layer_decay_rate``: Decay in (0, 1].
            - ``flat_decay_mult``: Factor of the weight decay of vectors of any shape (biases,
              norms, LayerScale, ResMLP's Affine, XCA's temperature), position embeddings, tokens
              and rotary frequencies. ``decay_mult`` of a matching custom key goes before.

    Raises:
        UserError: If the rate is out of range, or the backbone does not number its layers.
    """

    def __init__(self, optim_wrapper_cfg: dict, paramwise_cfg: dict | None = None) -> None:
        paramwise_cfg = dict(paramwise_cfg or {})
        self.layer_decay_rate: float = paramwise_cfg.get('layer_decay_rate', 1.)
        self.flat_decay_mult: float | None = paramwise_cfg.pop('flat_decay_mult', None)
        if not 0 < self.layer_decay_rate <= 1:
            raise UserError(f'layer_decay_rate must be in (0, 1], got {self.layer_decay_rate}')
        super().__init__(optim_wrapper_cfg,
                         paramwise_cfg | dict(layer_decay_rate=self.layer_decay_rate))

    def add_params(self,
                   params: list[dict],
                   module: nn.Module,
                   prefix: str = '',
                   is_dcn_module: int | float | None = None) -> None:
        """Append the groups of a model to ``params``; mmengine calls it with a ``prefix``."""
        if prefix:
            super().add_params(params, module, prefix, is_dcn_module)
            return
        backbone = getattr(module, 'backbone', None)
        if not isinstance(backbone, KnowsLayers):
            raise UserError(f'layer_decay_rate requires a backbone with get_layer_depth, but '
                            f'{type(backbone).__name__} lacks it: use one from colonnade.backbones')
        single: list[dict] = []  # mmengine makes a group of every parameter
        super().add_params(single, module, prefix, is_dcn_module)
        names = {id(parameter): name for name, parameter in module.named_parameters()}
        groups: dict[tuple, dict] = {}
        for group in single:
            parameter, = group.pop('params')
            name = names.pop(id(parameter), None)
            if name is None:  # shared with a layer that is in a group already
                continue
            group.setdefault('lr', self.base_lr)
            group.setdefault('weight_decay', self.base_wd or 0.)
            layer, num_layers = backbone.get_layer_depth(name, prefix='backbone.')
            group['lr'] *= self.layer_decay_rate**(num_layers - 1 - layer)
            if self.flat_decay_mult is not None and self._is_flat(name, parameter):
                group['weight_decay'] = (self.base_wd or 0.) * self.flat_decay_mult
            key = tuple(sorted(group.items()))
            groups.setdefault(key, dict(params=[], **group))['params'].append(parameter)
        params.extend(groups.values())

    def _is_flat(self, name: str, parameter: nn.Parameter) -> bool:
        custom_keys = self.paramwise_cfg.get('custom_keys', {})
        if any(key in name and 'decay_mult' in value for key, value in custom_keys.items()):
            return False
        return name.endswith(FLAT_NAMES) or sum(size > 1 for size in parameter.shape) <= 1
