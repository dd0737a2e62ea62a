"""Parts of a page that fail one by one."""
from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from mmengine.logging import print_log

from ..html_pages import Section


def part(title: str, make: Callable[..., list[Section]], *args: Any) -> list[Section]:
    """What ``make(*args)`` returns; or a section that says what went wrong, and a line in the log.

    Args:
        title: Of that section.
        make: Makes sections.
        *args: Of ``make``.
    """
    try:
        return make(*args)
    except Exception as error:
        text = f'This part cannot be made: {type(error).__name__}: {error}'
        print_log(f'{title}: {text}', logger='current', level=logging.WARNING)
        return [Section(title, text=text)]
