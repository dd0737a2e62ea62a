"""Which files are predicted, in which order, by which names and ids."""
from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from colonnade.inference.coco_ids import counted, numbering_of
from colonnade.inference.inputs import Input, find_inputs, natural
from colonnade.inference.resume_log import open_resume_log

NOWHERE = Path('/nowhere')


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def names(*texts: str | Path, ignored: Path = NOWHERE) -> list[str]:
    return [item.name for item in find_inputs(map(str, texts), ignored)]


def test_a_folder_is_searched_through(tmp_path: Path) -> None:
    touch(tmp_path, 'b10.jpg', 'b9.JPG', 'a/x.png', 'a.mp4', 'notes.txt', '.hidden/a.jpg', '.a.jpg',
          'out/pictures/a.jpg', 'c.jpg/d.tif')  # yapf: disable
    (tmp_path / 'a/loop').symlink_to(tmp_path)
    found = ['a/x.png', 'a.mp4', 'b9.JPG', 'b10.jpg', 'c.jpg/d.tif']
    assert names(tmp_path, ignored=tmp_path / 'out') == found
    assert names(tmp_path / 'out/pictures', ignored=tmp_path / 'out') == ['a.jpg']


def test_names_of_several_inputs_keep_apart(tmp_path: Path,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, 'one/a.jpg', 'two/a.jpg', 'two/b.jpg', 'two/deep/a.jpg', 'plain')
    monkeypatch.chdir(tmp_path)
    assert names('one', 'two') == ['one/a.jpg', 'two/a.jpg', 'two/b.jpg', 'two/deep/a.jpg']
    assert names('two/a.jpg', 'two') == ['a.jpg', 'b.jpg', 'deep/a.jpg']  # each once
    assert names('*/a.jpg') == ['one/a.jpg', 'two/a.jpg']
    assert names('two/**/a.jpg') == ['a.jpg', 'deep/a.jpg']
    assert names('t*') == ['two/a.jpg', 'two/b.jpg', 'two/deep/a.jpg']
    assert names('plain') == ['plain']  # named: the user knows better


def test_a_name_that_looks_like_a_pattern(tmp_path: Path) -> None:
    touch(tmp_path, 'a[1].jpg', 'a1.jpg')
    assert names(tmp_path / 'a[1].jpg') == ['a[1].jpg']
    (tmp_path / 'a[1].jpg').unlink()
    assert names(tmp_path / 'a[1].jpg') == ['a1.jpg']


def test_outputs_of_equal_names_keep_apart(tmp_path: Path) -> None:
    touch(tmp_path, 'a.jpg', 'a.png', 'a.jpg.png', 'b.jpg', 'sub/b.png')
    stems = {item.name: item.stem for item in find_inputs([str(tmp_path)], NOWHERE)}
    assert stems == {
        'a.jpg': 'a.jpg', 'a.png': 'a.png', 'a.jpg.png': 'a.jpg.png', 'b.jpg': 'b',
        'sub/b.png': 'sub/b'
    }  # yapf: disable


@pytest.mark.skipif(sys.platform == 'darwin', reason='names of files are UTF-8 there')
def test_names_in_other_encodings(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b'/caf\xe9.jpg')).touch()
    assert names(tmp_path) == ['caf\udce9.jpg']


@pytest.mark.parametrize('text, says', [
    ('nowhere', 'no such file or folder'),
    ('*.jpg', 'no image or video fits this pattern'),
    ('folder', r'no images or videos in this folder \(\.avif \.bmp'),
])
def test_inputs_that_lead_to_nothing(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / 'folder').mkdir()
    with pytest.raises(FileNotFoundError, match=says):
        names(tmp_path / text)


def test_the_natural_order() -> None:
    ordered = ['2/a.jpg', '10/a.jpg', 'A1.jpg', 'a2.jpg', 'a10.jpg', 'a10b.jpg', 'b.jpg']
    assert sorted(reversed(ordered), key=natural) == ordered


def inputs(*found: str) -> list[Input]:
    return [Input(Path('/data/val') / name, name, name) for name in found]


