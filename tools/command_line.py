"""Command lines from dataclasses of options, and exit codes, without slow imports."""
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
from types import ModuleType, NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from colonnade.common.errors import MissingFileError, UserCodeError, UserError
from colonnade.common.missing_libraries import report_missing_libraries
from colonnade.common.name_lists import ask_for_names, suggest_names
from colonnade.common.options import UsageError, option_name
from colonnade.configs import find_config

WEIGHTS = ('.pth', '.pt', '.safetensors')
STOPPED = 130  # exit status after Ctrl-C
SPINS = '10000'  # value of GOMP_SPINCOUNT, measured by docs/measure_spinning.py
SEVERAL = re.compile(r'=.*\s\w+(\.\w+)+=')  # several keys in one argument
#: environment variables by which users control how OpenMP threads wait
WAITING = ('GOMP_SPINCOUNT', 'OMP_WAIT_POLICY', 'GOMP_CPU_AFFINITY', 'OMP_PROC_BIND', 'OMP_PLACES')


def limit_spinning() -> None:
    """Make idle OpenMP threads sleep early, since other programs may need their cores.

    libgomp reads the variable when torch loads it, so it is not set after that, or if the user
    controls waiting. Child processes inherit it.
    """
    if 'torch' not in sys.modules and not any(name in os.environ for name in WAITING):
        os.environ['GOMP_SPINCOUNT'] = SPINS


limit_spinning()  # on import, before any tool imports torch


@contextmanager
def report_user_errors(tool: str) -> Iterator[None]:
    """Context manager that exits with ``tool: message`` and status 1 on a UserError.

    The traceback of user code precedes the message. Other errors are not handled.
    """
    try:
        yield
    except ValueError as error:
        from colonnade.runtime import ImageError, ModelError  # slow; not subclasses of UserError
        from colonnade.runtime.sanitize import printable
        if not isinstance(error, (UserError, ImageError, ModelError)):
            raise
        if isinstance(error, UserCodeError):
            print(printable(error.format_traceback()), end='', file=sys.stderr, flush=True)
        sys.exit(f'{tool}: {printable(error)}')


def find_files(options: Any) -> None:
    """Find the config of a command's options, and check that weights exist, before slow imports.

    A folder is a config if the command also takes a checkpoint: a package or a work dir.

    Raises:
        FileNotFoundError: If a file does not exist.
        ValueError: If the name of the config is ambiguous.
    """
    values = vars(options)
    config = values.get('config')
    if isinstance(config, Path) and not ('checkpoint' in values and config.is_dir()):
        options.config = find_config(config)
    for weights in (values.get('checkpoint'), values.get('load_from')):
        # The checkpoint after a folder may be the first input.
        if weights and '://' not in weights and Path(weights).suffix in WEIGHTS and \
                not os.path.exists(os.path.expanduser(weights)):
            raise MissingFileError(f'no such weights file: {weights}')


@contextmanager
def handle_ctrl_c(tool: str) -> Iterator[None]:
    """Context manager that exits with ``tool: stopped`` and status 130 on Ctrl-C."""
    try:
        yield
    except (KeyboardInterrupt, SyntaxError) as error:
        if isinstance(error, SyntaxError) and not isinstance(error.__context__, KeyboardInterrupt):
            raise  # mmengine turns Ctrl-C during formatting into a SyntaxError
        print(f'\n{tool}: stopped', file=sys.stderr)
        sys.exit(STOPPED)


def escape_unprintable_output() -> None:
    """Escape characters that the terminal cannot encode, such as in file names."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors='backslashreplace')


def print_report(report: Any, tool: str, consequence: str) -> None:
    """Print the findings about a dataset; exit if there are errors.

    Args:
        report: A :class:`~colonnade.datasets.validation.validation_report.Report`.
        tool: Name of the tool.
        consequence: What the tool does not do because of errors.
    """
    from colonnade.runtime.sanitize import printable  # slow

    def escape(text: str) -> str:
        return printable(text).replace('\n', '\n    ')  # a file name must not look like a message

    for warning in report.warnings:
        print('warning: ' * (warning not in report.results) + escape(warning))
    for error in report.errors:
        print(f'error: {escape(error)}', file=sys.stderr)
    if report.num_errors:
        errors = 'error' if report.num_errors == 1 else 'errors'
        sys.exit(f'{tool}: {report.num_errors} {errors}, {consequence}')


def print_untrusted(text: str) -> None:
    """Print text with names from files, without control characters, as one line."""
    from colonnade.runtime.sanitize import one_line  # slow
    print(one_line(text))


class KeyValues(argparse.Action):
    """Action that parses ``KEY=VALUE ...`` as mmengine does."""

    def __call__(self,
                 parser: argparse.ArgumentParser,
                 namespace: argparse.Namespace,
                 values: Any,
                 option_string: str | None = None) -> None:
        """Parse values, and add them to earlier ones."""
        from mmengine.config import DictAction  # slow
        if quoted := next((value for value in values if SEVERAL.search(value)), ''):
            parser.error(f'{option_string} takes separate KEY=VALUE arguments: remove the quotes '
                         f'around {quoted}')
        action = DictAction(self.option_strings, self.dest, nargs='+')
        try:
            action(parser, namespace, values, option_string)
        except (ValueError, AssertionError, RecursionError):
            wrong = next((v for v in values if '=' not in v), ' '.join(values))
            following = values[values.index(wrong) + 1:][:1] if wrong in values else []
            meant = ask_for_names([f'{wrong}={each}' for each in following if '=' not in each])
            parser.error(f'{option_string} takes KEY=VALUE, such as train_cfg.max_epochs=12, '
                         f'got {wrong}' + f'; {meant}' * bool(meant))


class Flag(argparse.Action):
    """Action of a flag that keeps the value that another option of the same field has set."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, *_:
                 Any) -> None:
        """Set the flag."""
        setattr(namespace, self.dest, getattr(namespace, self.dest) or True)


