"""Lengths and intervals of a training: is it evaluated, saved and scheduled as its config says?"""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from mmengine.config import Config, ConfigDict

from ..findings import Finding
from ..overrides import exists, value_at
from ..pipeline_steps import name_of

#: what mmengine wants together, or not at all
TOGETHER = {
    'train': ('train_dataloader', 'train_cfg', 'optim_wrapper'),
    'val': ('val_dataloader', 'val_cfg', 'val_evaluator'),
    'test': ('test_dataloader', 'test_cfg', 'test_evaluator'),
}
NEVER = 10**8  # an end that is none, as mmengine's own of INF

MAX_SEED = 2**32 - 1  # of numpy


class Length(NamedTuple):
    """How long a training is."""
    number: int
    unit: str  # epochs or iterations
    place: str  # the key that says it

    def missed(self, rule: str, place: str, value: Any, result: str) -> Finding:
        """Return a finding on a setting that this training does not reach."""
        return Finding(
            rule, f'{place} is {value}, and training has {self.number} {self.unit} '
            f'({self.place}): {result}', (place, self.place))

    def missed_epochs(self, rule: str, part: str, result: str) -> Finding:
        """Return a finding on a part that counts epochs, which this training does not."""
        place = f'{part}.by_epoch'
        return Finding(rule,
                       f'{place} is True, and training counts iterations ({self.place}): {result}',
                       (place, self.place), f'set {place}=False')


def completeness_problems(cfg: Config, dataloaders: tuple[str, ...]) -> Iterator[Finding]:
    """Parts of training, validation and test of which others are missing."""
    for name, keys in TOGETHER.items():
        missing = [key for key in keys if cfg.get(key) is None]
        if f'{name}_dataloader' in dataloaders and 0 < len(missing) < len(keys):
            given = [key for key in keys if key not in missing]
            yield Finding('loop-parts',
                          f'{", ".join(given)} stand in the config without {", ".join(missing)}',
                          keys, f'set all of {", ".join(keys)}, or none')


def number_problems(cfg: Config, dataloaders: tuple[str, ...]) -> Iterator[Finding]:
    """Yield numbers that torch would refuse once data are loaded, or without naming their key."""
    minima = {'randomness.seed': 0}
    for name in dataloaders:
        minima |= {f'{name}.batch_size': 1, f'{name}.num_workers': 0}
    if 'train_dataloader' in dataloaders:
        minima['optim_wrapper.optimizer.lr'] = 0
    content = cfg.to_dict()
    for key, minimum in minima.items():
        value = value_at(content, key) if exists(content, key) else None
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            continue
        if value < minimum:
            yield Finding('number-range', f'{key} is {value}', (key, ), f'it is at least {minimum}')
        elif key == 'randomness.seed' and value > MAX_SEED:
            yield Finding('number-range', f'{key} is {value}', (key, ),
                          f'it is below {MAX_SEED + 1}')


def length_of(cfg: Config) -> Length | None:
    """How long a training is; None if the config does not say."""
    loop = cfg.get('train_cfg') or {}
    for key, unit in (('max_epochs', 'epochs'), ('max_iters', 'iterations')):
        if isinstance(loop.get(key), int):
            return Length(loop[key], unit, f'train_cfg.{key}')
    return None


def schedule_problems(cfg: Config, dataloaders: tuple[str, ...]) -> Iterator[Finding]:
    """Yield what a training of this length never reaches, and lengths that are impossible."""
    if 'train_dataloader' not in dataloaders:
        return
    loop, length = cfg.get('train_cfg') or {}, length_of(cfg)
    for key in ('max_epochs', 'max_iters', 'val_interval'):
        if isinstance(loop.get(key), int) and loop[key] < 1:
            yield Finding('training-length', f'train_cfg.{key} must be at least 1, got {loop[key]}',
                          (f'train_cfg.{key}', ))
            length = None
    if length is None:
        return
    if 'max_epochs' in loop and 'max_iters' in loop:
        yield Finding('training-length',
                      'train_cfg has max_epochs and max_iters, of which a loop takes one',
                      ('train_cfg.max_epochs', 'train_cfg.max_iters'), 'remove one of them')
        return
    yield from interval_problems(cfg, loop, length)
    yield from checkpoint_problems(cfg, length)
    schedulers = cfg.get('param_scheduler') or []
    schedulers = schedulers if isinstance(schedulers, list) else [schedulers]
    yield from cut_short(schedulers, length)
    for index, scheduler in enumerate(schedulers):
        yield from scheduler_problems(f'param_scheduler[{index}]', scheduler, length)


