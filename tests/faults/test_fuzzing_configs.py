"""Random changes of configs and their overrides."""
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

from colonnade.common.errors import UserError
from colonnade.engine.training import TrainOptions, load_training_settings
from colonnade.inference.packages.portable_config import config_text
from colonnade.settings.overrides import exists, get_value, iter_paths, merge_options
from colonnade.settings.reading import read_config
from colonnade.weights.config_text import is_plain_config, parse_config

HEADS = ('mask_rcnn', 'sem_fpn', 'upernet')
#: values without mmengine placeholders
VALUES = tuple(value for value in ODD if value != '{{ x }}')


@cache
def read_values(head: str) -> dict[str, Any]:
    """Return the values of a shipped config."""
    return read_config(config(head)).to_dict()


@cache
def list_keys(head: str) -> list[str]:
    """Return all keys of a config."""
    return [path for path, _ in iter_paths(read_values(head)) if ' ' not in path]


def format_config(content: dict[str, Any]) -> bytes:
    """Return a config file."""
    lines = [f'{key} = {value!r}\n' for key, value in content.items() if key.isidentifier()]
    return ''.join(['from math import inf, nan\n', *lines]).encode(errors='surrogatepass')


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Disable the log, which thousands of configs would fill."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize('head', HEADS)
def test_complete_configs(head: str, shapes: Path, tmp_path: Path) -> None:
    (tmp_path / 'complete.py').write_bytes(format_config(read_values(head)))
    assert load_settings(tmp_path / 'complete.py', shapes / LAYOUTS[head], tmp_path / 'run').model


def load_settings(path: Path, root: Path, work_dir: Path, **options: Any) -> Config:
    args = TrainOptions(path, data_root=root, work_dir=work_dir, **options)
    return load_training_settings(args).config


@pytest.mark.parametrize('head', HEADS)
@fuzz(few=6, many=3000)
@given(draw=st.data())
def test_values_of_configs(head: str, shapes: Path, draw: st.DataObject,
                           tmp_path_factory: pytest.TempPathFactory) -> None:
    """A config is rejected in one line before anything is loaded, or passes all checks."""
    folder = tmp_path_factory.getbasetemp()
    content = draw.draw(
        changed_values(read_values(head), 2, odd=VALUES).map(lambda v: ChangedConfig(head, v)))
    content.before = read_values(head)
    if not isinstance(content.values, dict):
        return
    path = folder / 'changed.py'
    path.write_bytes(format_config(content.values))
    attempt(lambda: load_settings(path, shapes / LAYOUTS[head], folder / 'run'))


class ChangedConfig:
    """Changed config, displayed as its differences."""

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
    """A config that cannot be read is rejected with its path."""
    folder = tmp_path_factory.getbasetemp()
    path = folder / 'text.py'
    path.write_bytes(text.encode(errors='surrogatepass'))
    cfg = attempt(lambda: read_config(path), names='text.py')
    if cfg is not None:
        attempt(lambda: load_settings(path, shapes / 'ade', folder / 'run'))


@pytest.mark.parametrize('head', HEADS[:2])
@fuzz(few=8, many=4000)
@given(draw=st.data())
def test_settings(head: str, draw: st.DataObject) -> None:
    """An override is rejected with its key, or changes the config."""
    chosen = draw.draw(st.lists(st.sampled_from(list_keys(head)), min_size=1, max_size=2))
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
    cfg = Config(deepcopy(read_values(head)))
    done = attempt(lambda: merge_options(cfg, options) or True, names='--cfg-options')
    if done and '_delete_' not in str(options):
        after = cfg.to_dict()
        for key, value in options.items():
            nested = any(
                other != key and (other.startswith(f'{key}.') or key.startswith(f'{other}.'))
                for other in options)
            if not nested and not isinstance(value, dict):
                assert exists(after, key)
                assert repr(get_value(after, key)) == repr(value)


@fuzz(few=40, many=10000)
@given(draw=st.data())
def test_configs_of_packages(draw: st.DataObject) -> None:
    """An untrusted config is rejected with its name, or read as Python would."""
    source = read_values(draw.draw(st.sampled_from(HEADS)))
    key = draw.draw(st.sampled_from(sorted(source)))
    text = draw.draw(changed_text(config_text({key: source[key]}, [])))
    values = attempt(lambda: parse_config(text, 'config.py'), UserError, names='config.py')
    assert isinstance(is_plain_config(text), bool)
    if values is not None:
        expected: dict[str, Any] = {}
        exec(text, dict(dict=dict), expected)  # only literals and dict(...)
        assert repr(values) == repr(expected)
