"""Model inputs: images after the pipeline and the data preprocessor.

Shapes: ``C, H, W`` channels, height and width of the tensor; ``N`` objects.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from mmdet.structures.bbox import BaseBoxes
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.logging import MessageHub
from mmengine.registry import MODELS, DefaultScope
from mmengine.runner import set_random_seed
from PIL import Image, ImageDraw
from torch import Tensor

from colonnade.datasets.bands import LoadBands, find_band_loader
from colonnade.datasets.custom.label_maps import IGNORED
from colonnade.inference.drawing import Color
from colonnade.settings.dataset_paths import find_datasets
from colonnade.settings.findings import Finding
from colonnade.settings.pipeline_steps import get_step_type, is_loading_annotations
from colonnade.settings.reading import report_third_party_errors

from ..html_pages.scenes import Scene, clip_boxes, fit_size, resize_values, scale_boxes
from .dataset_reader import build_dataset, get_dataset_settings

FRAME: Color = (255, 0, 255)  # color of the edge between an image and its padding
MIXING = ('Mosaic', 'MixUp', 'CopyPaste')  # parts of names of steps that combine images
PREPROCESSOR = ('model.data_preprocessor', )  # place of findings
RGB_MEAN = (123.675, 116.28, 103.53)  # ImageNet's mean of red, green and blue
IMAGENET_STD = 0.23  # standard deviation of ImageNet's values, relative to their range
MAX_DEVIATIONS = 2.5  # standard deviations between 0 and the mean of all inputs


@dataclass(frozen=True)
class ModelInput:
    """Image as a model receives it."""
    inputs: Tensor  # input tensor, (C, H, W)
    sample: Any  # data sample of mmdet or mmseg, with annotations in pixels of the inputs
    pixels: np.ndarray  # inputs as RGB values, (H, W, 3), uint8
    bounds: tuple[float, float]  # minimum and maximum before the preprocessor

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width without padding."""
        return tuple(self.sample.metainfo.get('img_shape', self.pixels.shape)[:2])

    def build_scene(self, num_classes: int, max_side: int, num_things: int | None = None) -> Scene:
        """Return the downscaled inputs with their annotations.

        Args:
            num_things: Number of the first classes, of panoptic things; None if not panoptic.
        """
        full: tuple[int, int] = self.pixels.shape[:2]
        size = fit_size(full, max_side)
        small = resize_values(self.pixels, size, smooth=True)
        if 'gt_sem_seg' in self.sample and 'gt_instances' not in self.sample:
            labels = self.sample.gt_sem_seg.data[0].cpu().numpy().astype(np.int64)
            is_class = (labels < num_classes) & (labels != IGNORED)
            labels = np.where(is_class, labels, num_classes)
            return Scene(small, label_map=resize_values(pad(labels, full, num_classes), size))
        objects = self.sample.get('gt_instances')
        if objects is None or 'bboxes' not in objects:
            return Scene(small)
        boxes = get_box_tensor(objects.bboxes).cpu().numpy().reshape(-1, 4)
        masks, classes = None, objects.labels.cpu().numpy()
        if 'masks' in objects:
            arrays = objects.masks.to_ndarray().astype(bool)
            masks = [resize_values(pad(mask, full), size) for mask in arrays]
        boxes = clip_boxes(scale_boxes(boxes, full, size), size)
        if masks is None or num_things is None or 'gt_sem_seg' not in self.sample:
            return Scene(small, boxes, classes, masks)
        labels = resize_values(pad(self.sample.gt_sem_seg.sem_seg[0].cpu().numpy(), full, IGNORED),
                               size)  # yapf: disable
        stuff = [each for each in np.unique(labels).tolist() if num_things <= each < num_classes]
        masks += [labels == label for label in stuff]
        boxes = np.concatenate([boxes, np.zeros((len(stuff), 4))])
        return Scene(small, boxes, np.array([*classes, *stuff], int), masks, is_panoptic=True)

    def draw(self,
             palette: Sequence[Color],
             max_side: int,
             num_things: int | None = None) -> Image.Image:
        """Return the drawing of :meth:`build_scene`, with a line where padding begins."""
        image = self.build_scene(len(palette), max_side, num_things).draw(palette)
        full, (height, width) = self.pixels.shape[:2], self.image_size
        if (height, width) != full:
            x, y = width * image.width / full[1], height * image.height / full[0]
            ImageDraw.Draw(image).line([(x, 0), (x, y), (0, y)], fill=FRAME, width=2)
        return image

    def describe(self, path: str) -> str:
        """Return size and changes of the image of a path."""
        metainfo = self.sample.metainfo
        is_other = metainfo.get('img_path', path) != path
        other = ', another image, because the pipeline rejected this one' if is_other else ''
        height, width = self.inputs.shape[1:]
        return f'{width} x {height}{", flipped" if metainfo.get("flip") else ""}{other}'

    def describe_tensor(self) -> list[str]:
        """Return shape, type, and minimum, mean and maximum of each channel."""
        values = self.inputs.float().flatten(1)
        channels = [', '.join(f'{value:.2f}' for value in each.tolist())
                    for each in (values.amin(1), values.mean(1), values.amax(1))]  # yapf: disable
        shape, dtype = ' x '.join(map(str, self.inputs.shape)), str(self.inputs.dtype)
        return [shape, dtype.removeprefix('torch.'), *channels]


