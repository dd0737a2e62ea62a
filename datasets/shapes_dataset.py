"""Dataset of synthetic shapes in the formats of COCO and ADE20k, from the same scenes."""
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
from .segment_maps import PanopticWriter

CLASSES = ('disc', 'square', 'triangle')
STUFF = 'background'  # panoptic class of pixels without a shape
SPLITS = {  # name -> number in the seed, COCO's folder, ADE20k's folder
    'train': (0, 'train2017', 'training'),
    'val': (1, 'val2017', 'validation'),
}
BACKGROUND = 1  # label as in ADE20k; class c has the label BACKGROUND + 1 + c
MIN_VISIBLE = 0.4  # fraction of each shape that later shapes must not cover
MIN_AREA = 24  # pixels


@dataclass
class Scene:
    """A synthetic image and its visible shapes."""
    image: np.ndarray  # (H, W, 3) uint8, BGR
    labels: list[int]  # class of each shape
    masks: list[np.ndarray]  # (H, W) bool, visible pixels of each shape

    def draw_label_map(self) -> np.ndarray:
        """Return the label map ``(H, W)``, uint8, with ADE20k's numbering."""
        label_map = np.full(self.image.shape[:2], BACKGROUND, np.uint8)
        for label, mask in zip(self.labels, self.masks, strict=True):
            label_map[mask] = BACKGROUND + 1 + label
        return label_map

    def draw_segments(self) -> np.ndarray:
        """Return the number of the shape of each pixel, ``(H, W)``; the background is the last."""
        numbers = np.full(self.image.shape[:2], len(self.masks) + 1, np.int32)
        for number, mask in enumerate(self.masks, 1):
            numbers[mask] = number
        return numbers


