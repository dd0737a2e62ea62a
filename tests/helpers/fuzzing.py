"""Fuzzing with hypothesis: number of cases, changes of files, and expected errors.

Valid files are changed in one to four places. Readers must accept them, or reject them with an
error that users get as one line. ``HYPOTHESIS_PROFILE=thousands`` runs more cases, different ones
each time, or ``FUZZING_CASES`` of each test.
"""
from __future__ import annotations

import faulthandler
import json
import os
import re
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, event, settings
from hypothesis import strategies as st

THOUSANDS = os.environ.get('HYPOTHESIS_PROFILE') == 'thousands'
SECONDS = 180  # timeout of a case
MEMORY = 6 * 2**30  # bytes that a case may allocate
Result = TypeVar('Result')
#: unexpected values in files
ODD = (None, True, False, 0, -1, 1, 2, 255, 2**31, -2**31, 2**53 + 1, 2**63, 2**64, 10**400, 0.5,
       -0.0, 1e308, 1e-320, float('nan'), float('inf'), -float('inf'), '', ' ', '0', 'nan', 'x\ny',
       '\x1b[31mred', 'a\0b', '../../x', '/etc/passwd', 'ü', '\ud800', '{{ x }}', 'x' * 5000, [],
       {}, [[]], [None], [1, 2], [[0, 0, 9, 0, 9]], {
           'a': 1
       }, {
           'size': [40, 48],
           'counts': 'x'
       })
TEXTS = ('', ' ', '\n', '\t', '0', '-1', '1', '2', '0.5', '-0.5', '1e9', '1e400', 'nan', 'inf',
         '9' * 400, 'x', '"', "'", ',', ':', ';', '[', ']', '{', '}', '(', ')', '<', '>', '</', '&',
         '=', '#', '%', '\\', '/', '../', '\0', '\ud800', '\ufeff', '\x1b[31m', 'ü', '- ', '* ',
         '!!python/object/apply:os.system [x]', '<!DOCTYPE a>', '&lol;', 'null', 'true', '\r')
NUMBERS = (0, 1, 2, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63,
           2**64 - 1)


class Changed(bytes):
    """Content of a file that is displayed by its changes, which are short for a failing case."""

    changes: tuple[Any, ...] = ()

    def __repr__(self) -> str:
        return f'{len(self)} bytes changed by {self.changes}'


def make_changed(content: bytes, changes: list[Any]) -> Changed:
    """Return content with a record of its changes."""
    found = Changed(content)
    found.changes = tuple(changes)
    return found


def fuzz(few: int = 25, many: int = 4000) -> settings:
    """Return settings with few fixed cases for ``make test``, many for ``make test-faults``."""
    return settings(
        max_examples=int(os.environ.get('FUZZING_CASES', many)) if THOUSANDS else few,
        derandomize=not THOUSANDS,
        database=None,
        deadline=None,
        print_blob=THOUSANDS,
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck))


