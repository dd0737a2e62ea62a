"""What the command lines of the tools share. Nothing here takes time to import."""
from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from colonnade.common.errors import MissingFileError, UserCodeError, UserError

CONFIG = 'config file of mmdet or mmseg, or the name of one of ours'
CONFIG_OR_MODEL = f'{CONFIG};\nor a checkpoint of a run, or the folder of a packaged model'
CHECKPOINT = ('file or URL of the whole model; left out where CONFIG is a\n'
              'checkpoint of a run or a packaged model')
WEIGHTS = ('.pth', '.pt', '.safetensors')
STOPPED = 130  # the status that Ctrl-C ends a program with
SPINS = '10000'  # of GOMP_SPINCOUNT, measured by docs/measure_spinning.py
SEVERAL = re.compile(r'=.*\s\w+(\.\w+)+=')  # keys in one text
#: with these, users say how OpenMP's threads wait, or that they have cores of their own
WAITING = ('GOMP_SPINCOUNT', 'OMP_WAIT_POLICY', 'GOMP_CPU_AFFINITY', 'OMP_PROC_BIND', 'OMP_PLACES')


def limit_spinning() -> None:
    """Let OpenMP's idle threads sleep soon, where other programs may need their cores.

    libgomp reads the variable when torch loads it: later, or where the user chose, nothing is set.
    Processes that start from this one inherit it.
    """
    if 'torch' not in sys.modules and not any(name in os.environ for name in WAITING):
        os.environ['GOMP_SPINCOUNT'] = SPINS


limit_spinning()  # on import: before any tool can import torch


@contextmanager
def user_errors(tool: str) -> Iterator[None]:
    """Context manager that ends the program with ``tool: message`` and status 1 on a UserError.

    The traceback of somebody's own code stands before the message. All other errors pass.

    Args:
        tool: Name of the tool.
    """
    try:
        yield
    except ValueError as error:
        from colonnade.runtime import ImageError, ModelError  # which know no UserError
        from colonnade.runtime.printing import printable
        if not isinstance(error, (UserError, ImageError, ModelError)):
            raise
        if isinstance(error, UserCodeError):
            print(printable(error.format_traceback()), end='', file=sys.stderr, flush=True)
        sys.exit(f'{tool}: {printable(error)}')


def check_model_arguments(config: Path, checkpoint: str | None = None) -> None:
    """Check that a config and a checkpoint exist, before torch is imported, which takes seconds.

    Args:
        config: A config, the name of one, a checkpoint or a packaged model.
        checkpoint: A file, a URL or an input in its place, which is not checked here.

    Raises:
        FileNotFoundError: If one does not exist.
        ValueError: If several configs have the name.
    """
    from colonnade.configs import find_config
    if not config.exists():
        find_config(config)
    if checkpoint and '://' not in checkpoint and Path(checkpoint).suffix in WEIGHTS and \
            not os.path.exists(os.path.expanduser(checkpoint)):
        raise MissingFileError(f'no weights file {checkpoint}')


@contextmanager
def stoppable(tool: str) -> Iterator[None]:
    """End the program with ``tool: stopped`` and status 130 on Ctrl-C.

    Args:
        tool: Its name.
    """
    try:
        yield
    except (KeyboardInterrupt, SyntaxError) as error:
        if isinstance(error, SyntaxError) and not isinstance(error.__context__, KeyboardInterrupt):
            raise  # else mmengine was stopped while it laid out a config, and called that wrong
        print(f'\n{tool}: stopped', file=sys.stderr)
        sys.exit(STOPPED)


def print_any_name() -> None:
    """Let names of files be printed that are in another encoding than the terminal's."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors='backslashreplace')


def print_report(report: Any, tool: str, consequence: str) -> None:
    """Print what a look at a data set found; end the program if there are faults.

    Args:
        report: The :class:`~colonnade.datasets.validation.validation_report.Report`.
        tool: Name of the tool.
        consequence: What the tool does not do because of faults.
    """
    from colonnade.runtime.printing import printable  # takes a moment

    def shown(text: str) -> str:
        return printable(text).replace('\n', '\n    ')  # no name may pass for a line of ours

    for remark in report.remarks:
        print(f'remark: {shown(remark)}')
    for fault in report.faults:
        print(f'fault: {shown(fault)}', file=sys.stderr)
    if report.num_faults:
        faults = 'fault' if report.num_faults == 1 else 'faults'
        sys.exit(f'{tool}: {report.num_faults} {faults}, {consequence}')


class Options(argparse.Action):
    """``KEY=VALUE ...`` as mmengine parses them; anything else is an error of the command line."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(nargs='+', metavar='KEY=VALUE', **settings)

    def __call__(self,
                 parser: argparse.ArgumentParser,
                 namespace: argparse.Namespace,
                 values: Any,
                 option_string: str | None = None) -> None:
        """Parse values and add them to what was given before."""
        from mmengine.config import DictAction
        if quoted := next((value for value in values if SEVERAL.search(value)), ''):
            parser.error(f'{option_string} takes each KEY=VALUE as an argument of its own: leave '
                         f'out the quotes around {quoted}')
        parse = DictAction(self.option_strings, self.dest, nargs='+')
        try:
            parse(parser, namespace, values, option_string)
        except (ValueError, AssertionError, RecursionError):
            wrong = next((v for v in values if '=' not in v), ' '.join(values))
            parser.error(f'{option_string} takes KEY=VALUE, as in train_cfg.max_epochs=12, '
                         f'got {wrong}')


