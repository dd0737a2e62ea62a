"""A runner that loads checkpoints through the one entrance for weights."""
from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from mmengine.dist import get_rank, get_world_size, master_only
from mmengine.evaluator import Evaluator
from mmengine.hooks import EMAHook
from mmengine.logging import MMLogger
from mmengine.model import BaseTTAModel, is_model_wrapper
from mmengine.registry import RUNNERS
from mmengine.runner import BaseLoop, Runner, find_latest_checkpoint
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import DataLoader

from colonnade.backbones import ColumnarBackbone
from colonnade.common.console_logging import Printable, shorten_start
from colonnade.datasets.bad_samples import ADVICE, name_samples
from colonnade.datasets.mask_encoding import encode_for
from colonnade.weights.checkpoint_files import arguments_of_whole_files
from colonnade.weights.downloads import fetch
from colonnade.weights.loading import Plan, plan_loading
from colonnade.weights.mmengine_loaders import strip_code
from colonnade.weights.state_dicts import State, WeightsError

from .hooks import BatchSizeHook, QuietFilter, wrappers_of
from .loops import end_workers, seeded_loop

#: from a model's tensors, what a file holds, and its tensors under our names, to those to load
Adapt = Callable[[State, Mapping[str, Any], State], State]


def log_batch_norms(model: nn.Module, logger: logging.Logger) -> None:
    """Say over which images a model normalises."""
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    if any(isinstance(norm, nn.SyncBatchNorm) for norm in norms):
        logger.info(f'batch normalisation: synchronised over {get_world_size()} processes')
    elif norms:
        logger.info('batch normalisation: each process by itself')


def require_training_state(checkpoint: Mapping[str, Any], source: str) -> None:
    """Raise a WeightsError if training cannot go on from a checkpoint."""
    missing = [key for key in ('optimizer', 'message_hub') if key not in checkpoint]
    meta = checkpoint.get('meta')
    missing += [
        key for key in ('epoch', 'iter') if not isinstance(meta, Mapping) or key not in meta
    ]
    if missing:
        raise WeightsError(
            f'{source} holds weights, but no state of training (no {", ".join(missing)}): it was '
            'converted or published, or is the best of a run, whose last checkpoint goes on. Start '
            'a new training from it with --load-from')


