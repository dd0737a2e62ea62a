"""Print every message of the product, with file and line, to read them in one sitting.

    python tests/list_messages.py [ROOT]

Lists the text of exceptions, warnings, log records, printed lines and option helps. ``{…}`` stands
for a value.
"""
from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from conftest import ROOMS

#: called functions and methods whose arguments are read by users
SPEAKING = {'print', 'exit', 'error', 'warn', 'warning', 'info', 'option', 'argument', 'print_log',
            'log_once', 'add_error', 'add_warning', 'Finding', 'Rule'}  # yapf: disable


def format_text(node: ast.AST) -> str | None:
    """Return the text of a string expression, or None if the node is not one."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return ''.join(format_text(value) or '{…}' for value in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Mod)):
        sides = [format_text(node.left), format_text(node.right)]
        return None if sides == [None, None] else ''.join(side or '{…}' for side in sides)
    if isinstance(node, ast.IfExp):
        sides = [format_text(node.body), format_text(node.orelse)]
        return None if sides == [None, None] else ' | '.join(side or '{…}' for side in sides)
    return None


def list_messages(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and text of each message of a module; texts without a space are not sentences."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else \
                getattr(node.func, 'id', '')
            if name in SPEAKING or name.endswith(('Error', 'Warning', 'Finding')):
                values = [*node.args, *(keyword.value for keyword in node.keywords)]
                texts = [text for value in values if (text := format_text(value)) and ' ' in text]
                if texts:
                    yield node.lineno, ' / '.join(texts)


def main() -> None:
    """Print the messages of all rooms."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent)
    for room in ROOMS:
        for path in sorted((root / room).rglob('*.py')):
            for line, text in sorted(set(list_messages(ast.parse(path.read_text('utf-8'))))):
                print(f'{path.relative_to(root)}:{line}: {text}')


if __name__ == '__main__':
    main()
