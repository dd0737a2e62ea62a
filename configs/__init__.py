"""The shipped configs by their names, as in ``mask_rcnn/xcit_small_12_p16_3x_coco``."""
from __future__ import annotations

from difflib import get_close_matches
from fnmatch import fnmatch
from pathlib import Path

from colonnade.common.errors import MissingFileError, UserError

FOLDER = Path(__file__).resolve().parent


def list_configs(pattern: str = '*') -> list[str]:
    """The names of all shipped configs, sorted.

    Args:
        pattern: Those alone that match it, as a shell matches, in whole or behind ``FOLDER/``.
    """
    names = [f'{path.parent.name}/{path.stem}' for path in FOLDER.glob('[!_]*/*.py')]
    return sorted(
        name for name in names
        if fnmatch(name, pattern) or fnmatch(name.partition('/')[2], pattern))


def find_config(name: str | Path) -> Path:
    """The file of a config.

    Args:
        name: A path, or the name of a shipped config: ``FOLDER/NAME``, or ``NAME`` where no other
            folder has it.

    Raises:
        FileNotFoundError: If there is no such file and no such name; it names those that are near.
        ValueError: If several folders have it.
    """
    path = Path(name)
    if path.is_file():
        return path
    wanted = str(name).removesuffix('.py')
    found = [other for other in list_configs() if wanted in (other, other.partition('/')[2])]
    if len(found) == 1:
        return FOLDER / f'{found[0]}.py'
    if found:
        raise UserError(f'{len(found)} configs are called {name}: name one of {", ".join(found)}')
    beside = [str(other) for other in path.parent.glob('*.py')] if path.suffix == '.py' else []
    near = get_close_matches(str(path), beside, n=1)
    near = near or get_close_matches(wanted, list_configs(), n=1, cutoff=0.8)
    meant = f'; did you mean {near[0]}?' if near else ''
    if path.is_dir():
        meant = ': it is a folder, name a config in it'
    raise MissingFileError(f'no config file {name}{meant}')