def interval_problems(cfg: Config, loop: ConfigDict, length: Length) -> Iterator[Finding]:
    """Evaluations that never come, or only at the end."""
    if not cfg.get('val_dataloader'):
        return
    begin, interval = loop.get('val_begin', 1), loop.get('val_interval')
    if isinstance(begin, int) and begin > length.number:
        yield length.missed('late-evaluation', 'train_cfg.val_begin', begin,
                            'it is never evaluated')
    elif isinstance(interval, int) and interval > length.number:
        yield length.missed('late-evaluation', 'train_cfg.val_interval', interval,
                            'it is evaluated at its end alone')


def checkpoint_problems(cfg: Config, length: Length) -> Iterator[Finding]:
    """Checkpoints that are never saved, or only at the end."""
    hook = (cfg.get('default_hooks') or {}).get('checkpoint')
    if not isinstance(hook, dict) or name_of(hook.get('type', 'CheckpointHook')) != \
            'CheckpointHook':
        return
    place, interval = 'default_hooks.checkpoint', hook.get('interval', -1)
    by_epoch = hook.get('by_epoch', True)
    if not isinstance(interval, int):
        return
    saves_last = hook.get('save_last', True)
    if not saves_last and hook.get('save_best') and cfg.get('val_dataloader'):
        return  # the best alone is wanted
    saved = 'a checkpoint is saved at its end alone' if saves_last else 'no checkpoint is saved'
    if by_epoch and length.unit == 'iterations':
        yield length.missed_epochs('late-checkpoint', place, saved)
        return
    comparable = by_epoch == (length.unit == 'epochs')
    if interval < 1 or comparable and interval > length.number:
        yield length.missed('late-checkpoint', f'{place}.interval', interval, saved)


def scheduler_problems(where: str, scheduler: Any, length: Length) -> Iterator[Finding]:
    """Changes of the learning rate that never come."""
    if not isinstance(scheduler, dict) or scheduler.get('convert_to_iter_based'):
        return
    by_epoch = scheduler.get('by_epoch', True)
    if by_epoch and length.unit == 'iterations':
        yield length.missed_epochs('late-change', where, 'it never changes anything')
        return
    if by_epoch != (length.unit == 'epochs'):
        return  # iterations of epochs are known with the data
    end = f'training ends at {length.number} ({length.place})'
    if scheduler.get('begin', 0) >= length.number:
        yield Finding('late-change',
                      f'{where}.begin is {scheduler["begin"]}, and {end}: it never starts',
                      (f'{where}.begin', length.place))
    late = [each for each in scheduler.get('milestones') or () if each >= length.number]
    if late:
        yield Finding('late-change',
                      f'{where}.milestones has {late}, and {end}: they are never reached',
                      (f'{where}.milestones', length.place))


def cut_short(schedulers: list[Any], length: Length) -> Iterator[Finding]:
    """Changes of the learning rate that stop on their way."""
    stops = {
        f'param_scheduler[{index}].{key}': scheduler[key]
        for index, scheduler in enumerate(schedulers) if isinstance(scheduler, dict)
        for key in ('end', 'T_max')
        if isinstance(scheduler.get(key), int) and scheduler.get('by_epoch', True) == (
            length.unit == 'epochs') and not scheduler.get('convert_to_iter_based')
        and scheduler.get('begin', 0) < length.number < scheduler[key] < NEVER
    }
    if stops:
        named = ', '.join(f'{key} is {stop}' for key, stop in stops.items())
        yield Finding(
            'late-change',
            f'{named}, and training ends at {length.number} ({length.place}): the learning rate '
            'stops on its way', (*stops, length.place))
