"""A runner that loads checkpoints safely and strictly."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from mmengine.dist import get_rank, get_world_size, master_only
from mmengine.evaluator import Evaluator
from mmengine.hooks import EMAHook
from mmengine.logging import MMLogger
from mmengine.model import BaseTTAModel, is_model_wrapper
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.registry import RUNNERS
from mmengine.runner import BaseLoop, Runner, find_latest_checkpoint
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import DataLoader

from colonnade.backbones import ColumnarBackbone
from colonnade.common.name_lists import format_count
from colonnade.datasets.bad_samples import ADVICE, handle_bad_samples
from colonnade.datasets.packed_batches import PackingCollate
from colonnade.datasets.rle import encode_masks_for
from colonnade.weights.checkpoint_files import get_save_options
from colonnade.weights.downloads import fetch
from colonnade.weights.loading import Plan, plan_loading
from colonnade.weights.mmengine_loaders import strip_code
from colonnade.weights.state_dicts import State, WeightsError

from .hooks import BatchSizeHook, get_optim_wrappers
from .log_filters import Printable, QuietFilter, shorten_start
from .loops import end_workers, use_seeded_loop

#: function of the model's tensors, the content of a file, and its tensors under Colonnade's names
Adapt = Callable[[State, Mapping[str, Any], State], State]


@RUNNERS.register_module()
class StrictRunner(Runner):
    """mmengine's runner, which loads safely, strictly and from all published formats.

    Attributes:
        adapt: Function that changes what is loaded, see :class:`~.class_transfer.ClassTransfer`.
        prepare: Function that is called with the model once weights are loaded.
        skipped_samples: File with the training samples that failed to load and were skipped. With
            None, the first one stops training.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.skipped_samples: Path | None = None
        self.adapt: Adapt | None = None
        self.prepare: Callable[[nn.Module], None] = lambda model: None
        super().__init__(*args, **kwargs)
        self.logger.addFilter(QuietFilter())
        norms = [module for module in self.model.modules() if isinstance(module, _BatchNorm)]
        if any(isinstance(norm, nn.SyncBatchNorm) for norm in norms):
            count = format_count(get_world_size(), 'process')
            self.logger.info(f'batch norms are synchronized across {count}')
        elif norms and get_world_size() > 1:
            self.logger.info('batch norms are not synchronized across processes')

    def build_logger(self, *args: Any, **kwargs: Any) -> MMLogger:
        logger = super().build_logger(*args, **kwargs)
        logger.addFilter(Printable())
        shorten_start(logger, logger.log_file)
        return logger

    def check_weights(self) -> None:
        """Load pretrained weights and check the checkpoint to load, before datasets are built."""
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
        """Check that training can resume from a checkpoint, if it should, and use its seed."""
        if not self._resume:
            return
        meta = checkpoint.get('meta')
        missing = [key for key in ('optimizer', 'message_hub') if key not in checkpoint]
        missing += [
            key for key in ('epoch', 'iter') if not isinstance(meta, Mapping) or key not in meta
        ]
        if missing:
            raise WeightsError(
                f'{source} contains weights, but no training state (no {", ".join(missing)}): it '
                f'was '
                'converted or published, or is the best checkpoint of a run. Resume from the last '
                'checkpoint of that run, or start a new run with --load-from')
        self._check_parameters(checkpoint['optimizer'], source)
        self._use_seed(checkpoint['meta'].get('seed'), source)
        if 'ema_state_dict' in checkpoint and not any(
                isinstance(hook, EMAHook) for hook in self.hooks):
            self.logger.warning(f'{source} contains EMA weights, but this run has no EMAHook: '
                                'training resumes from the EMA weights, not the trained ones')
        for hook in self.hooks:
            if isinstance(hook, BatchSizeHook):
                hook.compare(checkpoint)

    def _check_parameters(self, saved: Any, source: str) -> None:
        """Check that the optimizer, if it is built, has the parameter groups of a checkpoint."""
        wrapper = self.optim_wrapper
        if not isinstance(wrapper, OptimWrapper) or isinstance(wrapper, OptimWrapperDict) or \
                'param_groups' not in saved:
            return
        groups = saved['param_groups'], wrapper.optimizer.param_groups
        old, own = ([len(each['params']) for each in part] for part in groups)
        if old != own:
            raise WeightsError(
                f'{source} is of a training of {format_count(sum(old), "parameter")} in '
                f'{format_count(len(old), "group")}, but this one has {sum(own)} in {len(own)}: '
                'resume with the --tune, frozen_stages and paramwise_cfg of that run, or start a '
                'new one with --load-from')

    def _use_seed(self, seed: Any, source: str) -> None:
        """Use the seed of a checkpoint, which determines the order of the data."""
        own = self._randomness_cfg.get('seed')
        if not isinstance(seed, int) or seed == own:
            return
        if own is not None:
            self.logger.warning(f'randomness.seed={own} has no effect: training resumes with '
                                f'seed {seed} from {source}')
        self._randomness_cfg.update(seed=seed)
        self.set_randomness(**self._randomness_cfg)

    def set_randomness(self, seed: int | None, diff_rank_seed: bool = False, **kwargs: Any) -> None:
        """Seed all generators; the seed of the run itself is the same in all processes."""
        super().set_randomness(seed, diff_rank_seed, **kwargs)
        if diff_rank_seed:
            self._seed -= get_rank()

    def _plan(self, checkpoint: dict[str, Any], source: str) -> Plan:
        adapt = None if self.adapt is None else partial(self.adapt, self.own_state(), checkpoint)
        return plan_loading(self._bare_model(), checkpoint, source, adapt=adapt)

    def _bare_model(self) -> nn.Module:
        """Return the detector or segmenter without distributed or TTA wrappers."""
        model = self.model.module if is_model_wrapper(self.model) else self.model
        return model.module if isinstance(model, BaseTTAModel) else model

    def read(self, filename: str) -> dict[str, Any]:
        """Return the content of a checkpoint, on the CPU."""
        return strip_code(fetch(filename))

    def place(self, checkpoint: dict[str, Any]) -> dict[str, Any]:
        """Return a checkpoint in the form that model, hooks and optimizer load."""
        return checkpoint

    def own_state(self) -> State:
        """Return the full tensors of the model."""
        return self._bare_model().state_dict()

    def build_train_loop(self, loop: Any) -> BaseLoop:
        return super().build_train_loop(use_seeded_loop(loop))

    def build_dataloader(self, dataloader: Any, *args: Any, **kwargs: Any) -> DataLoader:
        """Return a data loader whose errors name the sample, and that may skip bad samples.

        Workers send small tensors together; without workers, their settings have no effect. For a
        GPU, batches are in pinned memory by default, from which they are copied faster.
        """
        is_training = dataloader is self._train_dataloader
        if isinstance(dataloader, dict) and torch.cuda.is_available():
            dataloader = {'pin_memory': True, **dataloader}
        if isinstance(dataloader, dict) and not dataloader.get('num_workers'):
            dataloader = {**dataloader, 'persistent_workers': False, 'prefetch_factor': None}
        built = Runner.build_dataloader(dataloader, *args, **kwargs)
        built.collate_fn = PackingCollate(built.collate_fn)
        can_skip = is_training and not self.skipped_samples
        advice = ADVICE + '; --on-bad-sample skip uses other samples instead' * can_skip
        handle_bad_samples(built.dataset, self.skipped_samples if is_training else None, advice)
        return built

    def dump_config(self) -> None:
        """Do nothing: mmengine also calls this for evaluations, which keep the run's config."""

    def train(self) -> nn.Module:
        super().dump_config()
        model = super().train()
        end_workers(self._train_loop, self._val_loop)
        return model

    def val(self) -> dict[str, Any]:
        metrics = super().val()
        end_workers(self._val_loop)
        return metrics

    def test(self) -> dict[str, Any]:
        metrics = super().test()
        end_workers(self._test_loop)
        return metrics

    def build_evaluator(self, evaluator: Any) -> Evaluator:
        built = super().build_evaluator(evaluator)
        for metric in built.metrics:
            if type(metric).__name__ in ('CocoMetric', 'FasterCocoMetric', 'FasterLVISMetric'):
                encode_masks_for(metric)
        return built

    def build_optim_wrapper(self, optim_wrapper: Any) -> Any:
        """Return an optimizer wrapper, and log the number of its parameter groups."""
        built = super().build_optim_wrapper(optim_wrapper)
        groups = {(group['lr'], group.get('weight_decay'))
                  for each in get_optim_wrappers(built)
                  for group in each.param_groups}  # yapf: disable
        if len(groups) > 1:
            self.logger.info(
                f'{len(groups)} parameter groups with different learning rates or weight '
                'decay: colonnade list-param-groups CONFIG lists them')
        return built

    def load_or_resume(self) -> None:
        super().load_or_resume()
        self.prepare(self._bare_model())

    def load_checkpoint(self, filename: str, *_: Any, **__: Any) -> dict[str, Any]:
        """Load a path, a URL or ``timm://NAME`` into the model, and return the content of the file.

        Hooks get the weights under Colonnade's names, and may exchange them, as EMAHook does.
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
        """Save a checkpoint in the first process; a file of this name stays until it is complete.
        """
        kwargs = get_save_options(out_dir, *args, **kwargs)
        super().save_checkpoint(out_dir, filename, *args, **kwargs)