def get_box_tensor(boxes: Tensor | BaseBoxes) -> Tensor:
    """Return boxes as a tensor; some pipelines of mmdet pack its own box type."""
    return boxes.tensor if isinstance(boxes, BaseBoxes) else boxes


def pad(values: np.ndarray, size: tuple[int, int], fill: int = 0) -> np.ndarray:
    """Return a mask or label map, padded to the size of the tensor."""
    padded = np.full(size, fill, values.dtype)
    height, width = min(size[0], values.shape[0]), min(size[1], values.shape[1])
    padded[:height, :width] = values[:height, :width]
    return padded


@dataclass
class InputPipeline:
    """Dataset with its pipeline, followed by the data preprocessor of a model."""
    dataset: Any  # dataset of mmdet or mmseg, with or without wrappers
    preprocessor: Any  # data preprocessor of the model
    settings: dict[str, Any]  # settings of the preprocessor in the config
    training: bool  # whether the pipeline is that of training
    mixes: bool  # whether pipeline steps combine several images
    late: bool = False  # whether the pipeline of the config loads annotations after resizing
    bands: LoadBands | None = None  # step that loads images of more bands than RGB
    inputs: list[ModelInput] = field(default_factory=list)  # all inputs that were loaded

    @classmethod
    def from_config(cls, cfg: Config, split: str) -> InputPipeline:
        """Build dataset and preprocessor of a config."""
        settings = dict(cfg.model.get('data_preprocessor') or dict(type='BaseDataPreprocessor'))
        training = split == 'train'
        cfg = deepcopy(cfg)
        late = not training and load_annotations_first(cfg, split)
        dataset_settings = get_dataset_settings(cfg, split)
        hub = MessageHub.get_current_instance()
        if hub.get_info('iter') is None:  # mmdet's BatchSyncRandomResize reads it.
            hub.update_info('iter', 0)
        with report_third_party_errors('cannot build the dataset or the data preprocessor'):
            dataset = build_dataset(cfg, dataset_settings)
            with DefaultScope.overwrite_default_scope(cfg.default_scope):
                preprocessor = MODELS.build(settings)
        mixes = any(name in str(dataset_settings) for name in MIXING)
        _, innermost = next(iter(find_datasets(cfg, (f'{split}_dataloader', ))))
        bands = find_band_loader(innermost.get('pipeline'))
        return cls(dataset, preprocessor, settings, training, mixes, late, bands)

    def find_indices(self, paths: Sequence[str]) -> dict[str, int]:
        """Return the first index in the dataset of each image that it does not filter out."""
        missing, indices = set(paths), dict[str, int]()
        for index in range(len(self.dataset)):
            if not missing:
                break
            path = self.dataset.get_data_info(index)['img_path']
            if path in missing:
                indices[path] = index
                missing.remove(path)
        return indices

    def load(self, index: int, seed: int) -> ModelInput:
        """Return an image as the model receives it; equal for equal seeds."""
        set_random_seed(seed)
        with report_third_party_errors('the pipeline fails'):
            batch = pseudo_collate([self.dataset[index]])
            raw = batch['inputs'][0]
            bounds = float(raw.min()), float(raw.max())
            ready = self.preprocessor(batch, self.training)
            inputs, sample = ready['inputs'][0], ready['data_samples'][0]
        self.inputs.append(ModelInput(inputs, sample, self.restore_pixels(inputs), bounds))
        return self.inputs[-1]

    def restore_pixels(self, inputs: Tensor) -> np.ndarray:
        """Return inputs ``(C, H, W)`` without mean and std, as RGB values ``(H, W, 3)``.

        One channel becomes gray. Of more than three, the first three are red, green and blue.
        """
        buffers = dict(self.preprocessor.named_buffers())
        values = inputs.float()
        if 'mean' in buffers:
            values = values * buffers['std'] + buffers['mean']
        if self.bands:
            return self.bands.to_rgb(values.permute(1, 2, 0).numpy())
        values = values[:1].expand(3, -1, -1) if len(values) < 3 else values[:3]
        if not self.swaps_channels and len(inputs) == 3:  # Pipelines load BGR images.
            values = values.flip(0)
        return values.permute(1, 2, 0).round().clamp(0, 255).byte().numpy()

    @property
    def swaps_channels(self) -> bool:
        """True if red and blue are swapped."""
        return bool(self.settings.get('bgr_to_rgb') or self.settings.get('rgb_to_bgr'))

    def describe(self, num_views: int) -> str:
        """Return what images of the inputs show, and suspected issues of those loaded so far."""
        images = 'Images after the pipeline of this split'
        if self.training:
            images = f'{num_views} random views of each image after the training pipeline'
        text = (f'{images} and the data preprocessor, with mean and std undone. A pink line shows '
                'where padding begins.')
        if self.training:
            text += ' Annotations are those that the losses receive.'
        elif self.late:
            text += (' Annotations are resized with the image, whereas evaluation uses the '
                     'original size.')
        if self.mixes:
            text += (' Some steps combine several images: any of the dataset, or those loaded '
                     'before, of which there are only a few here.')
        if issues := self.find_issues():
            text += f' Suspected: {" ".join(map(str, issues))}'
        return text

    def find_issues(self) -> list[Finding]:
        """Return suspected issues of the normalization."""
        messages = [check_channel_order(self.settings, self.swaps_channels)]
        if self.inputs:
            high = max(each.bounds[1] for each in self.inputs)
            means = torch.stack([each.inputs.float().mean() for each in self.inputs])
            messages.append(check_value_range(self.settings, high, float(means.mean())))
        return [Finding('channel-mean', text, PREPROCESSOR) for text in messages if text]


