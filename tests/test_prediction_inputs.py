"""Inputs of ``colonnade predict``: their order, names, IDs and records."""
from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from colonnade.inference.inputs import Input, find_inputs, natural_sort_key
from colonnade.inference.outputs import count_ids, find_ids
from colonnade.inference.resume_log import open_resume_log

NOWHERE = Path('/nowhere')


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def find_names(*patterns: str | Path, ignored: Path = NOWHERE) -> list[str]:
    return [item.name for item in find_inputs(map(str, patterns), ignored)]


def test_folder_is_searched_recursively(tmp_path: Path) -> None:
    touch(tmp_path, 'b10.jpg', 'b9.JPG', 'a/x.png', 'a.mp4', 'notes.txt', '.hidden/a.jpg', '.a.jpg',
          'out/a/a.jpg', 'c.jpg/d.tif')  # yapf: disable
    (tmp_path / 'a/loop').symlink_to(tmp_path)
    expected = ['a/x.png', 'a.mp4', 'b9.JPG', 'b10.jpg', 'c.jpg/d.tif']
    assert find_names(tmp_path, ignored=tmp_path / 'out') == expected
    assert find_names(tmp_path / 'out/a', ignored=tmp_path / 'out') == ['a.jpg']


def test_patterns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, 'one/a.jpg', 'two/a.jpg', 'two/b.jpg', 'two/deep/a.jpg', 'plain', 'a[1].jpg',
          'a1.jpg', 'v/000000.png', 'v.mp4')  # yapf: disable
    monkeypatch.chdir(tmp_path)
    for patterns, expected in (
        (('one', 'two'), ['one/a.jpg', 'two/a.jpg', 'two/b.jpg', 'two/deep/a.jpg']),
        (('two/a.jpg', 'two'), ['a.jpg', 'b.jpg', 'deep/a.jpg']),
        (('*/a.jpg', ), ['one/a.jpg', 'two/a.jpg']),
        (('two/**/a.jpg', ), ['a.jpg', 'deep/a.jpg']),
        (('t*', ), ['two/a.jpg', 'two/b.jpg', 'two/deep/a.jpg']),
        (('plain', ), ['plain']),
        (('a[1].jpg', ), ['a[1].jpg']),
        (('v', 'v.mp4'), ['v/000000.png', 'v.mp4']),
    ):
        assert find_names(*patterns) == expected
    Path('a[1].jpg').unlink()
    assert find_names('a[1].jpg') == ['a1.jpg']


def test_stems_are_unique(tmp_path: Path) -> None:
    touch(tmp_path, 'a.jpg', 'a.png', 'a.jpg.png', 'b.jpg', 'sub/b.png')
    stems = {item.name: item.stem for item in find_inputs([str(tmp_path)], NOWHERE)}
    assert stems == {
        'a.jpg': 'a.jpg', 'a.png': 'a.png', 'a.jpg.png': 'a.jpg.png', 'b.jpg': 'b',
        'sub/b.png': 'sub/b'
    }  # yapf: disable


@pytest.mark.skipif(sys.platform == 'darwin', reason='names of files are UTF-8 there')
def test_names_in_other_encodings(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b'/caf\xe9.jpg')).touch()
    assert find_names(tmp_path) == ['caf\udce9.jpg']


@pytest.mark.parametrize('pattern, message', [
    ('nowhere', 'no such file or folder'),
    ('*.jpg', 'no image or video matches this pattern'),
    ('folder', r'no images or videos in this folder \(\.avif \.bmp'),
    ('https://example.org/a.jpg', 'URLs are not supported'),
    ('http://a/b*.png', 'URLs are not supported'),
])
def test_no_match(pattern: str, message: str, tmp_path: Path,
                  monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / 'folder').mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=message):
        find_names(pattern)


def test_natural_order() -> None:
    ordered = ['2/a.jpg', '10/a.jpg', 'A1.jpg', 'a2.jpg', 'a10.jpg', 'a10b.jpg', 'b.jpg']
    assert sorted(reversed(ordered), key=natural_sort_key) == ordered


def test_output_with_the_name_of_a_folder(tmp_path: Path) -> None:
    touch(tmp_path, 'x.png', 'x.jpg/1.png')
    with pytest.raises(ValueError, match=r'of x\.png and x\.jpg/1\.png would be .* called x\.jpg'):
        find_names(tmp_path)


def build_inputs(*names: str) -> list[Input]:
    return [Input(Path('/data/val') / name, name, name) for name in names]


COCO = dict(
    images=[dict(id=139, file_name='a.jpg'),
            dict(id=7, file_name='sub/a.jpg')],
    categories=[dict(id=1, name='person'),
                dict(id=90, name='toothbrush'),
                dict(id=3, name='car')])


def test_ids(tmp_path: Path) -> None:
    (tmp_path / 'a.json').write_text(json.dumps(COCO))
    inputs = build_inputs('a.jpg', 'sub/a.jpg')
    ids = find_ids(tmp_path / 'a.json', inputs, ('toothbrush', 'person'))
    assert (ids.images, ids.categories) == ({'a.jpg': 139, 'sub/a.jpg': 7}, (90, 1))
    ids = count_ids(build_inputs('a.jpg', 'b.jpg'), ('x', 'y', 'z'), first=0)
    assert (ids.images, ids.categories) == ({'a.jpg': 1, 'b.jpg': 2}, (0, 1, 2))


@pytest.mark.parametrize('content, message', [
    ('{', 'a.json is not a JSON file'),
    ('[]', 'a.json is not a COCO file: expected images'),
    (dict(images=[]), 'a.json is not a COCO file'),
    (dict(COCO, images=[dict(id=1, file_name='b.jpg')]), 'a.json has no image x/1.jpg'),
    (dict(COCO, categories=[dict(id=1, name='car')]),
     "a.json has no category for the class 'person' of the model; its categories are 'car'"),
    (dict(COCO, images=[dict(id=7, file_name='1.jpg')
                        ]), r'x/1\.jpg and y/1\.jpg both match image 7'),
])
def test_annotations_do_not_fit(content: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / 'a.json'
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(ValueError, match=message):
        find_ids(path, build_inputs('x/1.jpg', 'y/1.jpg'), ('person', ))


def test_resume_log_survives_a_kill(tmp_path: Path) -> None:
    out = tmp_path / 'out'
    for threshold in (0.3, 0.4):  # No input is finished, so other settings are no error.
        with open_resume_log(out, dict(threshold=threshold), resume=False) as log:
            assert not log.names
    with open_resume_log(out, dict(tile_size=None), resume=False) as log:
        log.add(dict(name='a.jpg', size=[1, 2]))
        log.add(dict(name='caf\udce9.jpg', size=[1, 2]))
    path = out / 'finished.jsonl'
    path.write_bytes(path.read_bytes() + b'{"name":"b.jpg","si')
    with open_resume_log(out, dict(tile_size=None), resume=True) as log:
        assert log.names == {'a.jpg', 'caf\udce9.jpg'}
        log.add(dict(name='b.jpg', size=[3, 4]))
        assert [record['name'] for record in log] == ['a.jpg', 'caf\udce9.jpg', 'b.jpg']
    with pytest.raises(ValueError, match='predictions with tile size None, not tile size 512'):
        with open_resume_log(out, dict(tile_size=512), resume=True):
            pass