def draw_texture(rng: np.random.Generator, size: int, contrast: float) -> np.ndarray:
    """Return a float texture ``(size, size, 3)``: a random color with noise of three scales."""
    image = np.broadcast_to(rng.uniform(40, 215, 3), (size, size, 3)).copy()
    for cells in (3, 9, size // 2):
        noise = rng.normal(0, contrast, (cells, cells, 3)).astype(np.float32)
        image += cv2.resize(noise, (size, size), interpolation=cv2.INTER_LINEAR)
    return image


def draw_shape(rng: np.random.Generator, label: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the mask and surface of a shape with random location, size and angle.

    Returns:
        Bool mask ``(size, size)`` and float image ``(size, size, 3)``: discs are bright in the
        center, squares striped, triangles uniform.
    """
    radius = size * np.exp(rng.uniform(np.log(0.08), np.log(0.26)))
    center = rng.uniform(0.5 * radius, size - 0.5 * radius, 2)
    angle = rng.uniform(0, 2 * np.pi)
    mask, surface = np.zeros((size, size), np.uint8), draw_texture(rng, size, 8)
    x, y = np.meshgrid(np.arange(size) - center[0], np.arange(size) - center[1])
    if CLASSES[label] == 'disc':
        axes = radius * rng.uniform(0.75, 1.0, 2)
        cv2.ellipse(mask, (center.tolist(), (2 * axes).tolist(), np.degrees(angle)), 1, -1)
        surface += (60 - 90 * np.hypot(x, y) / radius)[..., None]
    else:
        corners = 4 if CLASSES[label] == 'square' else 3
        angles = angle + np.arange(corners) * 2 * np.pi / corners
        points = center + radius * np.stack([np.cos(angles), np.sin(angles)], axis=1)
        cv2.fillPoly(mask, [np.round(points).astype(np.int32)], 1)
        if CLASSES[label] == 'square':
            across = x * np.cos(angle + np.pi / 4) + y * np.sin(angle + np.pi / 4)
            surface += 35 * np.sign(np.sin(across * 2 * np.pi / (size / 16)))[..., None]
    return mask.astype(bool), surface


def draw_scene(rng: np.random.Generator, size: int) -> Scene:
    """Return two to six shapes on a background, each at least ``MIN_VISIBLE`` visible."""
    scene = Scene(draw_texture(rng, size, 18), [], [])
    areas: list[int] = []
    for _ in range(rng.integers(2, 7)):
        label = int(rng.integers(len(CLASSES)))
        mask, surface = draw_shape(rng, label, size)
        remaining = [below & ~mask for below in scene.masks]
        min_areas = [max(MIN_AREA, MIN_VISIBLE * area) for area in areas]
        hides_shape = any(each.sum() < area
                          for each, area in zip(remaining, min_areas, strict=True))
        if hides_shape or mask.sum() < MIN_AREA:
            continue
        scene.image[mask] = surface[mask]
        scene.masks = [*remaining, mask]
        scene.labels.append(label)
        areas.append(int(mask.sum()))
    scene.image = np.clip(scene.image, 0, 255).astype(np.uint8)
    return scene


def _make_annotation(label: int, mask: np.ndarray, image_id: int, annotation_id: int) -> dict:
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


def _write_split(out: Path, split: str, num_images: int, size: int, seed: int) -> None:
    number, coco_folder, ade_folder = SPLITS[split]
    coco_images, ade_images, label_maps = folders = [
        out / 'coco' / coco_folder, out / 'ade/images' / ade_folder,
        out / 'ade/annotations' / ade_folder
    ]
    for folder in (*folders, out / 'coco/annotations'):
        folder.mkdir(parents=True, exist_ok=True)
    file = out / f'coco/annotations/panoptic_{coco_folder}.json'
    panoptic = PanopticWriter(file, file.with_suffix(''), [
        dict(id=number, name=name, isthing=int(name != STUFF), supercategory=name)
        for number, name in enumerate((*CLASSES, STUFF), 1)
    ])
    images: list[dict] = []
    annotations: list[dict] = []
    for index in range(num_images):
        scene = draw_scene(np.random.default_rng([seed, number, index]), size)
        name = f'{index:06d}'
        _write_image(coco_images / f'{name}.jpg', scene.image)
        shutil.copyfile(coco_images / f'{name}.jpg', ade_images / f'{name}.jpg')
        _write_image(label_maps / f'{name}.png', scene.draw_label_map())
        images.append(dict(id=index + 1, file_name=f'{name}.jpg', width=size, height=size))
        panoptic.add(images[-1], scene.draw_segments(), [
            dict(segment_id=number, category_id=label + 1)
            for number, label in enumerate([*scene.labels, len(CLASSES)], 1)
        ])
        for label, mask in zip(scene.labels, scene.masks, strict=True):
            annotations.append(_make_annotation(label, mask, index + 1, len(annotations) + 1))
    categories = [dict(id=i + 1, name=name) for i, name in enumerate(CLASSES)]
    content = dict(images=images, annotations=annotations, categories=categories)
    file = out / f'coco/annotations/instances_{coco_folder}.json'
    file.write_text(json.dumps(content), encoding='utf-8')
    panoptic.write()


def _write_image(path: Path, image: np.ndarray) -> None:
    if not cv2.imwrite(str(path), image):
        raise FileError(f'cannot write {path}')


def make_shapes(out: Path, *, num_train: int, num_val: int, size: int, seed: int) -> None:
    """Write the dataset to a folder, which appears when it is complete.

    Raises:
        ValueError: If a number is too small.
        UserError: If the folder exists.
    """
    if size < 32 or min(num_train, num_val) < 1:
        raise UserError('size must be at least 32, and each split must have at least one image, '
                        f'got size {size}, {num_train} and {num_val} images')
    if out.exists():
        raise UserError(f'{out} already exists: choose another folder, or remove it')
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f'.{out.name}-') as scratch:
        dataset = Path(scratch) / 'dataset'
        _write_split(dataset, 'train', num_train, size, seed)
        _write_split(dataset, 'val', num_val, size, seed)
        os.rename(dataset, out)
