"""Configs and settings of the command line, changed at random."""
from __future__ import annotations

import logging
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from conftest import LAYOUTS, ROOT, config
from helpers.fuzzing import ODD, attempt, changed_text, changed_values, differences, fuzz
from hypothesis import given
from hypothesis import strategies as st
from mmengine.config import Config

from colonnade.engine.training import TrainOptions, load_training_settings
from colonnade.settings.overrides import exists, merge_options, paths_below, value_at
from colonnade.settings.plain_config import PackageError, config_text, parse_config
from colonnade.settings.reading import read_config
from colonnade.weights.mmengine_loaders import is_plain_config

HEADS = ('mask_rcnn', 'sem_fpn', 'upernet')
#: of configs: no text that mmengine replaces, and no number that would be a count of processes
VALUES = tuple(value for value in ODD if value != '{{ x }}')


@cache
def values_of(head: str) -> dict[str, Any]:
    """The values of a shipped config."""
    return read_config(config(head)).to_dict()


@cache
def paths_of(head: str) -> list[str]:
    """All that can be set in a config."""
    return [path for path, _ in paths_below(values_of(head)) if ' ' not in path]


def text_of(content: dict[str, Any]) -> bytes:
    """The file of a config."""
    lines = [f'{key} = {value!r}\n' for key, value in content.items() if key.isidentifier()]
    return ''.join(['from math import inf, nan\n', *lines]).encode(errors='surrogatepass')


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Warnings of thousands of configs are not logged."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize('head', HEADS)
def test_whole_configs_pass(head: str, shapes: Path, tmp_path: Path) -> None:
    (tmp_path / 'whole.py').write_bytes(text_of(values_of(head)))
    assert checked(tmp_path / 'whole.py', shapes / LAYOUTS[head], tmp_path / 'run').model


def checked(path: Path, root: Path, work_dir: Path, **options: Any) -> Config:
    asked = TrainOptions(path, data_root=root, work_dir=work_dir, **options)
    return load_training_settings(asked).config


@pytest.mark.parametrize('head', HEADS)
@fuzz(few=6, many=3000)
@given(draw=st.data())
def test_values_of_configs(head: str, shapes: Path, draw: st.DataObject,
                           tmp_path_factory: pytest.TempPathFactory) -> None:
    """A config is refused in a line before anything is loaded, or passes all checks."""
    folder = tmp_path_factory.getbasetemp()
    content = draw.draw(
        changed_values(values_of(head), 2, odd=VALUES).map(lambda v: Shown(head, v)))
    content.before = values_of(head)
    if not isinstance(content.values, dict):
        return
    path = folder / 'changed.py'
    path.write_bytes(text_of(content.values))
    attempt(lambda: checked(path, shapes / LAYOUTS[head], folder / 'run'))


class Shown:
    """A changed config that is shown by what differs."""

    def __init__(self, head: str, values: Any) -> None:
        self.head, self.values, self.before = head, values, None

    def __repr__(self) -> str:
        return f'{self.head}: {differences(self.before, self.values)}'


TEXT = (ROOT / 'configs/sem_fpn/xcit_nano_12_p16_slim_shapes.py').read_text().replace(
    "'../", f"'{ROOT}/configs/").replace("'./", f"'{ROOT}/configs/sem_fpn/")


@fuzz(few=8, many=4000)
@given(text=changed_text(TEXT))
def test_texts_of_configs(text: str, shapes: Path,
                          tmp_path_factory: pytest.TempPathFactory) -> None:
    """A config that is no Python, or inherits from nothing, is refused by its path."""
    folder = tmp_path_factory.getbasetemp()
    path = folder / 'text.py'
    path.write_bytes(text.encode(errors='surrogatepass'))
    cfg = attempt(lambda: read_config(path), names='text.py')
    if cfg is not None:
        attempt(lambda: checked(path, shapes / 'ade', folder / 'run'))


@pytest.mark.parametrize('head', HEADS[:2])
@fuzz(few=8, many=4000)
@given(draw=st.data())
def test_settings(head: str, draw: st.DataObject) -> None:
    """A setting is refused by its name, or is in the config then."""
    chosen = draw.draw(st.lists(st.sampled_from(paths_of(head)), min_size=1, max_size=2))
    options = {}
    for key in chosen:
        parts = key.split('.')
        at = draw.draw(st.integers(0, len(parts) - 1))
        match draw.draw(st.integers(0, 5)):
            case 0:
                parts[at] = draw.draw(changed_text(parts[at], 1))
            case 1:
                parts.append(draw.draw(st.sampled_from(['x', '0', 'type', '_delete_', ''])))
            case 2:
                del parts[at]
            case 3:
                parts[at] = draw.draw(st.sampled_from(chosen)).split('.')[-1]
        if name := '.'.join(parts):
            options[name] = deepcopy(draw.draw(st.sampled_from(VALUES)))
    cfg = Config(deepcopy(values_of(head)))
    done = attempt(lambda: merge_options(cfg, options) or True, names='--cfg-options')
    if done and '_delete_' not in str(options):
        after = cfg.to_dict()
        for key, value in options.items():
            nested = any(
                other != key and (other.startswith(f'{key}.') or key.startswith(f'{other}.'))
                for other in options)
            if not nested and not isinstance(value, dict):
                assert exists(after, key)
                assert repr(value_at(after, key)) == repr(value)


@fuzz(few=40, many=10000)
@given(draw=st.data())
def test_configs_of_packages(draw: st.DataObject) -> None:
    """A config of somebody else is refused by its name, or read as Python would read it."""
    source = values_of(draw.draw(st.sampled_from(HEADS)))
    key = draw.draw(st.sampled_from(sorted(source)))
    text = draw.draw(changed_text(config_text({key: source[key]}, [])))
    found = attempt(lambda: parse_config(text, 'config.py'), PackageError, names='config.py')
    plain_one = is_plain_config(text)
    assert isinstance(plain_one, bool)
    if found is not None:
        expected: dict[str, Any] = {}
        exec(text, dict(dict=dict), expected)  # literals and dict(...) alone
        assert repr(found) == repr(expected)
