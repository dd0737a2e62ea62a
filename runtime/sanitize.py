"""Texts of strangers, such as names of files and classes, for terminals and logs."""
from __future__ import annotations

import re

#: what moves a terminal's cursor, changes its colours, turns the order of letters round, or cannot
#: be written as UTF-8
CONTROLS = re.compile('[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]')


def printable(text: object) -> str:
    """A text whose control characters are written out, as ``\\x1b``; tabs and ends of lines stay.

    Args:
        text: Whose ``str()`` may hold names of files.
    """
    return CONTROLS.sub(lambda found: repr(found[0])[1:-1], str(text))


def one_line(text: object) -> str:
    """As :func:`printable`, and on one line: none may pass for a line of ours."""
    return printable(text).replace('\n', '\\n')
