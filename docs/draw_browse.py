"""Draws docs/images/browse.png: a part of a page of ``tools/browse_dataset.py``.

    python tools/make_shapes.py shapes
    python tools/browse_dataset.py configs/mask_rcnn/xcit_nano_12_p16_slim_shapes.py \\
        --data-root shapes/coco --num 3 --out browse.html
    python docs/draw_browse.py browse.html docs/images/browse.png
"""
from __future__ import annotations

import argparse
import shutil
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright


def main() -> None:
    """Keep what the browser shows of the model's inputs."""
    parser = argparse.ArgumentParser(description=(__doc__ or '').split('\n\n')[0])
    parser.add_argument('page', type=Path, help='page to show')
    parser.add_argument('out', type=Path, help='PNG file to write')
    args = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which('chromium'), args=['--no-sandbox', '--disable-gpu'])
        page = browser.new_page(viewport=dict(width=1200, height=800))
        page.goto(args.page.resolve().as_uri())
        first = page.locator('h2', has_text='What the model is fed').bounding_box()
        last = page.locator('summary', has_text='The tensors').bounding_box()
        assert first and last
        shown = Image.open(BytesIO(page.screenshot(full_page=True)))
        browser.close()
    part = shown.crop((0, round(first['y']), 1200, round(last['y']) - 20))
    small = part.convert('RGB').resize((part.width * 2 // 3, part.height * 2 // 3))
    small.quantize(128, dither=Image.Dither.NONE).save(args.out, optimize=True)


if __name__ == '__main__':
    main()
