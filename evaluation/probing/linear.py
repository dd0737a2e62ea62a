"""Linear segmentation of frozen features, as DINOv2 evaluates them (arXiv 2304.07193, 7.4).

Shapes: ``n`` patches, ``C`` channels, ``K`` classes.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from colonnade.common.errors import UserError
from colonnade.common.progress import no_progress

from .soft_labels import SoftLabels

IMAGES_PER_STEP = 8
LEARNING_RATE = 1e-2  # of AdamW
WEIGHT_DECAY = 1e-4


class LinearProbe(nn.Module):
    """Batch norm and a linear layer.

    The norm has mean and variance of all training patches, not of a batch. Weights start at 0.
    """

    def __init__(self, mean: Tensor, var: Tensor, num_classes: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(len(mean), affine=False).eval()
        self.norm.running_mean.copy_(mean)
        self.norm.running_var.copy_(var)
        self.linear = nn.Linear(len(mean), num_classes)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Features of patches ``(n, C)`` to logits ``(n, K)``."""
        return self.linear(self.norm(x))


def train_linear_probe(features: Sequence[Tensor],
                       targets: Sequence[SoftLabels],
                       num_classes: int,
                       *,
                       steps: int,
                       seed: int,
                       device: str = 'cpu',
                       progress: Callable[[int], None] = no_progress) -> LinearProbe:
    """Fit the probe to shares of classes.

    The loss is the mean cross-entropy of all labelled pixels of the step's images, each with the
    logits of its patch. The learning rate falls to 0 by a cosine.

    Args:
        features: Of each training image, ``(h, w, C)``.
        targets: Of each training image.
        num_classes: ``K``.
        steps: Of the optimizer.
        seed: Of the order of images.
        device: Where the probe is trained.
        progress: Called with the number of steps that are done, after each.

    Raises:
        ValueError: If no pixel is labelled.
    """
    labelled = [index for index, target in enumerate(targets) if len(target.places)]
    if not labelled:
        raise UserError('no pixel of the training images is labelled')
    probe = LinearProbe(*moments(features), num_classes).to(device)
    optimizer = torch.optim.AdamW(
        probe.linear.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    with torch.enable_grad():
        for step, batch in enumerate(batches(labelled, steps, seed), 1):
            x = torch.cat([features[index].flatten(0, 1) for index in batch])
            shares = torch.cat([targets[index].dense() for index in batch]).to(device)
            log_probabilities = probe(x.to(device).float()).log_softmax(dim=1)
            loss = -(shares * log_probabilities).sum() / shares.sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            progress(step)
    return probe


def moments(features: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Mean and variance ``(C)`` of each channel over all patches of all images."""
    count, total, squares = 0, torch.zeros(()), torch.zeros(())
    for each in features:
        x = each.flatten(0, 1).double()
        count, total, squares = count + len(x), total + x.sum(0), squares + x.square().sum(0)
    mean = total / count
    return mean.float(), (squares / count - mean.square()).clamp(min=0).float()


def batches(indices: list[int], steps: int, seed: int) -> Iterator[list[int]]:
    """For each step some of the indices; all occur equally often, in an order of the seed's."""
    generator, waiting = torch.Generator().manual_seed(seed), list[int]()
    for _ in range(steps):
        while len(waiting) < min(IMAGES_PER_STEP, len(indices)):
            order = torch.randperm(len(indices), generator=generator).tolist()
            waiting += [indices[place] for place in order]
        yield waiting[:IMAGES_PER_STEP]
        waiting = waiting[IMAGES_PER_STEP:]
