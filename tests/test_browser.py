"""The page in a real browser: what is shown, what is redrawn, and what leaves this machine."""
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
CONTRASTS = """() => {  // of visible texts with what is behind them, as WCAG defines it
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


def chromium() -> str:
    """The path of a browser; without one, tests are skipped, and fail where CI is set."""
    found = os.environ.get('COLONNADE_CHROMIUM') or next(filter(None, map(shutil.which, NAMES)), '')
    if not found:
        reason = f'no {", ".join(NAMES)}, and COLONNADE_CHROMIUM names none'
        (pytest.fail if os.environ.get('CI') == 'true' else pytest.skip)(reason)
    return found


@pytest.fixture(scope='module')
def browser() -> Iterator[Browser]:
    path = chromium()
    with sync_playwright() as playwright:
        with playwright.chromium.launch(executable_path=path, args=ARGUMENTS) as running:
            yield running


@pytest.fixture(scope='module')
def live(browser: Browser) -> Iterator[LiveServer]:
    with live_server(build_random_model('mask_rcnn')) as running:
        yield running


@dataclass
class Heard:
    """What a page asked for, and its errors."""
    asked: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def page(browser: Browser, live: LiveServer, heard: Heard) -> Iterator[Page]:
    with browser.new_context() as context:
        page = context.new_page()
        listen(page, heard)
        yield opened(page, live)


def listen(page: Page, heard: Heard) -> None:
    """Note what a page asks for, and its errors."""
    page.on('request', lambda request: heard.asked.append(request.url))
    page.on('pageerror', lambda error: heard.errors.append(str(error)))
    page.on('console', lambda told: told.type == 'error' and heard.errors.append(told.text))


def opened(page: Page, live: LiveServer) -> Page:
    """The page once it can be used."""
    page.set_default_timeout(PATIENCE * 1000)
    page.goto(live.url)
    expect(page.locator('#classes li')).to_have_count(len(live.model.classes))
    return page


def send(page: Page,
         content: bytes,
         name: str = 'image.png',
         media_type: str = 'image/png') -> None:
    """Choose a file in the page."""
    page.set_input_files('#file', [dict(name=name, mimeType=media_type, buffer=content)])


def rows(page: Page) -> list[list[str]]:
    """Class and score of each row of the table."""
    return [row.split('\t')[:2] for row in page.locator('#table tbody').inner_text().splitlines()]


def expected_rows(live: LiveServer, image: Image.Image, threshold: float) -> list[list[str]]:
    """What the table says of the model's own answer, whose scores the API rounds."""
    found = live.model.predict(image).filter_by_score(threshold).to_json()['instances']
    return [[each['class'], f'{each["score"]:.2f}'] for each in found]


def drawing(page: Page) -> np.ndarray:
    """The pixels that the page shows as what was found."""
    url = page.locator('#drawing').evaluate('canvas => canvas.toDataURL()')
    content = b64decode(url.partition(',')[2])
    return np.asarray(Image.open(BytesIO(content)).convert('RGB')).astype(int)


def saved(page: Page, button: str) -> tuple[str, bytes]:
    """The name and the content of a file that the page offers."""
    with page.expect_download() as download:
        page.get_by_role('button', name=button).click()
    return download.value.suggested_filename, download.value.path().read_bytes()


def test_a_detector(page: Page, live: LiveServer, heard: Heard) -> None:
    """Settings draw again and compute nothing; nothing leaves this machine."""
    image = draw_rectangles(3)
    expected, fewer = (expected_rows(live, image, threshold) for threshold in (0.3, FEWER))
    assert len(expected) > len(fewer) > 0
    send(page, encode_image(image))
    expect(page.locator('#table tbody tr')).to_have_count(len(expected))
    assert rows(page) == expected
    first = drawing(page)
    assert first.shape == (64, 96, 3) and np.abs(first - np.asarray(image, dtype=int)).max() > 50
    label = page.get_by_role('img', name='the image with what the model finds in it')
    assert expected[0][0] in label.get_attribute('aria-label')
    assert 'model' in page.locator('#status').inner_text()
    computed = len(live.model.batches)
    page.locator('#threshold').fill(str(FEWER))
    expect(page.locator('#table tbody tr')).to_have_count(len(fewer))
    assert rows(page) == fewer and (drawing(page) != first).any()
    name, content = saved(page, 'Download JSON')
    assert name == 'image-prediction.json'
    assert [entry['class'] for entry in json.loads(content)['instances']] == [n for n, _ in fewer]
    name, content = saved(page, 'Download PNG')
    assert name == 'image-prediction.png'
    assert (np.asarray(Image.open(BytesIO(content)).convert('RGB')) == drawing(page)).all()
    page.get_by_role('button', name='Hide all').click()
    assert (drawing(page) == np.asarray(image)).all() and rows(page) == []
    page.get_by_role('checkbox', name=fewer[0][0]).check()
    assert {name for name, _ in rows(page)} == {fewer[0][0]}
    assert len(live.model.batches) == computed
    assert all(url.startswith((live.url, 'data:', 'blob:')) for url in heard.asked), heard.asked
    assert {address[0] for address in live.reached} <= set(LOOPBACK)
    assert heard.errors == []


