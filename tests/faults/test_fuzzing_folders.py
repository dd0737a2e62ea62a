"""Fuzzing of folders that the tools write and read again: exports, shards, runs."""
from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from conftest import LAYOUTS, config
from helpers.exported_by_hand import write_folder
from helpers.fuzzing import attempt, changed_bytes, changed_json, changed_text, fuzz
from hypothesis import given
from hypothesis import strategies as st
from mmengine.config import Config

from colonnade.common.storage.shard_reader import ShardsBackend, open_shard, sharded
from colonnade.datasets.shards.dataset_sharding import ShardOptions, make_shards, verify_shards
from colonnade.engine.training import set_resume
from colonnade.engine.work_dir import Run
from colonnade.engine.work_dir.metrics_table import MetricsTable
from colonnade.runtime.metadata import ModelError
from colonnade.runtime.model import load
from colonnade.visualization.run_report.report_page import write_report

IMAGE = np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)


@contextmanager
def replace_content(path: Path, content: bytes) -> Iterator[None]:
    """Context manager that changes the content of a file."""
    before = path.read_bytes()
    path.write_bytes(content)
    try:
        yield
    finally:
        path.write_bytes(before)


@pytest.fixture(scope='module')
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp('export') / 'model')


@fuzz(few=25, many=3000)
@given(draw=st.data())
def test_export_metadata(export: Path, draw: st.DataObject) -> None:
    """A ``model.json`` is rejected by path and key, or the model predicts its classes."""
    source = json.loads((export / 'model.json').read_text())
    with replace_content(export / 'model.json', draw.draw(changed_json(source, 2))):
        model = attempt(lambda: load(export, threads=1), names=str(export))
    if model is None:
        return
    found = attempt(lambda: model.predict(IMAGE))
    if found is not None:
        assert found.labels.shape == IMAGE.shape[:2]
        assert 0 <= found.labels.min() and found.labels.max() < max(len(model.classes), 3)


@fuzz(few=15, many=2000)
@given(draw=st.data())
def test_exported_graphs(export: Path, draw: st.DataObject) -> None:
    """A graph with another hash is rejected before it is opened."""
    source = (export / 'model.onnx').read_bytes()
    content = draw.draw(changed_bytes(source))
    with replace_content(export / 'model.onnx', content):
        model = attempt(lambda: load(export, threads=1), ModelError, names='model.onnx')
    assert (model is not None) == (content == source)


@pytest.fixture(scope='module')
def shards(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp('shards') / 'ade'
    make_shards(
        ShardOptions(
            config=config('sem_fpn'),
            data_root=shapes / LAYOUTS['sem_fpn'],
            out=out,
            shard_size=0.04))
    return out


@fuzz(few=20, many=3000)
@given(draw=st.data())
def test_data_shards(shards: Path, shapes: Path, draw: st.DataObject) -> None:
    """``--verify`` detects damage; a file that can still be read is what was written."""
    path = draw.draw(st.sampled_from(sorted(file for file in shards.iterdir() if file.is_file())))
    if path.suffix == '.json' and draw.draw(st.booleans()):
        content = draw.draw(changed_json(json.loads(path.read_bytes())))
    else:
        content = draw.draw(changed_bytes(path.read_bytes()))
    names = sorted(
        str(file.relative_to(shapes / 'ade')) for file in (shapes / 'ade').rglob('*.png'))
    name = draw.draw(st.sampled_from(names))
    before = path.read_bytes()
    same = content == before
    with replace_content(path, content):
        open_shard.cache_clear()
        verified = attempt(lambda: verify_shards(str(shards)), names=str(shards))
        if path.suffix == '.tar' and not same:
            assert verified is None
        found = attempt(lambda: ShardsBackend().get(sharded(str(shards / name))))
    open_shard.cache_clear()
    if found is not None:
        assert found == (shapes / 'ade' / name).read_bytes()


@pytest.fixture(scope='module')
def run(trained_once: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run with its record, without large files."""
    return shutil.copytree(
        trained_once,
        tmp_path_factory.mktemp('runs') / 'run',
        ignore=shutil.ignore_patterns('*.pth', '*.html'))


@fuzz(few=10, many=1500)
@given(draw=st.data())
def test_run_records(run: Path, draw: st.DataObject) -> None:
    """A report is written, or rejected by the path of the damaged file."""
    files = [run / 'metrics.csv', *sorted((run / 'record').rglob('*.json'))]
    path = draw.draw(st.sampled_from(files))
    before = path.read_text()
    if path.suffix == '.json' and draw.draw(st.integers(0, 3)):
        content: bytes = draw.draw(changed_json(json.loads(before), 2))
    else:
        content = draw.draw(changed_text(before)).encode(errors='surrogatepass')
    with replace_content(path, content):
        page = attempt(lambda: write_report(run, is_live=False), names=str(run))
        if page is not None:
            assert page.read_text().rstrip().endswith('</html>')
            page.unlink()
        if path.name == 'metrics.csv':
            table = attempt(lambda: MetricsTable(path), names=str(path))
            if table is not None:
                attempt(lambda: table.values('loss'), names=str(path))


@fuzz(few=20, many=3000)
@given(text=st.data())
def test_checkpoint_names(run: Path, text: st.DataObject) -> None:
    """``last_checkpoint`` leads to an existing checkpoint, or is rejected by path."""
    (run / 'iter_1.pth').touch()
    path = run / 'last_checkpoint'
    path.write_text('')
    name = text.draw(changed_text(str(run / 'iter_1.pth')))
    path.write_bytes(name.encode(errors='surrogatepass'))
    cfg = Config(dict(work_dir=str(run), resume=False, load_from=None))
    done = attempt(lambda: set_resume(cfg, 'auto') or True, names=str(run))
    if done and cfg.resume:
        assert Run.from_config(cfg).checkpoints()[0].exists()
