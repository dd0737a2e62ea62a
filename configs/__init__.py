"""Shipped configs by name, such as ``mask_rcnn/xcit_small_12_p16_3x_coco``."""
from __future__ import annotations

from difflib import get_close_matches
from fnmatch import fnmatch
from pathlib import Path

from colonnade.common.errors import MissingFileError, UserError

FOLDER = Path(__file__).resolve().parent


def list_configs(pattern: str = '*') -> list[str]:
    """Return the sorted names of the shipped configs.

    Args:
        pattern: Shell pattern of the whole name, or of the part before or after the slash.
    """
    names = [f'{path.parent.name}/{path.stem}' for path in FOLDER.glob('[!_]*/*.py')]
    return sorted(
        name for name in names if any(fnmatch(part, pattern) for part in (name, *name.split('/'))))


def find_config(name: str | Path) -> Path:
    """Return the path of a config.

    Args:
        name: Path, or name of a shipped config: ``FOLDER/NAME``, or ``NAME`` if it is unique.

    Raises:
        FileNotFoundError: If neither the file nor the name exists; similar names are suggested.
        ValueError: If several folders contain the name.
    """
    path = Path(name)
    if path.is_file():
        return path
    expected = str(name).removesuffix('.py')
    matches = [other for other in list_configs() if expected in (other, other.partition('/')[2])]
    if len(matches) == 1:
        return FOLDER / f'{matches[0]}.py'
    if matches:
        raise UserError(
            f'{len(matches)} configs are called {name}: pass one of {", ".join(matches)}')
    siblings = [
        str(other) for other in path.parent.glob('*')
        if (other.suffix == '.py' if path.suffix == '.py' else other.is_dir())
    ]
    near = get_close_matches(str(path), siblings, n=1)
    near = near or get_close_matches(expected, list_configs(), n=1, cutoff=0.8)
    if (file := Path(f'{path}.py')).is_file():
        near = [str(file)]
    meant = f'; did you mean {near[0]}?' if near else ''
    if path.is_dir():
        meant = '; it is a folder: pass a config in it'
    elif not path.suffix and not near:
        meant = '; no file, folder or shipped config has this name'
    raise MissingFileError(f'no such config file: {name}{meant}')