def test_a_segmenter(browser: Browser, heard: Heard) -> None:
    """Colors are those that the server draws, of a format that only the server reads, turned."""
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    content = encode_image(draw_rectangles(3), 'TIFF', exif=exif)
    turned = draw_rectangles(3).rotate(-90, expand=True)
    with live_server(build_random_model('sem_fpn')) as live, browser.new_context() as context:
        page = context.new_page()
        listen(page, heard)
        opened(page, live)
        expect(page.locator('#threshold')).to_be_hidden()
        send(page, content, 'image.tif', 'image/tiff')
        expect(page.locator('#drawing')).to_be_visible()
        result = live.model.predict(turned)
        expected = np.asarray(result.draw(turned, legend=False), dtype=int)
        assert np.abs(drawing(page)[:96, :64] - expected).max() <= 1
        assert drawing(page).shape[0] > 96  # with the legend
        counts = page.locator('#classes .count').all_inner_texts()
        shares = result.class_fractions()
        assert [bool(text) for text in counts] == [name in shares for name in live.model.classes]
        expect(page.locator('#table')).to_be_hidden()
        page.locator('#opacity').fill('0')
        page.wait_for_timeout(100)  # for the next frame
        assert (drawing(page)[:96, :64] == np.asarray(turned)).all()
    assert heard.errors == []


def test_names_of_classes_are_text(browser: Browser, heard: Heard) -> None:
    model = build_random_model('sem_fpn')
    model.classes = ('<img src=x onerror=alert(1)>', *model.classes[1:])
    with live_server(model) as live, browser.new_context() as context:
        page = context.new_page()
        listen(page, heard)
        opened(page, live)
        send(page, encode_image(draw_rectangles(3)))
        expect(page.locator('#drawing')).to_be_visible()
        assert page.locator('#classes span').first.inner_text() == model.classes[0]
        expect(page.locator('#classes img')).to_have_count(0)
    assert heard.errors == []


def test_rotated_photographs_are_drawn_as_the_server_sees_them(page: Page,
                                                               live: LiveServer) -> None:
    exif = Image.Exif()
    exif[0x0112] = 8
    send(
        page,
        encode_image(draw_rectangles(3), 'JPEG', exif=exif, quality=95),
        media_type='image/jpeg')
    expect(page.locator('#drawing')).to_be_visible()
    page.get_by_role('button', name='Hide all').click()
    turned = np.asarray(draw_rectangles(3).rotate(90, expand=True), dtype=int)
    assert np.abs(drawing(page) - turned).mean() < 5


def test_what_cannot_be_read_is_said(page: Page, live: LiveServer) -> None:
    """And the next image is answered, the same file again too."""
    send(page, b'no image', 'notes.jpg')
    alert = page.get_by_role('alert')
    expect(alert).to_have_text('notes.jpg: the file is not a readable image (BMP, GIF, JPEG, PNG, '
                               'PPM, TIFF, WEBP)')
    for _ in range(2):
        send(page, encode_image(draw_rectangles(3)))
        expect(page.locator('#drawing')).to_be_visible()
        expect(alert).to_have_count(0)
    send(page, bytes(10**6 + 1))
    expect(alert).to_have_text('image.png: the file is larger than the limit of 1 MB')
    expect(page.locator('#drawing')).to_be_hidden()
    page.route('**/api/predict*', lambda route: route.abort())
    send(page, encode_image(draw_rectangles(3)))
    expect(alert).to_have_text('image.png: the server does not answer: it may have ended')


