"""Annotations that a pipeline loads behind the steps that resize and flip the image.

Pipelines of validation do so: predictions are brought back to the original image, and compared
there. For a picture of what the model gets, the annotations are brought onto the resized image.
"""
from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from mmengine.config import Config
from mmengine.structures import PixelData

from colonnade.settings.dataset_paths import find_datasets
from colonnade.settings.pipeline_steps import kind_of_step, loads_annotations


def loads_late(cfg: Config, split: str) -> bool:
    """Whether the pipeline of a split changes images before it loads annotations."""
    found = [settings for _, settings in find_datasets(cfg, (f'{split}_dataloader', ))]
    steps = list(found[0].get('pipeline') or ()) if found else []
    place = next((i for i, step in enumerate(steps) if loads_annotations(step)), 0)
    return any(not kind_of_step(step).startswith('Load') for step in steps[:place])


def bring_onto_inputs(sample: Any) -> None:
    """Resize and flip the annotations of a data sample as its image was.

    Args:
        sample: Of mmdet or mmseg, with annotations in pixels of the original image.
    """
    meta = sample.metainfo
    height, width = meta['ori_shape'][:2]
    factor = meta.get('scale_factor') or (1, 1)  # of width and height
    size = round(height * factor[1]), round(width * factor[0])
    flip = meta.get('flip_direction') if meta.get('flip') else None
    if 'gt_instances' in sample:
        move_objects(sample.gt_instances, factor, size, flip)
    elif 'gt_sem_seg' in sample:
        labels = sample.gt_sem_seg.data  # (1, H, W)
        moved = F.interpolate(labels[None].float(), size)[0].to(labels.dtype)
        axes = dict(horizontal=[2], vertical=[1], diagonal=[1, 2]).get(flip or '', [])
        sample.gt_sem_seg = PixelData(data=moved.flip(axes))


def move_objects(objects: Any, factor: tuple[float, float], size: tuple[int, int],
                 flip: str | None) -> None:
    """The same for mmdet's instances; ``size`` is height and width of the resized image."""
    from mmdet.structures.bbox import HorizontalBoxes
    if 'bboxes' in objects:
        boxes = HorizontalBoxes(getattr(objects.bboxes, 'tensor', objects.bboxes))  # a copy
        boxes.rescale_(factor)
        if flip:
            boxes.flip_(size, flip)
        objects.bboxes = boxes.tensor
    if 'masks' in objects:
        masks = objects.masks.resize(size)
        objects.masks = masks.flip(flip) if flip else masks
