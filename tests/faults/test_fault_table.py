"""The table of faults names tests that exist, and marks those that are slow."""
from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from conftest import ROOT

ROW = re.compile(r'^\| (.+?) +\| .+? +\| (`.+`\*?) *\|$', re.M)
TEST = re.compile(r'`([\w/]+\.py)::(\w+)`(\*?)')


def rows() -> list[tuple[str, str]]:
    return ROW.findall((ROOT / 'docs/faults.md').read_text())


@cache
def find_functions(path: Path) -> dict[str, str]:
    """Return the decorators of the functions in a file."""
    tree = ast.parse(path.read_text())
    return {
        node.name: ' '.join(map(ast.unparse, node.decorator_list))
        for node in tree.body if isinstance(node, ast.FunctionDef)
    }


@pytest.mark.parametrize('fault, names', rows())
def test_listed_tests_exist(fault: str, names: str) -> None:
    named = TEST.findall(names)
    assert named, f'{fault}: no test'
    for file, name, star in named:
        decorators = find_functions(ROOT / 'tests' / file)
        assert name in decorators, f'{fault}: {file} has no {name}'
        assert bool(star) == decorators[name].startswith('pytest.mark.slow'), \
            f'{fault}: {name} is slow and has no star, or the other way round'


def test_faults_are_unique() -> None:
    faults = [fault for fault, _ in rows()]
    assert len(set(faults)) == len(faults) >= 60
