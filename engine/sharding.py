"""Parameters, gradients and optimizer states shared out over processes (FSDP, arXiv 2304.11277)."""
from __future__ import annotations

import copy
from typing import Any

import torch
from mmengine._strategy import FSDPStrategy
from mmengine.config import Config, ConfigDict
from mmengine.device import get_device
from mmengine.registry import MODELS, STRATEGIES
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from colonnade.backbones import ColumnarBackbone
from colonnade.backbones.checkpoint_files import State
from colonnade.backbones.weights import plan_loading

from .layer_decay import remember_flat_parameters
from .runner import log_batch_norms


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
    if any(hook.type == 'EMAHook' for hook in cfg.get('custom_hooks', [])):
        raise ValueError('--fsdp cannot average weights: take a config without EMAHook')
    cfg.runner_type = 'FlexibleRunner'
    # torch's SyncBatchNorm takes GPU tensors only
    sync_bn = None if get_device() == 'cpu' else cfg.get('sync_bn')
    cfg.strategy = ConfigDict(type='ShardedStrategy', sync_bn=sync_bn)
    if cfg.optim_wrapper.get('type') == 'AmpOptimWrapper':
        cfg.optim_wrapper.use_fsdp = True


@STRATEGIES.register_module()
class ShardedStrategy(FSDPStrategy):
    """mmengine's strategy with a shard unit per block of a columnar trunk and one for the rest.

    Checkpoints are whole, as without shards, and load strictly in any published layout.
    """

    def __init__(self, **kwargs: Any) -> None:
        whole = dict(rank0_only=True, offload_to_cpu=get_device() != 'cpu')
        super().__init__(
            state_dict_cfg=dict(
                state_dict_type='FULL_STATE_DICT',
                state_dict_config=dict(type='FullStateDictConfig', **whole),
                optim_state_dict_config=dict(type='FullOptimStateDictConfig', **whole)),
            **kwargs)

    def build_model(self, model: dict) -> nn.Module:
        """The model; one without memory stays behind to compare checkpoints with."""
        with torch.device('meta'):
            self._unsharded = MODELS.build(copy.deepcopy(model))
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

    def load_checkpoint(self, filename: str, **kwargs: Any) -> dict:
        """As mmengine's; errors name the file."""
        self._source = filename
        return super().load_checkpoint(filename, **kwargs)

    def load_model_state_dict(self, state_dict: State, **_: Any) -> None:
        """Load whole tensors into the shards.

        Raises:
            WeightsError: If they do not fit.
        """
        plan = plan_loading(self._unsharded, dict(state_dict=state_dict), self._source)
        with FullyShardedDataParallel.summon_full_params(self.model), torch.no_grad():
            module = self.model.module
            for name, tensor in (*module.named_parameters(), *module.named_buffers()):
                name = name.replace('_fsdp_wrapped_module.', '')
                if name in plan.state:  # buffers that are not saved are not
                    tensor.copy_(plan.state[name])
        self.logger.info(str(plan))

    def load_optim_state_dict(self, state_dict: dict) -> None:
        """As mmengine's, whose arguments are in the order of torch 2.0."""
        self.optim_wrapper.load_state_dict(
            FullyShardedDataParallel.optim_state_dict_to_load(self.model,
                                                              self.optim_wrapper.optimizer,
                                                              state_dict))
