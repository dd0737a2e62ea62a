"""The server's page and reports in a real browser."""
from __future__ import annotations

import json
import os
import shutil
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from helpers.live_server import (LOOPBACK, PATIENCE, LiveServer, build_random_model,
                                 draw_rectangles, encode_image, live_server)
from PIL import Image
from playwright.sync_api import Browser, Page, ViewportSize, expect, sync_playwright

from colonnade.visualization.html_pages import Section, Table, write_page

NAMES = ('chromium', 'chromium-browser', 'google-chrome')
ARGUMENTS = [
    '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run',
    '--disable-background-networking', '--disable-component-update', '--disable-sync',
    '--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1'
]
FEWER = 0.6  # a threshold
expect.set_options(timeout=PATIENCE * 1000)
CONTRASTS = """() => {  // WCAG contrast of visible texts and their background
    const numbers = colour => colour.match(/[\\d.]+/g).map(Number);
    const linear = v => v <= 10.3 ? v / 3294.6 : ((v / 255 + 0.055) / 1.055) ** 2.4;
    const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
    const behind = element => {
        const colour = numbers(getComputedStyle(element).backgroundColor);
        return (colour[3] ?? 1) === 1 ? colour : behind(element.parentElement);
    };
    const found = {}, texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
        const text = texts.currentNode.data.trim(), element = texts.currentNode.parentElement;
        if (!text || !element.checkVisibility()) continue;
        const both = [numbers(getComputedStyle(element).color), behind(element)].map(light);
        found[text] = (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
    }
    return found;
}"""


def find_chromium() -> str:
    """Return the path of a browser; without one, skip the test, or fail it on CI."""
    path = os.environ.get('COLONNADE_CHROMIUM') or next(filter(None, map(shutil.which, NAMES)), '')
    if not path:
        reason = f'no {", ".join(NAMES)}: install one, or set COLONNADE_CHROMIUM'
        (pytest.fail if os.environ.get('CI') == 'true' else pytest.skip)(reason)
    return path


@pytest.fixture(scope='module')
def browser() -> Iterator[Browser]:
    path = find_chromium()
    with sync_playwright() as playwright:
        with playwright.chromium.launch(executable_path=path, args=ARGUMENTS) as running:
            yield running


@pytest.fixture(scope='module')
def live(browser: Browser) -> Iterator[LiveServer]:
    with live_server(build_random_model('mask_rcnn')) as running:
        yield running


@dataclass
class PageLog:
    """Requests and errors of a page."""
    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


@pytest.fixture
def log() -> PageLog:
    return PageLog()


@pytest.fixture
def page(browser: Browser, live: LiveServer, log: PageLog) -> Iterator[Page]:
    with browser.new_context() as context:
        page = context.new_page()
        record_page(page, log)
        yield open_page(page, live)


def record_page(page: Page, log: PageLog) -> None:
    """Record the requests and errors of a page."""
    page.on('request', lambda request: log.requests.append(request.url))
    page.on('pageerror', lambda error: log.errors.append(str(error)))
    page.on('console', lambda message: message.type == 'error' and log.errors.append(message.text))


def open_page(page: Page, live: LiveServer) -> Page:
    """Open the server's page and wait until it is ready."""
    page.set_default_timeout(PATIENCE * 1000)
    page.goto(live.url)
    expect(page.locator('#classes li')).to_have_count(len(live.model.classes))
    return page


def choose_file(page: Page,
                content: bytes,
                name: str = 'image.png',
                media_type: str = 'image/png') -> None:
    """Choose a file in the page."""
    page.set_input_files('#file', [dict(name=name, mimeType=media_type, buffer=content)])


def read_rows(page: Page) -> list[list[str]]:
    """Return class and score of each row of the table."""
    return [row.split('\t')[:2] for row in page.locator('#table tbody').inner_text().splitlines()]


