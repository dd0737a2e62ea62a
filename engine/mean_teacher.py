"""Training on unlabeled images too, with labels that averaged weights predict (mean teacher).

Mean teachers are consistency targets (arXiv 1703.01780); labels are kept if they are confident, and
images are changed more strongly for the student than for the teacher (FixMatch, arXiv 2001.07685).
"""
from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.dataset import BaseDataset
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, HOOKS
from mmengine.runner import Runner
from mmengine.structures import BaseDataElement, InstanceData, PixelData
from torch import Tensor
from torchvision.transforms import v2

from colonnade.common.errors import MissingFileError, UserError
from colonnade.datasets.formats.data_format import find_files
from colonnade.datasets.validation.label_map_files import IGNORED
from colonnade.runtime.images import SUFFIXES

from .runner.hooks import is_ema_hook
from .runner.seeding import build_endless_loader

HIDDEN = (0.1, 0.3)  # sides of the hidden rectangle, relative to those of the image
JITTER = v2.ColorJitter(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1)


@DATASETS.register_module()
class UnlabeledImages(BaseDataset):
    """All images in a folder and its subfolders, without annotations.

    Args:
        data_root: Folder.
        suffix: End of the names of the files. Defaults to any suffix of images.
        **kwargs: Arguments of :class:`mmengine.dataset.BaseDataset`.
    """

    def __init__(self, data_root: str, suffix: str | None = None, **kwargs: Any) -> None:
        self.suffix = suffix
        super().__init__(data_root=data_root, **kwargs)

    def load_data_list(self) -> list[dict[str, Any]]:
        """Return the path of each image.

        Raises:
            FileNotFoundError: If the folder does not exist, or has no images.
        """
        paths = [str(path) for path in find_files(Path(self.data_root), SUFFIXES)
                 if not self.suffix or path.name.endswith(self.suffix)]  # yapf: disable
        if not paths:
            raise MissingFileError(f'{self.data_root}: no such folder, or it has no images')
        return [dict(img_path=path, img_id=index, reduce_zero_label=False, seg_fields=[])
                for index, path in enumerate(sorted(paths))]  # yapf: disable


@HOOKS.register_module()
class PseudoLabelHook(Hook):
    """Add unlabeled images to each training batch, with labels that averaged weights predict.

    The config needs mmengine's ``EMAHook``, whose weights are also those of evaluation and
    checkpoints. Detectors and segmenters of any type are supported, but not panoptic models.

    Args:
        dataloader: Config of the unlabeled images, by default as many per batch as labeled ones.
            Its pipeline packs samples without annotations.
        min_score: Scores from which objects, or the labels of pixels, are learned.
        start: Fraction of the training after which the averaged weights predict labels.
    """

    def __init__(self,
                 dataloader: dict[str, Any],
                 min_score: float = 0.7,
                 start: float = 0.3) -> None:
        if not 0 <= start < 1:
            raise UserError(f'start must be in [0, 1), got {start}')
        self.dataloader, self.min_score, self.start = dataloader, min_score, start

    def before_train(self, runner: Runner) -> None:
        """Build the dataloader.

        Raises:
            ValueError: If the config has no ``EMAHook``.
        """
        hooks = [hook for hook in runner.hooks if is_ema_hook(hook)]
        if not hooks:
            raise UserError('PseudoLabelHook requires an EMAHook in custom_hooks: its averaged '
                            'weights predict the labels')
        self.teacher: BaseModel = hooks[0].ema_model.module
        self.first = math.ceil(self.start * runner.max_iters)
        settings = dict(batch_size=runner.cfg.train_dataloader.batch_size) | self.dataloader
        loader = runner.build_dataloader(settings, seed=runner.seed)
        endless, batches = build_endless_loader(loader)
        skipped = max(0, runner.iter - self.first)  # as often as a resumed run has drawn
        batches.start(runner.seed, skipped, skip=skipped)
        self.batches = iter(endless)

    def before_train_iter(self,
                          runner: Runner,
                          batch_idx: int,
                          data_batch: dict[str, Any] | None = None) -> None:
        """Add images to a batch, in place."""
        if data_batch is None or runner.iter < self.first:
            return
        if runner.iter == self.first:
            runner.logger.info('averaged weights now label unlabeled images')
        inputs, samples = label_batch(self.teacher, next(self.batches), self.min_score)
        data_batch['inputs'] = [*data_batch['inputs'], *inputs]
        data_batch['data_samples'] = [*data_batch['data_samples'], *samples]
        runner.message_hub.update_scalar('train/unlabeled_images', len(inputs))


