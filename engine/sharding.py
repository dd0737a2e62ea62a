"""Parameters, gradients and optimizer states shared out over processes (FSDP, arXiv 2304.11277)."""
from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from mmengine._strategy import FSDPStrategy
from mmengine.config import Config, ConfigDict
from mmengine.device import get_device
from mmengine.dist import is_main_process
from mmengine.registry import STRATEGIES
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, OptimStateKeyType
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from colonnade.backbones import ColumnarBackbone
from colonnade.weights.downloads import fetch
from colonnade.weights.loading import plan_loading
from colonnade.weights.openmmlab import without_code

from .hooks import averages_weights, hooks_of
from .layer_decay import remember_flat_parameters
from .runner import Adapt, log_batch_norms, require_training_state, saving
from .without_memory import build_without_memory


def shard(cfg: Config) -> None:
    """Let ``cfg`` train with FSDP, by mmengine's ``FlexibleRunner``.

    Raises:
        ValueError: If the config asks for what cannot be done with shards.
    """
    if cfg.launcher == 'none':
        raise ValueError('--fsdp needs several processes: start them with torchrun, and say '
                         '--launcher pytorch')
    if cfg.optim_wrapper.get('clip_grad'):
        raise ValueError('--fsdp cannot clip gradients, each process having a part of them: say '
                         '--cfg-options optim_wrapper.clip_grad=None')
    if any(map(averages_weights, hooks_of(cfg))):
        raise ValueError('--fsdp cannot average weights: take a config without EMAHook')
    cfg.runner_type = 'FlexibleRunner'
    # torch's SyncBatchNorm takes GPU tensors only
    sync_bn = None if get_device() == 'cpu' else cfg.get('sync_bn')
    cfg.strategy = ConfigDict(type='ShardedStrategy', sync_bn=sync_bn)
    # so that others can run the config that is dumped
    cfg.setdefault('custom_imports', ConfigDict(imports=[]))
    cfg.custom_imports.imports = [*cfg.custom_imports.imports, 'colonnade.engine.sharding']
    if cfg.optim_wrapper.get('type') == 'AmpOptimWrapper':
        cfg.optim_wrapper.use_fsdp = True


@STRATEGIES.register_module()
class ShardedStrategy(FSDPStrategy):
    """mmengine's strategy with a shard unit per block of a columnar trunk and one for the rest.

    Checkpoints are whole, as without shards, and load strictly in any published layout.

    Attributes:
        adapt: See :class:`~.runner.StrictRunner`.
    """

    def __init__(self, **kwargs: Any) -> None:
        self.adapt: Adapt | None = None
        whole = dict(rank0_only=True, offload_to_cpu=get_device() != 'cpu')
        super().__init__(
            state_dict_cfg=dict(
                state_dict_type='FULL_STATE_DICT',
                state_dict_config=dict(type='FullStateDictConfig', **whole),
                optim_state_dict_config=dict(type='FullOptimStateDictConfig', **whole)),
            **kwargs)

    def build_model(self, model: dict) -> nn.Module:
        """The model; one without memory stays behind to compare checkpoints with."""
        self._unsharded = build_without_memory(model)
        return super().build_model(model)

    def _wrap_model(self, model: nn.Module) -> nn.Module:
        remember_flat_parameters(model)  # shards have one dimension
        model = self.convert_model(model)
        log_batch_norms(model, self.logger)
        blocks = {
            type(block)
            for module in model.modules() if isinstance(module, ColumnarBackbone)
            for block in module.blocks
        }
        self.model_wrapper = dict(
            type='MMFullyShardedDataParallel',
            use_orig_params=True,  # optimizers see parameters by their names
            auto_wrap_policy=ModuleWrapPolicy(blocks))
        if get_device() == 'cpu':
            self.model_wrapper['device_id'] = torch.device('cpu')
        return super()._wrap_model(model)

    def load_checkpoint(self,
                        filename: str,
                        *,
                        callback: Callable[[dict], None] | None = None,
                        **_: Any) -> dict[str, Any]:
        """Load a path, a URL or ``timm://NAME`` into the shards; returns what else it holds.

        Raises:
            FileNotFoundError: If there is no such file.
            WeightsError: If it cannot be fetched or read, or does not fit the model.
        """
        checkpoint = without_code(fetch(filename), str(filename))
        with FullyShardedDataParallel.summon_full_params(self.model), torch.no_grad():
            module = self.model.module
            own = {
                name.replace('_fsdp_wrapped_module.', ''): tensor
                for name, tensor in (*module.named_parameters(remove_duplicate=False),
                                     *module.named_buffers(remove_duplicate=False))
            }
            adapt = None if self.adapt is None else partial(self.adapt, own, checkpoint)
            plan = plan_loading(self._unsharded, checkpoint, str(filename), adapt=adapt)
            checkpoint['state_dict'] = plan.state
            if callback is not None:
                callback(checkpoint)
            for name, value in checkpoint.pop('state_dict').items():
                own[name].copy_(value)
        self.logger.info(str(plan))
        if self.adapt is not None:
            self.logger.info(str(self.adapt))
        return checkpoint

    def save_checkpoint(self, filename: str, **kwargs: Any) -> None:
        """As mmengine's; an earlier file of this name stays until the new one is whole."""
        with saving(filename) if is_main_process() else nullcontext(filename) as path:
            super().save_checkpoint(path, **kwargs)

    def resume(self, filename: str, **kwargs: Any) -> dict[str, Any]:
        """As mmengine's.

        Raises:
            WeightsError: If the file holds weights alone, or as :meth:`load_checkpoint`.
        """
        require_training_state(fetch(filename), str(filename))
        return super().resume(filename, **kwargs)

    def load_optim_state_dict(self, state_dict: dict) -> None:
        """As mmengine's, whose arguments are in the order of torch 2.0; also of plain runs."""
        if all(isinstance(key, int) for key in state_dict['state']):  # saved without shards
            state_dict = FullyShardedDataParallel.rekey_optim_state_dict(
                state_dict,
                OptimStateKeyType.PARAM_NAME,
                self.model,
                optim=self.optim_wrapper.optimizer)
        self.optim_wrapper.load_state_dict(
            FullyShardedDataParallel.optim_state_dict_to_load(self.model,
                                                              self.optim_wrapper.optimizer,
                                                              state_dict))