def predict_rows(live: LiveServer, image: Image.Image, threshold: float) -> list[list[str]]:
    """Return the rows of the model's prediction, whose scores the API rounds."""
    found = live.model.predict(image).filter_by_score(threshold).to_json()['instances']
    return [[each['class'], f'{each["score"]:.2f}'] for each in found]


def read_drawing(page: Page) -> np.ndarray:
    """Return the pixels of the drawing in the page."""
    url = page.locator('#drawing').evaluate('canvas => canvas.toDataURL()')
    content = b64decode(url.partition(',')[2])
    return np.asarray(Image.open(BytesIO(content)).convert('RGB')).astype(int)


def download(page: Page, button: str) -> tuple[str, bytes]:
    """Return the name and the content of a downloaded file."""
    with page.expect_download() as downloading:
        page.get_by_role('button', name=button).click()
    return downloading.value.suggested_filename, downloading.value.path().read_bytes()


def test_detector_page(page: Page, live: LiveServer, log: PageLog) -> None:
    """Settings redraw without computing, and no request leaves this host."""
    image = draw_rectangles(3)
    expected, fewer = (predict_rows(live, image, threshold) for threshold in (0.3, FEWER))
    assert len(expected) > len(fewer) > 0
    choose_file(page, encode_image(image))
    expect(page.locator('#table tbody tr')).to_have_count(len(expected))
    assert read_rows(page) == expected
    first = read_drawing(page)
    assert first.shape == (64, 96, 3) and np.abs(first - np.asarray(image, dtype=int)).max() > 50
    label = page.get_by_role('img', name='the image with what the model finds in it')
    assert expected[0][0] in label.get_attribute('aria-label')
    assert 'model' in page.locator('#status').inner_text()
    computed = len(live.model.batches)
    page.locator('#threshold').fill(str(FEWER))
    expect(page.locator('#table tbody tr')).to_have_count(len(fewer))
    assert read_rows(page) == fewer and (read_drawing(page) != first).any()
    name, content = download(page, 'Download JSON')
    assert name == 'image-prediction.json'
    assert [entry['class'] for entry in json.loads(content)['instances']] == [n for n, _ in fewer]
    name, content = download(page, 'Download PNG')
    assert name == 'image-prediction.png'
    assert (np.asarray(Image.open(BytesIO(content)).convert('RGB')) == read_drawing(page)).all()
    page.get_by_role('button', name='Hide all').click()
    assert (read_drawing(page) == np.asarray(image)).all() and read_rows(page) == []
    page.get_by_role('checkbox', name=fewer[0][0]).check()
    assert {name for name, _ in read_rows(page)} == {fewer[0][0]}
    assert len(live.model.batches) == computed
    assert all(url.startswith((live.url, 'data:', 'blob:')) for url in log.requests), log.requests
    assert {address[0] for address in live.reached} <= set(LOOPBACK)
    assert log.errors == []


def test_segmenter_page(browser: Browser, log: PageLog) -> None:
    """A rotated TIFF, which only the server can read, is drawn in the server's colors."""
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    content = encode_image(draw_rectangles(3), 'TIFF', exif=exif)
    turned = draw_rectangles(3).rotate(-90, expand=True)
    with live_server(build_random_model('sem_fpn')) as live, browser.new_context() as context:
        page = context.new_page()
        record_page(page, log)
        open_page(page, live)
        expect(page.locator('#threshold')).to_be_hidden()
        choose_file(page, content, 'image.tif', 'image/tiff')
        expect(page.locator('#drawing')).to_be_visible()
        result = live.model.predict(turned)
        expected = np.asarray(result.draw(turned, legend=False), dtype=int)
        assert np.abs(read_drawing(page)[:96, :64] - expected).max() <= 1
        assert read_drawing(page).shape[0] > 96  # legend below the image
        counts = page.locator('#classes .count').all_inner_texts()
        shares = result.class_fractions()
        assert [bool(text) for text in counts] == [name in shares for name in live.model.classes]
        expect(page.locator('#table')).to_be_hidden()
        page.locator('#opacity').fill('0')
        page.wait_for_timeout(100)  # for the next frame
        assert (read_drawing(page)[:96, :64] == np.asarray(turned)).all()
    assert log.errors == []