def test_the_keyboard_is_enough(page: Page, live: LiveServer) -> None:
    """Each setting is reached by Tab, has a name, and follows keys."""
    send(page, encode_image(draw_rectangles(3)))
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


def test_two_users_at_once(browser: Browser, live: LiveServer) -> None:
    images = [draw_rectangles(3), draw_rectangles(5, (64, 96))]
    expected = [expected_rows(live, image, 0.3) for image in images]
    assert expected[0] != expected[1]
    with browser.new_context() as one, browser.new_context() as other:
        pages = [opened(context.new_page(), live) for context in (one, other)]
        for page, image in zip(pages, images, strict=True):
            send(page, encode_image(image))
        for page, shown, image in zip(pages, expected, images, strict=True):
            expect(page.locator('#table tbody tr')).to_have_count(len(shown))
            assert rows(page) == shown
            assert drawing(page).shape[:2] == image.size[::-1]


def test_what_the_model_looks_at(page: Page, live: LiveServer, heard: Heard) -> None:
    send(page, encode_image(draw_rectangles(3)))
    expect(page.locator('#drawing')).to_be_visible()
    page.locator('#figures summary').click()
    picture = page.locator('#figure-image')
    expect(picture).to_be_visible()
    first = picture.get_attribute('src') or ''
    page.get_by_label('Figure').select_option('features')
    expect(picture).not_to_have_attribute('src', first)
    expect(picture).to_have_attribute('alt', 'features of image.png')
    assert picture.evaluate('image => image.decode().then(() => image.naturalWidth)') > 100
    assert heard.errors == []


@pytest.mark.parametrize('width', [400, 1200])
@pytest.mark.parametrize('scheme', ['light', 'dark'])
def test_the_page_on_any_screen(scheme: Literal['light', 'dark'], width: int, browser: Browser,
                                live: LiveServer) -> None:
    """Text can be read, and nothing is wider than the screen."""
    size = ViewportSize(width=width, height=800)
    with browser.new_context(color_scheme=scheme, viewport=size) as context:
        page = opened(context.new_page(), live)
        send(page, encode_image(draw_rectangles(3)))
        expect(page.locator('#drawing')).to_be_visible()
        check_contrasts(page)
        page.locator('#figures summary').click()
        expect(page.locator('#figure-image')).to_be_visible()
        frame = page.locator('#figure-frame')
        assert frame.evaluate('each => each.scrollWidth') >= 720  # wide figures scroll
        assert page.evaluate('document.documentElement.scrollWidth') == width
        send(page, b'no image', 'notes.jpg')
        expect(page.get_by_role('alert')).to_be_visible()
        check_contrasts(page)


def check_contrasts(page: Page) -> None:
    contrasts = page.evaluate(CONTRASTS)
    assert len(contrasts) > 5
    assert {text: value for text, value in contrasts.items() if value < 4.5} == {}


def test_the_report_of_a_run(browser: Browser, heard: Heard, trained: Path) -> None:
    """It opens from its file, asks for nothing else, and fits a narrow screen."""
    with browser.new_context(viewport=ViewportSize(width=360, height=700)) as context:
        page = context.new_page()
        listen(page, heard)
        page.goto((trained / 'report.html').as_uri())
        expect(page.locator('h2', has_text='Confusion')).to_be_visible()
        shown = page.evaluate('[...document.images].map(i => i.complete && i.naturalWidth > 0)')
        assert len(shown) > 5 and all(shown)
        page.locator('summary', has_text='Config').click()
        expect(page.locator('details[open] pre')).to_contain_text('optim_wrapper')
        wide = page.evaluate('document.documentElement.scrollWidth')
        assert wide <= 360
    leaving = [url for url in heard.asked if not url.startswith(('file:', 'data:'))]
    assert leaving == [] and heard.errors == []


def test_no_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, 'which', lambda name: None)
    monkeypatch.delenv('COLONNADE_CHROMIUM', raising=False)
    monkeypatch.delenv('CI', raising=False)
    with pytest.raises(pytest.skip.Exception, match='no chromium'):
        chromium()
    monkeypatch.setenv('CI', 'true')
    with pytest.raises(pytest.fail.Exception, match='no chromium'):
        chromium()


def test_tables_of_reports_fit_a_phone(browser: Browser, tmp_path: Path) -> None:
    """Names and values wrap; a wide table scrolls, and its first column stays."""
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