def check_channel_order(settings: dict[str, Any], swaps_channels: bool) -> str:
    """Return a message if the mean is ImageNet's in the opposite channel order."""
    mean = settings.get('mean')
    if mean is None or len(mean) != 3:
        return ''
    as_rgb = tuple(mean) if swaps_channels else tuple(mean)[::-1]
    if not np.allclose(as_rgb, RGB_MEAN[::-1], atol=0.5):
        return ''
    return (f"The preprocessor's mean {list(mean)} is ImageNet's in the opposite channel order: "
            'check bgr_to_rgb and the order of mean and std.')


def check_value_range(settings: dict[str, Any], high: float, average: float) -> str:
    """Return a message if mean and std do not fit the maximum before and the mean after them."""
    mean, std = settings.get('mean'), settings.get('std')
    if not math.isfinite(average):
        return 'Some inputs are NaN or Inf.'
    if mean is None or std is None or (not any(mean) and set(std) == {1}):
        return '' if high <= 2 else (
            'Inputs are not normalized: the preprocessor has no mean and std, or 0 and 1, and '
            f'values reach {high:.0f}.')
    if max(mean) > 2 and high <= 1:
        return ('Values before normalization are at most 1, but the mean is for values from 0 to '
                f'255: {list(mean)}.')
    if 0 < max(mean) <= 1 and high > 2:
        return (f'Values before normalization reach {high:.0f}, but the mean is for values from 0 '
                f'to 1: {list(mean)}.')
    deviation = IMAGENET_STD * (255 if high > 1 else 1) / float(np.mean(std))
    if abs(average) > MAX_DEVIATIONS * max(1, deviation):
        return f'The mean of all inputs is {average:.1f}, far from 0.'
    return ''


def load_annotations_first(cfg: Config, split: str) -> bool:
    """Make pipelines of a split load annotations right after the image, so that they fit it.

    Returns:
        Whether a pipeline loads them later, as in validation, which evaluates the original size.
    """
    is_late = False
    for _, dataset in find_datasets(cfg, (f'{split}_dataloader', )):
        steps = list(dataset.get('pipeline') or ())
        place = next((i for i, step in enumerate(steps) if is_loading_annotations(step)), 0)
        changes = [not get_step_type(step).startswith('Load') for step in steps[:place]]
        if any(changes):
            is_late = True
            steps.insert(changes.index(True), steps.pop(place))
            dataset['pipeline'] = steps
    return is_late
