"""What a model gets to see: images behind the pipeline and the data preprocessor.

Shapes: ``C, H, W`` channels, height and width of the tensor; ``N`` objects.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.logging import MessageHub
from mmengine.registry import MODELS, DefaultScope
from mmengine.runner import set_random_seed
from PIL import Image, ImageDraw
from torch import Tensor

from colonnade.common.errors import UserCodeError
from colonnade.datasets.custom.label_maps import IGNORED
from colonnade.inference.drawing import Colour
from colonnade.settings.findings import Finding

from .dataset_reader import build_dataset, dataset_settings
from .input_issues import order_fault, range_fault
from .late_annotations import bring_onto_inputs, loads_late
from .thumbnails import Scene, resized, shown_size, within

FRAME: Colour = (255, 0, 255)  # the edge between an image and its padding
MIXING = ('Mosaic', 'MixUp', 'CopyPaste')  # in names of steps that put images together


@dataclass(frozen=True)
class Fed:
    """An image as a model gets it once.

    Attributes:
        inputs: ``(C, H, W)``, as they enter the model.
        sample: mmdet's or mmseg's data sample; its annotations are in pixels of the inputs.
        pixels: The inputs as RGB values of uint8, ``(H, W, 3)``.
        before: The least and the largest value before the preprocessor.
    """
    inputs: Tensor
    sample: Any
    pixels: np.ndarray
    before: tuple[float, float]

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width without padding."""
        return tuple(self.sample.metainfo.get('img_shape', self.pixels.shape)[:2])

    def per_channel(self, name: str) -> list[float]:
        """``'amin'``, ``'mean'`` or ``'amax'`` of each channel."""
        return getattr(torch, name)(self.inputs.float(), dim=(1, 2)).tolist()

    def scene(self, num_classes: int, most: int) -> Scene:
        """The picture of it, with its annotations as they arrive."""
        full = self.pixels.shape[:2]
        size = shown_size(full, most)
        small = resized(self.pixels, size, smooth=True)
        labels = label_map_of(self.sample)
        if labels is not None:
            labels = np.where(labels < num_classes, labels, num_classes)
            labels = resized(padded(labels, full, num_classes), size)
            return Scene(small, np.zeros((0, 4)), np.zeros(0, int), label_map=labels)
        boxes, classes, masks = objects_of(self.sample)
        factor = np.tile([size[1] / full[1], size[0] / full[0]], 2)
        shown = None if masks is None else [resized(padded(m, full), size) for m in masks]
        return Scene(small, within(boxes * factor, size), classes, shown)

    def draw(self, classes: Sequence[str], palette: Sequence[Colour], most: int) -> Image.Image:
        """The picture; a line shows where padding begins."""
        picture = self.scene(len(classes), most).draw(classes, palette)
        full, (height, width) = self.pixels.shape[:2], self.image_size
        if (height, width) != full:
            x, y = width * picture.width / full[1], height * picture.height / full[0]
            ImageDraw.Draw(picture).line([(x, 0), (x, y), (0, y)], fill=FRAME, width=2)
        return picture


def label_map_of(sample: Any) -> np.ndarray | None:
    """The label map of a sample of mmseg's, ``(H, W)``; None of mmdet's."""
    if 'gt_sem_seg' not in sample or 'gt_instances' in sample:
        return None
    labels = sample.gt_sem_seg.data[0].cpu().numpy().astype(np.int64)
    return np.where(labels == IGNORED, np.iinfo(np.int64).max, labels)