@RUNNERS.register_module()
class StrictRunner(Runner):
    """mmengine's runner, loading safely, strictly and any published layout.

    Attributes:
        adapt: Changes what is loaded, see :class:`~.class_transfer.ClassTransfer`.
        prepare: Is called with the model when weights are loaded.
        skipped_samples: File that notes the training samples that are skipped because they break;
            None stops at the first.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.skipped_samples: Path | None = None
        self.adapt: Adapt | None = None
        self.prepare: Callable[[nn.Module], None] = lambda model: None
        super().__init__(*args, **kwargs)
        self.logger.addFilter(QuietFilter())
        log_batch_norms(self.model, self.logger)

    def build_logger(self, *args: Any, **kwargs: Any) -> MMLogger:
        """As mmengine's; what a terminal does not show of the start is in the log's file."""
        logger = super().build_logger(*args, **kwargs)
        logger.addFilter(Printable())
        shorten_start(logger, logger.log_file)
        return logger

    def check_weights(self) -> None:
        """Load pretrained weights and look at the checkpoint to load, before data sets are built.

        Raises:
            FileNotFoundError: If there is no such file.
            WeightsError: If weights cannot be fetched or read, or do not fit the model or this run.
        """
        source = self._load_from
        if self._resume and source is None:
            source = find_latest_checkpoint(self.work_dir)
        backbones = [m for m in self.model.modules() if isinstance(m, ColumnarBackbone)]
        if source:
            checkpoint = fetch(source)
            self._check_state(checkpoint, str(source))
            self._plan(checkpoint, str(source))
            for backbone in backbones:
                backbone.init_cfg, backbone.is_init = None, True  # the checkpoint has its weights
        for backbone in backbones:
            if backbone.pretrained:
                backbone.init_weights()

    def _check_state(self, checkpoint: dict[str, Any], source: str) -> None:
        """Raise a WeightsError if training is to go on from a checkpoint, and cannot."""
        if self._resume:
            require_training_state(checkpoint, source)
            self._take_seed(checkpoint['meta'].get('seed'), source)
            if 'ema_state_dict' in checkpoint and not any(
                    isinstance(hook, EMAHook) for hook in self.hooks):
                self.logger.warning(f'{source} holds averaged weights and this run has no EMAHook: '
                                    'it goes on from the average, not from what was trained')
            for hook in self.hooks:
                if isinstance(hook, BatchSizeHook):
                    hook.compare(checkpoint)

    def _take_seed(self, seed: Any, source: str) -> None:
        """Go on with the seed of a checkpoint, which the order of the data follows from."""
        own = self._randomness_cfg.get('seed')
        if not isinstance(seed, int) or seed == own:
            return
        if own is not None:
            self.logger.warning(f'randomness.seed={own} has no effect: training goes on with the '
                                f'seed {seed} of {source}')
        self._randomness_cfg.update(seed=seed)
        self.set_randomness(**self._randomness_cfg)

    def set_randomness(self,
                       seed: int | None,
                       diff_rank_seed: bool = False,
                       deterministic: bool = False) -> None:
        """As mmengine's; the run's seed, which the order of images follows from, is the same in all
        processes.
        """
        super().set_randomness(seed, diff_rank_seed, deterministic)
        if diff_rank_seed:
            self._seed -= get_rank()

    def _plan(self, checkpoint: dict[str, Any], source: str) -> Plan:
        model = self._bare_model()
        adapt = None if self.adapt is None else partial(self.adapt, self.own_state(), checkpoint)
        return plan_loading(model, checkpoint, source, adapt=adapt)

    def _bare_model(self) -> nn.Module:
        """The detector or segmenter without what distributes or augments it."""
        model = self.model.module if is_model_wrapper(self.model) else self.model
        return model.module if isinstance(model, BaseTTAModel) else model

    def read(self, filename: str) -> dict[str, Any]:
        """What a checkpoint holds, on the CPU.

        Raises:
            FileNotFoundError: If there is no such file.
            WeightsError: If it cannot be fetched or read.
        """
        return strip_code(fetch(filename))

    def place(self, checkpoint: dict[str, Any]) -> dict[str, Any]:
        """A checkpoint as model, hooks and optimizer take it."""
        return checkpoint

    def own_state(self) -> State:
        """The model's tensors, whole."""
        return self._bare_model().state_dict()

    def build_train_loop(self, loop: Any) -> BaseLoop:
        """As mmengine's; its own two loops then go on from any iteration to the bit."""
        return super().build_train_loop(seeded_loop(loop))

    def build_dataloader(self, dataloader: Any, *args: Any, **kwargs: Any) -> DataLoader:
        """As mmengine's; samples that break name themselves, and those of training may be skipped.
        """
        built = Runner.build_dataloader(dataloader, *args, **kwargs)
        is_training = dataloader is self._train_dataloader
        may_skip = is_training and not self.skipped_samples
        advice = ADVICE + '; --on-bad-data skip takes others in their place' * may_skip
        name_samples(built.dataset, self.skipped_samples if is_training else None, advice)
        return built

    def train(self) -> nn.Module:
        """As mmengine's; then the workers of its data loaders end."""
        model = super().train()
        end_workers(self._train_loop, self._val_loop)
        return model

    def val(self) -> dict[str, Any]:
        """As mmengine's; then the workers of its data loader end."""
        metrics = super().val()
        end_workers(self._val_loop)
        return metrics

    def test(self) -> dict[str, Any]:
        """As mmengine's; then the workers of its data loader end."""
        metrics = super().test()
        end_workers(self._test_loop)
        return metrics

    def build_evaluator(self, evaluator: Any) -> Evaluator:
        """As mmengine's; COCO's metrics get masks that are encoded fast."""
        built = super().build_evaluator(evaluator)
        for metric in built.metrics:
            if type(metric).__name__ in ('CocoMetric', 'FasterCocoMetric'):
                encode_for(metric)
        return built

    def build_optim_wrapper(self, optim_wrapper: Any) -> Any:
        """As mmengine's; says in a line how many learning rates and weight decays there are."""
        built = super().build_optim_wrapper(optim_wrapper)
        groups = {(group['lr'], group.get('weight_decay'))
                  for each in wrappers_of(built) for group in each.param_groups}  # yapf: disable
        if len(groups) > 1:
            self.logger.info(f'{len(groups)} groups of parameters of different learning rate or '
                             'weight decay: colonnade list_param_groups CONFIG lists them')
        return built

    def load_or_resume(self) -> None:
        """As mmengine's; then ``prepare`` gets the model."""
        super().load_or_resume()
        self.prepare(self._bare_model())

    def load_checkpoint(self, filename: str, *_: Any, **__: Any) -> dict[str, Any]:
        """Load a path, a URL or ``timm://NAME`` into the model; returns what the file holds.

        Hooks see the weights under our names, and may exchange them, as averaging of weights does.

        Raises:
            FileNotFoundError: If there is no such file.
            WeightsError: If it cannot be fetched or read, or does not fit the model or this run.
        """
        checkpoint = self.read(filename)
        self._check_state(checkpoint, str(filename))
        plan = self._plan(checkpoint, str(filename))
        checkpoint = self.place({**checkpoint, 'state_dict': plan.state})
        self.call_hook('after_load_checkpoint', checkpoint=checkpoint)
        self._bare_model().load_state_dict(checkpoint['state_dict'])
        self._has_loaded = True
        self.logger.info(str(plan))
        if self.adapt is not None:
            self.logger.info(str(self.adapt))
        return checkpoint

    @master_only
    def save_checkpoint(self, out_dir: str, filename: str, *args: Any, **kwargs: Any) -> None:
        """As mmengine's, by the first process; an earlier file stays until the new one is whole.

        Raises:
            CheckpointError: If it cannot be written, in the first process alone.
        """
        kwargs = arguments_of_whole_files(out_dir, *args, **kwargs)
        super().save_checkpoint(out_dir, filename, *args, **kwargs)
