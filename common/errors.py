"""Errors whose message is all that a user needs."""
from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class UserError(ValueError):
    """An error in what the user passed, found by one of Colonnade's own checks.

    Commands print its message as one line, without a traceback. All other errors keep theirs.
    """


class UserCodeError(UserError):
    """An error in code that is not Colonnade's, raised from the original error.

    Commands print the traceback of the original error, then the message.
    """

    def format_traceback(self) -> str:
        """Return the traceback of the cause, or an empty string if Colonnade's checks raised it."""
        if self.__cause__ is None or isinstance(self.__cause__, UserError):
            return ''
        return ''.join(traceback.format_exception(self.__cause__))


class FileError(OSError, UserError):
    """A failed file operation of Colonnade's own."""


class MissingFileError(FileNotFoundError, FileError):
    """A file or folder that a command needs and that does not exist."""


@contextmanager
def convert_errors(convert: Callable[[Exception], Exception], *kept:
                   type[Exception]) -> Iterator[None]:
    """Context manager that raises ``convert(error)`` from an error, whatever its type.

    It is for calls of code that may raise anything: a user's own, optional libraries that define
    unrelated error classes, and readers of damaged or untrusted files.

    Args:
        convert: Function that returns the error to raise.
        kept: Types of errors that are not converted.
    """
    try:
        yield
    except kept:
        raise
    except Exception as error:  # this code can raise errors of any type
        raise convert(error) from error


@contextmanager
def file_errors() -> Iterator[None]:
    """Context manager that turns an OSError of Colonnade's own file operations into a UserError.

    An OSError of a user's dataset or hook has to keep its traceback.
    """
    try:
        yield
    except UserError:
        raise
    except OSError as error:
        error_class = MissingFileError if isinstance(error, FileNotFoundError) else FileError
        if error.errno is None:
            raise error_class(*error.args) from error
        raise error_class(error.errno, error.strerror, error.filename, None,
                          error.filename2) from error


def has_run_module(error: BaseException) -> bool:
    """Return True if an error, or one that led to it, was raised by code of a module or a config.
    """
    earlier = error.__cause__ or error.__context__
    frames = traceback.extract_tb(error.__traceback__)
    return any(frame.name == '<module>' for frame in frames) or \
        earlier is not None and has_run_module(earlier)