@torch.no_grad()
def label_batch(teacher: BaseModel, batch: dict[str, Any],
                min_score: float) -> tuple[list[Tensor], list[BaseDataElement]]:
    """Return images with confident labels, changed for the student, and their data samples.

    Args:
        teacher: Detector or segmenter.
        batch: Lists ``inputs`` of tensors ``(C, H, W)``, and ``data_samples``.
        min_score: Smallest score of labels.
    """
    for image, sample in zip(batch['inputs'], batch['data_samples'], strict=True):
        size = tuple(image.shape[-2:])  # labels are predicted for the image as it is
        sample.set_metainfo(dict(img_shape=size, ori_shape=size, scale_factor=(1., 1.), flip=False))
    training = teacher.training
    teacher.eval()
    try:
        predicted = _predict(teacher, batch)
    finally:
        teacher.train(training)
    inputs, samples = [], []
    for image, sample in zip(batch['inputs'], predicted, strict=True):
        if has_labels(labeled := set_labels(sample, min_score).cpu()):
            inputs.append(change_image(image))
            samples.append(labeled)
    return inputs, samples


def _predict(teacher: BaseModel, batch: dict[str, Any]) -> list[BaseDataElement]:
    """Predict images, one at a time if their sizes differ, which mmseg requires."""
    if len({image.shape for image in batch['inputs']}) == 1:
        return teacher.test_step(dict(batch))
    parts = zip(batch['inputs'], batch['data_samples'], strict=True)
    return [teacher.test_step(dict(inputs=[image], data_samples=[sample]))[0]
            for image, sample in parts]  # yapf: disable


def set_labels(sample: BaseDataElement, min_score: float) -> BaseDataElement:
    """Replace the predictions of a data sample by annotations.

    Raises:
        ValueError: If it is from a panoptic model.
    """
    new = type(sample)(metainfo=sample.metainfo)
    if 'pred_panoptic_seg' in sample:
        raise UserError('PseudoLabelHook does not support panoptic models')
    if 'pred_sem_seg' in sample:
        logits = sample.seg_logits.data
        if len(logits) == 1:
            raise UserError('PseudoLabelHook does not support out_channels=1: use two classes')
        scores, labels = to_probabilities(logits).max(0, keepdim=True)
        new.gt_sem_seg = PixelData(data=labels.where(scores >= min_score, IGNORED))
        return new
    found = sample.pred_instances
    found = found[found.scores >= min_score]
    size = sample.metainfo['img_shape']
    new.gt_instances = InstanceData(bboxes=found.bboxes, labels=found.labels)
    new.ignored_instances = InstanceData(
        bboxes=found.bboxes.new_zeros(0, 4), labels=found.labels.new_zeros(0))
    if 'masks' in found:
        from mmdet.structures.mask import BitmapMasks  # segmenters do not need mmdet
        masks = found.masks.cpu().numpy().astype(np.uint8)
        new.gt_instances.masks = BitmapMasks(masks.reshape(-1, *size), *size)
    return new


def to_probabilities(logits: Tensor) -> Tensor:
    """Return the probabilities of classes ``(K, H, W)`` from a segmenter's output.

    Heads with queries output sums of probabilities, which are not negative.
    """
    if (logits < 0).any():
        return logits.softmax(0)
    return logits / logits.sum(0, keepdim=True).clamp_min(1)


def has_labels(sample: BaseDataElement) -> bool:
    """Return True if a data sample has an object, or a pixel that is not ignored."""
    if 'gt_sem_seg' in sample:
        return bool((sample.gt_sem_seg.data != IGNORED).any())
    return len(sample.gt_instances) > 0


def change_image(image: Tensor) -> Tensor:
    """Return an image ``(C, H, W)`` with other colors, if it is 8-bit BGR, and a part hidden."""
    if len(image) == 3 and image.dtype == torch.uint8:
        image = JITTER(image)
    height, width = image.shape[-2:]
    rows, columns = (
        int(side * float(torch.empty(1).uniform_(*HIDDEN))) for side in (height, width))
    top, left = (int(torch.randint(side - part + 1, (1, )))
                 for side, part in ((height, rows), (width, columns)))  # yapf: disable
    image = image.clone()
    mean = image.float().mean((1, 2), keepdim=True).to(image.dtype)
    image[:, top:top + rows, left:left + columns] = mean
    return image