def settings_of_type(annotation: Any, default: Any) -> dict[str, Any]:
    """Return the settings of ``add_argument`` for the annotation of a field."""
    kind = annotation
    if is_optional := get_origin(annotation) in (Union, UnionType):
        kind = next(each for each in get_args(annotation) if each is not NoneType)
    inner = get_args(kind)
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
    return dict(type=kind, metavar='N') if kind is int else dict(type=kind)


def add_options(parser: argparse.ArgumentParser, options: type) -> None:
    """Add the options of a dataclass, see :func:`colonnade.common.options.option`.

    Parsed arguments will contain the dataclass, and the names of all options.
    """
    names: list[str] = []
    parser.register('action', 'flag', Flag)
    hints = get_type_hints(options)
    groups: dict[str, Any] = {}
    for field in fields(options):
        if not field.metadata:
            continue  # not an option of the command line
        is_required = field.default is MISSING
        default = None if is_required or field.default == () else field.default
        settings = dict(field.metadata, default=default)
        if 'action' not in settings:
            settings = settings_of_type(hints[field.name], default) | settings
        target: Any = parser
        if title := settings.pop('group', ''):
            target = groups[title] = groups.get(title) or parser.add_argument_group(title)
        if key := settings.pop('exclusive', ''):
            required = settings.pop('required', False)
            target = groups[key] = \
                groups.get(key) or parser.add_mutually_exclusive_group(required=required)
        if settings.pop('positional', False):
            if not is_required:
                settings['nargs'] = '*' if 'nargs' in settings else '?'
            target.add_argument(field.name, **settings)
            continue
        settings.pop('name', '')
        aliases = settings.pop('also', {})
        if is_required:
            settings['required'] = True
        action = target.add_argument(option_name(field), dest=field.name, **settings)
        names += [*action.option_strings, *aliases]
        for name, alias in aliases.items():
            target.add_argument(name, dest=field.name, default=argparse.SUPPRESS, **alias)
    parser.set_defaults(dataclass=options, option_names=names)


def parse_options(parser: argparse.ArgumentParser,
                  options: type | Mapping[str, type],
                  *,
                  words: Sequence[str] | None = None,
                  intermixed: bool = False) -> Any:
    """Return the options on the command line as an object of their dataclass.

    Args:
        parser: Parser without options.
        options: Dataclass of the options, or one for each action of the command.
        words: Words of the command line. Defaults to ``sys.argv``.
        intermixed: Whether positional arguments may follow options.
    """
    if isinstance(options, type):
        add_options(parser, options)
    else:
        actions = parser.add_subparsers(required=True, metavar='ACTION')
        for name, each in options.items():
            summary = (each.__doc__ or '').rstrip('.')
            action = actions.add_parser(name, help=summary[0].lower() + summary[1:])
            add_options(action, each)
    parse = parser.parse_known_intermixed_args if intermixed else parser.parse_known_args
    namespace, unknown = parse(words)
    parsed = vars(namespace)
    dataclass, known = parsed.pop('dataclass'), parsed.pop('option_names')
    if unknown:
        word = next((word for word in unknown if word.startswith('-')), '')
        meant = suggest_names(word.partition('=')[0], known, cutoff=0.82)
        parser.error(f'unrecognized arguments: {" ".join(unknown)}' + f'; {meant}' * bool(meant))
    try:
        return dataclass(**{name: value for name, value in parsed.items() if value is not None})
    except UsageError as error:
        parser.error(str(error))


def import_work(name: str) -> ModuleType:
    """Import a module that does the work of a command, without messages of its libraries."""
    from colonnade.common.console_logging import import_without_warnings  # slow
    with report_missing_libraries():
        return import_without_warnings(name)


def command(options: type | Mapping[str, type],
            *work: str,
            full_help: bool = False,
            epilog: str | None = None,
            intermixed: bool = False) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """Turn a function into a command, which reports user errors in one line.

    The name of the command is that of the file, with hyphens. Its description is the docstring
    of the module. The function gets the options and the modules of ``work``. These are imported
    only when the options are valid and their files exist, because torch takes seconds to import.

    Args:
        options: Dataclass of the options, or one for each action.
        *work: Names of the modules that do the work.
        full_help: Whether the help contains the full docstring, not only its first paragraph.
        epilog: Text at the end of the help.
        intermixed: Whether positional arguments may follow options.
    """

    def decorate(run: Callable[..., None]) -> Callable[[], None]:
        function = inspect.unwrap(run)
        tool = Path(function.__code__.co_filename).stem.replace('_', '-')
        docstring = function.__globals__['__doc__']

        @wraps(run)
        def main() -> None:
            escape_unprintable_output()
            parser = argparse.ArgumentParser(
                description=docstring if full_help else docstring.split('\n\n')[0],
                epilog=epilog,
                formatter_class=argparse.RawDescriptionHelpFormatter)
            with handle_ctrl_c(tool), report_user_errors(tool):
                parsed = parse_options(parser, options, intermixed=intermixed)
                find_files(parsed)
                run(parsed, *map(import_work, work))

        main.options = options  # type: ignore[attr-defined]  # read by tools/completion.py
        return main

    return decorate
