"""Length, intervals and numbers of a training: are they possible, and reached?"""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from mmengine.config import Config, ConfigDict

from ..findings import Finding
from ..overrides import exists, get_value
from ..pipeline_steps import get_type_name

#: settings that mmengine requires together
TOGETHER = {
    'train': ('train_dataloader', 'train_cfg', 'optim_wrapper'),
    'val': ('val_dataloader', 'val_cfg', 'val_evaluator'),
    'test': ('test_dataloader', 'test_cfg', 'test_evaluator'),
}
INF = 10**8  # smallest end that means "never", as in mmengine
MAX_SEED = 2**32 - 1  # numpy's limit


class Length(NamedTuple):
    """Length of a training."""
    number: int
    unit: str  # epochs or iterations
    place: str  # config key that sets it

    def build_unreached(self, rule: str, place: str, value: Any, result: str) -> Finding:
        """Return a finding about a setting that this training does not reach."""
        return Finding(
            rule, f'{place} is {value}, but training has {self.number} {self.unit} '
            f'({self.place}): {result}', (place, self.place))

    def build_wrong_unit(self, rule: str, section: str, result: str) -> Finding:
        """Return a finding about a section that counts epochs, which this training does not."""
        place = f'{section}.by_epoch'
        return Finding(rule,
                       f'{place} is True, but training counts iterations ({self.place}): {result}',
                       (place, self.place), f'set {place}=False')


def find_completeness_problems(cfg: Config, dataloaders: tuple[str, ...]) -> Iterator[Finding]:
    """Yield settings of training, validation and test that are incomplete."""
    for name, keys in TOGETHER.items():
        missing = [key for key in keys if cfg.get(key) is None]
        if f'{name}_dataloader' in dataloaders and 0 < len(missing) < len(keys):
            present = [key for key in keys if key not in missing]
            yield Finding('loop-parts',
                          f'the config has {", ".join(present)} but not {", ".join(missing)}', keys,
                          f'set all of {", ".join(keys)}, or none')


def find_number_problems(cfg: Config, dataloaders: tuple[str, ...]) -> Iterator[Finding]:
    """Yield numbers that torch would reject after loading data, or without naming their key."""
    minima = {'randomness.seed': 0}
    for name in dataloaders:
        minima |= {f'{name}.batch_size': 1, f'{name}.num_workers': 0}
    if 'train_dataloader' in dataloaders:
        minima['optim_wrapper.optimizer.lr'] = 0
    content = cfg.to_dict()
    for key, minimum in minima.items():
        value = get_value(content, key) if exists(content, key) else None
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            continue
        if value < minimum:
            yield Finding('number-range', f'{key} is {value}', (key, ),
                          f'set it to at least {minimum}')
        elif key == 'randomness.seed' and value > MAX_SEED:
            yield Finding('number-range', f'{key} is {value}', (key, ),
                          f'set it to at most {MAX_SEED}')


def find_schedule_problems(cfg: Config, dataloaders: tuple[str, ...]) -> Iterator[Finding]:
    """Yield settings that a training of this length never reaches, and impossible lengths."""
    if 'train_dataloader' not in dataloaders:
        return
    loop = cfg.get('train_cfg') or {}
    length = next((Length(loop[key], unit, f'train_cfg.{key}')
                   for key, unit in (('max_epochs', 'epochs'), ('max_iters', 'iterations'))
                   if isinstance(loop.get(key), int)), None)  # yapf: disable
    for key in ('max_epochs', 'max_iters', 'val_interval'):
        if isinstance(loop.get(key), int) and loop[key] < 1:
            yield Finding('training-length', f'train_cfg.{key} must be at least 1, got {loop[key]}',
                          (f'train_cfg.{key}', ))
            length = None
    if length is None:
        return
    if 'max_epochs' in loop and 'max_iters' in loop:
        yield Finding('training-length', 'train_cfg has both max_epochs and max_iters',
                      ('train_cfg.max_epochs', 'train_cfg.max_iters'), 'remove one of them')
        return
    yield from _check_evaluation(cfg, loop, length)
    yield from _check_checkpoints(cfg, length)
    schedulers = cfg.get('param_scheduler') or []
    schedulers = schedulers if isinstance(schedulers, list) else [schedulers]
    yield from _check_truncation(schedulers, length)
    for index, scheduler in enumerate(schedulers):
        yield from _check_scheduler(f'param_scheduler[{index}]', scheduler, length)