def objects_of(sample: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Boxes ``(N, 4)``, classes ``(N,)`` and masks ``(N, h, w)`` of a sample of mmdet's."""
    found = sample.get('gt_instances')
    if found is None or 'bboxes' not in found:
        return np.zeros((0, 4)), np.zeros(0, np.int64), None
    boxes = getattr(found.bboxes, 'tensor', found.bboxes)
    masks = found.masks.to_ndarray().astype(bool) if 'masks' in found else None
    return boxes.cpu().numpy().reshape(-1, 4), found.labels.cpu().numpy(), masks


def padded(values: np.ndarray, size: tuple[int, int], rest: int = 0) -> np.ndarray:
    """A mask or label map of the image at the size of the tensor, with ``rest`` in the padding."""
    whole = np.full(size, rest, values.dtype)
    height, width = min(size[0], values.shape[0]), min(size[1], values.shape[1])
    whole[:height, :width] = values[:height, :width]
    return whole


@dataclass
class Feeder:
    """A data set with its pipeline, and the preprocessor of a model.

    Attributes:
        dataset: Of mmdet or mmseg, wrapped or not.
        preprocessor: Of the model.
        settings: Of the preprocessor in the config.
        training: Whether it feeds training.
        mixes: Whether steps put several images into one.
        late: Whether annotations come in pixels of the original image, as in validation.
        seen: Everything that it fed.
    """
    dataset: Any
    preprocessor: Any
    settings: dict[str, Any]
    training: bool
    mixes: bool
    late: bool = False
    seen: list[Fed] = field(default_factory=list)

    @classmethod
    def of(cls, cfg: Config, split: str) -> Feeder:
        """The one of a config.

        Raises:
            ValueError: If data set or preprocessor cannot be built, at which training would stop.
        """
        settings = dict(cfg.model.get('data_preprocessor') or dict(type='BaseDataPreprocessor'))
        mixes = any(name in str(dataset_settings(cfg, split)) for name in MIXING)
        hub = MessageHub.get_current_instance()
        if hub.get_info('iter') is None:  # which mmdet's resizing of batches asks for
            hub.update_info('iter', 0)
        try:
            dataset = build_dataset(cfg, dataset_settings(cfg, split))
            with DefaultScope.overwrite_default_scope(cfg.default_scope):
                built = MODELS.build(settings)
        except Exception as error:  # data sets raise of all kinds
            raise UserCodeError(f'{type(error).__name__}: {error}') from error
        training = split == 'train'
        late = not training and loads_late(cfg, split)
        return cls(dataset, built, settings, training, mixes, late)

    def positions(self, paths: Sequence[str]) -> dict[str, int]:
        """Where the data set has these images first; those that it leaves out are missing."""
        wanted, found = set(paths), dict[str, int]()
        for index in range(len(self.dataset) if wanted else 0):
            path = self.dataset.get_data_info(index)['img_path']
            if path in wanted:
                found.setdefault(path, index)
                if len(found) == len(wanted):
                    break
        return found

    def feed(self, position: int, seed: int) -> Fed:
        """An image as the model gets it, which is the same for the same seed.

        Args:
            position: Of the image in the data set.
            seed: Of Python's, NumPy's and torch's random numbers.

        Raises:
            ValueError: If pipeline or preprocessor cannot take it.
        """
        set_random_seed(seed)
        try:
            batch = pseudo_collate([self.dataset[position]])
            given = batch['inputs'][0]
            before = float(given.min()), float(given.max())
            ready = self.preprocessor(batch, self.training)
            if self.late:
                bring_onto_inputs(ready['data_samples'][0])
        except Exception as error:  # steps of pipelines raise of all kinds
            raise UserCodeError(f'{type(error).__name__}: {error}') from error
        inputs = ready['inputs'][0]
        self.seen.append(Fed(inputs, ready['data_samples'][0], self.as_pixels(inputs), before))
        return self.seen[-1]

    def as_pixels(self, inputs: Tensor) -> np.ndarray:
        """Inputs ``(C, H, W)`` before mean and std were applied, as RGB values ``(H, W, 3)``.

        One channel becomes gray; of more than three, the first three are red, green and blue.
        """
        buffers = dict(self.preprocessor.named_buffers())
        values = inputs.float()
        if 'mean' in buffers:
            values = values * buffers['std'] + buffers['mean']
        values = values[:1].expand(3, -1, -1) if len(values) < 3 else values[:3]
        if not self.converts and len(inputs) == 3:  # pipelines load blue first
            values = values.flip(0)
        return values.permute(1, 2, 0).round().clamp(0, 255).byte().numpy()

    @property
    def converts(self) -> bool:
        """Whether the preprocessor swaps red and blue."""
        return bool(self.settings.get('bgr_to_rgb') or self.settings.get('rgb_to_bgr'))

    def suspicions(self) -> list[Finding]:
        """Return what looks wrong about inputs; only what can be told from the numbers."""
        suspected = [order_fault(self.settings, self.converts)]
        if self.seen:
            largest = max(fed.before[1] for fed in self.seen)
            means = torch.stack([fed.inputs.float().mean() for fed in self.seen])
            suspected.append(range_fault(self.settings, largest, float(means.mean())))
        return [each for each in suspected if each]
