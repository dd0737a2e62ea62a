"""Retries of reading local files, for network file systems that fail for a while."""
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
#: errors of devices, network file systems and connections that may be temporary
PASSING = frozenset((errno.EIO, errno.EREMOTEIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN,
                     errno.ENOTCONN, errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN,
                     errno.EHOSTUNREACH, errno.ECONNRESET))  # yapf: disable
Content = TypeVar('Content')


@register_backend('local', force=True, prefixes='')
class RetryingBackend(LocalBackend):
    """mmengine's backend for local files, with retries: it reads images and label maps."""

    def get(self, filepath: str | PathLike[str]) -> bytes:
        """Return the content of a file; see :func:`read_with_retries`."""
        return read_with_retries(super().get, filepath)

    def get_text(self, filepath: str | PathLike[str], encoding: str = 'utf-8') -> str:
        return read_with_retries(lambda path: LocalBackend.get_text(self, path, encoding), filepath)


def read_with_retries(read: Callable[[str | PathLike[str]], Content],
                      path: str | PathLike[str]) -> Content:
    """Return ``read(path)``, with several attempts after errors that may be temporary."""
    for pause in (*PAUSES, None):
        try:
            return read(path)
        except OSError as error:
            if error.errno not in PASSING:
                raise
            if pause is None:
                reason = f'{os.strerror(error.errno or 0)}, in {len(PAUSES) + 1} attempts within ' \
                    f'{sum(PAUSES):g} s'
                raise FileError(error.errno, reason, str(path)) from error
            print_log(
                f'cannot read {path} ({error.strerror}): retrying in {pause:g} s',
                logger='current',
                level=logging.WARNING)
            time.sleep(pause)
    raise AssertionError