def _check_evaluation(cfg: Config, loop: ConfigDict, length: Length) -> Iterator[Finding]:
    """Yield evaluations that never run, or only at the end."""
    if not cfg.get('val_dataloader'):
        return
    begin, interval = loop.get('val_begin', 1), loop.get('val_interval')
    if isinstance(begin, int) and begin > length.number:
        yield length.build_unreached('late-evaluation', 'train_cfg.val_begin', begin,
                                     'the model is never evaluated')
    elif isinstance(interval, int) and interval > length.number:
        yield length.build_unreached('late-evaluation', 'train_cfg.val_interval', interval,
                                     'the model is evaluated only at the end')


def _check_checkpoints(cfg: Config, length: Length) -> Iterator[Finding]:
    """Yield checkpoints that are never saved, or only at the end."""
    hook = (cfg.get('default_hooks') or {}).get('checkpoint')
    if not isinstance(hook, dict) or get_type_name(hook.get('type', 'CheckpointHook')) != \
            'CheckpointHook':
        return
    place, interval = 'default_hooks.checkpoint', hook.get('interval', -1)
    by_epoch = hook.get('by_epoch', True)
    if not isinstance(interval, int):
        return
    saves_last = hook.get('save_last', True)
    if not saves_last and hook.get('save_best') and cfg.get('val_dataloader'):
        return  # saves only the best checkpoint
    saved = 'a checkpoint is saved only at the end' if saves_last else 'no checkpoint is saved'
    if by_epoch and length.unit == 'iterations':
        yield length.build_wrong_unit('late-checkpoint', place, saved)
        return
    comparable = by_epoch == (length.unit == 'epochs')
    if interval < 1 or comparable and interval > length.number:
        yield length.build_unreached('late-checkpoint', f'{place}.interval', interval, saved)


def _check_scheduler(where: str, scheduler: Any, length: Length) -> Iterator[Finding]:
    """Yield changes of the learning rate that never happen."""
    if not isinstance(scheduler, dict) or scheduler.get('convert_to_iter_based'):
        return
    by_epoch = scheduler.get('by_epoch', True)
    if by_epoch and length.unit == 'iterations':
        yield length.build_wrong_unit('late-change', where, 'it never takes effect')
        return
    if by_epoch != (length.unit == 'epochs'):
        return  # the iterations per epoch depend on the data
    end = f'training ends at {length.number} ({length.place})'
    if scheduler.get('begin', 0) >= length.number:
        yield Finding('late-change',
                      f'{where}.begin is {scheduler["begin"]}, but {end}: it never starts',
                      (f'{where}.begin', length.place))
    late = [each for each in scheduler.get('milestones') or () if each >= length.number]
    if late:
        yield Finding('late-change',
                      f'{where}.milestones contains {late}, but {end}: they are never reached',
                      (f'{where}.milestones', length.place))


def _check_truncation(schedulers: list[Any], length: Length) -> Iterator[Finding]:
    """Yield schedulers that the end of training cuts off."""
    stops = {
        f'param_scheduler[{index}].{key}': scheduler[key]
        for index, scheduler in enumerate(schedulers) if isinstance(scheduler, dict)
        for key in ('end', 'T_max')
        if isinstance(scheduler.get(key), int) and scheduler.get('by_epoch', True) == (
            length.unit == 'epochs') and not scheduler.get('convert_to_iter_based')
        and scheduler.get('begin', 0) < length.number < scheduler[key] < INF
    }
    if stops:
        listed = ', '.join(f'{key} is {stop}' for key, stop in stops.items())
        yield Finding(
            'late-change',
            f'{listed}, but training ends at {length.number} ({length.place}): the learning rate '
            'does not reach its final value', (*stops, length.place))
