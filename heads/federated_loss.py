"""Loss of detectors for LVIS, whose images are labeled for some of the classes only."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from mmdet.models.losses import accuracy
from mmdet.registry import MODELS
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.nn import functional as F

from colonnade.common.errors import UserError


@MODELS.register_module()
class FederatedLoss(nn.Module):
    """Binary cross entropy over the classes of a batch and some drawn at random.

    Federated loss of CenterNet2 (`arXiv 2103.07461 <https://arxiv.org/abs/2103.07461>`_, appendix
    B), as detectron2 has it: other classes are drawn in proportion to the square root of their
    number of images. The layer has an output for the background, which nothing reads.

    Args:
        num_classes: Number of classes without the background.
        num_sampled: Number of classes in the loss of a batch, the background included. All classes
            of the batch are.
        loss_weight: Factor of the loss.

    :class:`ImageCountHook` sets the numbers of images; without it, all classes are drawn alike.
    """
    custom_cls_channels = custom_activation = True  # read by mmdet's box heads

    def __init__(self, num_classes: int, num_sampled: int = 50, loss_weight: float = 1.) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.num_sampled = num_sampled
        self.loss_weight = loss_weight
        self.frequencies = torch.tensor([1.] * num_classes + [0.])  # of classes and background

    def get_cls_channels(self, num_classes: int) -> int:
        return num_classes + 1

    def get_activation(self, cls_score: Tensor) -> Tensor:
        """Return scores ``(n, num_classes + 1)`` from logits; those of the background are 0."""
        return F.pad(cls_score[:, :-1].sigmoid(), (0, 1))

    def get_accuracy(self, cls_score: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the share of objects (in percent) whose class has the highest score."""
        objects = labels < self.num_classes
        return dict(acc_classes=accuracy(cls_score[objects, :-1], labels[objects]))

    def forward(self,
                cls_score: Tensor,
                label: Tensor,
                weight: Tensor | None = None,
                avg_factor: float | Tensor | None = None,
                reduction_override: str | None = None) -> Tensor:
        """Compute the loss of logits ``(n, num_classes + 1)`` and labels ``(n, )``.

        Args:
            cls_score: Logits; the last is not used.
            label: Classes; ``num_classes`` is the background.
            weight: Weights ``(n, )`` of boxes.
            avg_factor: Divisor of the sum. Defaults to ``n``.
            reduction_override: Not supported; for mmdet's interface.
        """
        targets = F.one_hot(label, self.num_classes + 1)[:, :-1].to(cls_score.dtype)
        losses = F.binary_cross_entropy_with_logits(
            cls_score[:, :-1], targets, reduction='none') * self.sample(label)
        if weight is not None:
            losses = losses * weight[:, None]
        return self.loss_weight * losses.sum() / (len(label) if avg_factor is None else avg_factor)

    def sample(self, labels: Tensor) -> Tensor:
        """Return a mask ``(num_classes, )`` of the classes of a batch and those drawn."""
        self.frequencies = self.frequencies.to(labels.device)
        mask = torch.zeros_like(self.frequencies).index_fill_(0, labels, 1)
        # the largest keys of an exponential race are a draw without replacement
        keys = self.frequencies / torch.empty_like(self.frequencies).exponential_()
        keys = torch.where(mask > 0, torch.inf, keys)
        drawn = keys.topk(min(self.num_sampled, self.num_classes)).indices
        return mask.index_fill_(0, drawn, 1)[:-1]

    def set_image_counts(self, counts: Sequence[int]) -> None:
        """Draw classes in proportion to the square root of their number of images."""
        self.frequencies = torch.tensor([*counts, 0], dtype=torch.float32).sqrt()


def iter_parts(dataset: Any) -> Iterator[Any]:
    """Yield the datasets within wrappers; repeated images count once."""
    inner = getattr(dataset, 'datasets', None) or [getattr(dataset, 'dataset', None)]
    for part in inner:
        yield from [dataset] if part is None else iter_parts(part)


@HOOKS.register_module()
class ImageCountHook(Hook):
    """Give a :class:`FederatedLoss` the number of images of each class of the training data."""

    def before_train(self, runner: Runner) -> None:
        """Count the images of each class in the annotations.

        Raises:
            ValueError: If the dataset does not have the number of classes of the loss.
        """
        losses = [each for each in runner.model.modules() if isinstance(each, FederatedLoss)]
        datasets = list(iter_parts(runner.train_dataloader.dataset))
        num_classes = len(datasets[0].metainfo['classes'])
        if wrong := [each.num_classes for each in losses if each.num_classes != num_classes]:
            raise UserError(f'FederatedLoss has num_classes={wrong[0]}, but the training data have '
                            f'{num_classes} classes')
        counts = [0] * num_classes
        for dataset in datasets:
            for index in range(len(dataset)):
                for each in set(dataset.get_cat_ids(index)):
                    counts[each] += 1
        for loss in losses:
            loss.set_image_counts(counts)
