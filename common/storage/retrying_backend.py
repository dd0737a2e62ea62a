"""Files on disks that fail for a while, as network file systems do."""
from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable
from os import PathLike
from typing import TypeVar

from mmengine.fileio import register_backend
from mmengine.fileio.backends import LocalBackend
from mmengine.logging import print_log

from ..errors import FileError

PAUSES = (1., 2., 4., 8., 15.)  # seconds before the next attempts
#: errors of devices, network file systems and connections to them, which may pass
PASSING = frozenset((errno.EIO, errno.EREMOTEIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN,
                     errno.ENOTCONN, errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN,
                     errno.EHOSTUNREACH, errno.ECONNRESET))  # yapf: disable
Content = TypeVar('Content')


@register_backend('local', force=True, prefixes='')
class PatientBackend(LocalBackend):
    """mmengine's reader of files of this machine, which tries again where a disk fails.

    It reads images and label maps in training, testing and prediction.
    """

    def get(self, filepath: str | PathLike[str]) -> bytes:
        """The content of a file.

        Raises:
            OSError: If it cannot be read; after several attempts, if that may be a passing fault.
        """
        return patiently(super().get, filepath)

    def get_text(self, filepath: str | PathLike[str], encoding: str = 'utf-8') -> str:
        """The content of a text file.

        Raises:
            OSError: As :meth:`get`.
        """
        return patiently(lambda path: LocalBackend.get_text(self, path, encoding), filepath)


def patiently(read: Callable[[str | PathLike[str]], Content], path: str | PathLike[str]) -> Content:
    """What ``read(path)`` returns, with several attempts if a disk fails.

    Raises:
        OSError: If no attempt succeeds, or the error is none that may pass.
    """
    for pause in PAUSES:
        try:
            return read(path)
        except OSError as error:
            if error.errno not in PASSING:
                raise
            print_log(
                f'{path} cannot be read ({error.strerror}): next attempt in {pause:g} s',
                logger='current',
                level=logging.WARNING)
        time.sleep(pause)
    try:
        return read(path)
    except OSError as error:
        if error.errno not in PASSING:
            raise
        raise FileError(
            error.errno, f'{os.strerror(error.errno or 0)}, in {len(PAUSES) + 1} attempts within '
            f'{sum(PAUSES):g} s', str(path)) from error