def write(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


COCO = dict(
    images=[dict(id=139, file_name='a.jpg'),
            dict(id=7, file_name='sub/a.jpg')],
    categories=[dict(id=1, name='person'),
                dict(id=90, name='toothbrush'),
                dict(id=3, name='car')])


def test_ids(tmp_path: Path) -> None:
    annotations = write(tmp_path / 'a.json', COCO)
    found = numbering_of(annotations, inputs('a.jpg', 'sub/a.jpg'), ('toothbrush', 'person'))
    assert (found.images, found.categories) == ({'a.jpg': 139, 'sub/a.jpg': 7}, (90, 1))
    found = counted(inputs('a.jpg', 'b.jpg'), ('x', 'y', 'z'), first=0)
    assert (found.images, found.categories) == ({'a.jpg': 1, 'b.jpg': 2}, (0, 1, 2))


@pytest.mark.parametrize('content, says', [
    ('{', 'a.json is no JSON file'),
    ([], "a.json is not in COCO's form: it needs images"),
    (dict(images=[]), "a.json is not in COCO's form"),
    (dict(COCO, images=[dict(id=1, file_name='b.jpg')]), 'a.json has no image a.jpg'),
    (dict(COCO, categories=[dict(id=1, name='car')]),
     "a.json has no category 'person', which the model knows; it has 'car'"),
])
def test_annotations_that_do_not_fit(content: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=says):
        numbering_of(write(tmp_path / 'a.json', content), inputs('a.jpg'), ('person', ))


def test_records_survive_a_kill(tmp_path: Path) -> None:
    with open_resume_log(tmp_path / 'out', dict(tile=None), resume=False) as records:
        records.add(dict(name='a.jpg', size=[1, 2]))
        records.add(dict(name='caf\udce9.jpg', size=[1, 2]))
    path = tmp_path / 'out/finished.jsonl'
    path.write_bytes(path.read_bytes() + b'{"name":"b.jpg","si')
    with open_resume_log(tmp_path / 'out', dict(tile=None), resume=True) as records:
        assert records.names == {'a.jpg', 'caf\udce9.jpg'}
        records.add(dict(name='b.jpg', size=[3, 4]))
        assert [record['name'] for record in records] == ['a.jpg', 'caf\udce9.jpg', 'b.jpg']
    with pytest.raises(ValueError, match='predictions with tile None, and now it is tile 512'):
        with open_resume_log(tmp_path / 'out', dict(tile=512), resume=True):
            pass


def test_a_folder_in_which_nothing_was_finished_is_new(tmp_path: Path) -> None:
    for threshold in (0.3, 0.4):
        with open_resume_log(tmp_path / 'out', dict(threshold=threshold), resume=False) as records:
            assert not records.names
    assert json.loads((tmp_path / 'out/settings.json').read_text()) == dict(threshold=0.4)


def test_a_picture_and_a_folder_of_one_name(tmp_path: Path) -> None:
    touch(tmp_path, 'x.png', 'x.jpg/1.png')
    with pytest.raises(ValueError, match=r'x\.png and x\.jpg/1\.png need the name x\.jpg'):
        names(tmp_path)


def test_frames_of_a_video_may_lie_beside_it(tmp_path: Path) -> None:
    touch(tmp_path, 'v.mp4', 'v/000000.png')
    assert names(tmp_path) == ['v/000000.png', 'v.mp4']


def test_two_images_are_not_the_same_annotated_one(tmp_path: Path) -> None:
    content = dict(images=[dict(id=7, file_name='1.jpg')], categories=[dict(id=1, name='person')])
    with pytest.raises(ValueError, match=r'x/1\.jpg and y/1\.jpg are both image 7'):
        numbering_of(
            write(tmp_path / 'a.json', content), inputs('x/1.jpg', 'y/1.jpg'), ('person', ))


@pytest.mark.parametrize('text', ['https://example.org/a.jpg', 'http://a/b*.png'])
def test_nothing_is_downloaded(text: str) -> None:
    with pytest.raises(FileNotFoundError, match='nothing is downloaded'):
        names(text)
