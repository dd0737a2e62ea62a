"""Writers of label map datasets in third-party formats, from images and labels."""
from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

NAMES = ('sky & so on', 'road', 'tree', 'house')  # labels 0 to 3
COLORS = ((0, 0, 0), (128, 64, 128), (107, 142, 35), (70, 70, 200))
#: image name -> pixels (H, W, 3) and labels (H, W)
Samples = Mapping[str, tuple[np.ndarray, np.ndarray]]
Splits = Mapping[str, Samples]


def draw_samples(names: Sequence[str], size: tuple[int, int] = (48, 40), seed: int = 0) -> Samples:
    """Draw noise with rectangles of all four labels."""
    random, (width, height), found = np.random.default_rng(seed), size, {}
    for name in names:
        labels = np.zeros((height, width), np.uint8)
        for label in (1, 2, 3):
            left, top = (10 * label + int(random.integers(6)), int(random.integers(height // 2)))
            labels[top:top + 15, left:left + 12] = label
        pixels = random.integers(0, 64, (height, width, 3), dtype=np.uint8) + 60 * labels[..., None]
        found[name] = pixels.astype(np.uint8), labels
    return found


def save(path: Path, values: np.ndarray, palette: Sequence[Sequence[int]] | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(values)
    if palette:
        image.putpalette([channel for color in palette for channel in color])
    image.save(path)
    return path


def paint(labels: np.ndarray, colors: Sequence[Sequence[int]] = COLORS) -> np.ndarray:
    """Return the color-coded mask of a label map; 255 is white."""
    table = np.full((256, 3), 255, np.uint8)
    table[:len(colors)] = colors
    return table[labels]


def write_cityscapes(root: Path, splits: Splits, kind: str = 'labelTrainIds') -> Path:
    for split, samples in splits.items():
        for name, (pixels, labels) in samples.items():
            place = Path(split, 'bonn')
            save(root / 'leftImg8bit' / place / f'{name}_leftImg8bit.png', pixels)
            save(root / 'gtFine' / place / f'{name}_gtFine_{kind}.png', labels)
            save(root / 'gtFine' / place / f'{name}_gtFine_color.png', paint(labels))
    return root


def write_camvid(root: Path, splits: Splits, table: str | None = None) -> Path:
    """Write the most common format of CamVid: ``class_dict.csv`` and ``train_labels``."""
    for split, samples in splits.items():
        for name, (pixels, labels) in samples.items():
            save(root / split / f'{name}.png', pixels)
            save(root / f'{split}_labels' / f'{name}_L.png', paint(labels))
    if table is None:
        rows = zip(NAMES, COLORS, strict=True)
        table = 'name,r,g,b\n' + ''.join(f'{n},{",".join(map(str, c))}\n' for n, c in rows)
    if table:
        root.mkdir(exist_ok=True)
        (root / 'class_dict.csv').write_text(table)
    return root


def write_voc(root: Path, splits: Splits, palette: bool = True) -> Path:
    for split, samples in splits.items():
        for name, (pixels, labels) in samples.items():
            save(root / 'JPEGImages' / f'{name}.jpg', pixels)
            values = labels if palette else paint(labels)
            save(root / 'SegmentationClass' / f'{name}.png', values, COLORS if palette else None)
        lists = root / 'ImageSets/Segmentation'
        lists.mkdir(parents=True, exist_ok=True)
        (lists / f'{split}.txt').write_text(''.join(f'{name}\n' for name in samples))
    if not palette:
        rows = zip(NAMES, COLORS, strict=True)
        text = ''.join(f'{name}:{",".join(map(str, color))}::\n' for name, color in rows)
        (root / 'labelmap.txt').write_text(f'# label:color_rgb:parts:actions\n{text}')
    return root


def write_roboflow(root: Path, splits: Splits, values: Sequence[int] = (0, 1, 2, 3)) -> Path:
    numbers = np.full(256, 255, np.uint8)
    numbers[:len(values)] = values
    for split, samples in splits.items():
        folder = root / {'val': 'valid'}.get(split, split)
        for name, (pixels, labels) in samples.items():
            save(folder / f'{name}.jpg', pixels)
            save(folder / f'{name}_mask.png', numbers[labels])
        with (folder / '_classes.csv').open('w', newline='') as file:
            csv.writer(file).writerows([('Pixel Value', ' Class'),
                                        *zip(values, NAMES, strict=True)])
    return root


def write_labelme(root: Path, splits: Splits) -> Path:
    """Write a rectangle, or a polygon with its corners, for each label except 0."""
    for split, samples in splits.items():
        for name, (pixels, labels) in samples.items():
            save(root / split / f'{name}.jpg', pixels)
            shapes = [make_shape(labels, label) for label in (1, 2, 3) if (labels == label).any()]
            content = dict(
                version='5.5.0',
                flags={},
                shapes=shapes,
                imagePath=f'{name}.jpg',
                imageData=None,
                imageHeight=len(labels),
                imageWidth=len(labels[0]))
            (root / split / f'{name}.json').write_text(json.dumps(content))
    return root


def make_shape(labels: np.ndarray, label: int) -> dict:
    rows, columns = np.nonzero(labels == label)
    left, top = float(columns.min()), float(rows.min())
    right, bottom = float(columns.max() + 1), float(rows.max() + 1)
    corners = [[left, top], [right, top], [right, bottom], [left, bottom]]
    kind = 'rectangle' if label == 1 else 'polygon'
    points = [corners[2], corners[0]] if label == 1 else corners
    return dict(label=NAMES[label], points=points, group_id=None, shape_type=kind, flags={})


def write_folders(root: Path,
                  splits: Splits,
                  images: str = 'images/{}',
                  masks: str = 'masks/{}',
                  colors: bool = False) -> Path:
    for split, samples in splits.items():
        for name, (pixels, labels) in samples.items():
            save(root / images.format(split) / f'{name}.jpg', pixels)
            save(root / masks.format(split) / f'{name}.png', paint(labels) if colors else labels)
    return root
