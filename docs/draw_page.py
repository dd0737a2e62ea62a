"""Draw a part of a page of the product, for docs/images.

    colonnade make-shapes shapes
    CONFIG=mask_rcnn/xcit_nano_12_p16_slim_shapes
    colonnade browse-dataset $CONFIG --data-root shapes/coco --num 3 --out browse.html
    python docs/draw_page.py browse.html docs/images/browse.png \\
        --start 'Model inputs' --end 'Tensors'

    colonnade train $CONFIG --data-root shapes/coco --work-dir run
    python docs/draw_page.py run/report.html docs/images/report.png \\
        --start 'Losses and learning rate' --end 'Classes'

    colonnade serve run &    # draw the page once "serving on" is printed
    python docs/draw_page.py http://127.0.0.1:7860 docs/images/serve.png \\
        --upload shapes/coco/val2017/000000.jpg
"""
from __future__ import annotations

import argparse
import re
import shutil
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

WIDTH, HEIGHT = 1200, 800  # CSS pixels of the window


def find_top(page: Page, heading: str) -> int:
    """Return the vertical position of a heading in pixels."""
    headings = page.locator('h1, h2, h3, summary')
    pattern = re.compile(rf'^\s*{re.escape(heading)}\s*$')
    box = headings.filter(has_text=pattern).first.bounding_box()
    assert box, heading
    return round(box['y'])


def take_picture(page: Page, start: str | None, end: str | None) -> Image.Image:
    """Return the page between two headings, or from its top or to its bottom."""
    picture = Image.open(BytesIO(page.screenshot(full_page=True))).convert('RGB')
    top = find_top(page, start) - 10 if start else 0
    bottom = find_top(page, end) - 10 if end else picture.height
    return picture.crop((0, top, picture.width, bottom))


def main() -> None:
    """Open the page in Chromium and save a reduced picture of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or '').split('\n\n')[0])
    parser.add_argument('page', help='HTML file or URL')
    parser.add_argument('out', type=Path, help='PNG file to write')
    parser.add_argument('--start', metavar='HEADING', help='heading to start at')
    parser.add_argument('--end', metavar='HEADING', help='heading to stop before')
    parser.add_argument('--upload', metavar='IMAGE', help='image to predict, on the page of serve')
    args = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which('chromium'), args=['--no-sandbox', '--disable-gpu'])
        page = browser.new_page(viewport=dict(width=WIDTH, height=HEIGHT))
        page.goto(args.page if '://' in args.page else Path(args.page).resolve().as_uri())
        if args.upload:
            page.set_input_files('input[type=file]', args.upload)
            page.get_by_text('decoding').wait_for()  # how long the prediction took
            page.wait_for_timeout(1000)  # milliseconds until the overlay is drawn
        picture = take_picture(page, args.start, args.end)
        browser.close()
    small = picture.resize((picture.width * 2 // 3, picture.height * 2 // 3))
    small.quantize(128, dither=Image.Dither.NONE).save(args.out, optimize=True)


if __name__ == '__main__':
    main()
