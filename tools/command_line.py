"""What the command lines of the tools share. Nothing here takes time to import."""
from __future__ import annotations

import argparse
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, fields
from functools import wraps
from io import TextIOWrapper
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from colonnade.common.errors import MissingFileError, UserCodeError, UserError
from colonnade.common.options import UsageError, option_name

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
def report_user_errors(tool: str) -> Iterator[None]:
    """Context manager that ends the program with ``tool: message`` and status 1 on a UserError.

    The traceback of somebody's own code stands before the message. All other errors pass.

    Args:
        tool: Name of the tool.
    """
    try:
        yield
    except ValueError as error:
        from colonnade.runtime import ImageError, ModelError  # which know no UserError
        from colonnade.runtime.sanitize import printable
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
def handle_ctrl_c(tool: str) -> Iterator[None]:
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


def escape_unprintable_output() -> None:
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
    from colonnade.runtime.sanitize import printable  # takes a moment

    def shown(text: str) -> str:
        return printable(text).replace('\n', '\n    ')  # no name may pass for a line of ours

    for remark in report.remarks:
        print(f'remark: {shown(remark)}')
    for fault in report.faults:
        print(f'fault: {shown(fault)}', file=sys.stderr)
    if report.num_faults:
        faults = 'fault' if report.num_faults == 1 else 'faults'
        sys.exit(f'{tool}: {report.num_faults} {faults}, {consequence}')


class KeyValues(argparse.Action):
    """``KEY=VALUE ...`` as mmengine parses them; anything else is an error of the command line."""

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


class Flag(argparse.Action):
    """A flag that keeps the value which another option of the same field has set before it."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, *_:
                 Any) -> None:
        """Turn it on."""
        setattr(namespace, self.dest, getattr(namespace, self.dest) or True)


def settings_of_type(annotation: Any, default: Any) -> dict[str, Any]:
    """Return the settings of ``add_argument`` that follow from a field's annotation."""
    kinds = [annotation]
    if is_optional := get_origin(annotation) in (Union, UnionType):
        kinds = [kind for kind in get_args(annotation) if kind is not NoneType]
    kind, inner = kinds[0], get_args(kinds[0])
    if kind is bool:
        switch: Any = 'store_false' if default is True else 'store_true'
        return dict(action=argparse.BooleanOptionalAction if is_optional else switch)
    if get_origin(kind) is dict:
        return dict(action=KeyValues, nargs='+', metavar='KEY=VALUE')
    if get_origin(kind) is tuple:
        return dict(type=inner[0], nargs=len(inner))
    if get_origin(kind) is Literal:
        return dict(choices=inner)
    if inner:
        return settings_of_type(inner[0], None) | dict(nargs='+')
    return dict(type=kind)


def add_options(parser: argparse.ArgumentParser, options: type) -> None:
    """Add the options that a dataclass declares, see :func:`colonnade.common.options.option`."""
    parser.register('action', 'flag', Flag)
    hints = get_type_hints(options)
    groups: dict[str, Any] = {}
    for field in fields(options):
        if not field.metadata:
            continue  # it is for Python alone
        is_required = field.default is MISSING
        default = None if is_required or field.default == () else field.default
        settings = dict(field.metadata, default=default)
        if 'action' not in settings:
            settings = settings_of_type(hints[field.name], default) | settings
        place: Any = parser
        if title := settings.pop('group', ''):
            place = groups[title] = groups.get(title) or parser.add_argument_group(title)
        if key := settings.pop('exclusive', ''):
            must = settings.pop('required', False)
            place = groups[key] = \
                groups.get(key) or parser.add_mutually_exclusive_group(required=must)
        if settings.pop('positional', False):
            if not is_required:
                settings['nargs'] = '*' if 'nargs' in settings else '?'
            place.add_argument(field.name, **settings)
            continue
        settings.pop('name', '')
        others = settings.pop('also', {})
        if is_required:
            settings['required'] = True
        place.add_argument(option_name(field), dest=field.name, **settings)
        for name, other in others.items():
            place.add_argument(name, dest=field.name, default=argparse.SUPPRESS, **other)


def parse_options(parser: argparse.ArgumentParser,
                  options: type | Mapping[str, type],
                  *,
                  words: Sequence[str] | None = None,
                  intermixed: bool = False) -> Any:
    """Parse the command line; what is not given keeps the default of its field.

    Args:
        parser: Without options.
        options: Their dataclass, or one for each action of the command.
        words: Of the command line, those of ``sys.argv`` if None.
        intermixed: Whether positional arguments may stand behind options.

    Returns:
        An object of the dataclass.
    """
    if isinstance(options, type):
        add_options(parser, options)
        parser.set_defaults(made=options)
    else:
        actions = parser.add_subparsers(required=True, metavar='ACTION')
        for name, each in options.items():
            summary = (each.__doc__ or '').rstrip('.')
            action = actions.add_parser(name, help=summary[0].lower() + summary[1:])
            add_options(action, each)
            action.set_defaults(made=each)
    parsed = vars(parser.parse_intermixed_args(words) if intermixed else parser.parse_args(words))
    made = parsed.pop('made')
    try:
        return made(**{name: value for name, value in parsed.items() if value is not None})
    except UsageError as error:
        parser.error(str(error))


def command(options: type | Mapping[str, type],
            *,
            full_help: bool = False,
            epilog: str | None = None,
            intermixed: bool = False) -> Callable[[Callable[[Any], None]], Callable[[], None]]:
    """Make a tool of a function that takes its options: errors of users end it in one line.

    The name of its file is that of the tool, and the docstring of its module describes it.

    Args:
        options: Dataclass of its options, or one for each of its actions.
        full_help: Whether the help shows the whole docstring, not only its first paragraph.
        epilog: Text at the end of the help.
        intermixed: Whether positional arguments may stand behind options.
    """

    def decorate(run: Callable[[Any], None]) -> Callable[[], None]:
        written = inspect.unwrap(run)
        tool, docstring = Path(written.__code__.co_filename).stem, written.__globals__['__doc__']

        @wraps(run)
        def main() -> None:
            escape_unprintable_output()
            parser = argparse.ArgumentParser(
                description=docstring if full_help else docstring.split('\n\n')[0],
                epilog=epilog,
                formatter_class=argparse.RawDescriptionHelpFormatter)
            with handle_ctrl_c(tool), report_user_errors(tool):
                run(parse_options(parser, options, intermixed=intermixed))

        return main

    return decorate
