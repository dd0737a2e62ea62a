"""Draw the picture of the first page from what the demo trained.

    python docs/draw_predictions.py work_dirs/demo docs/images/prediction.png
"""
from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image
from pycocotools import mask as coco_masks

from colonnade.inference import LabelMap, Result, load
from colonnade.inference.ground_truth import iter_ground_truth

SIDE, GAP = 384, 12  # pixels
HEADS = {'mask_rcnn': ('coco', 4), 'sem_fpn': ('ade', 4)}  # data set, number of the image


def available_methods(head: str, demo: Path) -> list[Image.Image]:
    """Return a test image with its annotations, and with predictions of the latest model."""
    layout, number = HEADS[head]
    checkpoint = max(demo.glob(f'*/{head}/iter_*.pth'))
    data = {'test_dataloader.dataset.data_root': str(demo / 'shapes' / layout)}
    model = load(f'{head}/xcit_nano_12_p16_slim_shapes', checkpoint, cfg_options=data)
    path, truth = list(iter_ground_truth(model, number + 1))[number]
    with Image.open(path) as image:
        large = image.convert('RGB').resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    options = {'legend': False} if model.kind == 'labels' else {'threshold': 0.5}
    return [found.draw(large, **options) for found in (enlarged(truth), model.predict(large))]


def enlarged(truth: Result) -> Result:
    """Annotations of an image for ``SIDE`` pixels a side."""
    times = SIDE // truth.size[0]
    if isinstance(truth, LabelMap):
        labels = truth.labels.repeat(times, 0).repeat(times, 1)
        return replace(truth, size=labels.shape, labels=labels)
    masks = truth.decode_masks().repeat(times, 1).repeat(times, 2)
    codes = tuple(coco_masks.encode(np.asfortranarray(mask)) for mask in masks.astype(np.uint8))
    return replace(truth, size=(SIDE, SIDE), boxes=truth.boxes * times, masks=codes)


def main() -> None:
    """Lay the four pictures beside each other."""
    parser = argparse.ArgumentParser(description=(__doc__ or '').splitlines()[0])
    parser.add_argument('demo', type=Path, help='the folder of the demo')
    parser.add_argument('out', type=Path, help='PNG to write')
    args = parser.parse_args()
    pictures = [picture for head in HEADS for picture in available_methods(head, args.demo)]
    whole = Image.new('RGB', (len(pictures) * (SIDE + GAP) - GAP, SIDE), 'white')
    for index, picture in enumerate(pictures):
        whole.paste(picture, (index * (SIDE + GAP), 0))
    whole.quantize(256).save(args.out, optimize=True)


if __name__ == '__main__':
    main()
