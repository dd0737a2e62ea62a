"""Errors whose message is all that a user needs."""
from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager


class UserError(ValueError):
    """An error that one of Colonnade's own checks has found in what the user passed.

    Commands print its message as one line, without a traceback. All other errors keep theirs.
    """


class UserCodeError(UserError):
    """An error in code that is not Colonnade's, with a message that says where it matters.

    It is raised from that error. Commands print the traceback of the cause, then the message.
    """

    def format_traceback(self) -> str:
        """Return the traceback of the cause, or an empty string if one of our checks raised it."""
        if self.__cause__ is None or isinstance(self.__cause__, UserError):
            return ''
        return ''.join(traceback.format_exception(self.__cause__))


class FileError(OSError, UserError):
    """A file operation of Colonnade's own that failed."""


class MissingFileError(FileNotFoundError, FileError):
    """A file or folder that a command needs and that does not exist."""


@contextmanager
def file_errors() -> Iterator[None]:
    """Context manager that turns an OSError of a file operation into a UserError.

    Use it around operations of our own only. An OSError of somebody's dataset or hook has to keep
    its traceback.
    """
    try:
        yield
    except UserError:
        raise
    except OSError as error:
        kind = MissingFileError if isinstance(error, FileNotFoundError) else FileError
        if error.errno is None:
            raise kind(*error.args) from error
        raise kind(error.errno, error.strerror, error.filename, None, error.filename2) from error


def has_run_module(error: BaseException) -> bool:
    """Return True if an error was raised while the code of a module or a config ran.

    Args:
        error: Error that was caught; those that it follows from count as well.
    """
    before = error.__cause__ or error.__context__
    frames = traceback.extract_tb(error.__traceback__)
    return any(frame.name == '<module>' for frame in frames) or \
        before is not None and has_run_module(before)
