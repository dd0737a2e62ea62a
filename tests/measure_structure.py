"""Print lines of each room, and counts of constructs that should be rare.

    python tests/measure_structure.py [ROOT]
"""
from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from conftest import ROOMS

BUILTINS = ('hasattr', 'getattr')


def parse_modules(root: Path) -> dict[str, ast.Module]:
    """Return the syntax trees of all product modules by path."""
    return {
        str(path.relative_to(root)): ast.parse(path.read_text(encoding='utf-8'))
        for path in sorted(root.rglob('*.py')) if path.relative_to(root).parts[0] in ROOMS
    }


def iter_functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield all functions and methods of a module."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def iter_public_names(tree: ast.Module) -> Iterator[str]:
    """Yield the public names of top-level functions and classes."""
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith('_'):
            yield node.name


def is_foreign_private_attribute(node: ast.AST, own: set[str]) -> bool:
    """Return True for ``x._y`` if x is not self or cls, and the product does not define ``_y``."""
    return (isinstance(node, ast.Attribute) and node.attr.startswith('_')
            and not node.attr.startswith('__') and node.attr not in own
            and not (isinstance(node.value, ast.Name) and node.value.id in ('self', 'cls')))


def find_private_names(trees: dict[str, ast.Module]) -> set[str]:
    """Return the private attributes and methods that the product defines itself."""
    own = set()
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                own.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                own.add(node.attr)
    return own


def count_constructs(trees: dict[str, ast.Module]) -> dict[str, int]:
    """Return the counts of constructs that should be rare."""
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    own, names = find_private_names(trees), Counter(name for path, tree in trees.items()
                                                    if not path.startswith('tools')
                                                    for name in iter_public_names(tree))
    calls = Counter(
        node.func.id for node in nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name))
    stems = Counter(Path(path).stem for path in trees if not path.endswith('__.py'))
    return {
        'hasattr and getattr':
        sum(calls[name] for name in BUILTINS),
        'except Exception':
        sum(
            isinstance(node, ast.ExceptHandler) and node.type is not None
            and 'Exception' == ast.unparse(node.type) for node in nodes),
        'imports inside functions':
        sum(
            isinstance(node, (ast.Import, ast.ImportFrom)) for tree in trees.values()
            for function in iter_functions(tree) for node in ast.walk(function)),
        'private attributes of others':
        sum(is_foreign_private_attribute(node, own) for node in nodes),
        'assignments to __class__':
        sum(
            isinstance(node, ast.Attribute) and node.attr == '__class__'
            and isinstance(node.ctx, ast.Store) for node in nodes),
        'names defined twice':
        sum(count > 1 for count in names.values()),
        'file names used twice':
        sum(count > 1 for count in stems.values()),
    }


def main() -> None:
    root = Path(sys.argv[1] if sys.argv[1:] else Path(__file__).parent.parent).resolve()
    trees = parse_modules(root)
    lines: Counter[str] = Counter()
    for path in trees:
        lines[path.partition('/')[0]] += len((root / path).read_text(encoding='utf-8').splitlines())
    lines['all but configs'] = sum(count for room, count in lines.items() if room != 'configs')
    lines['tests'] = sum(len(path.read_text(encoding='utf-8').splitlines())
                         for path in (root / 'tests').rglob('*.py'))  # yapf: disable
    for title, table in (('lines', lines), ('counts', count_constructs(trees))):
        print(title)
        for name, count in table.items():
            print(f'  {name:30}{count:8,}')


if __name__ == '__main__':
    main()
