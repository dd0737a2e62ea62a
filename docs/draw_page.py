"""Draws docs/images/serve.png: the page of ``tools/serve.py`` after an image was sent to it.

    python tools/make_shapes.py shapes --num-train 1 --num-val 8 --size 512
    python tools/serve.py mask_rcnn/xcit_nano_12_p16_slim_shapes iter_500.pth
    python docs/draw_page.py http://127.0.0.1:7860 shapes/coco/val2017/000001.jpg serve.png
"""
from __future__ import annotations

import argparse
import shutil
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright


def main() -> None:
    """Send the image, wait for the answer, and keep what the browser shows."""
    parser = argparse.ArgumentParser(description=(__doc__ or '').split('\n\n')[0])
    parser.add_argument('url', help='of the page')
    parser.add_argument('image', type=Path, help='image to send')
    parser.add_argument('out', type=Path, help='PNG file to write')
    args = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which('chromium'), args=['--no-sandbox', '--disable-gpu'])
        page = browser.new_page(viewport=dict(width=860, height=700))
        page.goto(args.url)
        page.locator('#classes li').first.wait_for()
        page.set_input_files('#file', args.image)
        page.locator('#drawing').wait_for()
        shown = Image.open(BytesIO(page.screenshot(full_page=True)))
        browser.close()
    shown.convert('RGB').quantize(128, dither=Image.Dither.NONE).save(args.out, optimize=True)


if __name__ == '__main__':
    main()
