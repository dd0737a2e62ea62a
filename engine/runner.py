"""A runner that loads checkpoints through the one entrance for weights."""
from __future__ import annotations

import logging
from typing import Any

from mmengine.dist import get_world_size
from mmengine.model import BaseTTAModel, is_model_wrapper
from mmengine.registry import RUNNERS
from mmengine.runner import Runner, find_latest_checkpoint
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from colonnade.backbones import ColumnarBackbone
from colonnade.backbones.checkpoint_files import fetch
from colonnade.backbones.weights import plan_loading
from colonnade.necks import ColumnarPyramid


def log_batch_norms(model: nn.Module, logger: logging.Logger) -> None:
    """Say over which images a model normalises."""
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    if any(isinstance(norm, nn.SyncBatchNorm) for norm in norms):
        logger.info(f'batch normalisation: synchronised over {get_world_size()} processes')
    elif norms:
        logger.info('batch normalisation: each process by itself')


def parts_of_ours(model: nn.Module) -> list[ColumnarBackbone | ColumnarPyramid]:
    """The trunks and pyramids of a model.

    Raises:
        ValueError: If there are none.
    """
    parts = [m for m in model.modules() if isinstance(m, (ColumnarBackbone, ColumnarPyramid))]
    if not parts:
        raise ValueError('the model has no trunk and no pyramid of colonnade')
    return parts


def compile_parts(model: nn.Module) -> None:
    """Let torch.compile take trunk and pyramid, for images of any size; heads stay as they are.

    Raises:
        ValueError: If the model has neither.
    """
    for part in parts_of_ours(model):
        part.compile(dynamic=True)


def fuse_trunks(model: nn.Module) -> None:
    """Fuse the trunks of a model that is to be evaluated, see :meth:`ColumnarBackbone.fuse`.

    Raises:
        ValueError: If it has none of ours.
    """
    for part in parts_of_ours(model):
        if isinstance(part, ColumnarBackbone):
            part.eval().fuse()


@RUNNERS.register_module()
class StrictRunner(Runner):
    """mmengine's runner, loading safely, strictly and any published layout.

    It also reads ``cfg.trust_weights``: run what is pickled in checkpoints.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        log_batch_norms(self.model, self.logger)

    def check_weights(self) -> None:
        """Load pretrained weights and look at the checkpoint to load, before data sets are built.

        Raises:
            FileNotFoundError: If there is no such file.
            WeightsError: If weights cannot be had or read, or do not fit the model.
        """
        source = self._load_from
        if self._resume and source is None:
            source = find_latest_checkpoint(self.work_dir)
        backbones = [m for m in self.model.modules() if isinstance(m, ColumnarBackbone)]
        if source:
            plan_loading(self._bare_model(), self._fetch(source), str(source))
            for backbone in backbones:
                backbone.init_cfg = None  # the checkpoint has its weights
        for backbone in backbones:
            if backbone.pretrained:
                backbone.init_weights()

    def _bare_model(self) -> nn.Module:
        """The detector or segmenter without what distributes or augments it."""
        model = self.model.module if is_model_wrapper(self.model) else self.model
        return model.module if isinstance(model, BaseTTAModel) else model

    def _fetch(self, source: str) -> dict[str, Any]:
        return fetch(source, trust=self.cfg.get('trust_weights', False))

    def load_checkpoint(self, filename: str, *_: Any, **__: Any) -> dict[str, Any]:
        """Load a path, an address or ``timm://NAME`` into the model; returns what the file holds.

        Raises:
            FileNotFoundError: If there is no such file.
            WeightsError: If it cannot be had or read, or does not fit the model.
        """
        checkpoint = self._fetch(filename)
        self.call_hook('after_load_checkpoint', checkpoint=checkpoint)
        plan = plan_loading(self._bare_model(), checkpoint, str(filename))
        self._bare_model().load_state_dict(plan.state)
        self._has_loaded = True
        self.logger.info(str(plan))
        return checkpoint
