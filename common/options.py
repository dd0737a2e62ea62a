"""Command options as dataclass fields, and groups of options that several commands share.

A field made by :func:`option` or :func:`argument` becomes a command-line option with its name:
``tools/command_line.py`` builds the parser, ``docs/conf.py`` the tables of the docs. Other fields
are for Python only. Modules of options must not import anything slow.
"""
from __future__ import annotations

from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from .errors import UserError

CONFIG = 'config file of mmdet or mmseg, or name of a shipped config'
CONFIG_OR_MODEL = (f'{CONFIG}; or a checkpoint or the work dir of a run, or the folder of a '
                   'packaged model')
CHECKPOINT = ('file or URL of the full model; omit it if CONFIG is a checkpoint, a work dir or a '
              'packaged model')
TRUST = 'run pickled code in weight files; pass it only if you trust the author'
DATA_ROOT = 'folder or URL of the dataset (default: as in the config)'
ALLOW_EXTERNAL_FILES = 'read files outside the folders of the dataset that its annotations refer to'
FUSE = ('fold and merge layers; results are the same up to rounding error (default: where '
        'possible)')
HANG_TIMEOUT = 1800.  # seconds

Amp = bool | str


class UsageError(UserError):
    """Options that cannot be combined; commands print the usage before the message."""


def option(help: str, default: Any = None, **settings: Any) -> Any:
    """Declare an option ``--name`` by a field of a dataclass.

    The annotation determines the values: ``bool`` is a flag, which begins with ``no-`` if it is on
    by default; ``bool | None`` also has its opposite. ``tuple[int, int]`` takes two values,
    ``Sequence`` one or more, ``Literal`` one of several, and ``dict`` takes ``KEY=VALUE ...``.

    Args:
        help: Help text, in which ``%(default)s`` is the default.
        default: ``MISSING`` if the option is required.
        **settings: Arguments of :meth:`argparse.ArgumentParser.add_argument` that do not follow
            from the annotation. ``name`` replaces the name of the field. Options of equal
            ``exclusive`` exclude each other, those of equal ``group`` share this heading. ``also``
            has the settings of further options for the same field, by name.
    """
    return field(default=default, metadata=dict(help=help, **settings), kw_only=True)


def argument(help: str, default: Any = MISSING, **settings: Any) -> Any:
    """Declare a positional argument by a field of a dataclass, see :func:`option`."""
    return field(default=default, metadata=dict(help=help, positional=True, **settings))


def amp_option() -> Any:
    """Declare ``--amp`` and ``--amp-dtype``."""
    types = dict(choices=['bfloat16', 'float16'], help='mixed precision with this type')
    return option(
        'mixed precision: bfloat16 on a CPU with AMX or AVX512-BF16, float16 on a GPU',
        False,
        action='flag',
        nargs=0,
        also={'--amp-dtype': types})


def option_name(field: Field) -> str:
    """Return the name of an option on the command line."""
    default = f'no_{field.name}' if field.default is True else field.name
    return f'--{field.metadata.get("name", default)}'.replace('_', '-')


def format_words(options: Any) -> list[str]:
    """Return the words of the command line that sets options, without those with defaults."""
    positional, named = list[str](), list[str]()
    for each in fields(options):
        value = vars(options)[each.name]
        if not each.metadata or value in (None, each.default, [], ()):
            continue
        words = list(map(str, value if isinstance(value, (list, tuple)) else [value]))
        if each.metadata.get('positional'):
            positional += words
        else:
            name = option_name(each)
            if isinstance(value, bool):
                named.append(name)
            elif len(words) == 1 and words[0].startswith('-'):
                named.append(f'{name}={words[0]}')
            else:
                named += [name, *words]
    return [*positional, *named]


@dataclass
class ConfigOptions:
    """A config, and settings that override it."""
    config: Path = argument(CONFIG)
    cfg_options: dict[str, Any] | None = option(
        'settings that override the config, e.g. train_cfg.max_epochs=12')


@dataclass
class ModelOptions(ConfigOptions):
    """Options of :func:`colonnade.load`."""
    config: Path = argument(CONFIG_OR_MODEL)
    checkpoint: str | None = argument(CHECKPOINT, None)
    device: str | None = option('device, e.g. cpu or cuda:0 (default: a GPU if available)')
    trust: bool = option(TRUST, False)


@dataclass
class LaunchOptions(ConfigOptions):
    """Options of every run."""
    work_dir: Path | str | None = option(
        'folder for logs and checkpoints (default: work_dirs/FOLDER/CONFIG)', metavar='DIR')
    data_root: str | Path | None = option(DATA_ROOT, metavar='DIR')
    launcher: Literal['none', 'pytorch', 'slurm', 'mpi'] = option(
        'launcher of the job; use pytorch for torchrun (default: %(default)s)', 'none')
    hang_timeout: float = option(
        'abort a multi-process job if one process waits longer than this for another; 0 to '
        'wait forever (default: %(default)g)',
        HANG_TIMEOUT,
        metavar='SECONDS')
    allow_external_files: bool = option(ALLOW_EXTERNAL_FILES, False)
    trust: bool = option(TRUST, False)
