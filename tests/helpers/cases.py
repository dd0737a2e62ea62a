"""Cases of a loop in one test, which share slow set-up."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def case(*name: object) -> Iterator[None]:
    """Context manager that names the case that fails in it."""
    try:
        yield
    except (Exception, pytest.fail.Exception) as error:
        raise AssertionError(f'case {" ".join(map(str, name))}: {error}') from error