def test_escape_class_names(browser: Browser, log: PageLog) -> None:
    model = build_random_model('sem_fpn')
    model.classes = ('<img src=x onerror=alert(1)>', *model.classes[1:])
    with live_server(model) as live, browser.new_context() as context:
        page = context.new_page()
        record_page(page, log)
        open_page(page, live)
        choose_file(page, encode_image(draw_rectangles(3)))
        expect(page.locator('#drawing')).to_be_visible()
        assert page.locator('#classes span').first.inner_text() == model.classes[0]
        expect(page.locator('#classes img')).to_have_count(0)
    assert log.errors == []


def test_rotated_photographs(page: Page, live: LiveServer) -> None:
    exif = Image.Exif()
    exif[0x0112] = 8
    choose_file(
        page,
        encode_image(draw_rectangles(3), 'JPEG', exif=exif, quality=95),
        media_type='image/jpeg')
    expect(page.locator('#drawing')).to_be_visible()
    page.get_by_role('button', name='Hide all').click()
    turned = np.asarray(draw_rectangles(3).rotate(90, expand=True), dtype=int)
    assert np.abs(read_drawing(page) - turned).mean() < 5


def test_unreadable_images(page: Page, live: LiveServer) -> None:
    """The next image is predicted, also if the same file is chosen again."""
    choose_file(page, b'no image', 'notes.jpg')
    alert = page.get_by_role('alert')
    expect(alert).to_have_text(
        'notes.jpg: the file is not a readable image (BMP, GIF, JPEG, PNG, PPM, '
        'TIFF, WEBP)')
    for _ in range(2):
        choose_file(page, encode_image(draw_rectangles(3)))
        expect(page.locator('#drawing')).to_be_visible()
        expect(alert).to_have_count(0)
    choose_file(page, bytes(10**6 + 1))
    expect(alert).to_have_text('image.png: the file is larger than the limit of 1 MB')
    expect(page.locator('#drawing')).to_be_hidden()
    page.route('**/api/predict*', lambda route: route.abort())
    choose_file(page, encode_image(draw_rectangles(3)))
    expect(alert).to_have_text('image.png: the server does not answer: it may have ended')


def test_keyboard_navigation(page: Page, live: LiveServer) -> None:
    """Each setting has a label and is reached by Tab."""
    choose_file(page, encode_image(draw_rectangles(3)))
    expect(page.locator('#drawing')).to_be_visible()
    reached = []
    for _ in range(14):
        page.keyboard.press('Tab')
        reached.append(
            page.evaluate('document.activeElement.id || document.activeElement.type'
                          ' || document.activeElement.localName'))
        if reached[-1] == 'threshold':
            page.keyboard.press('End')
            expect(page.locator('#threshold-value')).to_have_text('1.00')
        if reached[-1] == 'show-all':
            assert page.locator('#show-all').evaluate(
                'e => getComputedStyle(e).outlineWidth') == '3px'
    order = [
        'file', 'threshold', 'opacity', 'show-all', 'hide-all', *['checkbox'] * 3, 'save-png',
        'save-json', 'table', 'summary'
    ]
    assert [name for name in reached if name in order][:len(order)] == order
    for name in ('Choose an image', 'Score threshold', 'Opacity'):
        expect(page.get_by_label(name)).to_have_count(1)


def test_figures(page: Page, live: LiveServer, log: PageLog) -> None:
    choose_file(page, encode_image(draw_rectangles(3)))
    expect(page.locator('#drawing')).to_be_visible()
    page.locator('#figures summary').click()
    picture = page.locator('#figure-image')
    expect(picture).to_be_visible()
    first = picture.get_attribute('src') or ''
    page.get_by_label('Figure').select_option('features')
    expect(picture).not_to_have_attribute('src', first)
    expect(picture).to_have_attribute('alt', 'features of image.png')
    assert picture.evaluate('image => image.decode().then(() => image.naturalWidth)') > 100
    assert log.errors == []


