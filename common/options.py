"""Options of commands as dataclasses, and groups of options that several commands share.

A field made by :func:`option` or :func:`argument` is an option of the command line with its name;
``tools/command_line.py`` builds the parser, and ``docs/conf.py`` the tables of the pages. Other
fields are for Python alone. No room's options may import what takes time.
"""
from __future__ import annotations

from dataclasses import MISSING, Field, dataclass, field
from pathlib import Path
from typing import Any, Literal

from .errors import UserError

CONFIG = 'config file of mmdet or mmseg, or the name of one of ours'
CONFIG_OR_MODEL = f'{CONFIG}; or a checkpoint of a run, or the folder of a packaged model'
CHECKPOINT = ('file or URL of the whole model; left out where CONFIG is a checkpoint of a run or a '
              'packaged model')
TRUST = 'run what is pickled in files of weights; only if you trust who made them'
ALLOW_OUTSIDE = 'read files that annotations name outside of the folders of their data set'
FUSE = 'fold and merge layers, the same to rounding (where it can be)'
HANG_LIMIT = 600.  # seconds

Amp = bool | str


class UsageError(UserError):
    """Options that do not go together: on the command line, the usage stands before the message."""


def option(help: str, default: Any = None, **settings: Any) -> Any:
    """Declare an option ``--name`` by a field of a dataclass.

    The annotation says what the values are. ``bool`` is a flag, which begins with ``no-`` if it is
    on by default, and ``bool | None`` also has its opposite. ``tuple[int, int]`` takes two values,
    ``Sequence`` one or more, and ``Literal`` one of several. ``dict`` is ``KEY=VALUE ...``.

    Args:
        help: What it is for. ``%(default)s`` is the default.
        default: ``MISSING`` if the option has to be given.
        **settings: Of :meth:`argparse.ArgumentParser.add_argument`, where the annotation does not
            say enough. ``name`` is there if it is not that of the field. Options of equal
            ``exclusive`` exclude each other, those of equal ``group`` stand under this title.
            ``also`` has the settings of more options for the same field, by their names.
    """
    return field(default=default, metadata=dict(help=help, **settings), kw_only=True)


def argument(help: str, default: Any = MISSING, **settings: Any) -> Any:
    """Declare a positional argument by a field of a dataclass, see :func:`option`."""
    return field(default=default, metadata=dict(help=help, positional=True, **settings))


def amp_option() -> Any:
    """Declare ``--amp`` and ``--amp-dtype``."""
    types = dict(choices=['bfloat16', 'float16'], help='mixed precision in this type')
    return option(
        'mixed precision: bfloat16 on a CPU with AMX or AVX512-BF16, float16 on a GPU',
        False,
        action='flag',
        nargs=0,
        also={'--amp-dtype': types})


def option_name(field: Field) -> str:
    """Return how an option is called on the command line."""
    default = f'no_{field.name}' if field.default is True else field.name
    return f'--{field.metadata.get("name", default)}'.replace('_', '-')


@dataclass
class ConfigOptions:
    """A config, and settings that override it."""
    config: Path = argument(CONFIG)
    cfg_options: dict[str, Any] | None = option(
        'settings that override the config, e.g. train_cfg.max_epochs=12')


@dataclass
class ModelOptions(ConfigOptions):
    """What :func:`colonnade.load` takes."""
    config: Path = argument(CONFIG_OR_MODEL)
    checkpoint: str = argument(CHECKPOINT)
    device: str | None = option('cpu, cuda:0 ... (a GPU where there is one)')
    trust: bool = option(TRUST, False)


@dataclass
class LaunchOptions(ConfigOptions):
    """What every run is told."""
    work_dir: Path | str | None = option(
        'folder for logs and checkpoints (work_dirs/FOLDER/CONFIG)')
    data_root: str | Path | None = option(
        'where the data set lies, for all data sets and evaluators: a folder or a URL',
        metavar='DIR')
    launcher: Literal['none', 'pytorch', 'slurm',
                      'mpi'] = option('what started the processes: pytorch for torchrun', 'none')
    hang_limit: float = option(
        'end a job of several processes if an iteration, once its data are loaded, takes longer '
        'than this (default: %(default)g); 0 for never',
        HANG_LIMIT,
        metavar='SECONDS')
    allow_outside: bool = option(ALLOW_OUTSIDE, False)
    trust: bool = option(TRUST, False)
