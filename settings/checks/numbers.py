"""Numbers of a config that torch would refuse once data are loaded, or without naming their key."""
from __future__ import annotations

from collections.abc import Iterator

from mmengine.config import Config

from ..findings import Finding
from ..overrides import value_at

SEEDS = 2**32  # numpy's


def number_problems(cfg: Config, dataloaders: tuple[str, ...]) -> Iterator[Finding]:
    """Sizes of batches, numbers of workers, the seed and learning rates that nothing takes."""
    for name in dataloaders:
        yield from below(cfg, f'{name}.batch_size', 1)
        yield from below(cfg, f'{name}.num_workers', 0)
    yield from below(cfg, 'randomness.seed', 0)
    seed = value_of(cfg, 'randomness.seed')
    if seed is not None and seed >= SEEDS:
        yield Finding('number-range', f'randomness.seed is {seed}', ('randomness.seed', ),
                      f'it is below {SEEDS}')
    if 'train_dataloader' in dataloaders:
        yield from below(cfg, 'optim_wrapper.optimizer.lr', 0)


def below(cfg: Config, key: str, least: int) -> Iterator[Finding]:
    """A finding if a number is too small."""
    value = value_of(cfg, key)
    if value is not None and value < least:
        yield Finding('number-range', f'{key} is {value}', (key, ), f'it is at least {least}')


def value_of(cfg: Config, key: str) -> float | None:
    """The number that a path leads to; None if there is none."""
    try:
        found = value_at(cfg._cfg_dict, key)
    except KeyError:
        return None
    is_number = isinstance(found, (int, float)) and not isinstance(found, bool)
    return found if is_number else None
