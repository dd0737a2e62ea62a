"""A data set of drawn shapes in COCO's and ADE20k's layouts, from the same scenes."""
from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from colonnade.common.errors import FileError, UserError

from .rle import encode_mask, make_json_rle

CLASSES = ('disc', 'square', 'triangle')
SPLITS = {  # name -> number in the seed, COCO's folder, ADE20k's folder
    'train': (0, 'train2017', 'training'),
    'val': (1, 'val2017', 'validation'),
}
BACKGROUND = 1  # ADE20k-style label; class c is labelled BACKGROUND + 1 + c
MIN_VISIBLE = 0.4  # share of each shape that later shapes may not cover
MIN_AREA = 24  # pixels


@dataclass
class Scene:
    """One drawn image and what is visible in it."""
    image: np.ndarray  # (H, W, 3) uint8, BGR
    labels: list[int]  # class of each shape
    masks: list[np.ndarray]  # (H, W) bool, visible pixels of each shape

    def label_map(self) -> np.ndarray:
        """``(H, W)`` uint8 in ADE20k's numbering."""
        label_map = np.full(self.image.shape[:2], BACKGROUND, np.uint8)
        for label, mask in zip(self.labels, self.masks, strict=True):
            label_map[mask] = BACKGROUND + 1 + label
        return label_map


def texture(rng: np.random.Generator, size: int, contrast: float) -> np.ndarray:
    """``(size, size, 3)`` float texture: a random colour under noise of three scales."""
    image = np.broadcast_to(rng.uniform(40, 215, 3), (size, size, 3)).copy()
    for cells in (3, 9, size // 2):
        noise = rng.normal(0, contrast, (cells, cells, 3)).astype(np.float32)
        image += cv2.resize(noise, (size, size), interpolation=cv2.INTER_LINEAR)
    return image


def draw_shape(rng: np.random.Generator, label: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """One whole shape at a random place, size and angle.

    Returns:
        Its ``(size, size)`` bool mask, and a ``(size, size, 3)`` float image of its surface: discs
        are lit in the middle, squares striped, triangles plain.
    """
    radius = size * np.exp(rng.uniform(np.log(0.08), np.log(0.26)))
    centre = rng.uniform(0.5 * radius, size - 0.5 * radius, 2)
    angle = rng.uniform(0, 2 * np.pi)
    mask, surface = np.zeros((size, size), np.uint8), texture(rng, size, 8)
    x, y = np.meshgrid(np.arange(size) - centre[0], np.arange(size) - centre[1])
    if CLASSES[label] == 'disc':
        axes = radius * rng.uniform(0.75, 1.0, 2)
        cv2.ellipse(mask, (centre.tolist(), (2 * axes).tolist(), np.degrees(angle)), 1, -1)
        surface += (60 - 90 * np.hypot(x, y) / radius)[..., None]
    else:
        corners = 4 if CLASSES[label] == 'square' else 3
        angles = angle + np.arange(corners) * 2 * np.pi / corners
        points = centre + radius * np.stack([np.cos(angles), np.sin(angles)], axis=1)
        cv2.fillPoly(mask, [np.round(points).astype(np.int32)], 1)
        if CLASSES[label] == 'square':
            across = x * np.cos(angle + np.pi / 4) + y * np.sin(angle + np.pi / 4)
            surface += 35 * np.sign(np.sin(across * 2 * np.pi / (size / 16)))[..., None]
    return mask.astype(bool), surface


def draw_scene(rng: np.random.Generator, size: int) -> Scene:
    """Two to six shapes on a background; each stays visible by ``MIN_VISIBLE`` at least."""
    scene = Scene(texture(rng, size, 18), [], [])
    whole: list[int] = []
    for _ in range(rng.integers(2, 7)):
        label = int(rng.integers(len(CLASSES)))
        mask, surface = draw_shape(rng, label, size)
        covered = [below & ~mask for below in scene.masks]
        least = [max(MIN_AREA, MIN_VISIBLE * area) for area in whole]
        hidden = any(c.sum() < n for c, n in zip(covered, least, strict=True))
        if hidden or mask.sum() < MIN_AREA:
            continue
        scene.image[mask] = surface[mask]
        scene.masks = [*covered, mask]
        scene.labels.append(label)
        whole.append(int(mask.sum()))
    scene.image = np.clip(scene.image, 0, 255).astype(np.uint8)
    return scene


def coco_annotation(label: int, mask: np.ndarray, image_id: int, annotation_id: int) -> dict:
    """One entry of COCO's ``annotations``, the mask as compressed RLE."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    top, left = int(rows[0]), int(columns[0])
    return dict(
        id=annotation_id,
        image_id=image_id,
        category_id=label + 1,
        bbox=[left, top, int(columns[-1]) - left + 1,
              int(rows[-1]) - top + 1],
        area=int(mask.sum()),
        segmentation=make_json_rle(encode_mask(mask)),
        iscrowd=0)


def write_split(out: Path, split: str, num_images: int, size: int, seed: int) -> None:
    """Draw one set and write it in both layouts."""
    number, coco_folder, ade_folder = SPLITS[split]
    folders = [
        out / 'coco' / coco_folder, out / 'ade/images' / ade_folder,
        out / 'ade/annotations' / ade_folder
    ]
    for folder in (*folders, out / 'coco/annotations'):
        folder.mkdir(parents=True, exist_ok=True)
    images: list[dict] = []
    annotations: list[dict] = []
    for index in range(num_images):
        scene = draw_scene(np.random.default_rng([seed, number, index]), size)
        name = f'{index:06d}'
        write_image(folders[0] / f'{name}.jpg', scene.image)
        shutil.copyfile(folders[0] / f'{name}.jpg', folders[1] / f'{name}.jpg')
        write_image(folders[2] / f'{name}.png', scene.label_map())
        images.append(dict(id=index + 1, file_name=f'{name}.jpg', width=size, height=size))
        for label, mask in zip(scene.labels, scene.masks, strict=True):
            annotations.append(coco_annotation(label, mask, index + 1, len(annotations) + 1))
    categories = [dict(id=i + 1, name=name) for i, name in enumerate(CLASSES)]
    content = dict(images=images, annotations=annotations, categories=categories)
    file = out / f'coco/annotations/instances_{coco_folder}.json'
    file.write_text(json.dumps(content), encoding='utf-8')


def write_image(path: Path, image: np.ndarray) -> None:
    """Write a JPEG (quality 95) or PNG; OSError if that fails."""
    if not cv2.imwrite(str(path), image):
        raise FileError(f'cannot write {path}')


def make_shapes(out: Path, *, num_train: int, num_val: int, size: int, seed: int) -> None:
    """Write the whole data set to ``out``, which appears only when it is complete.

    Raises:
        ValueError: If a number is too small.
        UserError: If ``out`` exists.
    """
    if size < 32 or min(num_train, num_val) < 1:
        raise UserError('size must be at least 32 and there must be at least one image in each '
                        f'set, got size {size}, {num_train} and {num_val} images')
    if out.exists():
        raise UserError(f'{out} already exists: choose another folder, or remove it first')
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f'.{out.name}-') as scratch:
        whole = Path(scratch) / 'whole'
        write_split(whole, 'train', num_train, size, seed)
        write_split(whole, 'val', num_val, size, seed)
        os.rename(whole, out)
