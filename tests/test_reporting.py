"""Pages: annotations and predictions side by side, in one file."""
from __future__ import annotations

import base64
import re
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from conftest import LAYOUTS, config
from PIL import Image

from colonnade.evaluation.plots import escape_math, new_figure, render_figure
from colonnade.inference import Instances, LabelMap, Model, load
from colonnade.inference.ground_truth import truth_of
from colonnade.visualization import dataset_browser
from colonnade.visualization.html_pages import (Section, Table, build_sections, sample_section,
                                                write_page)
from colonnade.visualization.html_pages.page import count_columns, encode_image
from colonnade.visualization.run_report import comparison, report_page
from colonnade.visualization.run_report.record_folder import RecordedRun


def root(shapes: Path, head: str) -> dict[str, str]:
    return {'test_dataloader.dataset.data_root': str(shapes / LAYOUTS[head])}


def test_pictures_are_in_the_page_and_texts_are_text(tmp_path: Path) -> None:
    picture = Image.new('RGB', (3, 2), 'red')
    section = Section(
        '<b>',
        tables=[Table((), [('box mAP', '50.2')])],
        legend=[('a&b', (1, 2, 3))],
        images=[('"x"', picture)],
        commands=['colonnade serve <config>'])
    write_page(tmp_path / 'page.html', 'Title', 'about', [section])
    text = (tmp_path / 'page.html').read_text()
    assert '<h2>&lt;b&gt;</h2>' in text and 'a&amp;b' in text and 'rgb(1, 2, 3)' in text
    content = re.search(r'src="data:image/png;base64,([^"]+)"', text)[1]
    with Image.open(BytesIO(base64.b64decode(content))) as found:
        assert found.size == (3, 2)
    assert 'http' not in text


def test_tables_plots_and_folds(tmp_path: Path) -> None:
    drawn, axes = new_figure()
    axes.plot([1, 2], label=escape_math('a $b$'))
    axes.legend()
    table = Table(('class', 'AP'), [('<i>cat', 0.51239), ('dog', None), ('fish', float('nan'))])
    section = Section('Config', text='a < b', plots=[('loss', drawn)], tables=[table], folded=True)
    write_page(tmp_path / 'page.html', 'Title', 'about', [section])
    text = (tmp_path / 'page.html').read_text()
    assert '<summary>Config</summary>' in text and '<p>a &lt; b</p>' in text
    assert '<td>&lt;i&gt;cat</td>' in text and '<th scope="col" class=number>AP' in text
    cells = re.findall('<td class=number>(.*)</td>', text)
    assert cells == ['0.5124', '–', '–']
    plot = base64.b64decode(re.search(r'src="data:image/svg\+xml;base64,([^"]+)"', text)[1])
    assert plot == render_figure(drawn) and b'>a $b$</text>' in plot and b'script' not in plot


@pytest.mark.filterwarnings('error')
def test_texts_of_plots_are_drawn_by_the_reader() -> None:
    drawn, axes = new_figure()
    axes.plot([1, 2], label='行人<b>')
    axes.legend()
    assert '>行人&lt;b&gt;</text>'.encode() in render_figure(drawn)


def test_tiles_have_titles_as_text(tmp_path: Path) -> None:
    picture = Image.new('RGB', (9, 6))
    tiles = [('<i>', [(f'iteration {number}', picture) for number in range(8)])]
    write_page(tmp_path / 'page.html', 'Title', 'about', [Section('Samples', tiles=tiles)])
    text = (tmp_path / 'page.html').read_text()
    assert '<p>&lt;i&gt;</p>' in text and text.count('<img') == 8 and '--columns: 4' in text
    assert '<figcaption>iteration 7</figcaption>' in text
    assert [count_columns(number) for number in (1, 2, 5, 6, 7, 13)] == [1, 2, 5, 6, 4, 5]


def test_photographs_are_smaller_than_drawings(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (100, 100, 3), dtype=np.uint8)
    assert encode_image(Image.fromarray(noise)).startswith('data:image/jpeg')
    assert encode_image(Image.new('RGBA', (9, 9))).startswith('data:image/png')


