"""Options of training; importing them is fast."""
from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from colonnade.common.errors import MissingFileError, UserError
from colonnade.common.options import Amp, LaunchOptions, amp_option, option

PROJECT = 'colonnade'  # default; environment variables go before


class Tracker(NamedTuple):
    """An experiment tracker.

    Attributes:
        get_settings: Function that returns the settings of the backend for a work dir.
    """
    backend: str  # class of mmengine
    packages: tuple[str, ...]  # packages that it needs
    get_settings: Callable[[Path], dict[str, Any]]


TRACKERS = {
    'tensorboard': Tracker('TensorboardVisBackend', ('tensorboard', ),
                           lambda run: dict(save_dir=str(run / 'tensorboard'))),
    'wandb': Tracker('WandbVisBackend', ('wandb', ), lambda run: dict(
        save_dir=str(run), init_kwargs=dict(
            project=os.environ.get('WANDB_PROJECT', PROJECT), name=run.name))),
    'mlflow': Tracker('MLflowVisBackend', ('mlflow', ), lambda run: dict(
        save_dir=str(run / 'mlflow'), exp_name=os.environ.get('MLFLOW_EXPERIMENT_NAME', PROJECT),
        run_name=run.name, tracking_uri=os.environ.get('MLFLOW_TRACKING_URI'))),
    'clearml': Tracker('ClearMLVisBackend', ('clearml', ), lambda run: dict(
        init_kwargs=dict(project_name=PROJECT, task_name=run.name), artifact_suffix=('.py', ))),
    'neptune': Tracker('NeptuneVisBackend', ('neptune', ), lambda run: dict(init_kwargs=dict(
        name=run.name, mode='async' if os.environ.get('NEPTUNE_API_TOKEN') else 'offline'))),
    'aim': Tracker('AimVisBackend', ('aim', ), lambda run: dict(
        save_dir=str(run), init_kwargs=dict(repo=str(run), experiment=run.name))),
    'dvclive': Tracker('DVCLiveVisBackend', ('dvclive', 'pygit2'),
                       lambda run: dict(save_dir=str(run / 'dvclive'))),
}  # yapf: disable


@dataclass
class TrainingSettings:
    """What a training starts from, and how it goes on: options of each trial of a search, too."""
    pretrained: str | None = option(
        'start from these backbone weights: name of a timm model with its tag, such as '
        'xcit_small_12_p16_384.fb_dist_in1k, or a file or URL',
        metavar='NAME')
    tune: str | None = option(
        'part of the backbone to train: all, last:N (blocks), head (none of it), lora or lora:RANK '
        '(low-rank updates of all blocks) (default: as in the config)',
        metavar='PART')
    load_from: str | None = option(
        'start from the weights of this full model: a file, a URL or a published detector or '
        'segmenter; with --resume, only if there is no checkpoint to resume from',
        metavar='CHECKPOINT')
    amp: Amp = amp_option()
    compile: bool = option(
        'compile the blocks of the backbone with torch.compile; the first iterations take minutes',
        False)
    cuda_graphs: bool = option(
        'with --compile, on an NVIDIA GPU: launch each block as one CUDA graph, recorded '
        'for each image size', False)
    auto_scale_lr: bool = option(
        "scale the learning rate by the batch size relative to the config's",
        False,
        exclusive='batch')
    grad_accum: int | None = option(
        'accumulate gradients over N iterations per optimizer step (default for N: as many as '
        "make up the config's batch size)",
        exclusive='batch',
        nargs='?',
        const=0,
        metavar='N')
    total_batch_size: int | None = option(
        'images per iteration, summed over all processes (default: batch size times processes)',
        metavar='N')
    new_classes: bool = option(
        'with --load-from: allow a checkpoint with different classes; layers that depend on the '
        'classes are initialized from scratch, except for classes with the same name', False)
    patience: int | None = option(
        'stop early after N evaluations without improvement of the best-checkpoint metric '
        '(default: off)',
        metavar='N')
    min_delta: float | None = option(
        'with --patience: minimum improvement of the metric (default: 0)', metavar='D')
    on_bad_sample: Literal['error', 'skip'] = option(
        'how to handle training samples that fail to load: stop with an error that names the '
        'sample, or skip them and list them at the end (default: %(default)s)', 'error')
    max_skipped_steps: int = option(
        'stop after N consecutive optimizer steps have been skipped because a loss or a gradient '
        'was NaN or Inf (default: %(default)s)',
        5,
        metavar='N')


@dataclass
class TrainOptions(TrainingSettings, LaunchOptions):
    """Options of a training, as in ``colonnade train --help``."""
    resume: str | None = option(
        'resume training (default for CHECKPOINT: the latest in the work dir)',
        nargs='?',
        const='auto',
        metavar='CHECKPOINT')
    fsdp: bool = option('shard parameters, gradients and optimizer states across processes (FSDP)',
                        False)
    checkpoint_format: Literal['full', 'sharded'] = option(
        'with --fsdp: save checkpoints as one file, or as a folder to which each process writes '
        'its shard (default: %(default)s)', 'full')
    tracker: Sequence[str] = option(
        'also log training curves to these trackers: %(choices)s', (),
        choices=tuple(TRACKERS),
        metavar='NAME')
    report: bool = option('do not record the run or write report.html', True)

    def __post_init__(self) -> None:
        for name, value, choices in (
            ('checkpoint_format', self.checkpoint_format, ('full', 'sharded')),
            ('on_bad_sample', self.on_bad_sample, ('error', 'skip')),
        ):  # yapf: disable
            if value not in choices:
                raise UserError(f'{name} must be {" or ".join(choices)}, got {value!r}')
        if self.max_skipped_steps < 1:
            raise UserError(f'--max-skipped-steps must be at least 1, got {self.max_skipped_steps}')
        if self.pretrained is not None:
            for option_name, source in (('load-from', self.load_from), ('resume', self.resume)):
                if source not in (None, 'auto'):
                    raise UserError(f'--pretrained has no effect with --{option_name} {source}: '
                                    'remove one of them')
            path = os.path.expanduser(self.pretrained)
            is_timm = '://' not in path and not os.path.exists(path)
            if is_timm and (os.sep in path or path.endswith(('.pth', '.pt', '.safetensors'))):
                raise MissingFileError(f'--pretrained: no such weights file: {self.pretrained}')
            self.cfg_options = {
                **(self.cfg_options or {}), 'model.backbone.init_cfg.type': 'Pretrained',
                'model.backbone.init_cfg.checkpoint': 'timm://' * is_timm + path
            }
        if isinstance(self.tracker, str):  # from Python
            self.tracker = (self.tracker, )