@pytest.mark.parametrize('scheme, width', [
    ('light', 1200),
    ('dark', 400),
    *(pytest.param(*each, marks=pytest.mark.slow) for each in (('light', 400), ('dark', 1200)))
])  # yapf: disable
def test_layout_and_contrast(scheme: Literal['light', 'dark'], width: int, browser: Browser,
                             live: LiveServer) -> None:
    """Text has enough contrast, and nothing is wider than the screen."""
    size = ViewportSize(width=width, height=800)
    with browser.new_context(color_scheme=scheme, viewport=size) as context:
        page = open_page(context.new_page(), live)
        choose_file(page, encode_image(draw_rectangles(3)))
        expect(page.locator('#drawing')).to_be_visible()
        check_contrasts(page)
        page.locator('#figures summary').click()
        expect(page.locator('#figure-image')).to_be_visible()
        frame = page.locator('#figure-frame')
        assert frame.evaluate('each => each.scrollWidth') >= 720  # wide figures scroll
        assert page.evaluate('document.documentElement.scrollWidth') == width
        choose_file(page, b'no image', 'notes.jpg')
        expect(page.get_by_role('alert')).to_be_visible()
        check_contrasts(page)


def check_contrasts(page: Page) -> None:
    contrasts = page.evaluate(CONTRASTS)
    assert len(contrasts) > 5
    assert {text: value for text, value in contrasts.items() if value < 4.5} == {}


@pytest.mark.parametrize('scheme', ['light', 'dark'])
def test_report(scheme: Literal['light', 'dark'], browser: Browser, log: PageLog,
                trained: Path) -> None:
    """It is self-contained, readable, and fits a narrow screen."""
    size = ViewportSize(width=360, height=700)
    with browser.new_context(color_scheme=scheme, viewport=size) as context:
        page = context.new_page()
        record_page(page, log)
        page.goto((trained / 'report.html').as_uri())
        expect(page.locator('h2', has_text='Confusion')).to_be_visible()
        shown = page.evaluate('[...document.images].map(i => i.complete && i.naturalWidth > 0)')
        assert len(shown) > 5 and all(shown)
        page.locator('summary', has_text='Config').click()
        expect(page.locator('details[open] pre')).to_contain_text('optim_wrapper')
        assert page.evaluate('document.documentElement.scrollWidth') <= 360
        check_contrasts(page)
        page.emulate_media(media='print', color_scheme=scheme)
        background = page.evaluate('getComputedStyle(document.body).backgroundColor')
        assert background == 'rgb(255, 255, 255)'  # to save ink
        check_contrasts(page)
    leaving = [url for url in log.requests if not url.startswith(('file:', 'data:'))]
    assert leaving == [] and log.errors == []


def test_tables_on_narrow_screen(browser: Browser, tmp_path: Path) -> None:
    """Names and values wrap; wide tables scroll, except for the first column."""
    state = 'killed, or training on another machine; recorded up to iteration 60 of 500'
    wide = Table(['class', *(f'precision {number}' for number in range(9))],
                 [['a_name_without_any_blank_in_it', *([0.12345] * 9)]])
    section = Section('Run', tables=[Table((), [('state', state), ('file', 'a' * 99)]), wide])
    write_page(tmp_path / 'page.html', 'Title', 'about', [section])
    with browser.new_context(viewport=ViewportSize(width=360, height=700)) as context:
        page = context.new_page()
        page.goto((tmp_path / 'page.html').as_uri())
        hidden = page.locator('.table').evaluate_all(
            'all => all.map(each => each.scrollWidth - each.clientWidth)')
        assert hidden[0] == 0 and hidden[1] > 300
        page.locator('.table').nth(1).evaluate('each => each.scrollLeft = 300')
        name, left = page.locator('td', has_text='a_name').bounding_box(), page.locator('h1')
        assert name and name['x'] == left.bounding_box()['x'] and name['width'] < 180
        assert page.evaluate('document.documentElement.scrollWidth') == 360