@contextmanager
def limited() -> Iterator[None]:
    """Context manager that stops a hang, and raises a MemoryError for huge allocations."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open('/proc/self/statm') as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    faulthandler.dump_traceback_later(2 * SECONDS, exit=True, file=sys.__stderr__)  # for loops in C
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        faulthandler.cancel_dump_traceback_later()
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def stop(*_: Any) -> None:
    raise AssertionError(f'a case takes more than {SECONDS} seconds')


def attempt(call: Callable[[], Result], *kinds: type[Exception], names: str = '') -> Result | None:
    """Return the result of a call, or None if it raises a useful error of some types.

    Args:
        call: Function without arguments.
        *kinds: Error types. Defaults to ValueError and OSError, which the tools print.
        names: Text that each error must contain, such as a path.
    """
    expected = kinds or (ValueError, OSError)
    try:
        with limited():
            result = call()
    except expected as error:
        assert str(error).strip() and names in str(error), f'{type(error)} is useless: {error}'
        event('rejected')
        return None
    event('accepted')
    return result


@st.composite
def changed_bytes(draw: st.DrawFn, source: bytes, most: int = 4) -> bytes:
    """Draw the content of a file with one to ``most`` changes."""
    data, changes = bytearray(source), []
    for _ in range(draw(st.integers(1, most))):
        at, length = draw(draw_index(len(data))), draw(st.integers(1, 16))
        how = draw(st.sampled_from(['flip', 'set', 'number', 'cut', 'remove', 'insert', 'repeat']))
        end = at + length
        match how:
            case 'flip':
                end, new = at + 1, bytes(b ^ 1 << length % 8 for b in data[at:at + 1])
            case 'set':
                end, new = at + 1, draw(st.binary(min_size=1, max_size=1))
            case 'number':
                size = draw(st.sampled_from([1, 2, 4, 8]))
                order: Any = draw(st.sampled_from(['little', 'big']))
                new = (draw(st.sampled_from(NUMBERS)) % 256**size).to_bytes(size, order)
                end = at + size
            case 'cut':
                end, new = len(data), b''
            case 'remove':
                new = b''
            case 'insert':
                end, new = at, draw(st.binary(min_size=1, max_size=16))
            case 'repeat':
                new = bytes(data[at:end]) * 2
        data[at:end] = new
        changes.append((at, end, new))
    return make_changed(bytes(data), changes)


def draw_index(length: int) -> st.SearchStrategy[int]:
    """Return a strategy for indices, half of them in the first or last bytes."""
    last = max(length - 1, 0)
    ends = st.one_of(st.integers(0, min(255, last)), st.integers(max(0, last - 255), last))
    return st.one_of(ends, st.integers(0, last))


@st.composite
def changed_text(draw: st.DrawFn, source: str, most: int = 4) -> str:
    """Draw a text with one to ``most`` changed words or marks."""
    words = re.findall(r'[-+\w.]+|\s|.', source)
    for _ in range(draw(st.integers(1, most))):
        at, length = draw(st.integers(0, max(len(words) - 1, 0))), draw(st.integers(1, 20))
        match draw(st.sampled_from(['replace', 'remove', 'insert', 'repeat', 'move', 'cut'])):
            case 'replace':
                words[at:at + 1] = [draw(st.sampled_from(TEXTS))]
            case 'remove':
                del words[at:at + length]
            case 'insert':
                words[at:at] = [draw(st.sampled_from(TEXTS))]
            case 'repeat':
                words[at:at] = words[at:at + length]
            case 'move' if words:
                words[at:at + 1] = [draw(st.sampled_from(words))]
            case 'cut' if draw(st.booleans()):
                del words[at:]
    return ''.join(words)


@st.composite
def changed_values(draw: st.DrawFn, source: Any, most: int = 4, odd: Any = ODD) -> Any:
    """Draw a copy of nested dicts and lists with one to ``most`` changes, some to odd values."""
    root = [deepcopy(source)]
    for _ in range(draw(st.integers(1, most))):
        parent, key = draw(draw_location(root))
        value = parent[key]
        match draw(st.sampled_from(['odd', 'near', 'remove', 'rename', 'repeat', 'other', 'nest'])):
            case 'odd':
                parent[key] = deepcopy(draw(st.sampled_from(odd)))
            case 'near' if type(value) in (int, float):
                half = 0.5 if abs(value) < 1e300 else 1  # larger integers have no float
                parent[key] = value + draw(st.sampled_from([-1, 1, half, -100, 100, -2 * value]))
            case 'near' if isinstance(value, str):
                parent[key] = draw(changed_text(value, 1))
            case 'remove' if parent is not root:
                del parent[key]
            case 'rename' if isinstance(parent, dict):
                parent[draw(st.sampled_from([f'{key}_', str(key)[:-1], 'id', 'x']))] = value
                del parent[key]
            case 'repeat' if isinstance(parent, list) and parent is not root:
                parent.append(deepcopy(value))
            case 'other':
                others, other = draw(draw_location(root))
                parent[key] = deepcopy(others[other])
            case 'nest':
                parent[key] = draw(st.sampled_from([[value], {'a': value}, str(value)]))
    return root[0]


@st.composite
def draw_location(draw: st.DrawFn, root: list[Any]) -> tuple[Any, Any]:
    """Draw a dict or list and one of its keys, at any depth."""
    parent: Any = root
    key: Any = 0
    while isinstance(parent[key], (dict, list)) and parent[key] and draw(st.integers(0, 5)):
        parent = parent[key]
        keys = list(parent) if isinstance(parent, dict) else range(len(parent))
        key = draw(st.sampled_from(keys))
    return parent, key


@st.composite
def changed_json(draw: st.DrawFn, source: Any, most: int = 4) -> bytes:
    """Draw the content of a JSON file with changed values, bytes or both."""
    how = draw(st.integers(0, 9))
    values = source if how == 0 else draw(changed_values(source, most))
    text = json.dumps(values).encode()
    if how < 2:
        return draw(changed_bytes(text))
    return make_changed(text, differences(source, values))


def differences(before: Any, after: Any, path: str = '') -> list[str]:
    """Return the paths at which nested dicts and lists differ, with the new values."""
    if type(before) is type(after) is dict:
        own = [] if before.keys() == after.keys() else [f'{path}: {repr(list(after))[:300]}']
        return own + [text for key in before if key in after
                      for text in differences(before[key], after[key], f'{path}.{key}')
                      ]  # yapf: disable
    if type(before) is type(after) is list and len(before) == len(after):
        return [text for number, pair in enumerate(zip(before, after, strict=True))
                for text in differences(*pair, f'{path}[{number}]')]  # yapf: disable
    same = type(before) is type(after) and repr(before) == repr(after)
    return [] if same else [f'{path} = {repr(after)[:300]}']
