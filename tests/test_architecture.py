"""Import order of the rooms, including imports in functions and by name, and text encodings."""
from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

from conftest import ROOMS, ROOT

ALONE = ('runtime', )  # copied to each exported folder
#: modules of the room that each backbone may import
SHARED = ('backbones.kernels', 'backbones.variants', 'backbones.registry',
          'backbones.weight_loading', 'backbones.columnar', 'backbones.position_embedding')
BACKBONES = ('backbones.xcit', 'backbones.cait', 'backbones.resmlp', 'backbones.simplified_vit',
             'backbones.plain_vit')


def list_modules() -> dict[str, Path]:
    """Return the paths of all modules by name, without ``colonnade.``."""
    paths = {}
    for path in (path for room in ROOMS if room != 'configs'
                 for path in (ROOT / room).rglob('*.py')):
        parts = path.relative_to(ROOT).with_suffix('').parts
        paths['.'.join(parts[:-1] if parts[-1] == '__init__' else parts)] = path
    paths['configs'] = ROOT / 'configs/__init__.py'
    return paths


MODULES = list_modules()


@functools.cache
def read_tree(name: str) -> ast.Module:
    return ast.parse(MODULES[name].read_text(encoding='utf-8'))


@functools.cache
def find_imports(name: str) -> set[str]:
    """Return the modules of the product that a module imports."""
    imports = set()
    package = name if MODULES[name].name == '__init__.py' else name.rpartition('.')[0]
    for node in ast.walk(read_tree(name)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            sources, names = [node.value], []  # for import_module and registries
            if ' ' in node.value:
                continue
        elif isinstance(node, ast.Import):
            sources, names = [alias.name for alias in node.names], []
        elif isinstance(node, ast.ImportFrom):
            parent = package.split('.')[:len(package.split('.')) - node.level + 1]
            start = 'colonnade.' + '.'.join(parent) if node.level else ''
            sources = ['.'.join(filter(None, (start, node.module)))]
            names = [alias.name for alias in node.names]
        else:
            continue
        for source in sources:
            source = source.removeprefix('colonnade.') if source.startswith('colonnade.') else ''
            below = {f'{source}.{other}' for other in names} & MODULES.keys()
            imports |= below or {source} & MODULES.keys()
    return imports


def get_room(name: str) -> str:
    return name.partition('.')[0]


def test_rooms_are_distributed() -> None:
    folders = {path.parent.name for path in ROOT.glob('*/__init__.py')} | {'tools'}
    assert folders - {'tests'} == set(ROOMS)
    text = (ROOT / 'setup.cfg').read_text(encoding='utf-8')
    packages = re.search(r'(?ms)^packages =\n(.*?)^\w', text)
    assert packages is not None
    listed = {line.strip().removeprefix('colonnade.') for line in packages[1].splitlines()}
    ours = {name for name, path in MODULES.items() if path.name == '__init__.py'}
    assert listed - {'colonnade'} == ours - {'api'}


def test_import_order() -> None:
    wrong = []
    for name in MODULES:
        own = get_room(name)
        below = ROOMS[:0 if own in ALONE else ROOMS.index(own)]
        wrong += [
            f'{name} imports {other}, which is not below {own}' for other in find_imports(name)
            if get_room(other) not in (own, *below)
        ]
    assert not wrong, '\n'.join(wrong)


def test_backbones_are_independent() -> None:
    names = [name for name in MODULES if name.startswith(BACKBONES)]
    assert names
    for name in names:
        own = '.'.join(name.split('.')[:2])
        allowed = tuple(f'{each}.' for each in (own, *SHARED))
        others = [other for other in find_imports(name) if get_room(other) == 'backbones']
        wrong = [other for other in others if not f'{other}.'.startswith(allowed)]
        assert not wrong, f'{name} imports {wrong}'


def test_no_import_cycles() -> None:
    parents = {
        name: {other
               for other in find_imports(name) - {name} if not name.startswith(f'{other}.')}
        for name in MODULES
    }
    assert len(list(TopologicalSorter(parents).static_order())) == len(MODULES)


def test_no_getattr_for_own_attributes() -> None:
    """Modules use imports, registries or a Protocol instead."""
    trees = {name: read_tree(name) for name in MODULES}
    classes = [n for tree in trees.values() for n in tree.body if isinstance(n, ast.ClassDef)]
    ours = {
        node.name
        for holder in (*trees.values(), *classes)
        for node in holder.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))
    }
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ('hasattr', 'getattr'):
                key = node.args[1]
                assert not isinstance(key, ast.Constant) or key.value not in ours, (name, key.value)


def test_components_use_no_private_mmengine() -> None:
    """Every run loads them, because configs import them."""
    waiting, seen = ['backbones', 'necks', 'heads', 'engine.components'], set()
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += find_imports(name)
    assert 'engine.distributed.fsdp' in seen
    for name in seen:
        assert 'mmengine._' not in MODULES[name].read_text(), name


def find_lines_without_encoding(name: str) -> Iterator[int]:
    """Yield the lines of a module that use the encoding of the locale."""
    for node in ast.walk(read_tree(name)):
        if not isinstance(node, ast.Call) or 'encoding' in {each.arg for each in node.keywords}:
            continue
        is_method = isinstance(node.func, ast.Attribute)
        called = getattr(node.func, 'attr' if is_method else 'id', '')
        mode = next((each.value for each in node.args[0 if is_method else 1:][:1]
                     if isinstance(each, ast.Constant)), '')  # yapf: disable
        opens = called == 'open' and (re.fullmatch(r'[rwax]t?\+?', str(mode)) or not node.args)
        if opens or is_method and called in ('read_text', 'write_text'):
            yield node.lineno


def test_text_files_state_encoding() -> None:
    wrong = {name: lines for name in MODULES if (lines := list(find_lines_without_encoding(name)))}
    assert not wrong


def test_files_in_a_locale_without_utf_8(tmp_path: Path) -> None:
    program = 'import pathlib, sys; from colonnade.common.atomic_files import write_text; ' \
              'write_text(pathlib.Path(sys.argv[1]), "\\u00e9\\n")'
    subprocess.run([sys.executable, '-c', program, tmp_path / 'a.py'],
                   env=dict(LC_ALL='C', PYTHONCOERCECLOCALE='0', PYTHONUTF8='0'),
                   check=True)  # yapf: disable
    assert (tmp_path / 'a.py').read_bytes() == 'é\n'.encode()


def test_tools_run_as_scripts() -> None:
    """``python tools/train.py``, as in mmdet, has no parent package."""
    for path in (ROOT / 'tools').glob('*.py'):
        for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
            assert not isinstance(node, ast.ImportFrom) or not node.level, \
                f'{path.name}:{node.lineno}'