class Amp(argparse.Action):
    """A flag that keeps the type which ``--amp-dtype`` names before it."""

    def __call__(self,
                 parser: argparse.ArgumentParser,
                 namespace: argparse.Namespace,
                 values: Any,
                 option_string: str | None = None) -> None:
        """Turn it on."""
        namespace.amp = namespace.amp or True


def add_config_arguments(parser: argparse.ArgumentParser, *, meaning: str = CONFIG) -> None:
    """A config and settings that override it."""
    parser.add_argument('config', type=Path, help=meaning)
    parser.add_argument(
        '--cfg-options',
        action=Options,
        help='settings that override the config, e.g. train_cfg.max_epochs=12')


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of :func:`colonnade.load`, but for the checkpoint."""
    add_config_arguments(parser, meaning=CONFIG_OR_MODEL)
    parser.add_argument('--device', help='cpu, cuda:0 ... (a GPU where there is one)')
    add_trust(parser)


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Whether weights may bring code with them."""
    parser.add_argument(
        '--trust',
        action='store_true',
        help='run what is pickled in files of weights; only if you trust who made them')


def add_amp(parser: argparse.ArgumentParser) -> None:
    """Whether to compute in half precision, and in which type."""
    parser.add_argument(
        '--amp',
        action=Amp,
        nargs=0,
        default=False,
        help='mixed precision: bfloat16 on a CPU with AMX or AVX512-BF16, float16 on a GPU')
    parser.add_argument(
        '--amp-dtype',
        dest='amp',
        default=argparse.SUPPRESS,
        choices=['bfloat16', 'float16'],
        help='mixed precision in this type')


def add_data_arguments(parser: argparse.ArgumentParser) -> None:
    """Where a user's own images and annotations are, and what these mean."""
    kind = parser.add_mutually_exclusive_group(required=True)
    kind.add_argument(
        '--data',
        nargs='+',
        type=Path,
        metavar='PATH',
        help='a data set in any common form, which is found: a folder, its data.yaml,\n'
        'or folders of training and validation')
    kind.add_argument(
        '--coco',
        nargs='+',
        type=Path,
        metavar='JSON',
        help="instances in COCO's form, for a detector: training and validation")
    kind.add_argument(
        '--masks',
        nargs='+',
        type=Path,
        metavar='DIR',
        help='label maps, for a segmenter: folders of training and validation,\n'
        "or one that is laid out as ADE20k's")
    parser.add_argument(
        '--images',
        nargs='+',
        type=Path,
        metavar='DIR',
        help='folders of training and validation images, with --coco, one for both')
    parser.add_argument(
        '--classes',
        nargs='+',
        metavar='NAME',
        help='names of the labels in their order, or a file with one per line;\n'
        'of instances those to train, instead of all')
    parser.add_argument(
        '--zero',
        choices=['unlabelled', 'class'],
        help='what label 0 of label maps is (found where the data tell)')
    parser.add_argument(
        '--suffixes',
        nargs=2,
        metavar=('IMAGE', 'MASK'),
        help='how names of images and of label maps end, the rest being equal, e.g.\n'
        '_leftImg8bit.png _labelTrainIds.png (found where the names tell)')
    parser.add_argument(
        '--colours',
        type=Path,
        metavar='FILE',
        help='table of classes and their colours, where masks are pictures in colours:\n'
        'CSV of name,r,g,b, or JSON (found in the folder of the data)')
    parser.add_argument(
        '--ignore-255',
        action='store_true',
        help='label 255 stands for unlabelled pixels, though classes have none')
    parser.add_argument(
        '--boxes', action='store_true', help='train boxes alone, whatever segmentations there are')
    parser.add_argument(
        '--on-bad-data',
        choices=['stop', 'skip'],
        default='stop',
        help='what to do with images that cannot be used, or whose annotations\n'
        'cannot be repaired: stop and list them, or leave them out (default: stop)')
    add_split_arguments(parser)
    parser.set_defaults(lists=None, palette=None)  # which doors for label maps find


def add_split_arguments(parser: argparse.ArgumentParser) -> None:
    """How one data set becomes two, and where what is made of it goes."""
    parser.add_argument(
        '--split',
        type=float,
        metavar='FRACTION',
        help='part of the images for validation, where data have no such part: 0.2')
    parser.add_argument('--split-seed', type=int, default=0, help='of that choice (0)')
    parser.add_argument(
        '--group',
        metavar='REGEX',
        help='images whose names agree in its first group stay together in a split,\n'
        "such as a patient's: '^(\\d+)_'")
    parser.add_argument(
        '--data-out',
        type=Path,
        help='folder for what is converted, repaired or split (default: OUT_data)')


def add_launch_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of every tool with a runner."""
    add_config_arguments(parser)
    parser.add_argument(
        '--work-dir', type=Path, help='folder for logs and checkpoints (work_dirs/FOLDER/CONFIG)')
    parser.add_argument(
        '--data-root',
        metavar='DIR',
        help='where the data set lies, for all data sets and evaluators: a folder or a URL')
    parser.add_argument(
        '--launcher',
        choices=['none', 'pytorch', 'slurm', 'mpi'],
        default='none',
        help='what started the processes: pytorch for torchrun')
    parser.add_argument(
        '--hang-limit',
        type=float,
        metavar='SECONDS',
        default=argparse.SUPPRESS,
        help='end a job of several processes if an iteration, once its data are loaded, takes '
        'longer than this (default: 600); 0 for never')
    add_allow_outside(parser)
    add_trust(parser)


def add_allow_outside(parser: argparse.ArgumentParser) -> None:
    """The argument of tools that read the images of data sets."""
    parser.add_argument(
        '--allow-outside',
        action='store_true',
        help='read files that annotations name outside of the folders of their data set')