def count_evaluations(run: RecordedRun) -> list[Section]:
    """A toy section: one function, and one line in a table."""
    return [Section('Toy', tables=[Table((), [('evaluations', len(run.evaluations))])])]


def test_a_section_is_a_function_and_a_line(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(report_page.SECTIONS, 'Toy', count_evaluations)
    monkeypatch.setitem(report_page.SECTIONS, 'Broken', lambda run: run.nothing)
    text = report_page.write_report(trained).read_text()
    assert '<h2>Toy</h2>' in text and '<td>evaluations</td>\n<td class=number>1</td>' in text
    assert '<h2>Broken</h2>' in text and 'This part cannot be made: AttributeError' in text
    titles = re.findall('<(?:h2|summary)>(.*)</', text)
    assert [title for title in report_page.SECTIONS if title in titles] == \
        [title for title in titles if title in report_page.SECTIONS]


@pytest.mark.parametrize('sections', [comparison.SECTIONS, dataset_browser.sections.SECTIONS])
def test_other_pages_are_tables_as_well(sections: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    toy = Section('Toy')
    for title in list(sections):
        monkeypatch.setitem(sections, title, lambda subject: [])
    monkeypatch.setitem(sections, 'Toy', lambda subject: [toy])
    assert build_sections(sections, None) == [toy]


def test_samples_of_a_trained_model(trained: Path, shapes: Path) -> None:
    section = sample_section(
        'Semantic FPN',
        config('sem_fpn'),
        trained / 'iter_2.pth',
        limit=2,
        cfg_options=root(shapes, 'sem_fpn'))
    names = sorted(path.name for path in (shapes / 'ade/images/validation').iterdir())
    assert [name for name, _ in section.images] == names[:2]
    assert section.legend[0][0] == 'background'
    width, height = section.images[0][1].size
    assert height >= 256 and width > 2 * height


def untrained(head: str, shapes: Path, tmp_path: Path) -> Model:
    import torch
    from mmengine.registry import MODELS

    from colonnade.settings.reading import read_config
    model = MODELS.build(read_config(config(head)).model)
    model.init_weights()
    torch.save(dict(state_dict=model.state_dict()), tmp_path / 'weights.pth')
    return load(config(head), tmp_path / 'weights.pth', cfg_options=root(shapes, head))


@pytest.mark.parametrize('head', ['mask_rcnn', 'sem_fpn'])
def test_annotations_are_those_of_the_files(head: str, shapes: Path, tmp_path: Path) -> None:
    model = untrained(head, shapes, tmp_path)
    found = list(truth_of(model, 99))
    assert len(found) == 4
    if head == 'sem_fpn':
        for path, truth in found:
            file = shapes / 'ade/annotations/validation' / f'{Path(path).stem}.png'
            with Image.open(file) as image:
                labels = np.array(image)
            assert isinstance(truth, LabelMap)
            assert set(truth.shares()) <= {*model.classes, 'unlabelled'}
            np.testing.assert_array_equal(truth.labels == len(model.classes), labels == 0)
            np.testing.assert_array_equal(truth.labels[labels > 0], labels[labels > 0] - 1)
        return
    from pycocotools.coco import COCO
    coco = COCO(shapes / 'coco/annotations/instances_val2017.json')
    for image_id, (_, truth) in zip(coco.getImgIds(), found, strict=True):
        expected = coco.loadAnns(coco.getAnnIds(image_id))
        assert isinstance(truth, Instances) and len(truth) == len(expected)
        for mask, annotation in zip(truth.decode_masks(), expected, strict=True):
            np.testing.assert_array_equal(mask, coco.annToMask(annotation))
        names = [coco.cats[item['category_id']]['name'] for item in expected]
        assert list(truth.names) == names


def test_classes_that_change_places(tmp_path: Path, shapes: Path) -> None:
    from colonnade.inference.ground_truth import label_map
    model = untrained('sem_fpn', shapes, tmp_path)
    Image.fromarray(np.array([[0, 1, 2, 3]], dtype=np.uint8)).save(tmp_path / 'map.png')
    found = dict(seg_map_path=tmp_path / 'map.png', label_map={0: 1, 1: 0})
    np.testing.assert_array_equal(label_map(model, found, 'a.jpg').labels, [[1, 0, 2, 3]])
