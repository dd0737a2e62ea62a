"""Untrusted text, such as names of files and classes, for terminals and logs."""
from __future__ import annotations

import re

#: characters that move a terminal's cursor, change its colors, reverse the text direction, or
#: cannot be encoded as UTF-8
CONTROLS = re.compile('[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]')


def printable(text: object) -> str:
    """Escape control characters as ``\\x1b``, except tabs and line breaks."""
    return CONTROLS.sub(lambda match: repr(match[0])[1:-1], str(text))


def one_line(text: object) -> str:
    """Escape control characters and line breaks, so that a name cannot imitate a log line."""
    return printable(text).replace('\n', '\\n')
