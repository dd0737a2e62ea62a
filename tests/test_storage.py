"""Datasets on object storage and in shards: losses and metrics equal those from folders."""
from __future__ import annotations

import json
import logging
import os
import posixpath
import shutil
import tarfile
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import httpx
import pytest
from conftest import LAYOUTS, METRICS, NO_WORKERS, SHORT, config
from mmengine.config import Config
from mmengine.fileio import get, list_dir_or_file
from mmengine.registry import DATASETS

from colonnade.common.errors import UserError
from colonnade.common.storage import FsspecBackend, exists, local_copy
from colonnade.common.storage.shard_index import ShardIndex
from colonnade.datasets.shards.dataset_sharding import ShardOptions, make_shards, verify_shards
from colonnade.datasets.shards.shard_writer import ShardWriter
from colonnade.engine.work_dir.metrics_table import MetricsTable
from colonnade.settings.dataset_paths import check_dataset, find_datasets, redirect_data_root
from colonnade.settings.reading import LaunchOptions, load_config


@pytest.fixture(scope='module')
def shards(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Several shards of both datasets."""
    out = tmp_path_factory.mktemp('shards')
    for head in ('mask_rcnn', 'sem_fpn'):
        make_shards(
            ShardOptions(
                config=config(head),
                data_root=shapes / LAYOUTS[head],
                out=out / LAYOUTS[head],
                shard_size=0.04))
    return out


@pytest.fixture(scope='module')
def bucket(shapes: Path, shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a bucket with folders and shards on a mock S3 server."""
    from moto.server import ThreadedMotoServer
    logging.getLogger('werkzeug').setLevel(logging.ERROR)
    server = ThreadedMotoServer('127.0.0.1', 0, verbose=False)
    server.start()
    endpoint = 'http://{}:{}'.format(*server.get_host_and_port())
    httpx.post(f'{endpoint}/moto-api/reset', timeout=60)  # state of a previous server
    with pytest.MonkeyPatch.context() as patch:
        settings = dict(
            AWS_ENDPOINT_URL=endpoint,
            AWS_ACCESS_KEY_ID='a',
            AWS_SECRET_ACCESS_KEY='b',
            AWS_DEFAULT_REGION='us-east-1',
            AWS_MAX_ATTEMPTS='1',
            COLONNADE_CACHE=str(tmp_path_factory.mktemp('cache')))
        for name, value in settings.items():
            patch.setenv(name, value)
        files = fsspec.filesystem('s3')
        files.mkdir('bucket')
        files.put(str(shapes), 'bucket/shapes', recursive=True)
        files.put(str(shards), 'bucket/shards', recursive=True)
        yield 's3://bucket'
        server.stop()
        files.clear_instance_cache()


def load_samples(head: str, root: str | Path) -> list[tuple[Any, ...]]:
    """Return the pixels and annotations of the test images as model inputs."""
    cfg = load_config(LaunchOptions(config(head), data_root=root))
    (_, settings), = find_datasets(cfg, ('test_dataloader', ))
    data = DATASETS.build(settings)
    found = []
    for index, item in enumerate(data):
        labels = item['data_samples'].get('gt_sem_seg')
        found.append((item['inputs'].tolist(), None if labels is None else labels.data.tolist(),
                      data.get_data_info(index).get('instances')))  # yapf: disable
    return found


@pytest.mark.slow
@pytest.mark.parametrize('head', ['mask_rcnn', 'sem_fpn'])
def test_samples_equal_folders(head: str, shapes: Path, shards: Path, bucket: str) -> None:
    layout = LAYOUTS[head]
    expected = load_samples(head, shapes / layout)
    assert len(expected) == 4
    for root in (shards / layout, f'{bucket}/shapes/{layout}', f'{bucket}/shards/{layout}'):
        assert load_samples(head, root) == expected, root


@pytest.mark.parametrize('head, where', [
    pytest.param('sem_fpn', 's3 shards', marks=pytest.mark.slow),
    pytest.param('mask_rcnn', 'shards', marks=pytest.mark.slow),
    pytest.param('sem_fpn', 's3', marks=pytest.mark.slow),
    pytest.param('mask_rcnn', 's3', marks=pytest.mark.slow),
])
def test_runs_equal_folders(head: str, where: str, shapes: Path, shards: Path, bucket: str,
                            tmp_path: Path, run_tool: Callable) -> None:
    """Losses of two iterations and metrics are equal with the same seed."""
    layout = LAYOUTS[head]
    root = {'shards': shards / layout, 's3': f'{bucket}/shapes/{layout}',
            's3 shards': f'{bucket}/shards/{layout}'}[where]  # yapf: disable
    found = []
    for name, data in (('folder', shapes / layout), ('other', root)):
        run_tool('train', config(head), '--data-root', data, '--work-dir', tmp_path / name,
                 '--no-report', *SHORT, 'randomness.seed=0', *NO_WORKERS)
        rows = MetricsTable(tmp_path / name / 'metrics.csv').rows()
        found.append([{k: v for k, v in row.items() if 'time' not in k} for row in rows])
    assert found[0] == found[1]
    assert len(found[0]) == 3 and 'loss' in found[0][0]
    assert any(METRICS[head][0] in row for row in found[0])
    if where == 's3 shards':
        return
    metrics = []
    for data in (shapes / layout, root):
        run_tool('test', config(head), tmp_path / 'other/iter_2.pth', '--data-root', data,
                 '--work-dir', tmp_path / 'test', '--out', tmp_path / 'm.json', '--cfg-options',
                 *NO_WORKERS)
        metrics.append(json.loads((tmp_path / 'm.json').read_text())['metrics'])
    assert metrics[0] == metrics[1]


def authenticate(number: int) -> None:
    """Make the server accept this many requests before it requires known credentials."""
    url = f'{os.environ["AWS_ENDPOINT_URL"]}/moto-api/reset-auth'
    headers = {'Content-Type': 'text/plain'}
    urllib.request.urlopen(
        urllib.request.Request(url, str(number).encode(), headers, method='POST')).close()


def test_errors_name_the_url(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = Config.fromfile(config('sem_fpn'))
    with pytest.raises(FileNotFoundError, match='--data-root s3://bucket/none does not exist'):
        redirect_data_root(cfg, f'{bucket}/none')
    redirect_data_root(cfg, f'{bucket}/shapes/coco')
    with pytest.raises(FileNotFoundError, match='s3://bucket/shapes/coco/images/validation .val'):
        check_dataset(cfg, ('val_dataloader', ))
    with pytest.raises(FileNotFoundError, match='^s3://bucket/a.jpg does not exist$'):
        get(f'{bucket}/a.jpg')
    with pytest.raises(ValueError, match="gs://b/a cannot be read: .*: run pip install 'gcsfs'"):
        get('gs://b/a')
    with pytest.raises(ValueError, match='unknown protocol x://, expected one of .*s3://'):
        exists('x://b/a')
    authenticate(0)
    try:
        with pytest.raises(PermissionError, match='s3://bucket/shapes: access denied'):
            exists(f'{bucket}/shapes')
    finally:
        authenticate(10**9)
    monkeypatch.setenv('AWS_ENDPOINT_URL', 'http://127.0.0.1:1')
    fsspec.filesystem('s3').clear_instance_cache()
    with pytest.raises(ConnectionError, match='s3://bucket/a: the endpoint cannot be reached'):
        exists(f'{bucket}/a')
    fsspec.filesystem('s3').clear_instance_cache()


def test_backend_args_are_passed_to_fsspec(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = os.environ['AWS_ENDPOINT_URL']
    monkeypatch.setenv('AWS_ENDPOINT_URL', 'http://127.0.0.1:1')
    path = f'{bucket}/shapes/coco/annotations/instances_val2017.json'
    settings = dict(endpoint_url=endpoint, key='a', secret='b')
    assert exists(path, settings)
    assert len(json.loads(get(path, settings))['images']) == 4


def test_copy_is_cached_until_file_changes(bucket: str) -> None:
    url = f'{bucket}/note.txt'
    backend = FsspecBackend()
    found = []
    for text in ('one', 'one', 'three'):
        backend.put_text(text, url)
        with local_copy(url) as local:
            found.append((local, Path(local).read_text()))
    assert [text for _, text in found] == ['one', 'one', 'three']
    assert found[0][0] != found[2][0]
    assert not list(Path(os.environ['COLONNADE_CACHE']).rglob('.unfinished*'))
    backend.remove(url)
    assert not exists(url)


def test_webdataset_reads_shards(shards: Path) -> None:
    import webdataset
    names = sorted(map(str, (shards / 'ade').glob('train-*.tar')))
    assert len(names) > 1
    found = list(webdataset.WebDataset(names, shardshuffle=False).decode('rgb8'))
    assert len(found) == 12
    assert found[0]['jpg'].shape == (64, 64, 3) and found[0]['seg.png'].shape[:2] == (64, 64)
    assert found[0]['json'] == dict(
        path=f'{found[0]["__key__"]}.jpg', labels=found[0]['json']['labels'])


def test_failed_sharding_leaves_no_files(shapes: Path, shards: Path, tmp_path: Path) -> None:
    options = ShardOptions(config=config('mask_rcnn'), data_root=shapes / 'coco', out='')
    with pytest.raises(UserError, match='exists'):
        make_shards(replace(options, out=shards / 'coco'))
    with pytest.raises(ValueError, match='is not a local folder'):
        make_shards(replace(options, out='s3://bucket/new'))
    with pytest.raises(ValueError, match='--shard-size must be positive, got 0'):
        make_shards(replace(options, out=tmp_path / 'new', shard_size=0))
    lacking = shutil.copytree(shapes / 'coco', tmp_path / 'coco')
    next((lacking / 'train2017').iterdir()).unlink()
    with pytest.raises(FileNotFoundError):
        make_shards(replace(options, data_root=lacking, out=tmp_path / 'new'))
    assert [path.name for path in tmp_path.iterdir()] == ['coco']


def test_damage_is_detected(shards: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(shards / 'coco', tmp_path / 'coco')
    assert verify_shards(str(folder))['samples'] == 16
    name = ShardIndex(str(folder)).find('train2017/000000.jpg')
    shard = folder / name.shard
    content = bytearray(shard.read_bytes())
    content[name.offset + 99] ^= 1
    shard.write_bytes(content)
    with pytest.raises(OSError, match=f'{name.shard} is damaged: train2017/000000.jpg .* checksum'):
        get(f'shards://{folder}/train2017/000000.jpg')
    (folder / 'annotations/instances_val2017.json').unlink()
    with pytest.raises(ValueError, match='(?s)000.tar is damaged.*2017.json is missi'):
        verify_shards(str(folder))
    with pytest.raises(FileNotFoundError, match='exists neither in the shards .files: 16. nor'):
        get(f'shards://{folder}/train2017/other.jpg')
    (folder / 'shards.json').write_text('{}')
    with pytest.raises(ValueError, match='not a shard index of format 1'):
        ShardIndex(str(folder))
    with pytest.raises(
            FileNotFoundError, match='neither this path nor a parent folder contains shards'):
        get(f'shards://{tmp_path}/a.jpg')


def test_sample_keys_are_unique(tmp_path: Path) -> None:
    """In WebDataset, a dot starts the suffix, and a name belongs to one sample."""
    writer = ShardWriter(tmp_path, max_bytes=10**6)
    writer.start('train')
    for path in ('a.b.jpg', 'a.c.jpg', 'a_b.jpg', 'd/a.b.jpg'):
        writer.add(path.removesuffix('.jpg'), {'jpg': (path, path.encode())}, {})
    writer.finish({})
    with tarfile.open(tmp_path / 'train-000000.tar') as tar:
        keys = [name.removesuffix('.jpg') for name in tar.getnames() if name.endswith('.jpg')]
    assert keys == ['a_b', 'a_c', 'a_b_2', 'd/a_b']
    for path in ('a.b.jpg', 'a.c.jpg', 'a_b.jpg', 'd/./a.b.jpg'):
        assert get(f'shards://{tmp_path}/{path}').decode() == posixpath.normpath(path)
    assert sorted(list_dir_or_file(f'shards://{tmp_path}')) == \
        ['a.b.jpg', 'a.c.jpg', 'a_b.jpg', 'd']
