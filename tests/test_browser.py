"""The page in a real browser: what is shown, what is redrawn, and what leaves this machine."""
from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Literal

import httpx
import numpy as np
import pytest
from helpers.live_server import (LOOPBACK, PATIENCE, Live, file_of, live_server, random_model,
                                 shapes_image)
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
def live(browser: Browser) -> Iterator[Live]:
    with live_server(random_model('mask_rcnn')) as running:
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
def page(browser: Browser, live: Live, heard: Heard) -> Iterator[Page]:
    with browser.new_context() as context:
        page = context.new_page()
        listen(page, heard)
        yield opened(page, live)


def listen(page: Page, heard: Heard) -> None:
    """Note what a page asks for, and its errors."""
    page.on('request', lambda request: heard.asked.append(request.url))
    page.on('pageerror', lambda error: heard.errors.append(str(error)))
    page.on('console', lambda told: told.type == 'error' and heard.errors.append(told.text))


def opened(page: Page, live: Live) -> Page:
    """The page once it can be used."""
    page.set_default_timeout(PATIENCE * 1000)
    page.goto(live.url)
    page.locator('#upload input[type=file]').wait_for(state='attached')
    return page


def send(page: Page, content: bytes, name: str = 'image.png') -> None:
    """Choose a file in the page."""
    page.set_input_files('#upload input[type=file]',
                         [dict(name=name, mimeType='image/png', buffer=content)])


def rows(page: Page) -> list[list[str]]:
    """Class and score of each row of the table."""
    return [row.split('\t')[:2] for row in page.locator('#table tbody').inner_text().splitlines()]


def expected_rows(live: Live, image: Image.Image, threshold: float) -> list[list[str]]:
    """What the table says of the model's own answer."""
    found = live.model.predict(image).above(threshold)
    return [[name, f'{score:.2f}'] for name, score in zip(found.names, found.scores, strict=True)]


def drawing(page: Page) -> np.ndarray:
    """The pixels that the page shows as what was found."""
    url = page.locator('#drawing img').get_attribute('src')
    return np.asarray(Image.open(BytesIO(httpx.get(url, timeout=PATIENCE).content)))


def test_an_image_and_other_settings(page: Page, live: Live, heard: Heard) -> None:
    """Sliders draw again and compute nothing; nothing leaves this machine."""
    image = shapes_image(3)
    expected, fewer = (expected_rows(live, image, threshold) for threshold in (0.3, FEWER))
    assert len(expected) > len(fewer) > 0
    send(page, file_of(image))
    expect(page.locator('#table tbody tr')).to_have_count(len(expected))
    assert rows(page) == expected
    first = drawing(page)
    assert first.shape == (64, 96, 3) and np.abs(first - np.asarray(image, dtype=int)).max() > 50
    assert page.locator('#drawing img').get_attribute('alt').startswith('the image with what')
    assert 'model' in page.locator('#status').inner_text()
    computed, shown = len(live.model.batches), page.locator('#drawing img')
    first_url = shown.get_attribute('src') or ''
    page.locator('#threshold input[type=number]').fill(str(FEWER))
    expect(page.locator('#table tbody tr')).to_have_count(len(fewer))
    assert rows(page) == fewer
    expect(shown).not_to_have_attribute('src', first_url)
    for _ in range(100):  # the page may show the first drawing under another address before
        if (drawing(page) != first).any():
            break
        page.wait_for_timeout(100)
    assert (drawing(page) != first).any()
    assert len(live.model.batches) == computed
    assert all(url.startswith((live.url, 'data:', 'blob:')) for url in heard.asked), heard.asked
    assert {address[0] for address in live.reached} <= set(LOOPBACK)
    assert heard.errors == []


def test_what_cannot_be_read_is_said(page: Page, live: Live) -> None:
    """And the next image is answered."""
    send(page, b'no image', 'notes.jpg')
    alert = page.locator('#status [role=alert]')
    expect(alert).to_have_text('notes.jpg: no image that can be read (BMP, GIF, JPEG, PNG, PPM, '
                               'TIFF, WEBP)')
    expect(page.locator('#upload img')).to_have_count(0)
    page.wait_for_timeout(500)  # for the event of the box that was cleared
    expect(alert).to_have_count(1)
    send(page, file_of(shapes_image(3)))
    expect(page.locator('#drawing img')).to_be_visible()
    expect(alert).to_have_count(0)
    page.get_by_label('Remove Image').click()
    expect(page.locator('#status')).to_be_empty()


def test_two_users_at_once(browser: Browser, live: Live) -> None:
    images = [shapes_image(3), shapes_image(5, (64, 96))]
    expected = [expected_rows(live, image, 0.3) for image in images]
    assert expected[0] != expected[1]
    with browser.new_context() as one, browser.new_context() as other:
        pages = [opened(context.new_page(), live) for context in (one, other)]
        for page, image in zip(pages, images, strict=True):
            send(page, file_of(image))
        for page, shown, image in zip(pages, expected, images, strict=True):
            expect(page.locator('#table tbody tr')).to_have_count(len(shown))
            assert rows(page) == shown
            assert drawing(page).shape[:2] == image.size[::-1]


def test_what_the_model_looks_at(page: Page, live: Live) -> None:
    send(page, file_of(shapes_image(3)))
    expect(page.locator('#drawing img')).to_be_visible()
    page.get_by_role('tab', name='Attention and features').click()
    picture = page.locator('#picture img')
    expect(picture).to_be_visible()
    first = picture.get_attribute('src') or ''
    page.get_by_label('features', exact=True).check()
    expect(picture).not_to_have_attribute('src', first)
    assert list(Path(live.folder).rglob('features.png'))


@pytest.mark.slow
@pytest.mark.parametrize('scheme', ['light', 'dark'])
def test_a_narrow_page(scheme: Literal['light', 'dark'], browser: Browser, live: Live) -> None:
    """Text can be read, buttons cover no picture, and wide pictures scroll."""
    size = ViewportSize(width=390, height=800)
    with browser.new_context(color_scheme=scheme, viewport=size) as context:
        page = opened(context.new_page(), live)
        send(page, file_of(shapes_image(3)))
        check_picture(page, 'drawing')
        page.get_by_role('tab', name='Attention and features').click()
        check_picture(page, 'picture')
        picture = page.locator('#picture')
        assert picture.evaluate('block => block.scrollWidth') >= 720
        picture.evaluate('block => block.scrollTo(999, 0)')
        assert picture.evaluate('block => block.scrollLeft') > 0
        expect(picture.get_by_label('Download')).to_be_in_viewport(ratio=1)
        assert page.evaluate('document.documentElement.scrollWidth') == 390


def check_picture(page: Page, name: str) -> None:
    """A picture whose buttons stand above it, among text that can be read."""
    image, button = (page.locator(f'#{name} {what}') for what in ('img', '[aria-label=Download]'))
    expect(image).to_be_visible()
    page.mouse.move(0, 0)
    page.wait_for_timeout(500)  # for transitions
    above, below = button.bounding_box(), image.bounding_box()
    assert above and below and above['y'] + above['height'] <= below['y']
    expect(button).to_be_in_viewport()
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
