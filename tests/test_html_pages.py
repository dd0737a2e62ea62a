"""HTML pages: sections, tables, plots, images and samples in one file."""
from __future__ import annotations

import base64
import re
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import LAYOUTS, config
from mmengine.registry import MODELS
from PIL import Image
from pycocotools.coco import COCO

from colonnade.evaluation.plots import escape_math, new_figure, render_figure
from colonnade.inference import Instances, LabelMap, Model, load
from colonnade.inference.ground_truth import build_label_map, iter_ground_truth
from colonnade.settings.reading import read_config
from colonnade.visualization.html_pages import Section, Table, build_sample_section, write_page
from colonnade.visualization.html_pages.page import count_columns, encode_image
from colonnade.visualization.run_report import report_page


def write(path: Path, **content: object) -> str:
    write_page(path / 'page.html', 'Title', 'about', [Section(**content)])
    return (path / 'page.html').read_text()


def test_embed_images_and_escape_text(tmp_path: Path) -> None:
    text = write(tmp_path, title='<b>', tables=[Table((), [('box mAP', '50.2')])],
                 legend=[('a&b', (1, 2, 3))], images=[('"x"', Image.new('RGB', (3, 2), 'red'))],
                 commands=['colonnade serve <config>'])  # yapf: disable
    assert '<h2>&lt;b&gt;</h2>' in text and 'a&amp;b' in text and 'rgb(1, 2, 3)' in text
    content = re.search(r'src="data:image/png;base64,([^"]+)"', text)[1]
    with Image.open(BytesIO(base64.b64decode(content))) as image:
        assert image.size == (3, 2)
    assert 'http' not in text


def test_format_tables_plots_and_folded_sections(tmp_path: Path) -> None:
    figure, axes = new_figure()
    axes.plot([1, 2], label=escape_math('a $b$'))
    axes.legend()
    table = Table(('class', 'AP'), [('<i>cat', 0.51239), ('dog', None), ('fish', float('nan'))])
    text = write(tmp_path, title='Config', text='a < b', plots=[('loss', figure)], tables=[table],
                 folded=True)  # yapf: disable
    assert '<summary>Config</summary>' in text and '<p>a &lt; b</p>' in text
    assert '<td>&lt;i&gt;cat</td>' in text and '<th scope="col" class=number>AP' in text
    cells = re.findall('<td class=number>(.*)</td>', text)
    assert cells == ['0.5124', '–', '–']
    plot = base64.b64decode(re.search(r'src="data:image/svg\+xml;base64,([^"]+)"', text)[1])
    assert plot == render_figure(figure) and b'>a $b$</text>' in plot and b'script' not in plot


@pytest.mark.filterwarnings('error')
def test_plots_keep_text_as_text() -> None:
    figure, axes = new_figure()
    axes.plot([1, 2], label='行人<b>')
    axes.legend()
    assert '>行人&lt;b&gt;</text>'.encode() in render_figure(figure)


def test_tiles_have_titles(tmp_path: Path) -> None:
    tiles = [('<i>', [(f'iteration {number}', Image.new('RGB', (9, 6))) for number in range(8)])]
    text = write(tmp_path, title='Samples', tiles=tiles)
    assert '<p>&lt;i&gt;</p>' in text and text.count('<img') == 8 and '--columns: 4' in text
    assert '<figcaption>iteration 7</figcaption>' in text
    assert [count_columns(number) for number in (1, 2, 5, 6, 7, 13)] == [1, 2, 5, 6, 4, 5]


def test_photographs_are_stored_as_jpeg() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (100, 100, 3), dtype=np.uint8)
    assert encode_image(Image.fromarray(noise)).startswith('data:image/jpeg')
    assert encode_image(Image.new('RGBA', (9, 9))).startswith('data:image/png')


def test_sections_of_a_report_are_functions(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A section is added by a function and a line in a table; one that fails harms no other."""
    toy = Table((), [('evaluations', 1)])
    monkeypatch.setitem(report_page.SECTIONS, 'Toy', lambda run: [Section('Toy', tables=[toy])])
    monkeypatch.setitem(report_page.SECTIONS, 'Broken', lambda run: run.nothing)
    text = report_page.write_report(trained).read_text()
    assert '<h2>Toy</h2>' in text and '<td>evaluations</td>\n<td class=number>1</td>' in text
    assert '<h2>Broken</h2>' in text and 'This part cannot be built: AttributeError' in text
    titles = re.findall('<(?:h2|summary)>(.*)</', text)
    assert [title for title in report_page.SECTIONS if title in titles] == \
        [title for title in titles if title in report_page.SECTIONS]


def redirect(shapes: Path, head: str) -> dict[str, str]:
    return {'test_dataloader.dataset.data_root': str(shapes / LAYOUTS[head])}


def test_sample_section_of_trained_model(trained: Path, shapes: Path) -> None:
    options = redirect(shapes, 'sem_fpn')
    section = build_sample_section(
        'Semantic FPN', config('sem_fpn'), trained / 'iter_2.pth', limit=2, cfg_options=options)
    names = sorted(path.name for path in (shapes / 'ade/images/validation').iterdir())
    assert [name for name, _ in section.images] == names[:2]
    assert section.legend[0][0] == 'background'
    width, height = section.images[0][1].size
    assert height >= 256 and width > 2 * height


def load_untrained(head: str, shapes: Path, tmp_path: Path) -> Model:
    module = MODELS.build(read_config(config(head)).model)
    module.init_weights()
    torch.save(dict(state_dict=module.state_dict()), tmp_path / 'weights.pth')
    return load(config(head), tmp_path / 'weights.pth', cfg_options=redirect(shapes, head))


def test_ground_truth_of_segmenter(shapes: Path, tmp_path: Path) -> None:
    model = load_untrained('sem_fpn', shapes, tmp_path)
    truths = list(iter_ground_truth(model, 99))
    assert len(truths) == 4
    for path, truth in truths:
        with Image.open(shapes / 'ade/annotations/validation' / f'{Path(path).stem}.png') as image:
            labels = np.array(image)
        assert isinstance(truth, LabelMap)
        np.testing.assert_array_equal(truth.labels == len(model.classes), labels == 0)
        np.testing.assert_array_equal(truth.labels[labels > 0], labels[labels > 0] - 1)
    Image.fromarray(np.array([[0, 1, 2, 3]], dtype=np.uint8)).save(tmp_path / 'map.png')
    info = dict(seg_map_path=tmp_path / 'map.png', label_map={0: 1, 1: 0})
    np.testing.assert_array_equal(build_label_map(model, info, 'a.jpg').labels, [[1, 0, 2, 3]])


def test_ground_truth_of_detector(shapes: Path, tmp_path: Path) -> None:
    truths = list(iter_ground_truth(load_untrained('mask_rcnn', shapes, tmp_path), 99))
    coco = COCO(shapes / 'coco/annotations/instances_val2017.json')
    for image_id, (_, truth) in zip(coco.getImgIds(), truths, strict=True):
        expected = coco.loadAnns(coco.getAnnIds(image_id))
        assert isinstance(truth, Instances) and len(truth) == len(expected)
        for mask, annotation in zip(truth.decode_masks(), expected, strict=True):
            np.testing.assert_array_equal(mask, coco.annToMask(annotation))
        names = [coco.cats[item['category_id']]['name'] for item in expected]
        assert list(truth.names) == names
